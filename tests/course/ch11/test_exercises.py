"""The checks of chapter 11 accept every right form of the solution and name each seeded mistake."""

from fractions import Fraction

import numpy as np
import pytest

from flashlib.course.ch11 import exercises as ch11
from flashlib.course.ch11 import solutions as right
from tests.course.exercises.examine import examine

SM = 228 * 1024
HALF = SM // 2 - 1024


def tile(**changes):
    return lambda: right.my_tile() | changes


def stages(Br, Bc, d, *, room=HALF, tiles=2, size=2):
    return (room // (size * d) - Br) // (tiles * Bc)


def doubles_the_straggler(programs, sms, per_sm, program_s):
    seconds, efficiency = right.time_in_waves(programs, sms, per_sm, program_s)
    return seconds * (2 if programs == 133 else 1), efficiency


def fraction_of_waves(programs, sms, per_sm, program_s):
    seconds, _ = right.time_in_waves(programs, sms, per_sm, program_s)
    return [np.float32(seconds), Fraction(programs, -(-programs // (sms * per_sm)) * sms * per_sm)]


def bytes_by_loops(heads, N, d, Br):
    from_l2 = from_dram = 0
    for _ in range(heads):
        from_dram += 3 * N * d * 2
        from_l2 += N * d * 2
        for _ in range(0, N, Br):
            from_l2 += 2 * N * d * 2
    return from_l2, from_dram


WRONG = [
    (ch11.check_most_stages, lambda *a: max(0, stages(*a, room=228_000 // 2 - 1024)), "a KiB is"),
    (ch11.check_time_in_waves, lambda *a: np.array([1.0, 1.0, 1.0]), "expected a tuple"),
    (ch11.check_time_in_waves, lambda *a: np.array(right.time_in_waves(*a)) * (1, 100), "in per cent"),
    (ch11.check_where_bytes_come_from,
     lambda h, N, d, B: (right.where_bytes_come_from(h, N, d, B)[0] + 4 * h * N, 0), "lse is written"),
    (ch11.check_where_bytes_come_from,
     lambda h, N, d, B: (right.where_bytes_come_from(h, N, d, B)[0], 6 * h * N * d + 4 * h * N),
     "lse is written"),
    (ch11.check_most_stages, stages, "not even one stage fits"),
    (ch11.check_most_stages, lambda *a: max(0, stages(*a, size=4)), "this counts 4 bytes"),
    (ch11.check_most_stages, lambda *a: right.most_stages(*a) + (a == (256, 128, 128)),
     "Br, Bc, d = 256, 128, 128: expected 0, got 1"),
    (ch11.check_most_stages, lambda *a: max(1, right.most_stages(*a)), "then it is 0"),
    (ch11.check_most_stages, lambda Br, Bc, d: max(0, round((HALF / (2 * d) - Br) / (2 * Bc))),
     "rounded to the nearest"),
    (ch11.check_most_stages, lambda Br, Bc, d: max(0, stages(2 * Br, Bc, d)), "O lives in registers"),
    (ch11.check_most_stages, lambda *a: "two", "Br, Bc, d = 128, 64, 128: expected a number"),
    (ch11.check_most_stages, lambda *a: [2], "expected a number, got [2]"),
    (ch11.check_time_in_waves, doubles_the_straggler,
     "seconds, programs, sms, per_sm, program_s = 133, 132, 1, 0.002: expected 0.004, got 0.008"),
    (ch11.check_time_in_waves,
     lambda *a: (right.time_in_waves(*a)[0], 100 * right.time_in_waves(*a)[1]), "in per cent"),
    (ch11.check_most_stages, lambda *a: stages(*a, room=SM - 1024), "two share the SM"),
    (ch11.check_most_stages, lambda *a: max(0, stages(*a, room=(SM - 1024) // 2)), "each of the two"),
    (ch11.check_most_stages, lambda *a: max(0, stages(*a, room=SM // 2)), "with every program"),
    (ch11.check_most_stages, lambda *a: stages(*a, tiles=1), "K and one of V"),
    (ch11.check_most_stages, lambda *a: stages(*a, size=1), "2 bytes"),
    (ch11.check_most_stages, lambda Br, Bc, d: stages(0, Bc, d), "Q needs room"),
    (ch11.check_most_stages, lambda Br, Bc, d: HALF // (2 * d) // (Br + 2 * Bc), "no stages"),
    (ch11.check_most_stages, lambda Br, Bc, d: (HALF / (2 * d) - Br) / (2 * Bc), "round down"),
    (ch11.check_time_in_waves, lambda p, n, k, s: (p / (n * k) * s, 1.0), "round up"),
    (ch11.check_time_in_waves, lambda p, n, k, s: (p // (n * k) * s, 1.0), "drops the last"),
    (ch11.check_time_in_waves, lambda p, n, k, s: (-(-p // n) * s, 1.0), "more than one program"),
    (ch11.check_time_in_waves, lambda p, n, k, s: ((p // (n * k) + 1) * s, 1.0), "one wave too many"),
    (ch11.check_time_in_waves, lambda *a: (right.time_in_waves(*a)[0], 1 / right.time_in_waves(*a)[1]),
     "upside down"),
    (ch11.check_time_in_waves, lambda p, n, k, s: (-(-p // (n * k)) * s, p / (n * k)),
     "a number of waves"),
    (ch11.check_time_in_waves, lambda p, n, k, s: (-(-p // (n * k)) * s, p % (n * k) / (n * k)),
     "0 where it is full"),
    (ch11.check_time_in_waves, lambda p, n, k, s: 3.0, "expected a tuple"),
    (ch11.check_where_bytes_come_from, lambda h, N, d, B: (2 * h * N * d * (1 + 2 * (N // B)),
     6 * h * N * d), "ragged"),
    (ch11.check_where_bytes_come_from, lambda *a: right.where_bytes_come_from(*a)[::-1],
     "changed places"),
    (ch11.check_where_bytes_come_from, lambda h, N, d, B: (h * N * d * (1 + 2 * -(-N // B)), 0),
     "these are elements"),
    (ch11.check_where_bytes_come_from, lambda h, N, d, B: (2 * h * N * d * (1 + -(-N // B)), 0),
     "V is missing"),
    (ch11.check_where_bytes_come_from, lambda h, N, d, B: (2 * h * N * d * 3 * -(-N // B), 0),
     "Q is loaded once"),
    (ch11.check_where_bytes_come_from,
     lambda h, N, d, B: 2 * right.where_bytes_come_from(h, N, d, B)[:1], "DRAM does not see"),
    (ch11.check_where_bytes_come_from,
     lambda h, N, d, B: (right.where_bytes_come_from(h, N, d, B)[0], 8 * h * N * d), "O is written"),
    (ch11.check_most_stages, lambda *a: max(0, stages(*a, room=227 * 512 - 1024)), "SM's 228"),
    (ch11.check_most_stages, lambda Br, Bc, d: max(0, stages(Bc, Br, d)), "changed places"),
    (ch11.check_most_stages, lambda Br, Bc, d: max(0, -((Br - HALF // (2 * d)) // (2 * Bc))),
     "does not fit whole"),
    (ch11.check_time_in_waves, lambda p, n, k, s: (-(-p // (n * k)) * s, p / (-(-p // n) * n)),
     "efficiency, programs, sms, per_sm, program_s = 300, 132, 2, 0.001: a wave has room"),
    (ch11.check_time_in_waves, lambda p, n, k, s: (-(-p // (n * k)) * k * s, 1.0), "not in turn"),
    (ch11.check_time_in_waves, lambda p, n, k, s: (-(-p // (n * k)), 1.0), "the number of waves: each"),
    (ch11.check_time_in_waves, lambda p, n, k, s: (-(-p // n) * s / k, 1.0), "however many share"),
    (ch11.check_time_in_waves, lambda *a: right.time_in_waves(*a)[::-1], "seconds come first"),
    (ch11.check_time_in_waves, lambda *a: (right.time_in_waves(*a)[0], 1 - right.time_in_waves(*a)[1]),
     "places without work"),
    (ch11.check_where_bytes_come_from, lambda *a: [2 * n for n in right.where_bytes_come_from(*a)],
     "4 bytes an element"),
    (ch11.check_where_bytes_come_from, lambda *a: [n / 1e9 for n in right.where_bytes_come_from(*a)],
     "this is in GB"),
    (ch11.check_where_bytes_come_from, lambda h, N, d, B: (6 * h * N * d, 6 * h * N * d),
     "what DRAM delivers"),
    (ch11.check_where_bytes_come_from,
     lambda h, N, d, B: (2 * h * d * -(-N // B) * (B + 2 * N), 6 * h * N * d), "rows that are left"),
    (ch11.check_where_bytes_come_from,
     lambda h, N, d, B: (2 * h * N * d * (1 + 2 * N // B), 6 * h * N * d), "last row tile is ragged"),
    (ch11.check_my_tile, tile(shared_bytes=80), "this is in KiB"),
    (ch11.check_my_tile, tile(registers=136), "P stands beside S"),
    (ch11.check_my_tile, tile(registers=168), "P takes 16 bits"),
    (ch11.check_my_tile, tile(Bc=32, warps=8, shared_bytes=49_152, registers=48, per_sm=3),
     "these are the tiles alone"),
    (ch11.check_my_tile, tile(registers=200), "half of S for P, and 40 more"),
    (ch11.check_my_tile, tile(per_sm=3), "by registers alone"),
    (ch11.check_my_tile, tile(Bc=32, warps=8, shared_bytes=49_152, registers=88, per_sm=3),
     "by shared memory alone"),
    (ch11.check_my_tile, tile(Br=128, warps=8, stages=1, shared_bytes=65_536, per_sm=1),
     "128×64, 8 warps, 1 stage fits once"),
    (ch11.check_my_tile, lambda: (64, 32), "expected a dictionary"),
    (ch11.check_my_tile, tile(Br=48), "Br: expected one of"),
    (ch11.check_my_tile, tile(Bc=48), "Bc: expected one of"),
    (ch11.check_my_tile, tile(warps=3), "warps: expected one of"),
    (ch11.check_my_tile, tile(stages=5), "stages: expected one of"),
    (ch11.check_my_tile, tile(Bc=32, warps=8, shared_bytes=49_152, registers=84, per_sm=3),
     "round up to a multiple of 8"),
    (ch11.check_my_tile, tile(shared_bytes=40_960), "these are elements"),
    (ch11.check_my_tile, tile(shared_bytes=49_152), "every stage"),
    (ch11.check_my_tile, tile(registers=112), "these are the tiles alone"),
    (ch11.check_my_tile, tile(Br=128, Bc=128, stages=4, shared_bytes=294_912), "one program may have"),
    (ch11.check_my_tile, tile(Br=256, shared_bytes=131_072, registers=488), "the rest spills"),
    (ch11.check_my_tile, tile(Br=128, warps=8, shared_bytes=98_304, per_sm=1),
     "fits once on an SM"),
    (ch11.check_my_tile, tile(Br=32, shared_bytes=73_728, registers=96), "the longest part"),
]
CHECKS = [(ch11.check_most_stages, right.most_stages),
          (ch11.check_time_in_waves, right.time_in_waves),
          (ch11.check_where_bytes_come_from, right.where_bytes_come_from),
          (ch11.check_my_tile, right.my_tile)]

TestAnswers = examine(right=CHECKS, wrong=WRONG)


@pytest.mark.parametrize(("check", "answer"), [
    (ch11.check_most_stages, lambda *a: np.float32(right.most_stages(*a))),
    (ch11.check_most_stages, lambda *a: Fraction(right.most_stages(*a))),
    (ch11.check_time_in_waves, lambda *a: np.array(right.time_in_waves(*a))),
    (ch11.check_time_in_waves, lambda *a: np.array(right.time_in_waves(*a), dtype=np.float32)),
    (ch11.check_time_in_waves, fraction_of_waves),
    (ch11.check_where_bytes_come_from, bytes_by_loops),
    (ch11.check_where_bytes_come_from, lambda *a: np.array(right.where_bytes_come_from(*a))),
    (ch11.check_where_bytes_come_from, lambda *a: np.float32(right.where_bytes_come_from(*a))),
    (ch11.check_my_tile, lambda: {name: float(value) for name, value in right.my_tile().items()}),
    (ch11.check_my_tile, lambda: {name: np.int64(value) for name, value in right.my_tile().items()}),
])
def test_other_right_forms_pass(check, answer):
    verdict = check(answer)
    assert verdict, verdict.message


@pytest.mark.parametrize(("changes", "doubt"), [
    ({}, None),
    ({"warps": 8, "registers": 96}, "its warps must share rows"),
    ({"stages": 1, "shared_bytes": 49_152, "per_sm": 3}, "with one stage no copy runs ahead"),
])
def test_a_tile_that_passes_is_told_what_the_model_does_not_see(changes, doubt):
    verdict = ch11.check_my_tile(tile(**changes))
    assert verdict, verdict.message
    assert "35 other choices get the same time" in verdict.message
    assert "FlashAttention-2 takes 128 × 64" in verdict.message and "264 reg" in verdict.message
    doubts = ("its warps must share rows", "with one stage no copy runs ahead")
    assert [text for text in doubts if text in verdict.message] == ([doubt] if doubt else [])
