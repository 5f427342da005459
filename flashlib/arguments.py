"""Arguments checked once, at the door: each error names the argument, what was expected, what came."""

import math
import numbers

import numpy as np

FLOATS = (np.dtype(np.float64), np.dtype(np.float32))


def check_plain(name: str, value) -> None:
    """Refuse the kinds of NumPy arrays that mean more than their numbers: masked ones and matrices."""
    if isinstance(value, np.ma.MaskedArray | np.matrix):
        remedy = "filled(...)" if isinstance(value, np.ma.MaskedArray) else "A"
        raise TypeError(f"{name}: expected a plain NumPy array, got {type(value).__name__}, of which"
                        f" only the numbers would count: pass {name}.{remedy}")


def check_array(name: str, value, ndim: int | None = None) -> np.ndarray:
    """Refuse what is not a float32 or float64 NumPy array of `ndim` dimensions (None: one or more)."""
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{name}: expected a NumPy array, got {type(value).__name__}")
    check_plain(name, value)
    if value.dtype not in FLOATS:
        raise TypeError(f"{name}: expected dtype float64 or float32, got {value.dtype}")
    if ndim is None and value.ndim < 1:
        raise ValueError(f"{name}: expected at least one dimension, got shape {value.shape}")
    if ndim is not None and value.ndim != ndim:
        raise ValueError(f"{name}: expected {ndim} dimensions, got shape {value.shape}")
    return value


def check_same_dtype(**arrays: np.ndarray) -> None:
    """Refuse arrays of different dtypes."""
    if len({array.dtype for array in arrays.values()}) > 1:
        came = ", ".join(f"{name} {array.dtype}" for name, array in arrays.items())
        raise TypeError(f"{', '.join(arrays)}: expected one dtype for all, got {came}")


def check_block(name: str, value, least: int = 1) -> int:
    """Refuse what is not a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name}: expected a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{name}: expected a whole number of at least {least}, got {value}")
    return int(value)


def check_flag(name: str, value) -> bool:
    """Refuse what is not True or False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}: expected True or False, got {value!r}")
    return bool(value)


def check_choice(name: str, value, choices: tuple[str, ...]) -> str:
    """Refuse what is not one of the choices."""
    if value not in choices:
        raise ValueError(f"{name}: expected one of {choices}, got {value!r}")
    return value


def check_share(name: str, value, most: float = 1.0) -> float:
    """Refuse what is not a number from 0 to `most`."""
    share = check_number(name, value)
    if not 0 <= share <= most:
        raise ValueError(f"{name}: expected a number from 0 to {most:g}, got {value}")
    return share


def check_number(name: str, value, least: float = -math.inf) -> float:
    """Refuse what is not a finite number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name}: expected a number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:                                  # a whole number beyond every float
        number = math.inf
    if not -math.inf < number < math.inf:                   # which torch.compile can trace, too
        raise ValueError(f"{name}: expected a finite number, got {value}")
    if number < least:
        raise ValueError(f"{name}: expected a number of at least {least:g}, got {value}")
    return number


def check_scale(scale, d: int) -> float:
    """Return the factor on the logits: 1/√d for None; refuse what is not a finite number."""
    if scale is None:
        return 1.0 / math.sqrt(d)
    if isinstance(scale, bool) or not isinstance(scale, numbers.Real):
        raise TypeError(f"scale: expected a number or None, got {scale!r}")
    return check_number("scale", scale)


def check_attention(Q, K, V, causal, scale) -> tuple[int, int, int, float]:
    """Check the arguments that all attention functions share; return (Nq, Nk, d, scale)."""
    for name, value in (("Q", Q), ("K", K), ("V", V)):
        check_array(name, value, ndim=2)
    check_same_dtype(Q=Q, K=K, V=V)
    check_flag("causal", causal)
    (Nq, d), (Nk, dk) = Q.shape, K.shape
    if d == 0:
        raise ValueError(f"Q: expected head dimension d of at least 1, got shape {Q.shape}")
    if dk != d:
        raise ValueError(f"K: expected head dimension {d} as in Q, got shape {K.shape}")
    if V.shape != K.shape:
        raise ValueError(f"V: expected the shape of K, {K.shape}, got {V.shape}")
    return Nq, Nk, d, check_scale(scale, d)
