"""What every measurement asks first: whether the machine is here that it needs, and its copy rate."""

import sys


def device_for(dry_run=None) -> str:
    """Return "cuda", or "cpu" for a dry run; where torch or the GPU is missing, leave in one sentence.

    `dry_run` says whether one was asked for, None that the measurement has none.
    """
    try:
        import torch
    except ImportError:
        sys.exit("This measurement needs torch: install the course's requirements first.")
    if dry_run:
        return "cpu"
    if not torch.cuda.is_available():
        hint = "." if dry_run is None else "; --dry-run tries its steps on the CPU."
        sys.exit(f"This measurement needs an NVIDIA GPU{hint}")
    return "cuda"


def is_hopper() -> bool:
    """Tell whether the GPU is one for the kernel of notebook 12; if not, say that it is left out."""
    import torch

    if torch.cuda.get_device_capability()[0] == 9:
        return True
    print("left out: the kernel of notebook 12 needs a Hopper GPU (compute capability 9.0)")
    return False


def copy_rate(clock, device) -> tuple[float, int]:
    """Return the bytes per second, read and written, of a long copy, and how many bytes were copied."""
    import torch

    size = min(2**32, torch.cuda.mem_get_info()[0] // 4) if device == "cuda" else 2**12
    source = torch.randint(100, (size,), device=device, dtype=torch.int8)
    target = torch.empty_like(source)
    return 2 * size / clock(lambda: target.copy_(source))[0], size
