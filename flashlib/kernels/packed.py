"""Packed sequences as a public op: one after the other in a tensor, none of them padded."""

from typing import Literal, overload

import torch

from flashlib.kernels.attention import Impl, Sides, flash_attention


@overload
def flash_attention_varlen(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_q: torch.Tensor,
                           cu_k: torch.Tensor | None = None, *, causal: bool = False,
                           window: Sides = None, scale: float | None = None,
                           return_lse: Literal[False] = False, impl: Impl = "auto"
                           ) -> torch.Tensor: ...
@overload
def flash_attention_varlen(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_q: torch.Tensor,
                           cu_k: torch.Tensor | None = None, *, causal: bool = False,
                           window: Sides = None, scale: float | None = None,
                           return_lse: Literal[True], impl: Impl = "auto"
                           ) -> tuple[torch.Tensor, torch.Tensor]: ...
def flash_attention_varlen(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_q: torch.Tensor,
                           cu_k: torch.Tensor | None = None, *, causal: bool = False,
                           window: Sides = None, scale: float | None = None,
                           return_lse: bool = False, impl: Impl = "auto"
                           ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention inside each of several packed sequences, differentiable as `flash_attention` is.

    In the meaning of FlashAttention's `flash_attn_varlen_func`: sequence i has the rows cu_q[i] …
    cu_q[i + 1] of q and cu_k[i] … cu_k[i + 1] of k and v. Every sequence is a launch of its own, and
    the cumulative lengths are read on the host: right for any lengths, and fast for few long ones.

    Args:
        q: queries, (T_q, H, D).  k, v: (T_k, H_k, D).
        cu_q, cu_k: (N + 1,) int32, from 0 and never decreasing, to T_q and T_k; cu_k None is cu_q.
        causal, window, scale, return_lse, impl: as in `flash_attention`, for each sequence by itself.
    Returns:
        O (T_q, H, D), or (O, lse), lse (H, T_q), natural log.
    Raises:
        ValueError, TypeError, NotImplementedError: as `flash_attention`, naming the argument.
    """
    cu_k, from_k = (cu_q, "cu_q") if cu_k is None else (cu_k, "cu_k")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name}: expected a torch.Tensor, got {type(x).__name__}")
        if x.ndim != 3:
            raise ValueError(f"{name}: expected 3 dimensions (T, H, D), got shape {tuple(x.shape)}")
    ends_q, ends_k = _ends("cu_q", cu_q, len(q), "q"), _ends(from_k, cu_k, len(k), "k")
    if len(ends_q) != len(ends_k):
        raise ValueError(f"cu_k: expected {len(ends_q)} numbers as cu_q, got {len(ends_k)}")
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))  # (1, H, T, D)
    if len(ends_q) == 1:                                    # no sequence: checks, and gradients of zero
        ends_q, ends_k = [0, 0], [0, 0]
    found = [flash_attention(q[:, :, a:b], k[:, :, c:d], v[:, :, c:d], causal=causal, window=window,
                             scale=scale, return_lse=True, impl=impl)
             for a, b, c, d in zip(ends_q, ends_q[1:], ends_k, ends_k[1:], strict=False)]
    if not isinstance(return_lse, bool):
        raise TypeError(f"return_lse: expected True or False, got {return_lse!r}")
    o = torch.cat([o for o, _ in found], 2)[0].transpose(0, 1).contiguous()
    return (o, torch.cat([lse for _, lse in found], 2)[0]) if return_lse else o


def _ends(name: str, cu, total: int, of: str) -> list[int]:
    """Return cumulative lengths as numbers of the host, or refuse them by name."""
    if not isinstance(cu, torch.Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(cu).__name__}")
    if cu.dtype != torch.int32:
        raise TypeError(f"{name}: expected int32, got {cu.dtype}")
    if cu.ndim != 1 or not len(cu):
        raise ValueError(f"{name}: expected shape (N + 1,), got {tuple(cu.shape)}")
    ends = cu.tolist()
    if ends[0] != 0 or ends[-1] != total or sorted(ends) != ends:
        raise ValueError(f"{name}: expected numbers from 0 that never decrease, to {total}, the rows of"
                         f" {of}, got {ends if len(ends) <= 8 else [*ends[:4], '…', *ends[-3:]]}")
    return ends
