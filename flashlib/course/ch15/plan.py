"""What decoding costs and who shares it: bytes of a cache, rules for the number of parts, a time."""

import math
from typing import NamedTuple

import numpy as np

from flashlib.models.occupancy import Waves, waves

TILE = 64                                                   # keys that a program loads at a time


class Model(NamedTuple):
    """What a language model caches in its layers; `group` query heads share a key head."""

    name: str
    layers: int
    H_k: int
    d: int
    group: int

    def token_bytes(self, element_bytes=2) -> int:
        """Return the bytes of K and V that one token leaves in all layers."""
        return 2 * self.layers * self.H_k * self.d * element_bytes


MODELS = (Model("GPT-2", 12, 12, 64, 1), Model("SmolLM2-135M", 30, 3, 64, 3),
          Model("Llama-2-7B", 32, 32, 128, 1), Model("Llama-3.1-8B", 32, 8, 128, 4),
          Model("Llama-3.1-70B", 80, 8, 128, 8))


class Case(NamedTuple):
    """B sequences of N_k keys in H_k heads of d columns, each with `group` heads of one query."""

    B: int
    N_k: int
    H_k: int = 8
    group: int = 4
    d: int = 128

    @property
    def heads(self) -> int:
        """Return how many programs there are with one part."""
        return self.B * self.H_k

    @property
    def kv_bytes(self) -> int:
        """Return the bytes of K and V in 16 bits."""
        return 4 * self.heads * self.N_k * self.d

    def part_bytes(self, parts) -> int:
        """Return the bytes that parts write and the merge reads: O, m and l of each, float32."""
        return 0 if parts == 1 else 2 * parts * self.heads * self.group * (self.d + 2) * 4

    def cut(self, parts) -> int:
        """Return the parts that there are if about so many are wanted: of whole tiles."""
        return -(-self.N_k // (TILE * -(-self.N_k // (TILE * min(parts, self.N_k)))))

    def waves(self, parts, sms) -> Waves:
        """Return how the programs fill so many SMs."""
        return waves(self.heads * parts, sms)


# Rules by which libraries choose the number of parts, after their sources (August 2026). They know the
# batch, and with it whose neighbor one is.
def fa3(case, sms=132) -> int:
    """FlashAttention-3: the fewest parts that fill waves at least 85 % as well as the best number."""
    if case.heads >= 0.8 * sms or case.N_k <= 4 * 128:
        return 1
    full = {parts: case.waves(parts, sms).efficiency for parts in range(1, 129)}
    return min(parts for parts, share in full.items() if share >= 0.85 * max(full.values()))


def flex(case, sms=132) -> int:
    """FlexDecoding: twice as many as give each SM a program."""
    return max(1, 2 * (sms // case.heads))


def flashinfer(case, sms=132) -> int:
    """FlashInfer: the most whose programs all run at once, two on an SM."""
    return max(1, 2 * sms // case.heads)


def vllm(case, sms=132) -> int:
    """The Triton kernel of vLLM: 16 for a small batch, else 1."""
    return 16 if case.heads <= 128 else 1


def ours(case, sms=132, unit=256, run=8) -> int:
    """A run of eight units a part where that makes programs for 3/4 of the SMs, else a unit."""
    runs = -(-case.N_k // (unit * run))
    return runs if case.heads * runs >= 0.75 * sms else -(-case.N_k // unit)


RULES = {"FlashAttention-3": fa3, "FlexDecoding": flex, "FlashInfer": flashinfer, "vLLM": vllm,
         "flashlib": ours}


class Rates(NamedTuple):
    """What the time is made of: a start, the memory's rate, one SM's share of it at most, a merge."""

    start_s: float
    bytes_per_s: float
    sm_bytes_per_s: float
    merge_s: float

    def seconds(self, case: Case, parts: int, sms: int = 132) -> float:
        """Return the predicted time of splits and merge.

        The busiest SM has ⌈programs / SMs⌉ programs. It is done when they have their keys at its own
        rate, and nobody is before the memory has delivered all.
        """
        programs = case.heads * parts
        mine = math.ceil(programs / sms) * case.kv_bytes / programs / self.sm_bytes_per_s
        reading = max(case.kv_bytes / self.bytes_per_s, mine)
        return self.start_s + reading + (parts > 1) * (
            self.merge_s + case.part_bytes(parts) / self.bytes_per_s)

    def best(self, case: Case, sms: int = 132, most: int = 256) -> int:
        """Return the number of parts with the shortest predicted time."""
        found = sorted({case.cut(parts) for parts in range(1, most + 1)})
        return min(found, key=lambda parts: self.seconds(case, parts, sms))


def pages_of(lengths, page) -> int:
    """Return how many pages sequences of these lengths hold."""
    return sum(-(-n // page) for n in lengths)


def wasted(lengths, *, page=None, room=None) -> float:
    """Return the share of reserved keys that hold nothing: in pages, or in a room for each sequence."""
    reserved = len(lengths) * room if page is None else pages_of(lengths, page) * page
    return 1 - sum(lengths) / reserved


def line(points, least=0) -> tuple[float, float]:
    """Return (constant in s, bytes/s) of the line nearest to {bytes: seconds}, from some bytes on."""
    kept = {x: y for x, y in points.items() if x >= least}
    slope, constant = np.polyfit(list(kept), list(kept.values()), 1)
    return float(constant), float(1 / slope)


def reads(recorded) -> dict[str, dict[int, float]]:
    """Return harness → bytes → seconds of the kernel that only reads, of `decode_h200`."""
    found: dict[str, dict[int, float]] = {}
    for row in recorded.where(impl="sum").rows:
        found.setdefault(row["harness"], {}).setdefault(row["kv_bytes"], row["seconds"])
    return found


def times(splits, B, N_k) -> dict[int, float]:
    """Return parts → seconds of a shape, of `decode_splits_h200`."""
    return {row["parts"]: row["seconds"] for row in splits.where(impl="parts", B=B, N_k=N_k).rows}


def sm_rate(splits) -> float:
    """Return the bytes/s that one program gets an SM to read, of `decode_splits_h200`.

    The slope of a line: time against a program's bytes, one sequence of 65,536 keys in 2 to 12 parts,
    at most 96 programs. With one part the kernel is another, which divides and stores O by itself.
    """
    case = Case(1, 65536)
    few = {case.kv_bytes / case.heads / parts: seconds
           for parts, seconds in times(splits, case.B, case.N_k).items() if 1 < parts <= 12}
    return line(few)[1]


def rates_of(recorded, sm_bytes_per_s) -> Rates:
    """Return the model's four numbers: a line, one SM's rate, and a merge of the library's own parts.

    The merge's constant is what is left of one sequence of 65,536 keys.
    """
    start, rate = line(reads(recorded)["rotating"], least=1e8)
    case = Case(1, 65536)
    without = Rates(start, rate, sm_bytes_per_s, 0.0)
    (whole,) = recorded.where(impl="ours", harness="rotating", B=1, N_k=65536, N_q=1).rows
    return without._replace(merge_s=whole["seconds"] - without.seconds(case, ours(case)))


def several_queries(recorded) -> list[dict]:
    """Return µs of each shape of several queries in `decode_h200`: reading, ours, and the libraries."""
    found: dict[tuple, dict] = {}
    for row in recorded.where(harness="rotating").rows:
        if row["N_q"] > 1 and row["impl"] in ("sum", "ours", "fa3", "sdpa_flash", "sdpa_cudnn"):
            shape = {"B": row["B"], "queries": row["N_q"], "group": row["H"] // row["H_k"],
                     "keys": row["N_k"], "d": row["d"]}
            found.setdefault(tuple(shape.values()), shape)[row["impl"]] = round(1e6 * row["seconds"], 1)
    return list(found.values())


def over(recorded, impl, other, *, several) -> str:
    """Return the range of the time of `impl` over that of `other`, of several queries or of one."""
    seconds: dict[str, dict] = {impl: {}, other: {}}
    for row in recorded.where(harness="rotating").rows:
        if row["impl"] in seconds and several == (row["N_q"] > 1):
            shape = tuple(row[k] for k in ("B", "N_q", "H", "H_k", "N_k", "d"))
            seconds[row["impl"]][shape] = row["seconds"]
    ratios = [s / seconds[other][shape] for shape, s in seconds[impl].items()]
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def as_shipped(splits, times) -> list[dict]:
    """Return the time of the library's kernel over that of the best equal parts, by batch."""
    rows: dict[int, dict] = {}
    for (B, N_k), found in times.items():
        (whole,) = (r for r in splits.where(impl="ours", B=B, N_k=N_k).rows if r["seconds"])
        ratio = whole["seconds"] / min(found.values())
        rows.setdefault(B, {"sequences": B})[f"{N_k:,} keys"] = f"{ratio:.2f}"
    return list(rows.values())


def paged(splits, shapes, sizes) -> list[dict]:
    """Return the time of a paged cache over that of a contiguous one, by page size."""
    found = []
    for B, N_k in shapes:
        rows = splits.where(B=B, N_k=N_k).rows
        took = {row["impl"]: row["seconds"] for row in rows if row["seconds"]}
        found.append({"sequences": B, "keys": N_k}
                     | {f"page {p}": f"{took[f'ours_page_{p}'] / took['ours']:.2f}" for p in sizes})
    return found
