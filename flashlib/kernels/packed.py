"""Packed sequences as a public op: one after the other in a tensor, none of them padded."""

from typing import Literal, overload

import torch

from flashlib.kernels import packed_ops
from flashlib.kernels.attention import Impl, Sides, check_arguments, check_dense
from flashlib.kernels.autocast import of_one_dtype
from flashlib.kernels.scores import NONE, scores_of
from flashlib.masks import window_of


@overload
def flash_attention_varlen(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_q: torch.Tensor,
                           cu_k: torch.Tensor | None = None, *, causal: bool = False,
                           window: Sides = None, scale: float | None = None,
                           softcap: float | None = None, alibi: torch.Tensor | None = None,
                           sink: torch.Tensor | None = None, return_lse: Literal[False] = False,
                           impl: Impl = "auto") -> torch.Tensor: ...
@overload
def flash_attention_varlen(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_q: torch.Tensor,
                           cu_k: torch.Tensor | None = None, *, causal: bool = False,
                           window: Sides = None, scale: float | None = None,
                           softcap: float | None = None, alibi: torch.Tensor | None = None,
                           sink: torch.Tensor | None = None, return_lse: Literal[True],
                           impl: Impl = "auto") -> tuple[torch.Tensor, torch.Tensor]: ...
def flash_attention_varlen(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_q: torch.Tensor,
                           cu_k: torch.Tensor | None = None, *, causal: bool = False,
                           window: Sides = None, scale: float | None = None,
                           softcap: float | None = None, alibi: torch.Tensor | None = None,
                           sink: torch.Tensor | None = None, return_lse: bool = False,
                           impl: Impl = "auto") -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention inside each of several packed sequences, differentiable as `flash_attention` is.

    As FlashAttention's `flash_attn_varlen_func` and torch's `varlen_attn`: sequence i has the rows
    cu_q[i] … cu_q[i + 1] of q and cu_k[i] … cu_k[i + 1] of k and v. One launch forward, three backward
    (four beyond D = 128), for any number of sequences. What cu_q and cu_k hold stays on the GPU: no
    longest length is asked for, nothing waits for the host, and a CUDA graph that captured the call
    takes other lengths.

    Args:
        q: queries, (T_q, H, D).  k, v: (T_k, H_k, D); all else about them as in `flash_attention`.
        cu_q, cu_k: (N + 1,) int32, on the device of q, from 0 and never decreasing, up to T_q and T_k;
            cu_k None is cu_q. Rows behind the last sequence are not used, NaN or not, and get what a
            row gets that sees no key; nothing flows back from them, to a sink neither.
        causal, window, scale, softcap, return_lse: as in `flash_attention`, of each sequence by itself.
        alibi, sink: as there, (H,).
        impl: "auto", "triton" or "reference", as there; the others know no packed sequences.
    Returns:
        O (T_q, H, D), or (O, lse), lse (H, T_q), natural log.
    Raises:
        ValueError, TypeError, NotImplementedError: as `flash_attention`, naming the argument. The
            numbers in cu_q and cu_k are looked at where the host reads them, which is on CPU tensors
            and with impl="reference", and so on a GPU, too. Elsewhere wrong ones give wrong rows, but
            nothing outside of the tensors is read or written.
    """
    check_dense("(T, H, D)", q=q, k=k, v=v)
    if v.shape != k.shape and k.shape[-1] == q.shape[-1]:
        raise ValueError(f"v: expected the shape of k, {tuple(k.shape)}, got {tuple(v.shape)}")
    if not q.dtype == k.dtype == v.dtype:
        q, k, v = of_one_dtype(q, k, v)
    Q, K, V = (x.detach().transpose(0, 1)[None] for x in (q, k, v))
    factor = check_arguments(Q, K, V, causal, scale, return_lse, impl)[3]
    _check_starts("cu_q", cu_q, q.device)
    if cu_k is not None:
        _check_starts("cu_k", cu_k, q.device)
        if len(cu_k) != len(cu_q):
            raise ValueError(f"cu_k: expected {len(cu_q)} numbers as cu_q, got {len(cu_k)}")
    seen, scores = window_of(causal, window), NONE
    if not (softcap is None and alibi is None and sink is None):
        scores = scores_of(Q, softcap, alibi, sink)
    if torch.compiler.is_compiling():
        o, lse = packed_ops.packed_forward(q, k, v, cu_q, cu_k, seen.left, seen.right, factor, impl,
                                           *scores)
    else:
        o, lse = packed_ops.Packed.apply(q, k, v, cu_q, cu_k, seen, factor, impl, *scores)
    return (o, lse) if return_lse else o


def _check_starts(name: str, cu, device: torch.device) -> None:
    """Refuse by name what cannot say where sequences begin; what it holds is not looked at."""
    if not isinstance(cu, torch.Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(cu).__name__}")
    if cu.dtype != torch.int32:
        raise TypeError(f"{name}: expected int32, got {cu.dtype}")
    if cu.ndim != 1 or not len(cu):
        raise ValueError(f"{name}: expected shape (N + 1,), got {tuple(cu.shape)}")
    if cu.device != device:
        raise ValueError(f"{name}: expected a tensor on {device} as q, got {cu.device}")
