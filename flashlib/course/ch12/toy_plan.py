"""Chapter 12's toy plan: a producer copies tiles into a ring of slots, a consumer multiplies them."""

from collections.abc import Callable

from flashlib.models.sm import simulator
from flashlib.models.sm.programs import Ring

COPY, LANDS, MATMUL = 10, 5, 20         # cycles: of a copy, until its tile is there, of a matmul


def copy(ring: Ring, j: int) -> simulator.Op:
    """Return the copy of tile j into its slot; the slot's full barrier hears of its end."""
    return simulator.Op("K", j, {"copy": COPY}, latency=LANDS, writes={ring.slot(j): f"K {j}"},
                        arrives=ring.arrival(j))


def multiply(ring: Ring, j: int) -> simulator.Op:
    """Return the matmul that reads tile j."""
    return simulator.Op("QK", j, {"tensor": MATMUL}, reads={ring.slot(j): f"K {j}"})


def simulate(producer: Callable, consumer: Callable, slots: int, tiles: int = 3) -> simulator.Schedule:
    """Return the schedule of two roles, `role(ring, tiles)`, that share a ring of `slots`."""
    ring = Ring("K", slots)
    roles = [simulator.Role(role.__name__, lambda role=role: role(ring, tiles))
             for role in (producer, consumer)]
    arrivals = {f"K {kind}[{slot}]": 1 for kind in ("full", "empty") for slot in range(slots)}
    return simulator.simulate(simulator.Program("toy", tuple(roles), arrivals,
                                                {"copy": "fifo", "tensor": "fifo"}, tiles))
