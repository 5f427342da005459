"""What each float format can hold, rounding to it, and how wrong a result is.

The facts are constants, so that bfloat16 needs no package; errors are measured in float64.
Taught in notebooks 03 and 04; the bfloat16 rounding again in 10.
"""

from dataclasses import dataclass
from types import MappingProxyType

import numpy as np


@dataclass(frozen=True)
class FloatFacts:
    """What a binary float format can hold.

    `exponent_bits` and `mantissa_bits` are those that are stored. `epsilon` is the step from 1 to
    the next value, so rounding errs by at most epsilon/2, relatively. `exp_overflow` is the largest
    value of the format whose exponential, computed exactly and rounded to nearest, is finite;
    `exp_underflow` is the smallest whose exponential rounds to something other than zero. (Units
    that flush subnormals to zero lose it earlier, at ln(smallest_normal).)
    """

    name: str
    bits: int
    exponent_bits: int
    mantissa_bits: int
    exp_overflow: float
    exp_underflow: float

    @property
    def min_exponent(self) -> int:
        """The smallest normal value is 2 to this."""
        return 2 - 2 ** (self.exponent_bits - 1)

    @property
    def epsilon(self) -> float:
        return 2.0 ** -self.mantissa_bits

    @property
    def largest(self) -> float:
        """The largest finite value."""
        return (2.0 - self.epsilon) * 2.0 ** (1 - self.min_exponent)

    @property
    def smallest_normal(self) -> float:
        return 2.0 ** self.min_exponent

    @property
    def smallest_subnormal(self) -> float:
        return 2.0 ** (self.min_exponent - self.mantissa_bits)


DTYPES = MappingProxyType({facts.name: facts for facts in (
    FloatFacts("float64", 64, 11, 52, 709.782712893384, -745.1332191019411),
    FloatFacts("float32", 32, 8, 23, 88.72283172607422, -103.97207641601562),
    FloatFacts("float16", 16, 5, 10, 11.0859375, -17.328125),
    FloatFacts("bfloat16", 16, 8, 7, 88.5, -92.5),
)})


def facts(dtype) -> FloatFacts:
    """Return the facts of a dtype, given as a name or as a NumPy, ml_dtypes or torch dtype.

    `facts("float16").largest` is 65504.0.
    """
    name = getattr(dtype, "__name__", None) or str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}")
    return DTYPES[name]


def round_to(x, dtype) -> np.ndarray:
    """Round to the nearest value of a format, ties to even; too large becomes ±∞, NaN stays NaN.

    The result is an array of float64, or of float32 for inputs of at most 32 bits, that holds only
    values of the format: `round_to(3.14159, "bfloat16")` is 3.140625.
    """
    target = facts(dtype)
    x = _numbers("x", x)
    if target.name == "bfloat16":
        return _round_to_bfloat16(x.reshape(-1)).reshape(x.shape)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return x.astype(target.name).astype(x.dtype)


def _round_to_bfloat16(x: np.ndarray) -> np.ndarray:
    """Round by adding to the bits: a bfloat16 is the upper half of a float32."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        narrow = x.astype(np.float32)
    if x.dtype == np.float64:
        narrow = round_to_odd(x, narrow)
    bits = narrow.view(np.uint32)
    even = (bits >> np.uint32(16)) & np.uint32(1)
    bits = (bits + np.uint32(0x7FFF) + even) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), x, bits.view(np.float32).astype(x.dtype))


def round_to_odd(x: np.ndarray, narrow: np.ndarray) -> np.ndarray:
    """Return `x` in float32, with the last bit set where it was not exact: ties stay visible.

    Rounding first to float32 and then to bfloat16 would round twice, and err on near-ties.
    """
    wide = narrow.astype(np.float64)
    bits = narrow.view(np.uint32) - (np.abs(wide) > np.abs(x))
    bits |= (wide != x) & ~np.isnan(x)
    return bits.astype(np.uint32).view(np.float32)


def ulp(x, dtype) -> np.ndarray:
    """Return the distance between neighbors of a format at |x|: one unit in the last place."""
    target = facts(dtype)
    x = np.abs(_numbers("x", x).astype(np.float64))
    _, exponent = np.frexp(np.clip(x, target.smallest_normal, target.largest))
    return np.where(np.isfinite(x), np.ldexp(1.0, exponent - 1 - target.mantissa_bits), np.nan)


def max_abs_error(result, reference) -> float:
    """Return the largest |result − reference|, in float64; equal infinities differ by 0.

    A NaN on either side makes it NaN, which fails every `error <= tolerance`.
    """
    return float(np.max(np.abs(_difference(result, reference)), initial=0.0))


def max_relative_error(result, reference) -> float:
    """Return the largest |result − reference|, relative to the largest finite |reference|."""
    error = max_abs_error(result, reference)
    finite = np.abs(np.asarray(reference, dtype=np.float64))
    largest = np.max(finite, initial=0.0, where=np.isfinite(finite))
    if largest == 0.0:
        return error if error == 0.0 or np.isnan(error) else float("inf")
    return error / float(largest)


def rmse(result, reference) -> float:
    """Return the root of the mean squared difference, in float64."""
    difference = _difference(result, reference)
    return float(np.sqrt(np.mean(difference**2))) if difference.size else 0.0


def ulp_distance(result, reference, dtype) -> float:
    """Return the largest |result − reference| in units in the last place of the reference.

    A correctly rounded result is at most 0.5 away from the exact reference.
    """
    error = np.abs(_difference(result, reference))
    unit = np.where(error == 0.0, 1.0, ulp(reference, dtype))
    unit = np.where(np.isnan(unit) & np.isinf(error), 1.0, unit)
    return float(np.max(error / unit, initial=0.0))


def _numbers(name, x) -> np.ndarray:
    """Return real numbers as float64, or as float32 where they came in at most 32 bits."""
    if hasattr(x, "detach"):                                # a torch tensor, of any device
        x = x.detach().cpu().float() if x.dtype.itemsize < 4 else x.detach().cpu()
    x = np.asarray(x)
    if x.dtype.kind in "iu":
        return x.astype(np.float64)
    small = x.dtype.kind == "V" and "float" in x.dtype.name  # bfloat16, float8: ml_dtypes
    if not small and (x.dtype.kind != "f" or x.dtype.itemsize > 8):
        raise TypeError(f"{name}: expected real numbers, got dtype {x.dtype}")
    return x.astype(np.float64 if x.dtype.itemsize == 8 else np.float32)


def _difference(result, reference) -> np.ndarray:
    result, reference = _numbers("result", result), _numbers("reference", reference)
    if result.shape != reference.shape:
        raise ValueError(f"result: expected the shape of reference, {reference.shape}, "
                         f"got {result.shape}")
    result, reference = result.astype(np.float64), reference.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return np.where(result == reference, 0.0, result - reference)
