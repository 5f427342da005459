"""The merge of two partial attentions in torch: what splits, pages and rings of GPUs end with."""

import torch


def merge(o_a: torch.Tensor, lse_a: torch.Tensor, o_b: torch.Tensor,
          lse_b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention over the keys of both parts, from each part's O and lse.

    The softmax monoid with its division done (Milakov & Gimelshein 2018, arXiv:1805.02867):
    commutative, associative to rounding, and a part that saw no key (lse = −∞) changes nothing,
    whatever its O holds. Differentiable, through all four. Taught in notebook 05.

    Args:
        o_a, o_b: O of the parts, (..., D), each row divided by its own sum; of one floating dtype.
        lse_a, lse_b: log-sum-exp of the parts' logits, natural log, (...); float32 or wider.
    Returns:
        O (..., D) in the dtype of o_a, and lse (...) in that of lse_a. Where neither part saw a key, 0
        and −∞.
    Raises:
        ValueError, TypeError: naming the argument, what was expected and what came.
    """
    _check(o_a, lse_a, o_b, lse_b)
    empty_a, empty_b = lse_a == -torch.inf, lse_b == -torch.inf
    # −∞ becomes a number before anything is subtracted: no gradient meets −∞ − (−∞).
    lowest = torch.finfo(lse_a.dtype).min / 4
    a, b = lse_a.masked_fill(empty_a, lowest), lse_b.masked_fill(empty_b, lowest)
    top = torch.maximum(a, b).detach()                      # a shift, on which nothing depends
    weight_a = torch.exp(a - top).masked_fill(empty_a, 0.0)
    weight_b = torch.exp(b - top).masked_fill(empty_b, 0.0)
    neither = empty_a & empty_b
    total = (weight_a + weight_b).masked_fill(neither, 1.0)
    wide = torch.promote_types(o_a.dtype, total.dtype)
    o = ((weight_a / total)[..., None] * o_a.to(wide).masked_fill(empty_a[..., None], 0.0)
         + (weight_b / total)[..., None] * o_b.to(wide).masked_fill(empty_b[..., None], 0.0))
    return o.to(o_a.dtype), (top + torch.log(total)).masked_fill(neither, -torch.inf)


def _check(o_a, lse_a, o_b, lse_b) -> None:
    """Refuse what are no two parts of one attention, by name."""
    given = {"o_a": o_a, "lse_a": lse_a, "o_b": o_b, "lse_b": lse_b}
    for name, x in given.items():
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name}: expected a torch.Tensor, got {type(x).__name__}")
        if not x.is_floating_point():
            raise TypeError(f"{name}: expected floating point numbers, got {x.dtype}")
        if x.device != o_a.device:
            raise ValueError(f"{name}: expected a tensor on {o_a.device} as o_a, got {x.device}")
    if o_a.ndim == 0:
        raise ValueError("o_a: expected at least one dimension, (..., D), got none")
    for name, x, dtype in (("o_b", o_b, o_a.dtype), ("lse_b", lse_b, lse_a.dtype)):
        if x.dtype != dtype:
            raise TypeError(f"{name}: expected {dtype} as in the other part, got {x.dtype}")
    if lse_a.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"lse_a: expected float32 or float64, got {lse_a.dtype}")
    for name, x, shape in (("o_b", o_b, o_a.shape), ("lse_a", lse_a, o_a.shape[:-1]),
                           ("lse_b", lse_b, o_a.shape[:-1])):
        if x.shape != shape:
            raise ValueError(f"{name}: expected shape {tuple(shape)} to match o_a"
                             f" {tuple(o_a.shape)}, got {tuple(x.shape)}")
