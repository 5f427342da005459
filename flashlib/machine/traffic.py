"""What an algorithm costs: bytes by tensor and direction, arithmetic, and peak SRAM."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


class Moved(NamedTuple):
    """Bytes of one tensor that crossed between HBM and SRAM."""

    read_bytes: int = 0
    write_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        return self.read_bytes + self.write_bytes


def summed(by_tensor) -> tuple[dict[str, Moved], int, int]:
    """Return what moved of `by_tensor`, less what never did, and the bytes read and written in all."""
    moved = {name: Moved(*map(int, m)) for name, m in by_tensor.items() if any(m)}
    return (moved, sum(m.read_bytes for m in moved.values()),
            sum(m.write_bytes for m in moved.values()))


def csv_text(header: Iterable, rows: Iterable[Iterable], path: str | Path | None) -> str:
    """Return rows as CSV text, and write it to `path` if one is given."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([header, *rows])
    if path is not None:
        Path(path).write_text(out.getvalue(), encoding="utf-8", newline="")
    return out.getvalue()


@dataclass(frozen=True)
class Traffic:
    """The cost of one or more kernels, counted by a `Machine` or given by a closed form.

    Two costs are equal when every field is, tensor by tensor. `a + b` is the cost of running both,
    one after the other: everything adds, but the peak is the larger one.
    """

    hbm_read_bytes: int = 0
    hbm_write_bytes: int = 0
    matmul_flops: int = 0
    vector_flops: int = 0
    exps: int = 0
    sram_peak_bytes: int = 0
    by_tensor: dict[str, Moved] = field(default_factory=dict)

    @classmethod
    def of(cls, by_tensor, matmul_flops=0, vector_flops=0, exps=0, sram_peak_bytes=0) -> Traffic:
        """Make a cost whose byte totals are the sums of `by_tensor`, less what never moved."""
        moved, read_bytes, write_bytes = summed(by_tensor)
        return cls(read_bytes, write_bytes, int(matmul_flops), int(vector_flops), int(exps),
                   int(sram_peak_bytes), moved)

    @property
    def hbm_bytes(self) -> int:
        """All bytes between HBM and SRAM, both directions."""
        return self.hbm_read_bytes + self.hbm_write_bytes

    @property
    def flops(self) -> int:
        """All arithmetic: matmul and vector FLOPs, and one for each exponential."""
        return self.matmul_flops + self.vector_flops + self.exps

    @property
    def intensity(self) -> float:
        """Arithmetic intensity, FLOP per HBM byte (infinite if nothing moved)."""
        return self.flops / self.hbm_bytes if self.hbm_bytes else float("inf")

    def __add__(self, other: Traffic) -> Traffic:
        if not isinstance(other, Traffic):
            return NotImplemented
        zero = Moved()
        names = dict.fromkeys([*self.by_tensor, *other.by_tensor])
        merged = {n: Moved(*(a + b for a, b in zip(self.by_tensor.get(n, zero),
                                                   other.by_tensor.get(n, zero), strict=True)))
                  for n in names}
        return Traffic(self.hbm_read_bytes + other.hbm_read_bytes,
                       self.hbm_write_bytes + other.hbm_write_bytes,
                       self.matmul_flops + other.matmul_flops,
                       self.vector_flops + other.vector_flops, self.exps + other.exps,
                       max(self.sram_peak_bytes, other.sram_peak_bytes), merged)

    def __radd__(self, other):
        return self if other == 0 else NotImplemented

    def to_csv(self, path: str | Path | None = None) -> str:
        """Return tidy CSV (tensor, direction, bytes), and write it to `path` if one is given."""
        rows = ((name, direction, size) for name, moved in self.by_tensor.items()
                for direction, size in zip(("read", "write"), moved, strict=True))
        return csv_text(("tensor", "direction", "bytes"), rows, path)

    def __str__(self) -> str:
        lines = [f"{'tensor':<8}{'read bytes':>16}{'written bytes':>16}"]
        lines += [f"{n:<8}{m.read_bytes:>16,}{m.write_bytes:>16,}" for n, m in self.by_tensor.items()]
        lines.append(f"{'all':<8}{self.hbm_read_bytes:>16,}{self.hbm_write_bytes:>16,}")
        lines.append(f"matmul FLOPs {self.matmul_flops:,}   vector FLOPs {self.vector_flops:,}"
                     f"   exponentials {self.exps:,}")
        lines.append(f"peak SRAM {self.sram_peak_bytes:,} B   intensity {self.intensity:.2f} FLOP/B")
        return "\n".join(lines)
