"""Packed sequences as a public op: one after the other in a tensor, none of them padded."""

from typing import Literal, overload

import torch

from flashlib.kernels import packed_ops
from flashlib.kernels.attention import (
    Impl,
    Sides,
    are_unlike,
    check_arguments,
    check_dense,
    check_tensor,
    of_unlike,
)
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
        O (T_q, H, D of v), or (O, lse), lse (H, T_q), natural log.
    Raises:
        ValueError, TypeError, NotImplementedError: as `flash_attention`, naming the argument. The
            numbers in cu_q and cu_k are looked at where the host reads them, which is on CPU tensors
            and with impl="reference", and so on a GPU, too. Elsewhere wrong ones give wrong rows, but
            nothing outside of the tensors is read or written.
    """
    if are_unlike(q, k, v):
        return of_unlike(flash_attention_varlen, q, k, v, cu_q, cu_k, scale=scale, causal=causal,
                         window=window, softcap=softcap, alibi=alibi, sink=sink, impl=impl,
                         return_lse=return_lse)
    q, k, v = check_dense("(T, H, D)", q, k, v)
    Q, K, V = (x.detach().transpose(0, 1)[None] for x in (q, k, v))
    factor = check_arguments(Q, K, V, causal, scale, return_lse, impl)[3]
    check_tensor("cu_q", cu_q, torch.int32, ("N + 1",), q.device, " as q")
    if not len(cu_q):
        raise ValueError("cu_q: expected shape (N + 1,), got (0,)")
    if cu_k is not None:
        check_tensor("cu_k", cu_k, torch.int32, ("N + 1",), q.device, " as q")
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
