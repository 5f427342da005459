"""What the Gluon kernels of a Hopper GPU take: the question before a plan is made."""

import torch

from flashlib.kernels.problem import NARROW, Problem

DO, SUMS = 4, (5, 6, 7)                                     # places in a problem's layout
WIDE = 129                                                  # heads of two backward kernels


def unfit(p: Problem, direction: str) -> str | None:
    """Return what the kernels expect and a problem has not."""
    if p.device.capability is None or p.device.capability[0] != 9:
        found = ".".join(map(str, p.device.capability or ())) or "none"
        return f"a Hopper GPU (compute capability 9.0), got compute capability {found}"
    if p.dtype not in (torch.float16, torch.bfloat16):
        return f"float16 or bfloat16, got {p.dtype}"
    if p.sequences is not None:
        return "a batch, got packed sequences"
    if p.D < NARROW:
        return f"a head dimension D of at least {NARROW}, got {p.D}"
    if p.scores.softcap or p.scores.alibi or p.scores.sink > 1:
        return "neither softcap nor alibi, nor a sink for each batch entry"
    if p.into and direction == "backward" and p.D >= WIDE:
        return f"for a backward new gradients where D is {WIDE} or more, got sums to add to"
    if p.into and direction == "backward":
        _, dk, dv = (p.layout[x].strides for x in SUMS)
        if dk != dv or dk[3] != 1:
            return f"sums of dK and dV that lie alike, the last dimension contiguous, got {dk} and {dv}"
    if p.into and p.sides is not None and p.D >= WIDE:
        return f"no window beside a state at a head dimension D of {WIDE} or more"
    if p.into and direction == "forward" and not p.copyable(3):
        return ("a state's O as the copy engine reads it: the last dimension contiguous, other strides"
                " positive multiples of 8 elements, its address of 16 bytes")
    if not p.copyable(0, 1, 2):
        return ("q, k and v as the copy engine reads them: the last dimension contiguous, other strides"
                " positive multiples of 8 elements, addresses of 16 bytes")
    if direction == "backward" and p.D % 8:
        return f"for a backward a head dimension D that 8 divides, got {p.D}"
    return None
