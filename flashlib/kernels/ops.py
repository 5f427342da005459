"""Attention as torch sees it: a forward and a backward, for eager mode and for `torch.compile`.

Eager calls go through `Attention`, an autograd function; a traced call through the custom ops
`flashlib::attention_forward` and `flashlib::attention_backward`, so that no graph breaks. All end in
the same two functions. The arguments were checked by `flashlib.kernels.attention`, and what a row
sees is one `Window` (in the ops' schema, which knows no such type, its two bounds).

Differentiable once, backward. What torch would otherwise answer with a constant or with nothing (a
gradient of the gradient, a forward-mode tangent) is refused in a sentence.
"""

from __future__ import annotations

import functools
import math

import torch
from torch.autograd import forward_ad

from flashlib.masks import Window

OPTIONS = "SymInt? left, SymInt? right, float scale, str backend"
FULL, CAUSAL = Window(), Window(None, 0)


@functools.cache
def _hopper():
    from flashlib.kernels import launch_hopper

    return launch_hopper


@functools.cache
def _has_hopper(device: torch.device) -> bool:
    """Tell whether the Gluon kernel may be asked at all: a Hopper GPU, and a Triton with Gluon."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != 9:
        return False
    try:
        _hopper()
    except ImportError:
        return False
    from flashlib.kernels import launch

    return not launch.interpreted()                         # for which Gluon has no way


@functools.cache
def launcher(backend: str, device: torch.device, dtype: torch.dtype):
    """Return the module whose `forward` and `backward` run a backend, or say why it cannot run."""
    if backend == "auto":                                   # what runs on every GPU
        backend = "triton" if device.type == "cuda" else "reference"
    if device.type == "cuda" and dtype == torch.bfloat16:
        capability = torch.cuda.get_device_capability(device)
        if capability < (8, 0):
            raise NotImplementedError(f"q: bfloat16 needs compute capability 8.0 or newer, got"
                                      f" {'.'.join(map(str, capability))}: use float16")
    if backend == "reference":
        from flashlib.kernels import reference

        return reference
    try:
        from flashlib.kernels import launch
    except ImportError as error:
        raise NotImplementedError(
            f"impl: expected a backend of this machine, got {backend!r}, and Triton does not import"
            f" ({error}). Use impl='reference', or a Linux machine with Triton") from None
    if backend == "gluon":
        if device.type != "cuda":
            raise NotImplementedError(
                f"impl: 'gluon' expected tensors on a Hopper GPU, got {device.type}; Gluon has no"
                " interpreter: use impl='reference'")
        if launch.interpreted():
            raise NotImplementedError(
                "impl: 'gluon' expected Triton's interpreter to be off, as Gluon has none, and"
                " TRITON_INTERPRET is set: use impl='triton'")
        try:
            return _hopper()
        except ImportError as error:
            raise NotImplementedError(
                f"impl: 'gluon' expected Gluon for Hopper, and it does not import ({error}): use"
                " impl='triton'") from None
    if device.type == "cpu":
        if not launch.interpreted():
            raise NotImplementedError(
                "impl: 'triton' on CPU tensors needs Triton's interpreter: set TRITON_INTERPRET=1"
                " before Python starts, or use impl='reference'")
        if dtype not in (torch.float32, torch.float16):
            raise NotImplementedError(
                f"impl: Triton's interpreter is wrong for {dtype}: expected float32 or float16,"
                " or use impl='reference'")
    elif device.type != "cuda":
        raise NotImplementedError(f"impl: 'triton' expected CUDA tensors, got {device.type}: use"
                                  " impl='reference'")
    return launch


def _options(run, window: Window, scale: float):
    """Return the keyword arguments of a backend's function, or refuse a window that it cannot take."""
    if run.__module__ == "flashlib.kernels.reference":
        return {"window": window, "scale": scale}
    if window not in (FULL, CAUSAL):
        raise NotImplementedError(f"window: this backend expected no window but causal's, got"
                                  f" ({window.left}, {window.right}): use impl='reference'")
    return {"causal": window == CAUSAL, "scale": scale}


def forward(q, k, v, window: Window, scale: float, backend: str):
    """Return O and lse (B, H, N_q) float32 or, for float64, float64; nothing to attend to is O = 0."""
    run = launcher(backend, q.device, q.dtype).forward
    options = _options(run, window, abs(scale))
    if q.is_neg() or k.is_neg() or v.is_neg():              # a kernel reads numbers as they lie
        q, k, v = q.resolve_neg(), k.resolve_neg(), v.resolve_neg()
    if q.numel() == 0 or k.numel() == 0:
        return torch.zeros_like(q, memory_format=torch.contiguous_format), _lse_like(q, -math.inf)
    if scale < 0:                                           # kernels take the maximum of raw scores
        q = -q
    if backend == "auto" and _has_hopper(q.device):
        return _hopper().forward(q, k, v, **options, otherwise=run)
    return run(q, k, v, **options)


def backward(q, k, v, o, lse, do, dlse, window: Window, scale: float, backend: str):
    """Return dq, dk, dv; do or dlse is None where nothing depends on that output."""
    if q.numel() == 0 or k.numel() == 0:
        return tuple(torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    do = torch.zeros_like(o) if do is None else do.resolve_neg()
    dlse = None if dlse is None else dlse.resolve_neg()
    if q.is_neg() or k.is_neg() or v.is_neg():
        q, k, v = q.resolve_neg(), k.resolve_neg(), v.resolve_neg()
    if window.right is not None and (blind := q.shape[2] - k.shape[2] - window.right) > 0:
        do = do.clone()                                     # the first rows, which see nothing:
        do[:, :, :blind] = 0                                # a NaN that flows into them ends there
    run = launcher(backend, q.device, q.dtype).backward
    options = _options(run, window, abs(scale))
    if scale < 0:
        dq, dk, dv = run(-q, k, v, o, lse, do, dlse, **options)
        return dq.neg_(), dk, dv
    return run(q, k, v, o, lse, do, dlse, **options)


def _lse_like(q, fill):
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    return torch.full(q.shape[:3], fill, dtype=wide, device=q.device)


def _save(ctx, inputs, output):
    q, k, v, *ctx.options = inputs
    ctx.set_materialize_grads(False)                        # an unused output costs no zeros
    ctx.save_for_backward(q, k, v, *output)


def transformed() -> bool:
    """Tell whether forward-mode autograd or torch.func is at work, which must see every call."""
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def _no_second_derivative(*_):
    raise NotImplementedError(
        "flash_attention: double backward is not offered, so its gradients cannot be differentiated"
        " again; torch.nn.functional.scaled_dot_product_attention can, with SDPBackend.MATH")


def _no_tangents(*_):
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
        _save(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx, do, dlse):
        inputs = *ctx.saved_tensors, do, dlse, *ctx.options
        # With create_graph the gradient has to remember that it cannot be differentiated.
        gradients = Gradient.apply(*inputs) if torch.is_grad_enabled() else backward(*inputs)
        return *gradients, None, None, None


class TransformedAttention(Attention):
    """The same in the form that torch.func takes, which costs each call some microseconds more."""

    forward = staticmethod(forward)
    setup_context = staticmethod(_save)
    jvp = staticmethod(_no_tangents)

    @staticmethod
    def vmap(info, in_dims, *inputs):
        return _mapped(TransformedAttention, info, in_dims, inputs)


class Gradient(torch.autograd.Function):
    """The backward pass as a function of its own, whose derivative is a refusal."""

    forward = staticmethod(backward)
    backward = staticmethod(_no_second_derivative)
    jvp = staticmethod(_no_second_derivative)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vmap(info, in_dims, *inputs):
        return _mapped(Gradient, info, in_dims, inputs)


def _forward_op(q, k, v, left, right, scale, backend):
    return forward(q, k, v, Window(left, right), scale, backend)


def _backward_op(q, k, v, o, lse, do, dlse, left, right, scale, backend):
    return backward(q, k, v, o, lse, do, dlse, Window(left, right), scale, backend)


attention_forward = torch.library.custom_op(
    "flashlib::attention_forward", _forward_op, mutates_args=(),
    schema=f"(Tensor q, Tensor k, Tensor v, {OPTIONS}) -> (Tensor, Tensor)")
attention_backward = torch.library.custom_op(
    "flashlib::attention_backward", _backward_op, mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor? do, Tensor? dlse,"
           f" {OPTIONS}) -> (Tensor, Tensor, Tensor)")


@attention_forward.register_fake
def _(q, k, v, *options):
    return torch.empty_like(q, memory_format=torch.contiguous_format), _lse_like(q, 0.0)


@attention_backward.register_fake
def _(q, k, v, o, lse, do, dlse, *options):
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))


def _differentiate(ctx, do, dlse):
    return *attention_backward(*ctx.saved_tensors, do, dlse, *ctx.options), None, None, None, None


attention_forward.register_autograd(_differentiate, setup_context=_save)
attention_backward.register_autograd(_no_second_derivative)
