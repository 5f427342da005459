"""Eight-bit numbers: rounding to e4m3 and e5m2, scales, and the rotation that spreads outliers.

A value is kept as a float that lies on the grid of its format, times a scale: `quantise` divides by
the scale and rounds, `dequantise` multiplies again. Rounding goes through ml_dtypes, imported when it
is first needed. int8 is here for contrast: its steps are equal, while those of a float grow with the
value. Taught in notebook 13.
"""

import functools
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from flashlib.arguments import check_array, check_block, check_choice
from flashlib.numerics import round_to_odd

MISSING = "FP8 rounding needs the package ml_dtypes: pip install ml_dtypes, then restart the kernel"


@dataclass(frozen=True)
class Format:
    """An eight-bit format: sign, exponent and mantissa, or for int8 a whole number of −127 … 127.

    e4m3 has no infinity and one NaN per sign, which buys it the values up to 448; e5m2 is a float16
    that lost eight bits of its mantissa, and keeps infinity and NaN.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    largest: float
    ml_name: str = ""

    @property
    def smallest_normal(self) -> float:
        return 2.0 ** (1 - self.bias) if self.exponent_bits else 1.0


E4M3_MAX = 448.0                   # the largest value
FORMATS = MappingProxyType({f.name: f for f in (
    Format("e4m3", 4, 3, 7, E4M3_MAX, "float8_e4m3fn"),
    Format("e5m2", 5, 2, 15, 57344.0, "float8_e5m2"),
    Format("int8", 0, 0, 0, 127.0),
)})
FLOATS = ("e4m3", "e5m2")


def _dtype(fmt: str):
    try:
        import ml_dtypes
    except ImportError as error:
        raise ImportError(MISSING) from error
    return getattr(ml_dtypes, FORMATS[check_choice("fmt", fmt, FLOATS)].ml_name)


def round_to(x, fmt="e4m3") -> np.ndarray:
    """Round to the nearest value of an eight-bit format, ties to even; too large saturates.

    Beyond ±448 (e4m3), ±57344 (e5m2) or ±127 (int8), infinity included, the largest value comes
    back, as the saturating conversion of a GPU does it; NaN stays NaN. The result has the dtype of
    `x`, float32 or float64: `round_to(np.array([0.3]))` is `[0.3125]`.
    """
    x = check_array("x", x)
    largest = FORMATS[check_choice("fmt", fmt, tuple(FORMATS))].largest
    x = np.clip(x, -largest, largest)
    if fmt == "int8":
        return np.rint(x)
    return _narrow(x).astype(_dtype(fmt)).astype(x.dtype)


def _narrow(x):
    """Return float32 from which rounding once more gives what rounding `x` at once would."""
    if x.dtype == np.float32:
        return x
    flat = np.ascontiguousarray(x).reshape(-1)
    with np.errstate(under="ignore", invalid="ignore"):
        return round_to_odd(flat, flat.astype(np.float32)).reshape(x.shape)


def encode(x, fmt="e4m3") -> np.ndarray:
    """Return the codes, uint8, of the values that `x` rounds to; NaN takes its code 0x7F or 0xFF."""
    return _narrow(round_to(x, fmt)).astype(_dtype(fmt)).view(np.uint8)


def decode(codes, fmt="e4m3") -> np.ndarray:
    """Return the float64 values that codes (whole numbers from 0 to 255) stand for."""
    codes = np.asarray(codes)
    if codes.dtype.kind not in "iu" or (codes.size and not 0 <= codes.min() <= codes.max() <= 255):
        raise ValueError(f"codes: expected whole numbers from 0 to 255, got {codes!r}")
    return codes.astype(np.uint8).view(_dtype(fmt)).astype(np.float64)


class Fields(NamedTuple):
    """The bits of one eight-bit float, and what they say; kind names how to read them."""

    sign: int
    exponent: int
    mantissa: int
    bits: str
    kind: str
    value: float


def fields(value, fmt="e4m3") -> Fields:
    """Return sign, exponent and mantissa of what a number rounds to in an eight-bit float format.

    With bias b and m mantissa bits a normal value is ±(1 + mantissa/2ᵐ)·2^(exponent − b), and one of
    exponent 0, a subnormal, ±(mantissa/2ᵐ)·2^(1 − b). `fields(0.3)` has exponent 5, mantissa 2.
    """
    f = FORMATS[check_choice("fmt", fmt, FLOATS)]
    code = int(encode(np.array([float(value)]), fmt)[0])
    sign, rest = code >> 7, code & 0x7F
    exponent, mantissa = rest >> f.mantissa_bits, rest & (2**f.mantissa_bits - 1)
    decoded = float(decode(np.array([code]), fmt)[0])
    kind = ("NaN" if np.isnan(decoded) else "zero" if rest == 0
            else "subnormal" if exponent == 0 else "normal")
    bits = f"{sign} {exponent:0{f.exponent_bits}b} {mantissa:0{f.mantissa_bits}b}"
    return Fields(sign, exponent, mantissa, bits, kind, decoded)


@functools.cache
def _grid(fmt: str) -> np.ndarray:
    if fmt == "int8":
        return np.arange(-127.0, 128.0)
    values = decode(np.arange(256), fmt)
    return np.unique(values[np.isfinite(values)])


def values(fmt="e4m3") -> np.ndarray:
    """Return all finite values of a format, ascending, zero once: 253 for e4m3."""
    return _grid(check_choice("fmt", fmt, tuple(FORMATS))).copy()


def scales(x, *, block=None, fmt="e4m3", limit=None) -> np.ndarray:
    """Return the numbers by which blocks of rows are divided before rounding, one per block.

    A block's scale maps its largest |x| to the largest value of the format; a block of zeros has
    scale 1. NaN and infinity do not take part.

    Args:
        x: (rows, …); a block is `block` rows of it, the last one ragged; None for the whole tensor.
        limit: the |x| that is mapped instead of the largest, for every block; beyond it saturates.
    """
    x = check_array("x", x)
    rows = len(x)
    block = max(rows, 1) if block is None else check_block("block", block)
    largest = x.dtype.type(FORMATS[check_choice("fmt", fmt, tuple(FORMATS))].largest)
    if limit is not None and not 0 < limit < np.inf:
        raise ValueError(f"limit: expected a positive number or None, got {limit!r}")
    size = np.where(np.isfinite(x), np.abs(x), 0).max(axis=tuple(range(1, x.ndim)), initial=0.0)
    amax = np.array([size[start:start + block].max() for start in range(0, rows, block)], x.dtype)
    amax = amax if limit is None else np.full_like(amax, limit)
    return np.where(amax > 0, np.maximum(amax / largest, np.finfo(x.dtype).tiny), 1)


class Quantised(NamedTuple):
    """A tensor on the grid of a format, and the scale of every block of `block` rows."""

    values: np.ndarray
    scales: np.ndarray
    block: int
    fmt: str

    def dequantise(self) -> np.ndarray:
        """Return values times scales: what the tensor has become."""
        return self.values * _by_row(self.scales, self.block, self.values)


def _by_row(scales_, block, x):
    """Repeat the scale of a block for each of its rows, in a shape that broadcasts against x."""
    return np.repeat(scales_, min(block, max(len(x), 1)))[:len(x)].reshape(-1, *[1] * (x.ndim - 1))


def quantise(x, *, block=None, fmt="e4m3", limit=None) -> Quantised:
    """Divide blocks of rows by their scale and round to an eight-bit format.

    One scale for the whole tensor with `block=None`; see `scales` for the arguments. NaN stays NaN
    and infinity becomes the largest value, in their own places only.
    """
    found = scales(x, block=block, fmt=fmt, limit=limit)
    block = max(len(x), 1) if block is None else int(block)
    with np.errstate(over="ignore", invalid="ignore"):
        return Quantised(round_to(x / _by_row(found, block, x), fmt), found, block, fmt)


def _power_of_two(name: str, d: int) -> int:
    if d < 1 or d & (d - 1):
        raise ValueError(f"{name}: expected a power of two, got {d}: pad with zeros to"
                         f" {1 << max(d, 1).bit_length()}, which changes no dot product, or do not"
                         " rotate")
    return d


def hadamard_matrix(d: int) -> np.ndarray:
    """Return the orthogonal Hadamard matrix (d, d) of ±1/√d, by Sylvester's doubling."""
    H = np.ones((1, 1))
    while len(H) < _power_of_two("d", check_block("d", d)):
        H = np.block([[H, H], [H, -H]])
    return H / np.sqrt(d)


def hadamard(x) -> np.ndarray:
    """Multiply the last axis by the orthogonal Hadamard matrix, in d·log₂ d additions a row.

    Every round adds and subtracts entries that are h apart; the matrix is symmetric and its own
    inverse, so doing it twice gives x back.
    """
    x = check_array("x", x)
    d = _power_of_two("the last axis of x", x.shape[-1])
    y, h = x, 1
    with np.errstate(invalid="ignore"):                    # ∞ − ∞ is NaN, in its own row
        while h < d:
            pairs = y.reshape(*x.shape[:-1], d // (2 * h), 2, h)
            left, right = pairs[..., 0, :], pairs[..., 1, :]
            y = np.stack([left + right, left - right], axis=-2).reshape(x.shape)
            h *= 2
    return y * x.dtype.type(1 / np.sqrt(d))


def random_signs(d: int, seed=0) -> np.ndarray:
    """Return d random signs, ±1, in float64: the diagonal that goes before the Hadamard matrix."""
    return np.random.default_rng(seed).choice([-1.0, 1.0], size=check_block("d", d))


def rotate(x, signs) -> np.ndarray:
    """Flip the signs of columns, then mix them by the Hadamard matrix: x·diag(signs)·H.

    Orthogonal, so it keeps every norm and every dot product of two rows that are rotated alike.
    """
    return hadamard(check_array("x", x) * _signs(signs, x.shape[-1]).astype(x.dtype))


def unrotate(x, signs) -> np.ndarray:
    """Undo `rotate`: the Hadamard matrix first, then the signs."""
    return hadamard(x) * _signs(signs, x.shape[-1]).astype(x.dtype)


def rotation_matrix(signs) -> np.ndarray:
    """Return the matrix diag(signs)·H by which `rotate` multiplies, (d, d), in float64."""
    signs = np.asarray(signs, np.float64)
    return _signs(signs, signs.size)[:, None] * hadamard_matrix(signs.size)


def _signs(signs, d) -> np.ndarray:
    signs = np.asarray(signs, np.float64)
    if signs.shape != (d,) or not (np.abs(signs) == 1).all():
        raise ValueError(f"signs: expected {d} numbers out of −1 and 1, got shape {signs.shape}")
    return signs


def random_orthogonal(d: int, seed=0) -> np.ndarray:
    """Return a random orthogonal matrix (d, d): any one spreads outliers, at d² products a row."""
    Q, R = np.linalg.qr(np.random.default_rng(seed).normal(size=(check_block("d", d),) * 2))
    return Q * np.sign(np.diag(R))


def crest(x) -> float:
    """Return the largest |x| over the root mean square: 1 for ±1, √n for a single outlier."""
    x = check_array("x", x).astype(np.float64)
    rms = np.sqrt(np.mean(x**2)) if x.size else 0.0
    return float(np.abs(x).max() / rms) if rms else 1.0


def relative_error(got, exact) -> float:
    """Return the root mean square of got − exact, over that of exact."""
    got, exact = (np.asarray(a, np.float64) for a in (got, exact))
    if got.shape != exact.shape:
        raise ValueError(f"got: expected the shape of exact, {exact.shape}, got {got.shape}")
    size = float(np.sqrt(np.mean(exact**2))) if exact.size else 0.0
    error = float(np.sqrt(np.mean((got - exact) ** 2))) if exact.size else 0.0
    return error / size if size else (0.0 if error == 0 else float("inf"))


def shares(x, *, block=None, fmt="e4m3", limit=None) -> dict[str, float]:
    """Return which share of x lands where, at these scales: "zero", "subnormal" or "saturated".

    "zero" counts what was not zero before; "subnormal" what keeps fewer bits than a normal value.
    """
    q = quantise(x, block=block, fmt=fmt, limit=limit)
    f = FORMATS[fmt]
    size = np.abs(x / _by_row(q.scales, q.block, x))
    largest = f.largest * (1 + 4 * np.finfo(x.dtype).eps)
    return {"zero": float(np.mean((q.values == 0) & (x != 0))),
            "subnormal": float(np.mean((q.values != 0) & (size < f.smallest_normal))),
            "saturated": float(np.mean(size > largest))}
