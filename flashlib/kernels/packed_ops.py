"""Packed sequences as torch sees them: as `flashlib.kernels.ops`, of (T, H, D) tensors.

A packed tensor is looked at as a batch of one, (1, H, T, D), without a copy; where its sequences begin
goes along, and stays on the device.
"""

import torch

from flashlib.kernels import ops
from flashlib.masks import Window


def forward(q, k, v, cu_q, cu_k, window: Window, scale: float, impl: str, softcap=None, alibi=None,
            sink=None):
    """Return O (T_q, H, D) and lse (H, T_q); `cu_k` None is `cu_q`."""
    cu = _starts(cu_q, cu_k, len(q), len(k), impl == "reference")
    q, k, v = map(_batch, (q, k, v))
    o, lse = ops.forward(q, k, v, window, scale, impl, None, softcap, alibi, sink, cu=cu)
    return _rows(o), lse[0]


def backward(q, k, v, cu_q, cu_k, o, lse, do, dlse, window: Window, scale: float, impl: str, *scores):
    """Return dq, dk, dv, with a sink its gradient, (H,), as a fourth.

    do or dlse is None where nothing depends on that output. `scores`: softcap, slopes, sink, or none.
    """
    softcap, alibi, sink = scores or (None, None, None)
    cu = _starts(cu_q, cu_k, len(q), len(k), impl == "reference")
    blind, behind = _blind(cu_q, cu_k, len(q), window), None
    if sink is not None:                                    # it would see what flows in there
        behind = torch.arange(len(q), device=q.device) >= cu_q[-1]
        blind = behind if blind is None else blind | behind
        dlse = None if dlse is None else torch.where(behind, 0, dlse)
    if do is not None and blind is not None:
        do = torch.where(blind[:, None, None], 0, do)
    q, k, v, o = map(_batch, (q, k, v, o))
    do, dlse = None if do is None else _batch(do), None if dlse is None else dlse[None]
    *found, = ops.backward(q, k, v, o, lse[None], do, dlse, window, scale, impl, softcap, alibi, sink,
                           cu=cu)
    return *map(_rows, found[:3]), *(x[0] for x in found[3:])


def _blind(cu_q, cu_k, T_q: int, window: Window):
    """Return which rows of q see nothing though their sequence has keys; None if there are none."""
    if cu_k is None or window.right is None:
        return None
    row = torch.arange(T_q, device=cu_q.device)
    i = torch.searchsorted(cu_q, row.to(cu_q.dtype), right=True).clamp_max(len(cu_q) - 1)
    # The last query of a sequence lies on its last key: so many rows come behind it.
    return cu_q[i] - row - window.right > cu_k[i] - cu_k[(i - 1).clamp_min(0)]


def _batch(x):
    return x.transpose(0, 1)[None]


def _rows(x):
    return x[0].transpose(0, 1).contiguous()                # of a new tensor no copy


def _starts(cu_q, cu_k, T_q: int, T_k: int, on_host: bool):
    """Return both as kernels read them; where the host reads them, they are checked."""
    cu = _aligned(cu_q), None if cu_k is None else _aligned(cu_k)
    if on_host or not cu_q.is_cuda:
        _check("cu_q", cu_q, T_q, "q")
        _check(*(("cu_q", cu_q) if cu_k is None else ("cu_k", cu_k)), T_k, "k")
    return cu[0], cu[0] if cu[1] is None else cu[1]


def _aligned(cu):
    cu = cu.contiguous()
    return cu if cu.data_ptr() % 16 == 0 else cu.clone()


def _check(name: str, cu, total: int, of: str) -> None:
    """Refuse numbers that are not where sequences begin."""
    ends = cu.tolist()
    if ends[0] != 0 or ends[-1] > total or sorted(ends) != ends:
        raise ValueError(f"{name}: expected numbers from 0 that never decrease, up to {total}, the rows"
                         f" of {of}, got {ends if len(ends) <= 8 else [*ends[:4], '…', *ends[-3:]]}")


def _save(ctx, inputs, output):
    q, k, v, cu_q, cu_k, *ctx.options, alibi, sink = inputs
    ctx.set_materialize_grads(False)                        # an unused output costs no zeros
    ctx.save_for_backward(q, k, v, cu_q, cu_k, *output, alibi, sink)


def _given(ctx, do, dlse):
    """Return the arguments of `backward`."""
    *tensors, alibi, sink = ctx.saved_tensors
    return *tensors, do, dlse, *ctx.options, alibi, sink


def _no_vmap(info, in_dims, *args):
    raise NotImplementedError("flash_attention_varlen: torch.vmap is not offered; pack what it would"
                              " map over as further sequences")


class Packed(torch.autograd.Function):
    """Saves Q, K, V, where sequences begin, O and one lse row."""

    forward = staticmethod(forward)
    setup_context = staticmethod(_save)
    jvp = staticmethod(ops.no_tangents)
    vmap = staticmethod(_no_vmap)

    @staticmethod
    def backward(ctx, *gradients):
        inputs = _given(ctx, *gradients)
        # With create_graph the gradient has to remember that it cannot be differentiated.
        found = Gradient.apply(*inputs) if torch.is_grad_enabled() else backward(*inputs)
        return *found[:3], *[None] * 7, found[3] if len(found) > 3 else None


class Gradient(torch.autograd.Function):
    """The backward pass as a function of its own, whose derivative is a refusal."""

    forward = staticmethod(backward)
    backward = staticmethod(ops.no_second_derivative)
    jvp = staticmethod(ops.no_second_derivative)
    vmap = staticmethod(_no_vmap)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass


def _forward_op(q, k, v, cu_q, cu_k, left, right, *options):
    return forward(q, k, v, cu_q, cu_k, Window(left, right), *options)


def _backward_op(q, k, v, cu_q, cu_k, o, lse, do, dlse, left, right, *options):
    found = backward(q, k, v, cu_q, cu_k, o, lse, do, dlse, Window(left, right), *options)
    return found if len(found) == 4 else (*found, lse.new_empty(0))


TENSORS = "Tensor q, Tensor k, Tensor v, Tensor cu_q, Tensor? cu_k"
packed_forward = torch.library.custom_op(
    "flashlib::attention_packed_forward", _forward_op, mutates_args=(),
    schema=f"({TENSORS}, {ops.OPTIONS}) -> (Tensor, Tensor)")
packed_backward = torch.library.custom_op(
    "flashlib::attention_packed_backward", _backward_op, mutates_args=(),
    schema=f"({TENSORS}, Tensor o, Tensor lse, Tensor? do, Tensor? dlse, {ops.OPTIONS})"
           " -> (Tensor, Tensor, Tensor, Tensor)")


@packed_forward.register_fake
def _(q, *options):
    wide = torch.promote_types(q.dtype, torch.float32)
    return (torch.empty_like(q, memory_format=torch.contiguous_format),
            q.new_empty((q.shape[1], q.shape[0]), dtype=wide))


@packed_backward.register_fake
def _(q, k, v, cu_q, cu_k, o, lse, do, dlse, *options):
    of_sink = lse.new_empty(0 if len(options) < 7 or options[-1] is None else lse.shape[:1])
    return *(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v)), of_sink


def _differentiate(ctx, do, dlse):
    inputs = _given(ctx, do, dlse)
    *found, of_sink = packed_backward(*inputs)
    return *found, *[None] * 8, None if inputs[-1] is None else of_sink


packed_forward.register_autograd(_differentiate, setup_context=_save)
packed_backward.register_autograd(ops.no_second_derivative)
