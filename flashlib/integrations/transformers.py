"""Hugging Face's door: `register()`, then `attn_implementation="tiled"` in any model of transformers 5.

The mask stays a description (`flashlib.integrations.described`): causal, windows, chunks, padding on
either side, packed documents and static caches make nothing N × N.
"""

import functools
from typing import Any

import torch

from flashlib.integrations.described import ELSEWHERE, Seen, describe
from flashlib.kernels.attention import Impl
from flashlib.lazy import load
from flashlib.masks import Window

NAME = "tiled"
REFUSED = {                        # arguments that change what attention is, and that the op has not
    "dropout": "there is no dropout: set the model's attention_dropout to 0",
    "position_bias": f"there is no additive bias: {ELSEWHERE}",
    "head_mask": "heads cannot be masked: use attn_implementation='eager'",
    "output_attentions": "weights are never stored: use attn_implementation='eager'",
    "cache": "continuous batching brings its own cache: use transformers' own implementations",
    "block_table": "there are no pages here: use flashlib.kernels.flash_decode",
}


def register(name: str = NAME, *, impl: Impl = "auto") -> str:
    """Make models of transformers use `flash_attention`, and return the name to ask for.

    Then `from_pretrained(…, attn_implementation="tiled")`, or `model.set_attn_implementation("tiled")`:
    forward, backward and `generate`. With it comes its mask function, without which transformers would
    silently drop padding. To register a name again replaces it.

    Args:
        name: how models ask for it. With "flash" in it, transformers would look for FlashAttention's
            packages.
        impl: as in `flash_attention`.
    Raises:
        ModuleNotFoundError: transformers is not installed.
        TypeError, ValueError: for a name that is none, or that transformers would not take.

    Masks are causal or not, windows, chunks, padding before or behind a sequence, and documents packed
    by `position_ids` (which transformers looks at with use_cache=False and no attention_mask). Rows of
    padding get 0, where eager attention gives what nobody should read. A 4-D mask of one's own and a
    mask with a bias are refused, as are dropout, `output_attentions` and what else the op has not, each
    by name when the model is called.
    """
    if not isinstance(name, str):
        raise TypeError(f"name: expected a str, got {type(name).__name__}")
    if "flash" in name or not name:
        raise ValueError(f"name: expected one without 'flash', for which transformers looks up"
                         f" FlashAttention's packages, got {name!r}")
    transformers: Any = load("transformers", "flashlib.integrations.transformers.register()")
    transformers.AttentionInterface.register(name, functools.partial(attend, impl=impl))
    transformers.AttentionMaskInterface.register(name, describe)
    return name


def attend(module, query, key, value, attention_mask, *, scaling=None, is_causal=None,
           sliding_window=None, softcap=None, s_aux=None, impl: Impl = "auto",
           **others) -> tuple[torch.Tensor, None]:
    """Return O (B, N_q, H, D) and None, as transformers asks its attention functions to.

    Args:
        module: the attention layer.  attention_mask: what `describe` made, or None.
        query: (B, H, N_q, D).  key, value: (B, H_k, N_k, D); value's D may differ.
        scaling: None for 1/√D.  softcap, s_aux: None, or as in `flash_attention` its softcap and sink.
        is_causal, sliding_window: read only where there is no mask. Then the last query lies on the
            last key.
    """
    for name, why in REFUSED.items():
        if (given := others.get(name)) is not None and (isinstance(given, torch.Tensor) or given):
            raise NotImplementedError(f"{name}: {why}")
    if attention_mask is None:
        attention_mask = _without_mask(module, query, key, is_causal, sliding_window)
    if not isinstance(attention_mask, Seen):
        raise NotImplementedError("attention_mask: expected None or (B, N), of which the model makes"
                                  f" its mask, got a {type(attention_mask).__name__} of"
                                  f" {getattr(attention_mask, 'ndim', 'no')} dimensions: {ELSEWHERE}")
    cu = others.get("cu_seq_lens_q")
    if cu is not None and len(cu) > 2 and attention_mask.packed is None:
        raise NotImplementedError("cu_seq_lens_q: transformers tells documents by position_ids, with"
                                  " use_cache=False and no attention_mask: call the model so")
    more = {"softcap": softcap, "sink": s_aux}
    o = attention_mask.attention(query, key, value, scale=scaling, impl=impl,
                                 **{name: x for name, x in more.items() if x is not None})
    return o, None


def _without_mask(module, query, key, is_causal, sliding_window) -> Seen:
    """Return what a layer without a mask sees: the model made none."""
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if sliding_window and not causal:
        raise NotImplementedError("sliding_window: expected a mask with it, or a causal layer")
    window = Window(sliding_window - 1 if sliding_window else None, 0) if causal else Window()
    shape = query.shape[0], 1, query.shape[2], key.shape[2]
    return Seen(shape, window, slice(0, key.shape[2]))
