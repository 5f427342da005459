"""From tensors to kernels: descriptors where the GPU has them, grids, and the order of launches.

The arguments were checked by `flashlib.kernels.attention`; nothing here is public. What depends only
on shapes, strides and the like is worked out once, as a plan, and kept by `dispatch`.
"""

from __future__ import annotations

import functools

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from flashlib.kernels import dispatch, tuned
from flashlib.kernels.configs import configs_for, padded
from flashlib.kernels.triton.backward import (
    flash_bwd_delta_kernel,
    flash_bwd_dkdv_kernel,
    flash_bwd_dq_kernel,
)
from flashlib.kernels.triton.forward import flash_fwd_kernel
from flashlib.masks import Window

if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 5):     # no `disable_licm`
    raise ImportError(f"the kernels need Triton 3.5 or newer, got {triton.__version__}")

LOG2E = 1.4426950408889634
NARROW = 16                                                 # below it float32 costs next to nothing


@functools.cache
def capability_of(device: torch.device) -> tuple[int, int] | None:
    """Return the compute capability of a GPU, None for the CPU (Triton's interpreter)."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None


def interpreted() -> bool:
    """Tell whether Triton runs in its interpreter, which works on CPU tensors."""
    return bool(triton.knobs.runtime.interpret)


def _uses_tma(*tensors: torch.Tensor) -> bool:
    """Tell whether the bulk-copy engine can read (B, H, N, D) tensors as they lie in memory."""
    capability = capability_of(tensors[0].device)
    if capability is None or capability[0] < 9:
        return False
    for x in tensors:                                       # every call comes by: no generator here
        if x.data_ptr() % 16 or not _strides_fit(x.dtype, x.shape, x.stride()):
            return False
    return True


@functools.lru_cache(dispatch.KEPT)
def _strides_fit(dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    return dtype.itemsize == 2 and strides[3] == 1 and all(
        size == 1 or (stride > 0 and stride % 8 == 0)
        for size, stride in zip(shape[:3], strides, strict=False))


def _describe(x: torch.Tensor, rows: int, head_dim: int):
    """Return a function that makes the descriptor of any tensor that lies in memory as x does."""
    shape, block = list(x.shape), [1, 1, rows, head_dim]
    strides = [stride if size > 1 else 16 for size, stride in zip(shape, x.stride(), strict=True)]
    strides[3] = 1
    return lambda tensor: TensorDescriptor(tensor, shape, strides, block)


def _described(tma: bool, head_dim: int, tensors: dict):
    """Return position → function to the descriptor, of position → (tensor, rows); empty without TMA."""
    return {at: _describe(x, rows, head_dim) for at, (x, rows) in tensors.items() if tma}


def _contiguous(x: torch.Tensor) -> tuple[int, int, int, int]:
    _, H, N, D = x.shape
    return H * N * D, N * D, D, 1


def sides_of(window: Window | None, N_Q: int, N_K: int) -> tuple[int, int] | None:
    """Return a window as kernels take it: two numbers, of which what is far away is no bound."""
    if window is None:
        return None
    return tuple(N_Q + N_K if side is None else min(side, N_Q + N_K)
                 for side in (window.left, window.right))


def _constants(q, k, c, seen, ragged: bool, tma: bool) -> dict:
    """Return what all kernels but that of delta are told beside strides, by name."""
    (causal, window), (_, H, N_Q, D), (H_K, N_K) = seen, q.shape, k.shape[1:3]
    return dict(sizes=(H, H // H_K, N_Q, N_K, D), window=sides_of(window, N_Q, N_K), BLOCK_M=c.BLOCK_M,
                BLOCK_N=c.BLOCK_N, HEAD_DIM=padded(D), IS_CAUSAL=causal, EVEN_D=padded(D) == D,
                RAGGED=ragged, USE_TMA=tma)


def _is_narrow(q: torch.Tensor) -> bool:
    """Tell whether a 16-bit head is so narrow that rounding P and dS would make all of its error."""
    return q.element_size() == 2 and q.shape[3] < NARROW


def _plan_forward(q, k, v, causal, config, window=None):
    B, H, N_Q, D = q.shape
    N_K, head_dim = k.shape[2], padded(D)
    tma = _uses_tma(q, k, v)
    c = (config or tuned.kept("triton_forward", q, k, causal, tma)
         or configs_for(capability_of(q.device), q.element_size(), D, causal).forward)
    return dispatch.Launch(
        flash_fwd_kernel, triton.cdiv(N_Q, c.BLOCK_M) * B * H,
        dict(stride_q=q.stride(), stride_k=k.stride(), stride_v=v.stride(), stride_o=_contiguous(q),
             **_constants(q, k, c, (causal, window), N_K % c.BLOCK_N != 0, tma)),
        _described(tma, head_dim, {0: (q, c.BLOCK_M), 1: (k, c.BLOCK_N), 2: (v, c.BLOCK_N)}),
        num_warps=c.num_warps, num_stages=c.num_stages)


def forward(q, k, v, *, causal: bool, scale: float, config=None, window: Window | None = None):
    """Return O, like q but contiguous, and lse (B, H, N_Q) float32; a window excludes causal."""
    if _is_narrow(q):
        o, lse = forward(q.float(), k.float(), v.float(), causal=causal, scale=scale, config=config,
                         window=window)
        return o.to(q.dtype), lse
    launch = dispatch.plan_for(_plan_forward, (q, k, v), causal, config, window)
    o = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    with dispatch.on(q.device):
        launch(q, k, v, o, lse, scale * LOG2E)
    return o, lse


def _tma_of_backward(q, k, v, do) -> tuple[bool, bool]:
    """Tell whether the bulk-copy engine reads what the kernel of dK and dV walks, and that of dQ."""
    # ptxas 12.8 crashes on the former where descriptors meet a length of 1, which Triton folds in.
    return min(q.shape[2], k.shape[2]) > 1 and _uses_tma(q, do), _uses_tma(k, v)


def _plan_backward(q, k, v, o, do, has_dlse, causal, configs, window=None):
    """Return the launches of delta, of dK and dV with what each writes, and of dQ.

    `has_dlse` only tells plans apart: a kernel to which DLSE is None is compiled without it.
    """
    B, H, N_Q, D = q.shape
    H_K, N_K, head_dim = k.shape[1], k.shape[2], padded(D)
    tma, tma_of_dq = _tma_of_backward(q, k, v, do)
    table = (configs or tuned.kept("triton_backward", q, k, causal, (tma, tma_of_dq))
             or configs_for(capability_of(q.device), q.element_size(), D, causal))
    delta = dispatch.Launch(
        flash_bwd_delta_kernel, triton.cdiv(N_Q, 64) * B * H,
        dict(stride_o=o.stride(), stride_do=do.stride(), H=H, N_Q=N_Q, D=D, BLOCK_M=64,
             HEAD_DIM=head_dim), num_warps=4)
    strides = dict(stride_q=q.stride(), stride_k=k.stride(), stride_v=v.stride(),
                   stride_do=do.stride())

    by_key = []
    for c, want_dk, want_dv in ([(table.dkdv, True, True)] if table.dkdv else
                                [(table.dk, True, False), (table.dv, False, True)]):
        ragged = N_Q % c.BLOCK_M != 0 or N_K % c.BLOCK_N != 0
        launch = dispatch.Launch(
            flash_bwd_dkdv_kernel, triton.cdiv(N_K, c.BLOCK_N) * B * H_K,
            dict(strides, stride_dk=_contiguous(k), stride_dv=_contiguous(v),
                 **_constants(q, k, c, (causal, window), ragged, tma)),
            _described(tma, head_dim, {0: (q, c.BLOCK_M), 3: (do, c.BLOCK_M)}),
            num_warps=c.num_warps, num_stages=c.num_stages)
        by_key.append((launch, want_dk, want_dv))

    c = table.dq
    by_query = dispatch.Launch(
        flash_bwd_dq_kernel, triton.cdiv(N_Q, c.BLOCK_M) * B * H,
        dict(strides, stride_dq=_contiguous(q),
             **_constants(q, k, c, (causal, window), N_K % c.BLOCK_N != 0, tma_of_dq)),
        _described(tma_of_dq, head_dim, {1: (k, c.BLOCK_N), 2: (v, c.BLOCK_N)}),
        num_warps=c.num_warps, num_stages=c.num_stages)
    return delta, by_key, by_query


def _row_statistics(x):
    """Return a (B, H, N_Q) tensor as the kernels read it: contiguous, and aligned like a new one."""
    x = x.contiguous()
    return x if x.data_ptr() % 16 == 0 else x.clone()


def backward(q, k, v, o, lse, do, dlse, *, causal: bool, scale: float, configs=None,
             window: Window | None = None):
    """Return dq, dk, dv, contiguous, in the dtype of their tensors; dlse may be None."""
    if _is_narrow(q):
        wide = backward(q.float(), k.float(), v.float(), o.float(), lse, do.float(), dlse,
                        causal=causal, scale=scale, configs=configs, window=window)
        return tuple(x.to(q.dtype) for x in wide)
    lse = _row_statistics(lse)
    dlse = None if dlse is None else _row_statistics(dlse)
    sum_rows, by_key, by_query = dispatch.plan_for(
        _plan_backward, (q, k, v, o, do), dlse is not None, causal, configs, window)
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    delta = torch.empty_like(lse)
    with dispatch.on(q.device):
        sum_rows(o, do, dlse, delta)
        for launch, want_dk, want_dv in by_key:
            launch(q, k, v, do, lse, delta, dk if want_dk else None, dv if want_dv else None, scale,
                   scale * LOG2E)
        by_query(q, k, v, do, lse, delta, dq, scale, scale * LOG2E)
    return dq, dk, dv
