"""What the kernels' pieces of PTX mean, in NumPy, for the interpreter, and where each is documented.

Which elements one thread holds is no matter: a piece that packs several works on each of them.
"""

import re

import numpy as np

from flashlib.interpreter.tasks import Hazard, line
from flashlib.kernels.gluon import backward_parts, forward, forward_fp8, fused_parts, parts, softmax
from flashlib.quant import round_to

TAU = re.compile(r"setp\.gt\.f32 grows, s, ([\d.]+);")


def _same(program, *x):
    return x[0]


def _both(program, *x):
    return x


def _take(program, lock, count):
    """Programs run one after the other here: what a lock waits for has come, or never will."""
    if int(lock.value) != int(count):
        raise Hazard(f"{line(__file__)}: {program.current.name} waits for ever: its lock is"
                     f" {int(lock.value)}, and should become {int(count)}")
    return count


def _give(program, lock):
    program.finish(program.current.stores)
    lock.value.add_(1)
    return 0


def _hide(program, x, col, limit):
    return np.where(col <= limit, x, np.float32(-np.inf))


def _hide_outside(program, x, col, on, left, right, last):
    seen = (col - on >= left) & (col - on <= right) & (col <= last)
    return np.where(seen, x, np.float32(-np.inf))


def _keep(program, x, key, last):
    return np.where(key <= last, x, np.float32(0))


def _keep_between(program, x, key, on, left, right):
    return np.where((key - on >= left) & (key - on <= right), x, np.float32(0))


def _keep_inside(program, x, key, on, left, right, last):
    seen = (key - on >= left) & (key - on <= right) & (key <= last) & (on <= last)
    return np.where(seen, x, np.float32(0))


def _exp2(emulated):
    def meaning(program, x):
        program.count("exponentials", x.size * (4 - emulated) // 4)
        x = np.asarray(x, np.float32)
        exact, at = np.exp2(x), np.arange(x.shape[-1]) % 4 < emulated
        floor = np.floor(np.maximum(x, np.float32(-127)))
        f = np.maximum(x, np.float32(-127)) - floor
        cubic = np.polynomial.polynomial.polyval(f, np.float32(softmax.CUBIC)).astype(np.float32)
        return np.where(at, np.ldexp(cubic, floor.astype(int)), exact)
    return meaning


def _grow(tau):
    def meaning(program, top, m):
        """One maximum for the four threads of a row: it grows if the row has outgrown it by tau."""
        r = np.broadcast_to(np.fmax.reduce(top, 1, keepdims=True), m.shape)
        grows = r - m > tau
        program.count("exponentials", grows.sum())
        return np.where(grows, r, m), np.where(grows, np.exp2(m - r), np.float32(1))
    return meaning


def _rescale(program, acc, factor):
    return acc * factor


def _to_e4m3(program, x):
    return round_to(x, "e4m3")


_MEANINGS = {
    forward.KEEP_PAIRS.value: _same, parts.ALL_HAVE_READ.value: _same,
    fused_parts.BEGIN.value: _both, fused_parts.TAKE.value: _take, fused_parts.GIVE.value: _give,
    fused_parts.KEEP_BETWEEN.value: _keep_between,
    fused_parts.UNLESS_0.value: lambda program, x, y: np.where(y == 0, np.float32(0), x),
    softmax.HIDE.value: _hide, softmax.HIDE_OUTSIDE.value: _hide_outside,
    softmax.ONE_OF_FOUR.value: _exp2(1), softmax.TWO_OF_FOUR.value: _exp2(2),
    backward_parts.KEEP.value: _keep, backward_parts.KEEP_INSIDE.value: _keep_inside,
    forward_fp8.TO_E4M3.value: _to_e4m3,
}


def meaning_of(asm: str):
    """Return the function of a piece of PTX of ours, or None."""
    if asm in _MEANINGS:
        return _MEANINGS[asm]
    if (tau := TAU.search(asm)) and asm == softmax.grow_asm.fn(float(tau[1])):
        return _grow(np.float32(tau[1]))
    count = asm.count("mul.f32")
    return _rescale if count and asm == softmax.rescale_asm.fn(count) else None
