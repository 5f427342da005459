"""Attention as torch sees it: a forward and a backward, for eager mode and for `torch.compile`.

Eager calls go through `Attention`, an autograd function; a traced call through the custom ops
`flashlib::attention_forward` and `flashlib::attention_backward`, so that no graph breaks. All end in
the same two functions. The arguments were checked by `flashlib.kernels.attention`, and what a row
sees is one `Window` (in the ops' schema, which knows no such type, its two bounds). Softcap, slopes and
sinks come as `flashlib.kernels.scores` checked them; slopes and sinks may be (B, H) here.

Differentiable once, backward. What torch would otherwise answer with a constant or with nothing (a
gradient of the gradient, a forward-mode tangent) is refused in a sentence.
"""

import math
from typing import Any

import torch
from torch.autograd import forward_ad

from flashlib.kernels.backends import choose
from flashlib.kernels.problem import Problem
from flashlib.kernels.scores import Scores, kind_of
from flashlib.masks import Window

OPTIONS = ("SymInt? left, SymInt? right, float scale, str impl, float? softcap=None,"
           " Tensor? alibi=None, Tensor? sink=None")


def positive(q, scale: float):
    """Return q and scale with the sign of the scale in q: kernels take the maximum of raw scores."""
    return (q, scale) if scale >= 0 else (-q, -scale)


def forward(q, k, v, window: Window, scale: float, impl: str, p: Problem | None = None, softcap=None,
            alibi=None, sink=None, *, cu=None, into=None, reserve=0):
    """Return O and lse (B, H, N_q) float32 or, for float64, float64; nothing to attend to is O = 0.

    `p` is the problem of these tensors, if it is known. `cu` are where packed sequences begin in q, and
    in k and v, with the end of the last behind them, None where none are packed.

    `into` is a state, O and lse in that wide dtype, of any strides: these keys are folded into it, in
    place, and it is returned. A row with lse = −∞ is empty, whatever its O holds, and a sink is a state
    that begins with lse = sink and O = 0. `reserve`: SMs that a persistent launch leaves to others,
    such as the transport of a ring; it changes no bit.
    """
    if into is not None and not (sink is None and cu is None):
        raise ValueError("into: expected no sink and no packed sequences beside a state")
    if type(reserve) is not int or reserve < 0:
        raise ValueError(f"reserve: expected a whole number from 0, got {reserve!r}")
    if q.is_neg() or k.is_neg() or v.is_neg():              # a kernel reads numbers as they lie
        q, k, v, p = q.resolve_neg(), k.resolve_neg(), v.resolve_neg(), None
    if scale < 0:
        (q, scale), p = positive(q, scale), None
    if p is None:
        p = Problem.of(q, k, v, *([] if into is None else into[:1]), window=window,
                       scores=kind_of(softcap, alibi, sink),
                       sequences=None if cu is None else len(cu[0]) - 1, into=into is not None,
                       reserve=reserve)
    backend = choose(p, impl, "forward")
    if into is not None:
        if p.B and p.N_Q and p.N_K:
            _fold(backend, q, k, v, p, scale, Scores(softcap, alibi), into)
        return into
    if not (p.B and p.N_Q and p.N_K):
        return torch.zeros_like(q, memory_format=torch.contiguous_format), lse_of_none(q, sink)
    return backend.forward(q, k, v, p, scale, scores=Scores(softcap, alibi, sink),
                           **({} if cu is None else {"cu": cu}))


def _fold(backend, q, k, v, p: Problem, scale: float, scores: Scores, into) -> None:
    """Fold keys into a state; a backend is given lse as its kernels read it."""
    o, lse = into
    rows = lse.contiguous()
    rows = rows if rows.data_ptr() % 16 == 0 else rows.clone()
    backend.forward(q, k, v, p, scale, scores=scores, into=(o, rows))
    if rows is not lse:
        lse.copy_(rows)


def delta_of(o, do, dlse=None):
    """Return delta = rowsum(dO ∘ O) − dlse, (B, H, N_q), which `backward` takes, so as to share it."""
    wide = torch.promote_types(do.dtype, torch.float32)
    delta = (o.to(wide) * do.to(wide)).sum(-1)
    return delta if dlse is None else delta - dlse


def backward(q, k, v, o, lse, do, dlse, window: Window, scale: float, impl: str, *scores, cu=None,
             into=None, delta=None):
    """Return dq, dk, dv, with a sink its gradient by batch entry, (B, H), as a fourth.

    do or dlse is None where nothing depends on that output. `scores`: softcap, slopes, sink, or none.

    o and lse may be of more keys than these: then dq is the part that is theirs. `into` are three
    float32 (for float64, float64) sums like q, k and v, of any strides: they are added to, in place,
    and returned. With `delta`, as `delta_of` returns it, o and dlse are not read.
    """
    softcap, alibi, sink = scores or (None, None, None)
    if into is not None and not (sink is None and cu is None):
        raise ValueError("into: expected no sink and no packed sequences beside sums")
    if delta is not None and into is None:
        raise ValueError("delta: expected sums to add to beside it, into=, got none")
    batched = vars(torch._C)["_functorch"].is_legacy_batchedtensor
    if any(batched(x) for x in (do, dlse) if x is not None):
        raise NotImplementedError("flash_attention: no is_grads_batched; use torch.func.vmap or jacrev")
    if q.numel() == 0 or k.numel() == 0:
        if into is not None:
            return into
        zeros = tuple(torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
        if sink is None:
            return zeros
        return *zeros, (torch.zeros_like(lse) if dlse is None else dlse).sum(-1)
    do = torch.zeros_like(q if o is None else o) if do is None else do.resolve_neg()
    o = do if o is None else o                              # nobody reads it, but it has a layout
    dlse = None if dlse is None else dlse.resolve_neg()
    if q.is_neg() or k.is_neg() or v.is_neg():
        q, k, v = q.resolve_neg(), k.resolve_neg(), v.resolve_neg()
    blind = 0 if window.right is None or cu is not None else q.shape[2] - k.shape[2] - window.right
    if blind > 0:
        do = do.clone()                                     # the first rows, which see nothing:
        do[:, :, :blind] = 0                                # a NaN that flows into them ends there
    negative = scale < 0
    q, scale = positive(q, scale)
    p = Problem.of(q, k, v, o, do, *(into or ()), window=window, scores=kind_of(softcap, alibi, sink),
                   sequences=None if cu is None else len(cu[0]) - 1, into=into is not None)
    more = {name: x for name, x in (("cu", cu), ("into", into)) if x is not None}
    if into is not None:                                    # backends take it in place of o
        o, dlse = delta_of(o, do, dlse) if delta is None else delta, None
    if negative and into is not None:
        into[0].neg_()                                      # of −q, until it is returned
    dq, *others = choose(p, impl, "backward").backward(q, k, v, o, lse, do, dlse, p, scale,
                                                       scores=Scores(softcap, alibi, sink), **more)
    return dq.neg_() if negative else dq, *others


def lse_like(q, fill):
    """Return a row of statistics like those of the op, all with one value."""
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    return torch.full(q.shape[:3], fill, dtype=wide, device=q.device)


def lse_of_none(q, sink):
    """Return the lse of rows that see nothing: −∞, or the sink."""
    if sink is None:
        return lse_like(q, -math.inf)
    return sink.expand(q.shape[:2])[..., None].expand(q.shape[:3]).contiguous().clone()  # to write on


def _save(ctx, inputs, output):
    q, k, v, *ctx.options, alibi, sink = inputs
    ctx.set_materialize_grads(False)                        # an unused output costs no zeros
    ctx.save_for_backward(q, k, v, *output, alibi, sink)


def _save_for_call(ctx, inputs, output):
    _save(ctx, (*inputs[:6], *inputs[7:]), output)          # the problem is not needed again


def _given(ctx, do, dlse) -> Any:
    """Return the arguments of `backward`."""
    q, k, v, o, lse, alibi, sink = ctx.saved_tensors
    return q, k, v, o, lse, do, dlse, *ctx.options, alibi, sink


def _of_sink(sink, gradients):
    """Return the gradient of the sink, if there is one, in its shape."""
    return None if sink is None else gradients[0] if sink.ndim == 2 else gradients[0].sum(0)


def transformed() -> bool:
    """Tell whether forward-mode autograd or torch.func is at work, which must see every call."""
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def no_second_derivative(ctx, *_):
    raise NotImplementedError(
        "flash_attention: double backward is not offered, so its gradients cannot be differentiated"
        " again; torch.nn.functional.scaled_dot_product_attention can, with SDPBackend.MATH")


def no_tangents(ctx, *_):
    raise NotImplementedError(
        "flash_attention: forward-mode derivatives (jvp, jacfwd, dual tensors) are not offered; use"
        " backward, torch.func.grad, vjp or jacrev")


def _mapped(function, info, in_dims, inputs):
    """Apply a function under torch.vmap: what it maps over joins the batch axis."""
    many = info.batch_size
    joined = [x if not isinstance(x, torch.Tensor) else
              (x.expand(many, *x.shape) if at is None else x.movedim(at, 0)).flatten(0, 1)
              for x, at in zip(inputs, in_dims, strict=True)]
    outputs = function.apply(*joined)
    return tuple(x.unflatten(0, (many, x.shape[0] // many)) for x in outputs), (0,) * len(outputs)


class Attention(torch.autograd.Function):
    """Saves Q, K, V, O and one lse row: nothing N×N."""

    @staticmethod
    def forward(ctx, *inputs):
        output = forward(*inputs)
        _save_for_call(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx, *gradients):
        inputs = _given(ctx, *gradients)
        # With create_graph the gradient has to remember that it cannot be differentiated.
        dq, dk, dv, *more = Gradient.apply(*inputs) if torch.is_grad_enabled() else backward(*inputs)
        return dq, dk, dv, None, None, None, None, None, None, _of_sink(inputs[-1], more)


def _forward_of(*inputs: Any):                              # torch.func would count `cu`, too
    return forward(*inputs)


def _backward_of(*inputs: Any):
    return backward(*inputs)


class TransformedAttention(torch.autograd.Function):
    """The same in the form that torch.func takes, which costs each call some microseconds more."""

    forward = staticmethod(_forward_of)
    backward = staticmethod(Attention.backward)
    setup_context = staticmethod(_save_for_call)
    jvp = staticmethod(no_tangents)

    @staticmethod
    def vmap(info, in_dims, *inputs):
        return _mapped(TransformedAttention, info, in_dims, inputs)


class Gradient(torch.autograd.Function):
    """The backward pass as a function of its own, whose derivative is a refusal."""

    forward = staticmethod(_backward_of)
    backward = staticmethod(no_second_derivative)
    jvp = staticmethod(no_second_derivative)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vmap(info, in_dims, *inputs):
        return _mapped(Gradient, info, in_dims, inputs)


def _forward_op(q, k, v, left, right, scale, impl, softcap=None, alibi=None, sink=None):
    return forward(q, k, v, Window(left, right), scale, impl, None, softcap, alibi, sink)


def _backward_op(q, k, v, o, lse, do, dlse, left, right, scale, impl, softcap=None, alibi=None,
                 sink=None):
    found = backward(q, k, v, o, lse, do, dlse, Window(left, right), scale, impl, softcap, alibi, sink)
    return found if len(found) == 4 else (*found, lse.new_empty(0))


attention_forward = torch.library.custom_op(
    "flashlib::attention_forward", _forward_op, mutates_args=(),
    schema=f"(Tensor q, Tensor k, Tensor v, {OPTIONS}) -> (Tensor, Tensor)")
attention_backward = torch.library.custom_op(
    "flashlib::attention_backward", _backward_op, mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor? do, Tensor? dlse,"
           f" {OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor)")


@attention_forward.register_fake
def _(q, k, v, *options):
    return torch.empty_like(q, memory_format=torch.contiguous_format), lse_like(q, 0.0)


@attention_backward.register_fake
def _(q, k, v, o, lse, do, dlse, *options):
    of_sink = lse.new_empty(0 if len(options) < 7 or options[-1] is None else lse.shape[:2])
    return *(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v)), of_sink


def _differentiate(ctx, do, dlse):
    inputs = _given(ctx, do, dlse)
    dq, dk, dv, *more = attention_backward(*inputs)
    return dq, dk, dv, None, None, None, None, None, None, _of_sink(inputs[-1], more)


attention_forward.register_autograd(_differentiate, setup_context=_save)
attention_backward.register_autograd(no_second_derivative)
