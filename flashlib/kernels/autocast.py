"""What `torch.autocast` may change in attention, and what it may not."""

import functools

import torch


def without_autocast(function):
    """Return the function, run with autocast off: it chose the dtype of each product itself."""
    @functools.wraps(function)
    def run(x, *args, **options):
        device = x.device.type
        if not (torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)):
            return function(x, *args, **options)
        with torch.autocast(device, enabled=False):
            return function(x, *args, **options)

    return run


def of_one_dtype(q, k, v):
    """Return q, k and v in autocast's dtype, as torch's own attention takes them, or refuse."""
    device = q.device.type
    floats = all(x.dtype in (torch.float16, torch.bfloat16, torch.float32) for x in (q, k, v))
    if floats and torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return tuple(x.to(torch.get_autocast_dtype(device)) for x in (q, k, v))
    raise TypeError(f"q, k, v: expected one dtype, got {q.dtype}, {k.dtype}, {v.dtype}")
