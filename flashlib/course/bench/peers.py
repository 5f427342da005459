"""The implementations that ours is timed against, as functions of (q, k, v, causal), each (B, H, N, d).

Every peer is optional. `available` says which this machine has, and why the others are absent.
"""

import functools
import importlib.util

NAMES = {
    "ours": "flashlib.flash_attention",
    "ours_triton": "flashlib.flash_attention(impl='triton')",
    "sdpa_flash": "SDPA FLASH",
    "sdpa_cudnn": "SDPA cuDNN",
    "flex": "FlexAttention",
    "fa3": "FlashAttention-3",
    "fa3_deterministic": "FlashAttention-3, deterministic",
    "fa4": "FlashAttention-4",
    "fa4_deterministic": "FlashAttention-4, deterministic",
    "triton_tutorial": "Triton tutorial, fp16",
}
LIBRARIES = {"fa3": "flash_attn_interface", "fa4": "flash_attn.cute"}      # where their functions are
TUTORIAL = "triton_tutorial_06"                             # Triton ships it as a script
FORWARD_ONLY = {"triton_tutorial"}
BACKWARD_ONLY = {"fa3_deterministic", "fa4_deterministic"}  # there they differ from the others
_tuned: dict = {}                                           # what the tutorial tuned, by shape and mask


def ours(q, k, v, causal, impl="auto"):
    """Compute attention with this course's op."""
    from flashlib.kernels import flash_attention

    return flash_attention(q, k, v, causal=causal, impl=impl)


def _sdpa(backend, q, k, v, causal):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    with sdpa_kernel(getattr(SDPBackend, backend)):
        return scaled_dot_product_attention(q, k, v, is_causal=causal,
                                            enable_gqa=q.shape[1] != k.shape[1])


@functools.cache
def _compiled_flex():
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.config.recompile_limit = 512           # one graph for each shape, mask and mode
    return torch.compile(flex_attention, dynamic=False)


@functools.lru_cache(maxsize=1)
def _causal_mask(N, device):
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(lambda b, h, i, j: i >= j, None, None, N, N, device=device)


def _flex(q, k, v, causal):
    mask = _causal_mask(q.shape[2], str(q.device)) if causal else None
    return _compiled_flex()(q, k, v, block_mask=mask)


def _library(module, deterministic, q, k, v, causal):
    """Call FlashAttention's own interface: it takes (B, N, H, d), and some versions return (O, lse)."""
    fn = importlib.import_module(module).flash_attn_func
    out = fn(*(x.transpose(1, 2) for x in (q, k, v)), causal=causal, deterministic=deterministic)
    return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)


def _cached(module, q, k, v, causal):
    """Call FlashAttention's function for caches, which shares the keys out, as it sees fit."""
    fn = importlib.import_module(module).flash_attn_with_kvcache
    out = fn(*(x.transpose(1, 2) for x in (q, k, v)), causal=causal)
    return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)


def _half(x):
    """Return x in float16, made once: the tutorial takes nothing else."""
    if not hasattr(x, "as_half"):
        x.as_half = x.detach().half()
    return x.as_half


def _tutorial(q, k, v, causal):
    if q.shape[3] not in (64, 128):
        raise NotImplementedError("the tutorial is timed at d = 64 and 128 only")
    module = importlib.import_module(TUTORIAL)
    module._attn_fwd.cache = _tuned.setdefault((q.shape, causal), {})
    return module.attention(_half(q), _half(k), _half(v), causal, q.shape[3] ** -0.5, False)


def _has(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:                             # what holds it is not there
        return False


def decoding(device):
    """Return who decodes a few queries on long caches, as `present` does."""
    from flashlib.kernels import flash_decode

    found, absent = {"ours": lambda q, k, v, causal: flash_decode(q, k, v, causal=causal),
                     "ours_auto": ours}, {}
    others, missing = present(device)
    for name in ("sdpa_flash", "sdpa_cudnn", "fa3", "fa4"):
        if name in others:
            found[name] = others[name]
        else:
            absent[name] = missing[name]
    if "fa3" in found:
        found["fa3"] = functools.partial(_cached, LIBRARIES["fa3"])
    return found, absent


def present(device):
    """Return the implementations of this machine by name, and a reason for each absent one.

    Triton's tutorial takes part if its script, python/tutorials/06-fused-attention.py, can be imported
    as `triton_tutorial_06`.
    """
    partial = functools.partial
    found, absent = {"ours": ours, "sdpa_flash": partial(_sdpa, "FLASH_ATTENTION")}, {}
    for name, fn, module in (
            ("ours_triton", partial(ours, impl="triton"), None),
            ("sdpa_cudnn", partial(_sdpa, "CUDNN_ATTENTION"), None), ("flex", _flex, None),
            *((name + end, partial(_library, module, bool(end)), module)
              for name, module in LIBRARIES.items() for end in ("", "_deterministic")),
            ("triton_tutorial", _tutorial, TUTORIAL)):
        if device != "cuda":
            absent[name] = "needs a GPU"
        elif module and not _has(module):
            absent[name] = f"{module} is not installed"
        else:
            found[name] = fn
    return found, absent
