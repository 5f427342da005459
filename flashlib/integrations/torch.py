"""torch's own door: `register()`, then torch's `activate_flash_attention_impl("flashlib")`.

From then on, on a GPU, `torch.nn.functional.scaled_dot_product_attention` and
`torch.nn.attention.varlen.varlen_attn` run our kernels wherever they would have run torch's
FlashAttention-2, forward and backward, until `restore_flash_attention_impl()`. Nothing is patched:
torch has this door for FlashAttention-3 and -4, and the functions below stand in for operators of ATen.
"""

import functools

import torch

from flashlib.kernels import ops, packed_ops
from flashlib.kernels.attention import Impl, check_factor, flash_attention
from flashlib.kernels.decode import flash_decode
from flashlib.kernels.packed import flash_attention_varlen
from flashlib.masks import Window, window_of

NAME = "flashlib"
UNSUPPORTED = {"dropout_p": "there is no dropout", "return_debug_mask": "weights are never stored",
               "alibi_slopes": "call flash_attention itself",
               "value": "expected the head dimension of query; flash_attention itself takes another"}


def register(name: str = NAME, *, impl: Impl = "auto") -> str:
    """Offer our kernels to torch as an implementation of its flash attention, and return its name.

    Then `torch.nn.attention.activate_flash_attention_impl(name)`; back to torch's own with
    `restore_flash_attention_impl()`.

    Args:
        name: how torch lists it.  impl: as in `flash_attention`.
    Raises:
        NotImplementedError: this torch has no such door.
        TypeError: for a name that is none.

    torch decides which calls come here: 16 bits, no mask but `is_causal`, head dimensions up to 256.
    Dropout and ALiBi are refused by name. `seqused_k` and `block_table` (a paged cache) are for
    inference, and any `num_splits` is right: our bits never depend on the rest of the batch.
    """
    if not isinstance(name, str):
        raise TypeError(f"name: expected a str, got {type(name).__name__}")
    door = getattr(torch.nn.attention, "register_flash_attention_impl", None)
    if door is None:
        raise NotImplementedError(f"torch {torch.__version__} has no register_flash_attention_impl, the"
                                  " door for other kernels: use a newer torch, or flash_attention")
    door(name, register_fn=functools.partial(install, impl=impl))
    return name


class Installed:
    """Operators of ATen that run our kernels, until `remove()`."""

    def __init__(self, key: str):
        self.library: torch.library.Library | None = torch.library.Library("aten", "IMPL", key)

    def remove(self) -> None:
        """Give the operators back to torch."""
        self.library = None                                 # its end takes back what it registered


def install(key: str = "CUDA", *, impl: Impl = "auto") -> Installed:
    """Take over the operators for a dispatch key, those of them that this torch has."""
    installed = Installed(key)
    for function in (_flash_attention_forward, _flash_attention_forward_no_dropout_inplace,
                     _flash_attention_backward, _scaled_dot_product_flash_attention,
                     _scaled_dot_product_flash_attention_backward):
        if hasattr(torch.ops.aten, function.__name__) and installed.library is not None:
            # The derivative is ATen's: what runs here is one direction.
            installed.library.impl(function.__name__,
                                   torch.no_grad()(functools.partial(function, impl=impl)))
    return installed


def _scaled_dot_product_flash_attention(query, key, value, dropout_p=0.0, is_causal=False,
                                        return_debug_mask=False, *, scale=None, impl: Impl):
    """Return what ATen's operator does: (B, H, N, D), O in the layout of the query."""
    _refuse(dropout_p=dropout_p, return_debug_mask=return_debug_mask,
            value=query.shape[-1] != value.shape[-1])
    o, lse = flash_attention(query, key, value, causal=is_causal, scale=scale, return_lse=True,
                             impl=impl)
    return (_laid_out(o, query), lse, None, None, query.shape[2], key.shape[2], *_rest(query))


def _scaled_dot_product_flash_attention_backward(grad_out, query, key, value, out, logsumexp, cum_seq_q,
                                                 cum_seq_k, max_q, max_k, dropout_p, is_causal, *seeds,
                                                 scale=None, impl: Impl):
    _refuse(dropout_p=dropout_p)
    return _gradients(grad_out, query, key, value, out, logsumexp, window_of(is_causal), scale, impl)


def _flash_attention_forward(query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p,
                             is_causal, return_debug_mask, *, impl: Impl, **options):
    """Return what ATen's operator does: (B, N, H, D), or (T, H, D) with cumulative lengths."""
    o, lse = _attention(query, key, value, cum_seq_q, cum_seq_k, (max_q, max_k), dropout_p=dropout_p,
                        return_debug_mask=return_debug_mask, is_causal=is_causal, impl=impl, **options)
    return (_laid_out(o, query), lse, *_rest(query))


def _flash_attention_forward_no_dropout_inplace(out, query, key, value, cum_seq_q, cum_seq_k, max_q,
                                                max_k, dropout_p, is_causal, return_debug_mask, *,
                                                impl: Impl, **options):
    o, lse = _attention(query, key, value, cum_seq_q, cum_seq_k, (max_q, max_k), dropout_p=dropout_p,
                        return_debug_mask=return_debug_mask, is_causal=is_causal, impl=impl, **options)
    out.copy_(o)
    return lse


def _flash_attention_backward(grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q,
                              max_k, dropout_p, is_causal, *seeds, impl: Impl, scale=None, **sides):
    _refuse(dropout_p=dropout_p)
    window = _window(is_causal, **sides)
    if cum_seq_q is None:
        do, q, k, v, o = (x.transpose(1, 2) for x in (grad_out, query, key, value, out))
        found = _gradients(do, q, k, v, o, logsumexp, window, scale, impl)
        return tuple(dx.transpose(1, 2) for dx in found)
    found = packed_ops.backward(query, key, value, cum_seq_q, cum_seq_k, out, logsumexp, grad_out, None,
                                window, check_factor(scale, query.shape[2]), impl)
    return tuple(_laid_out(dx, x) for dx, x in zip(found, (query, key, value), strict=True))


def _attention(query, key, value, cum_seq_q, cum_seq_k, longest, *, is_causal, impl: Impl, scale=None,
               window_size_left=None, window_size_right=None, seqused_k=None, block_table=None,
               num_splits=None, **unsupported):
    """Return O in the query's shape, and lse (B, H, N) or (H, T); `longest` is (max_q, max_k)."""
    _refuse(value=query.shape[-1] != value.shape[-1], **unsupported)
    window = _window(is_causal, window_size_left, window_size_right)
    seen = {"window": (window.left, window.right), "scale": scale, "return_lse": True}
    if seqused_k is not None or block_table is not None:
        return _cached(query, key, value, cum_seq_q, cum_seq_k, longest, seqused_k, block_table, seen)
    if cum_seq_q is not None:
        return flash_attention_varlen(query, key, value, cum_seq_q, cum_seq_k, impl=impl, **seen)
    o, lse = flash_attention(*(x.transpose(1, 2) for x in (query, key, value)), impl=impl, **seen)
    return o.transpose(1, 2), lse


def _cached(query, key, value, cum_seq_q, cum_seq_k, longest, seqused_k, table, seen):
    """Return O and lse where lengths, and perhaps pages, say which keys count.

    Nothing is read on the host. Queries are moved to (N, max_q), each sequence's last one to the end.
    Keys that lie one after the other count as pages of one key each.
    """
    if cum_seq_q is None or seqused_k is None:
        raise NotImplementedError("seqused_k, block_table: expected cumulative lengths of the queries,"
                                  " and seqused_k with a block_table")
    (T, H, D), (max_q, max_k) = query.shape, longest
    counts, N = cum_seq_q.diff(), len(cum_seq_q) - 1
    sequence = torch.repeat_interleave(torch.arange(N, device=query.device), counts, output_size=T)
    at = torch.arange(T, device=query.device) - cum_seq_q[1:][sequence] + (sequence + 1) * max_q
    q = query.new_zeros(N * max_q, H, D).index_copy(0, at, query).view(N, max_q, H, D).transpose(1, 2)
    if table is None:
        table = cum_seq_k[:-1, None] + torch.arange(max_k, device=key.device, dtype=torch.int32)
        key, value = key[:, None], value[:, None]           # (T_k, 1, H_k, D)
    o, lse = flash_decode(q, key.transpose(1, 2), value.transpose(1, 2), lengths=seqused_k, table=table,
                          **seen)
    return o.transpose(1, 2).flatten(0, 1)[at], lse.transpose(1, 2).flatten(0, 1)[at].T


def _gradients(do, q, k, v, o, lse, window: Window, scale, impl: Impl):
    """Return dq, dk, dv of (B, H, N, D), each in the layout of its tensor."""
    found = ops.backward(q, k, v, o, lse, do, None, window, check_factor(scale, q.shape[3]), impl)
    return tuple(_laid_out(dx, x) for dx, x in zip(found, (q, k, v), strict=True))


def _window(is_causal: bool, window_size_left=None, window_size_right=None) -> Window:
    """Return ATen's window, in which −1 is no bound."""
    left, right = (None if side is None or side < 0 else int(side)
                   for side in (window_size_left, window_size_right))
    return window_of(is_causal, (left, right))


def _laid_out(x, like):
    """Return x with the strides that torch's compiler expects: those of a new tensor like `like`."""
    empty = torch.empty_like(like)
    return x if x.stride() == empty.stride() else empty.copy_(x)


def _rest(query):
    """Return what only dropout would fill: the state of a random number generator, and a mask."""
    return (query.new_zeros(2, dtype=torch.uint64), query.new_zeros((), dtype=torch.uint64),
            query.new_empty(0))


def _refuse(**given) -> None:
    for name, value in given.items():
        if value is not None and (isinstance(value, torch.Tensor) or value):
            raise NotImplementedError(f"{name}: {UNSUPPORTED.get(name, 'expected none')}")
