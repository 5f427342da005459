"""FP8 attention on a Hopper GPU: what is done to Q, K and V before the kernel, and the call.

Inference only. Taught in notebook 13; the NumPy page that it follows is `flashlib.algorithms.flash_v3`.
"""

import math
from typing import Literal, overload

import torch
from torch.autograd import forward_ad

from flashlib.kernels.autocast import without_autocast
from flashlib.kernels.configs import FP8
from flashlib.kernels.ops import positive
from flashlib.kernels.problem import Problem
from flashlib.quant import E4M3_MAX

BLOCK_ROWS = 128                                            # rows of Q or K that share a scale


def hadamard(d: int, device) -> torch.Tensor:
    """Return the orthogonal (d, d) Hadamard matrix, d a power of 2."""
    H = torch.ones(1, 1, device=device)
    while H.shape[0] < d:
        H = torch.cat([torch.cat([H, H], 1), torch.cat([H, -H], 1)], 0)
    return H / math.sqrt(d)


def rotate(x: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """Return x times a signed Hadamard matrix, (..., d): Q and K rotated alike keep QKᵀ."""
    d = x.shape[-1]
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (d,), generator=generator).to(x.device) * 2.0 - 1.0
    return (x.float() * signs) @ hadamard(d, x.device)


def quantize_rows(x: torch.Tensor, per_block: bool = True):
    """Return x (B, H, N, d) in e4m3 and the scales (B, H, blocks) that bring it back.

    One scale per 128 rows, or with per_block=False one for the whole tensor, repeated.
    """
    B, H, N, d = x.shape
    blocks = -(-N // BLOCK_ROWS)
    x = torch.nn.functional.pad(x.float(), (0, 0, 0, blocks * BLOCK_ROWS - N))
    x = x.view(B, H, blocks, BLOCK_ROWS, d)
    largest = x.abs().amax((-1, -2)) if per_block else x.abs().amax().expand(B, H, blocks)
    scale = (largest / E4M3_MAX).clamp_min(1e-30)
    x8 = (x / scale[..., None, None]).to(torch.float8_e4m3fn)
    return x8.view(B, H, blocks * BLOCK_ROWS, d)[:, :, :N], scale.contiguous()


def permute_keys(v: torch.Tensor) -> torch.Tensor:
    """Return v with the rows of every 16 in the order in which a thread's registers hold P.

    Row 8j + 2t + b of 16 comes to 4t + 2j + b: a thread's columns of S are then its columns of P.
    """
    *lead, N, d = v.shape
    return v.view(*lead, N // 16, 2, 4, 2, d).transpose(-4, -3).reshape(*lead, N, d)


def quantize_values(v: torch.Tensor, per_block: bool = True):
    """Return Vᵀ (B, H, d, N padded to 32) in e4m3, keys permuted, and its scales (B, H, d).

    One scale per head and column, or with per_block=False one for the whole tensor, repeated.
    """
    B, H, N, d = v.shape
    v = torch.nn.functional.pad(v.float(), (0, 0, 0, -N % 32))
    largest = v.abs().amax(-2) if per_block else v.abs().amax().expand(B, H, d)
    scale = (largest / E4M3_MAX).clamp_min(1e-30)
    v8 = (permute_keys(v) / scale[..., None, :]).to(torch.float8_e4m3fn)
    return v8.transpose(-1, -2).contiguous(), scale.contiguous()


@without_autocast
def prepare(q, k, v, *, rotation: bool = True, per_block: bool = True):
    """Return ((q8, scales), (k8, scales), (v8ᵀ, scales)) as `backends.gluon.FP8` takes them."""
    if rotation:
        q, k = rotate(q), rotate(k)
    return quantize_rows(q, per_block), quantize_rows(k, per_block), quantize_values(v, per_block)


@overload
def flash_attention_fp8(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False,
                        scale: float | None = None, return_lse: Literal[False] = False,
                        rotation: bool = True, per_block: bool = True) -> torch.Tensor: ...
@overload
def flash_attention_fp8(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False,
                        scale: float | None = None, return_lse: Literal[True],
                        rotation: bool = True, per_block: bool = True
                        ) -> tuple[torch.Tensor, torch.Tensor]: ...
def flash_attention_fp8(q, k, v, *, causal=False, scale=None, return_lse=False, rotation=True,
                        per_block=True):
    """Attention with e4m3 operands on a Hopper GPU: approximate, for inference.

    FlashAttention-3 (Shah et al. 2024, arXiv:2407.08608), section 3.3. Taught in notebook 13. The
    preparation is a handful of torch operations and takes longer than the kernel: in a model it belongs
    into the kernel that writes Q, K and V.

    Args:
        q, k, v, causal, scale, return_lse: as in `flash_attention`; float16 or bfloat16, and D 64, 128
            or 256.
        rotation: turn Q and K by a Hadamard matrix with random signs.
        per_block: a scale per 128 rows of Q and K and per column of V, or one per tensor.
    Returns:
        O in the dtype of q, or (O, lse).
    Raises:
        ValueError, TypeError: as `flash_attention`.  NotImplementedError: another GPU, dtype or D, an
            empty input, or one that needs a gradient or carries a tangent.
    """
    from flashlib.kernels.attention import check_arguments

    q, k, v, scale = check_arguments(q, k, v, causal, scale, return_lse, "gluon")
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise NotImplementedError(f"q: FP8 attention expected float16 or bfloat16, got {q.dtype}")
    from flashlib.kernels.backends import gluon

    p = gluon.on_hopper(Problem.of(q, k, v))
    if p.device.capability is None or p.device.capability[0] != 9:
        raise NotImplementedError(f"q: FP8 attention expected tensors on a Hopper GPU, got {q.device}")
    if (q.shape[3], causal) not in FP8:
        known = ", ".join(map(str, sorted({D for D, _ in FP8})))
        raise NotImplementedError(f"q: FP8 attention expected a head dimension D of {known},"
                                  f" got {q.shape[3]}")
    if q.numel() == 0 or k.numel() == 0:
        raise NotImplementedError(f"q, k: FP8 attention expected at least one row each, got shapes"
                                  f" {tuple(q.shape)} and {tuple(k.shape)}")
    wanted = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    if wanted or any(forward_ad.unpack_dual(x).tangent is not None for x in (q, k, v)):
        raise NotImplementedError("q, k, v: FP8 attention is for inference; use torch.no_grad()")
    q, scale = positive(q, scale)
    prepared = prepare(q, k, v, rotation=rotation, per_block=per_block)
    o, lse = gluon.FP8.forward(*prepared, causal=causal, scale=scale, dtype=q.dtype)
    return (o, lse) if return_lse else o
