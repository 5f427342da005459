"""How long the units of an SM work on one tile of attention: matmul, exponentials, vector lanes.

The cycles are those at the peak rate of each unit, so they are lower bounds; the schedule simulator
says how near a program comes to them. Taught in notebook 14.
"""

from typing import NamedTuple

from flashlib import hardware
from flashlib.arguments import check_block, check_share
from flashlib.exp2 import slots
from flashlib.models.sm.operations import SOFTMAX_SLOTS, rates


class Units(NamedTuple):
    """Cycles that each unit of an SM needs for a tile."""

    matmul: float
    exp: float
    vector: float

    @property
    def softmax(self) -> float:
        """The longer of exponentials and vector work, which run at the same time."""
        return max(self.exp, self.vector)


def units(gpu, *, rows=128, keys=128, d=128, dtype="float16", share=0.0, degree=3) -> Units:
    """Return the cycles of one tile of `rows` queries and `keys` keys on an SM of a GPU.

    Args:
        gpu: name or sheet.  d: head dimension.
        dtype: what the matmuls work in, "float16", "bfloat16" or "float8".
        share: of the exponentials, computed by a polynomial of `degree` on the vector lanes.

    `units("B200").exp` is 1024, and so is its `.matmul`. Slots are counted as on Hopper; older chips
    are charged the same ones on their fewer lanes.
    """
    rows, keys, d = (check_block(n, v) for n, v in (("rows", rows), ("keys", keys), ("d", d)))
    share, chip = check_share("share", share), rates(gpu, dtype)
    fma = float(hardware.get(gpu).fact("vector_flops_per_s")) / 2 / chip.sms / chip.clock_hz
    lanes = 64 * round(fma / 64)           # some sheets rate float32 at a higher clock than matmuls
    logits = rows * keys
    vector = SOFTMAX_SLOTS + share * slots(degree)
    return Units(4 * logits * d / chip.matmul_flops, (1 - share) * logits / chip.exps,
                 vector * logits / lanes)


def best_share(gpu, *, degree=3, dtype="float16") -> float:
    """Return the share at which exponentials and vector work take equally long; 0 if none helps.

    (1 − x)·E = A + x·B has the root (E − A)/(E + B), with the cycles E of all exponentials on their
    unit, A of the other vector work and B of all exponentials on the vector lanes.
    """
    none, every = (units(gpu, share=x, degree=degree, dtype=dtype) for x in (0.0, 1.0))
    return max(0.0, (none.exp - none.vector) / (none.exp + every.vector - none.vector))
