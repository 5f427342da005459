"""The toy plan of chapter 12: two slots hide the copies, and who forgets a barrier is told."""

import pytest

from flashlib.course.ch12 import toy_plan
from flashlib.models.sm.parts import Hazard
from flashlib.models.sm.simulator import issue, run


def producer(ring, tiles):
    for j in range(tiles):
        yield ring.empty(j)
        yield issue(toy_plan.copy(ring, j))


def consumer(ring, tiles):
    for j in range(tiles):
        yield ring.full(j)
        yield run(toy_plan.multiply(ring, j))
        yield ring.release(j)


def hasty(ring, tiles):
    for j in range(tiles):
        yield run(toy_plan.multiply(ring, j))
        yield ring.release(j)


@pytest.mark.parametrize(("slots", "tiles", "cycles"), [(1, 3, 105), (2, 3, 75), (2, 4, 95)])
def test_a_plan_takes_the_cycles_that_were_found_by_hand(slots, tiles, cycles):
    assert toy_plan.simulate(producer, consumer, slots, tiles).cycles == cycles


def test_a_consumer_that_does_not_wait_is_refused():
    with pytest.raises(Hazard, match="reads K slot 0 while K 0 of producer still writes it"):
        toy_plan.simulate(producer, hasty, 2)
