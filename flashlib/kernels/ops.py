"""Attention as torch sees it: a forward and a backward, for eager mode and for `torch.compile`.

Eager calls go through `Attention`, an autograd function; a traced call through the custom ops
`flashlib::attention_forward` and `flashlib::attention_backward`, so that no graph breaks. All end in
the same two functions. The arguments were checked by `flashlib.kernels.attention`.
"""

from __future__ import annotations

import math

import torch

from flashlib.kernels.backends import choose
from flashlib.kernels.problem import CAUSAL, FULL, Problem

OPTIONS = "bool causal, float scale, str impl"


def positive(q, scale: float):
    """Return q and scale with the sign of a negative scale in q: kernels take maxima of raw scores."""
    return (q, scale) if scale >= 0 else (-q, -scale)


def forward(q, k, v, causal: bool, scale: float, impl: str):
    """Return O and lse (B, H, N_q) float32 or, for float64, float64; nothing to attend to is O = 0."""
    q, scale = positive(q, scale)
    p = Problem.of(q, k, v, window=CAUSAL if causal else FULL)
    backend = choose(p, impl, "forward")
    if q.numel() == 0 or k.numel() == 0:
        return torch.zeros_like(q, memory_format=torch.contiguous_format), _lse_like(q, -math.inf)
    return backend.forward(q, k, v, p, scale)


def backward(q, k, v, o, lse, do, dlse, causal: bool, scale: float, impl: str):
    """Return dq, dk, dv; do or dlse is None where nothing depends on that output."""
    if q.numel() == 0 or k.numel() == 0:
        return tuple(torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    do = torch.zeros_like(o) if do is None else do
    x, factor = positive(q, scale)
    p = Problem.of(x, k, v, o, do, window=CAUSAL if causal else FULL)
    dq, dk, dv = choose(p, impl, "backward").backward(x, k, v, o, lse, do, dlse, p, factor)
    return dq if factor == scale else dq.neg_(), dk, dv


def _lse_like(q, fill):
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    return torch.full(q.shape[:3], fill, dtype=wide, device=q.device)


def _save(ctx, inputs, output):
    q, k, v, *ctx.options = inputs
    ctx.set_materialize_grads(False)                        # an unused output costs no zeros
    ctx.save_for_backward(q, k, v, *output)


class Attention(torch.autograd.Function):
    """Saves Q, K, V, O and one lse row: nothing N×N."""

    @staticmethod
    def forward(ctx, *inputs):
        output = forward(*inputs)
        _save(ctx, inputs, output)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, do, dlse):
        return *backward(*ctx.saved_tensors, do, dlse, *ctx.options), None, None, None


attention_forward = torch.library.custom_op(
    "flashlib::attention_forward", forward, mutates_args=(),
    schema=f"(Tensor q, Tensor k, Tensor v, {OPTIONS}) -> (Tensor, Tensor)")
attention_backward = torch.library.custom_op(
    "flashlib::attention_backward", backward, mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor? do, Tensor? dlse,"
           f" {OPTIONS}) -> (Tensor, Tensor, Tensor)")


@attention_forward.register_fake
def _(q, k, v, causal, scale, impl):
    return torch.empty_like(q, memory_format=torch.contiguous_format), _lse_like(q, 0.0)


@attention_backward.register_fake
def _(q, k, v, o, lse, do, dlse, causal, scale, impl):
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))


def _differentiate(ctx, do, dlse):
    return *attention_backward(*ctx.saved_tensors, do, dlse, *ctx.options), None, None, None


attention_forward.register_autograd(_differentiate, setup_context=_save)
