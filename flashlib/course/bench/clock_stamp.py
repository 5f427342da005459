"""The clock of the SMs while a kernel runs over and over, from two readings on every SM.

An SM counts its cycles in %clock64, and the whole GPU has one timer, %globaltimer, in nanoseconds. What
the one gains between two readings, over what the other does, is the mean clock in between.
"""

from __future__ import annotations

import statistics

import torch
import triton
import triton.language as tl

PROGRAMS_PER_SM = 4                                         # so that every SM gets one, most likely


@triton.jit
def stamp_kernel(STAMPS):
    """Write this program's SM, its cycles and the time: (programs, 3) int64."""
    here = STAMPS + 3 * tl.program_id(0)
    sm = tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r", [], tl.int32, is_pure=False, pack=1)
    cycles, time = tl.inline_asm_elementwise(
        "mov.u64 $0, %clock64; mov.u64 $1, %globaltimer;", "=l,=l", [], (tl.int64, tl.int64),
        is_pure=False, pack=1)
    tl.store(here, sm.to(tl.int64))
    tl.store(here + 1, cycles)
    tl.store(here + 2, time)


def rates(before, after) -> list[float]:
    """Return the clock in Hz of every SM that is in both lists of (SM, cycles, nanoseconds)."""
    first = {sm: (cycles, time) for sm, cycles, time in before}
    last = {sm: (cycles, time) for sm, cycles, time in after}
    return [1e9 * (last[sm][0] - first[sm][0]) / (last[sm][1] - first[sm][1])
            for sm in sorted(first.keys() & last.keys())]


def clock_of(call, milliseconds=200) -> dict:
    """Return `sm_clock_hz` while a call runs back to back, its `cycles` and its `seconds`.

    For half of the time the call warms the chip, then it is counted for `milliseconds`.
    """
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    stamps = torch.zeros((3, PROGRAMS_PER_SM * sms, 3), dtype=torch.int64, device="cuda")

    def run(times, n):
        for _ in range(times):
            call()
        stamp_kernel[(stamps.shape[1],)](stamps[n])
    call()
    run(1, 0)
    run(3, 1)
    known = _seconds(stamps, 0, 1) / 3
    times = max(1, round(milliseconds * 1e-3 / known))
    run(-(-times // 2), 0)
    run(0, 1)
    run(times, 2)
    found = stamps.tolist()
    hertz = statistics.median(rates(found[1], found[2]))
    seconds = _seconds(stamps, 1, 2) / times
    return {"sm_clock_hz": hertz, "cycles": round(hertz * seconds), "seconds": seconds}


def _seconds(stamps, a, b):
    """Return the time between two rounds of stamps."""
    return 1e-9 * (stamps[b, :, 2].max() - stamps[a, :, 2].max()).item()
