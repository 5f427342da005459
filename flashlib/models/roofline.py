"""The roofline: from bytes, FLOPs and exponentials to seconds, on a GPU that overlaps perfectly.

Williams, Waterman & Patterson 2009, doi:10.1145/1498765.1498785; here with two more roofs beside
memory and matmul, for vector FLOPs and for exponentials. Taught in notebook 01.
"""

import math
import numbers
from dataclasses import dataclass

import numpy as np

from flashlib import hardware
from flashlib.hardware import GPU


@dataclass(frozen=True)
class RooflineTime:
    """How long each part of a GPU is busy; a part whose rate is unknown takes None.

    `time_s` is the longest of them, as if all ran at the same time and at their peak: a lower bound
    that no kernel beats. `bound` names the part that takes it.
    """

    memory_s: float
    matmul_s: float
    vector_s: float | None
    exp_s: float | None

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by part, without those whose rate is unknown."""
        parts = {"memory": self.memory_s, "matmul": self.matmul_s,
                 "vector": self.vector_s, "exp": self.exp_s}
        return {name: s for name, s in parts.items() if s is not None}

    @property
    def time_s(self) -> float:
        """The longest part: perfect overlap."""
        return max(self.parts.values())

    @property
    def bound(self) -> str:
        """The longest part: 'memory', 'matmul', 'vector' or 'exp' ('nothing' if all are 0)."""
        parts = self.parts
        return max(parts, key=parts.__getitem__) if self.time_s > 0 else "nothing"


def ridge(gpu: GPU | str, dtype: str = "bfloat16") -> float:
    """Return the intensity (FLOP per byte) where matmul takes over from memory as the limit.

    On an A100 that is 312e12 / 2.039e12 ≈ 153 FLOP per byte.
    """
    gpu = hardware.get(gpu)
    return _matmul_rate(gpu, dtype) / _bandwidth(gpu)


def attainable_flops_per_s(intensity, gpu: GPU | str, dtype: str = "bfloat16"):
    """Return the height of the roof: min(peak FLOP/s, intensity × bandwidth).

    Args:
        intensity: FLOP per byte of HBM, a number or an array of them.
        gpu: a `GPU` or the name of one.  dtype: what the matmul units work in.
    """
    gpu = hardware.get(gpu)
    x = np.asarray(intensity)
    if x.dtype.kind not in "iuf":
        raise TypeError(f"intensity: expected numbers, got {intensity!r}")
    if np.isnan(x).any() or (x < 0).any():
        raise ValueError(f"intensity: expected FLOP per byte of at least 0, got {intensity!r}")
    roof = np.minimum(_matmul_rate(gpu, dtype), x * _bandwidth(gpu))
    return float(roof) if roof.ndim == 0 else roof


def time_s(traffic, gpu: GPU | str, dtype: str = "bfloat16") -> RooflineTime:
    """Return the least time that a cost can take on a GPU, if everything overlaps perfectly.

    Args:
        traffic: what was counted: any object with `hbm_read_bytes`, `hbm_write_bytes`,
            `matmul_flops`, `vector_flops` and `exps`, such as a `Traffic`.
        gpu: a `GPU` or the name of one.  dtype: what the matmul units work in.
    Raises:
        ValueError: the GPU has no matmul rate in that dtype, or no bandwidth.

    The model's bytes are those between HBM and SRAM. On a GPU whose L2 holds the tensors, fewer of
    them come from HBM, so `memory_s` is a bound for the model, not for that GPU.
    """
    gpu = hardware.get(gpu)
    read, written, matmul, vector, exps = (
        _count(traffic, name) for name in
        ("hbm_read_bytes", "hbm_write_bytes", "matmul_flops", "vector_flops", "exps"))
    return RooflineTime(
        memory_s=(read + written) / _bandwidth(gpu),
        matmul_s=matmul / _matmul_rate(gpu, dtype),
        vector_s=_over(vector, gpu.vector_flops_per_s),
        exp_s=_over(exps, gpu.exps_per_s),
    )


def _over(count, rate):
    return None if rate is None else count / float(rate)


def _count(traffic, name) -> float:
    value = getattr(traffic, name, None)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"traffic: expected a number in .{name}, got {value!r} in "
                        f"{type(traffic).__name__}")
    count = float(value)
    if not 0 <= count < math.inf:
        raise ValueError(f"traffic.{name}: expected a finite count of at least 0, got {value}")
    return count


def _bandwidth(gpu: GPU) -> float:
    return float(gpu.fact("hbm_bytes_per_s"))


def _matmul_rate(gpu, dtype) -> float:
    rates = gpu.matmul_flops_per_s
    if not isinstance(dtype, str):
        raise TypeError(f"dtype: expected a name such as 'bfloat16', got {dtype!r}")
    if dtype not in rates:
        known = ", ".join(rates) or "none at all"
        raise ValueError(f"dtype: expected one that {gpu.name!r} has a matmul rate for ({known}), "
                         f"got {dtype!r}")
    return float(rates[dtype])
