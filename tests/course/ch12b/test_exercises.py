"""The checks of chapter 12b accept the solution and name each seeded mistake."""

import itertools

import numpy as np
import pytest

from flashlib.course.ch12b import exercises as ch12b
from flashlib.course.ch12b import solutions as right
from tests.course.exercises.examine import examine


def room(d, stages, kv=2, q_do=2, statistics=2, ds=4, dq=2, dq_bytes=4):
    return (kv * 128 * d * 2 + stages * (q_do * 64 * d * 2 + statistics * 64 * 4) + ds * 64 * 64 * 2
            + dq * 64 * d * dq_bytes)


def wrong_room(**wrong):
    return lambda d, stages: room(d, stages, **wrong)


def neighbors(adds):
    return [(b, a) for row in adds for a, b in itertools.pairwise(row) if a > b]


def by_place(adds):
    """Takes a program's number for the place of a sum."""
    return [(p, q) for p, row in enumerate(adds) for q in row if q > p]


def ring(m, tiles):
    return right.order(m, tiles)[0] + right.order(m, tiles)[1], []


def ascending(m, tiles):
    return right.order(m, tiles)[0][::-1], right.order(m, tiles)[1][::-1]


def both_ascending(m, tiles):
    return range(m // 2 + 1), range(m // 2 + 1, tiles)


def zero_before_who_come_round(m, tiles):
    return [*right.order(m, tiles)[0], *range(tiles - 1, m // 2, -1)], []


def one_descending(m, tiles):
    return list(range(tiles))[::-1], []


WRONG = [
    (ch12b.check_shared_bytes, wrong_room(kv=1), "those of V, or half of dQ"),
    (ch12b.check_shared_bytes, wrong_room(dq_bytes=2), "those of V, or half of dQ"),
    (ch12b.check_shared_bytes, wrong_room(dq=1), "those of V, or half of dQ"),
    (ch12b.check_shared_bytes, wrong_room(kv=1, q_do=1, statistics=1), "'1 each' are two tiles"),
    (ch12b.check_shared_bytes, lambda d, s: room(d, s, statistics=2 / s), "lse and delta are there"),
    (ch12b.check_shared_bytes, lambda d, s: room(d, s, dq=2 * s), "dQ has two tiles"),
    (ch12b.check_shared_bytes, wrong_room(q_do=1), "dO comes with Q"),
    (ch12b.check_shared_bytes, wrong_room(statistics=0), "lse and delta come with Q and dO"),
    (ch12b.check_shared_bytes, wrong_room(statistics=1), "both lse and delta"),
    (ch12b.check_shared_bytes, wrong_room(ds=2), "dS is there twice"),
    (ch12b.check_shared_bytes, wrong_room(ds=1), "this counts one"),
    (ch12b.check_shared_bytes, lambda d, s: room(d, s, ds=4 * s), "whatever `stages` is"),
    (ch12b.check_shared_bytes, lambda d, s: room(d, 1), "Q and dO are there `stages` times"),
    (ch12b.check_shared_bytes, lambda d, s: room(d, s, kv=2 * s), "K and V are there once"),
    (ch12b.check_shared_bytes, lambda d, s: room(d, s) / 1024, "these are KiB"),
    (ch12b.check_shared_bytes, lambda d, s: 2 * (room(d, s) - 2 * 64 * d * 4 - s * 512)
     + 2 * 64 * d * 4 + s * 512, "in float32 throughout"),
    (ch12b.check_shared_bytes, lambda d, s: 91_648, "d=64, stages=4: expected"),
    (ch12b.check_hazards, lambda adds: [], "lacks this pair"),
    (ch12b.check_hazards, lambda adds: right.hazards(adds[:1]), "look into every sum"),
    (ch12b.check_hazards, neighbors, "at every pair in it"),
    (ch12b.check_hazards, lambda adds: bool(right.hazards(adds)), "name who waits for whom"),
    (ch12b.check_hazards, lambda adds: len(right.hazards(adds)), "name who waits for whom"),
    (ch12b.check_hazards, lambda adds: {pair[::-1] for pair in right.hazards(adds)},
     "the other way round"),
    (ch12b.check_hazards, lambda adds: [(p, q) for row in adds for n, p in enumerate(row)
                                        for q in row[:n]], "which has taken its number before"),
    (ch12b.check_hazards, lambda adds: [(p, q) for row in adds for p in row for q in row if q > p],
     "it does not wait for it"),
    (ch12b.check_hazards, by_place, "it does not wait for it"),
    (ch12b.check_hazards, lambda adds: [3], "expected a tuple"),
    (ch12b.check_order, ring, "the ring closes"),
    (ch12b.check_order, zero_before_who_come_round, "needs a sum of its own"),
    (ch12b.check_order, ascending, "turns go down with the keys"),
    (ch12b.check_order, lambda m, tiles: (right.order(m, tiles)[0], right.order(m, tiles)[1][::-1]),
     "on 1 SM: 1 program waits for ever"),
    (ch12b.check_order, both_ascending, "turns go down with the keys"),
    (ch12b.check_order, one_descending, "nobody waits for ever, but it takes"),
    (ch12b.check_order, lambda m, tiles: (right.order(m, tiles)[0], []), "never adds"),
    (ch12b.check_order, lambda m, tiles: (list(range(tiles))[::-1], right.order(m, tiles)[1]),
     "adds twice"),
    (ch12b.check_order, lambda m, tiles: ([*right.order(m, tiles)[0], tiles], right.order(m, tiles)[1]),
     "there is no key tile"),
    (ch12b.check_order, lambda m, tiles: right.order(m, tiles)[0] + right.order(m, tiles)[1],
     "expected a tuple"),
]
CHECKS = [(ch12b.check_shared_bytes, right.shared_bytes), (ch12b.check_hazards, right.hazards),
          (ch12b.check_order, right.order)]
FORMS = [
    (ch12b.check_shared_bytes, lambda d, s: np.int64(room(d, s))),
    (ch12b.check_shared_bytes, lambda d, s: float(room(d, s))),
    (ch12b.check_hazards, lambda adds: sorted(right.hazards(adds))),
    (ch12b.check_hazards, lambda adds: np.array(sorted(right.hazards(adds))).reshape(-1, 2)),
    (ch12b.check_hazards, lambda adds: [[np.int64(x) for x in pair] for pair in right.hazards(adds)]),
    (ch12b.check_order, lambda m, tiles: tuple(map(np.array, right.order(m, tiles)))),
    (ch12b.check_order, lambda m, tiles: (range(m // 2, -1, -1), range(tiles - 1, m // 2, -1))),
]

TestAnswers = examine(right=CHECKS, wrong=WRONG)


@pytest.mark.parametrize(("check", "answer"), FORMS)
def test_other_forms_of_the_right_answer_pass(check, answer):
    assert check(answer, strict=True)
