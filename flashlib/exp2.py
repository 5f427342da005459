"""A power of two without the exponential unit: round down, a polynomial, and the exponent's bits.

2ˣ = 2ⁿ · 2ᶠ with a whole n = ⌊x⌋ and 0 ≤ f < 1. A polynomial of low degree stands for 2ᶠ, and n is
added to the bits that hold the exponent. FlashAttention-4 (arXiv:2603.05451) computes a share of the
softmax like this, on the units that add and multiply. Taught in notebook 14.
"""

import functools
from typing import Any

import numpy as np

from flashlib.arguments import check_block

LOG2E, LN2 = float(np.log2(np.e)), float(np.log(2))
HIGHEST_DEGREE = 7

# dtype: integers of its width, bits of the mantissa, and the exponent −bias, at which 1.0's bits are 0.
_FORMATS = {np.dtype(np.float32): (np.int32, 23, -127.0), np.dtype(np.float64): (np.int64, 52, -1023.0)}


def check_degree(name: str, degree) -> int:
    """Refuse a degree that is not a whole number from 1 to `HIGHEST_DEGREE`."""
    degree = check_block(name, degree)
    if degree > HIGHEST_DEGREE:
        raise ValueError(f"{name}: expected a degree of at most {HIGHEST_DEGREE}, got {degree}")
    return degree


@functools.cache
def coefficients(degree: int) -> tuple[float, ...]:
    """Return (1, c₁, …), the polynomial with p(0) = 1 nearest to 2ᶠ on 0 ≤ f ≤ 1.

    It makes the largest relative error |p(f)/2ᶠ − 1| as small as a polynomial of that degree with
    p(0) = 1 can. Remez' exchange finds it, in float64: choose `degree + 1` points, ask for errors of
    one size and of alternating sign there, move the points to where the error is largest, repeat.

    `coefficients(1)` is (1, 0.9236): of all lines through (0, 1), that one comes nearest.
    """
    degree = check_degree("degree", degree)
    grid = np.linspace(0, 1, 8193)
    powers = grid[:, None] ** np.arange(1, degree + 1) * 2.0 ** -grid[:, None]
    target = 1 - 2.0 ** -grid                              # powers @ c − target = p(f)/2ᶠ − 1
    signs = (-1.0) ** np.arange(degree + 1)
    at = np.rint(8192 * (1 - np.cos(np.pi * np.arange(1, degree + 2) / (degree + 1))) / 2).astype(int)
    c = []
    for _ in range(30):
        *c, _ = np.linalg.solve(np.column_stack([powers[at], signs]), target[at])
        error = powers @ c - target
        changes = np.flatnonzero(np.diff(np.sign(error[1:])) != 0) + 1
        pieces = np.split(np.arange(len(grid)), changes + 1)
        peaks = np.array([piece[np.abs(error[piece]).argmax()] for piece in pieces])
        if len(peaks) != degree + 1 or np.array_equal(peaks, at):
            break
        at = peaks
    return (1.0, *map(float, c))


def software_exp2(x, degree):
    """Return 2ˣ without an exponential: one way for arrays, and for tiles, whose work counts itself.

    Args:
        x: float32 or float64, an array or a tile in SRAM; below 128 (float64: 1,024).
        degree: of the polynomial, see `coefficients`.
    Returns:
        2ˣ in the dtype of x. At x ≤ −127 (float64: −1,023), −∞ included, exactly 0, and in the last
        binade above that anything from 0 to the smallest normal number: no subnormals. NaN is NaN.
    Raises:
        TypeError, ValueError: x is of another dtype, or an array that reaches beyond the range.

    Taught in notebook 14. A tile counts 2·degree + 6 vector FLOPs an element.
    """
    dtype = getattr(x, "dtype", None)
    if dtype not in _FORMATS:
        raise TypeError(f"x: expected float32 or float64, got {dtype or type(x).__name__}")
    degree = check_degree("degree", degree)
    integer, mantissa_bits, lowest = _FORMATS[dtype]
    if isinstance(x, np.ndarray) and np.any(x >= 1 - lowest):
        raise ValueError(f"x: expected below {1 - lowest:g}, where exponents end, got {np.nanmax(x):g}")
    c = coefficients(degree)
    with np.errstate(invalid="ignore"):                        # NaN has no whole part
        x = np.maximum(x, lowest)
        n = np.floor(x)
        f = x - n
        p: Any = c[-1]
        for smaller in c[-2::-1]:                              # Horner: ((c₃·f + c₂)·f + c₁)·f + 1
            p = p * f + smaller
        exponent = n.astype(integer) << mantissa_bits
        return (p.view(integer) + exponent).view(dtype)


def vector_flops(degree: int) -> int:
    """Return what a tile counts an element: maximum, floor, subtract, Horner, convert, shift, add."""
    return 2 * check_degree("degree", degree) + 6


def slots(degree: int) -> int:
    """Return how many full-rate instruction slots an element takes on a GPU: `degree` FMAs and seven.

    The seven: maximum, which runs at half rate (2); add a constant that pushes the fraction out of
    the mantissa, so that n stands in its low bits (1), subtract it again (1), x − n (1); shift n to
    the exponent's place and add, which the assembler makes one LEA or IMAD, at half rate (2).
    """
    return check_degree("degree", degree) + 7


def largest_error(degree: int, dtype=np.float64, points: int = 1 << 20) -> float:
    """Return the largest relative error of `software_exp2` over points spread evenly over [0, 1)."""
    f = np.linspace(0, 1, check_block("points", points, least=2), endpoint=False).astype(dtype)
    exact = np.exp2(f.astype(np.float64))
    return float(np.abs(software_exp2(f, degree) / exact - 1).max())
