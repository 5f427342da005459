"""The checks of chapter 11 accept the solution and name each seeded mistake."""

import pytest

from flashlib.exercises import ch11
from flashlib.exercises.core import REGISTRY, ExerciseFailed
from flashlib.exercises.solutions import ch11 as right

SM, FILE = 228 * 1024, 65536


def stub(*_args):
    raise NotImplementedError


def tile(**changes):
    return lambda: right.my_tile() | changes


def per_sm(s, r, t):
    return SM // (s + 1024), FILE // (r * t)


WRONG = [
    (ch11.check_programs_per_sm, lambda s, r, t: max(per_sm(s, r, t)), "both budgets must hold"),
    (ch11.check_programs_per_sm, lambda s, r, t: min(SM // (s + 1024), FILE // r), "per thread"),
    (ch11.check_programs_per_sm, lambda s, r, t: min(SM // (s + 1024), 4 * FILE // (r * t)), "4 bytes"),
    (ch11.check_programs_per_sm, lambda s, r, t: per_sm(s, r, t)[0], "only shared memory"),
    (ch11.check_programs_per_sm, lambda s, r, t: per_sm(s, r, t)[1], "only registers"),
    (ch11.check_programs_per_sm, lambda s, r, t: min(SM // s, FILE // (r * t)), "1,024 B"),
    (ch11.check_programs_per_sm, lambda s, r, t: min(SM / (s + 1024), FILE / (r * t)), "round down"),
    (ch11.check_time_in_waves, lambda p, n, k, s: (p / (n * k) * s, 1.0), "round up"),
    (ch11.check_time_in_waves, lambda p, n, k, s: (p // (n * k) * s, 1.0), "drops the last"),
    (ch11.check_time_in_waves, lambda p, n, k, s: (-(-p // n) * s, 1.0), "more than one program"),
    (ch11.check_time_in_waves, lambda p, n, k, s: ((p // (n * k) + 1) * s, 1.0), "one wave too many"),
    (ch11.check_time_in_waves, lambda *a: (right.time_in_waves(*a)[0], 1 / right.time_in_waves(*a)[1]),
     "upside down"),
    (ch11.check_time_in_waves, lambda p, n, k, s: 3.0, "two numbers"),
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
    (ch11.check_my_tile, lambda: (64, 32), "expected a dictionary"),
    (ch11.check_my_tile, tile(Br=48), "Br: expected one of"),
    (ch11.check_my_tile, tile(shared_bytes=40_960), "these are elements"),
    (ch11.check_my_tile, tile(shared_bytes=49_152), "every stage"),
    (ch11.check_my_tile, tile(registers=112), "these are the tiles alone"),
    (ch11.check_my_tile, tile(Br=128, Bc=128, stages=4, shared_bytes=294_912), "one program may have"),
    (ch11.check_my_tile, tile(Br=256, shared_bytes=131_072, registers=488), "the rest spills"),
    (ch11.check_my_tile, tile(Br=128, warps=8, shared_bytes=98_304, per_sm=1),
     "fits once on an SM"),
    (ch11.check_my_tile, tile(Br=32, shared_bytes=73_728, registers=96), "the longest part"),
]


@pytest.mark.parametrize(("check", "answer", "message"), WRONG,
                         ids=[f"{c.__name__}-{m}" for c, _, m in WRONG])
def test_names_the_mistake(check, answer, message):
    with pytest.raises(ExerciseFailed, match=message):
        check(answer, strict=True)


CHECKS = [(ch11.check_programs_per_sm, right.programs_per_sm),
          (ch11.check_time_in_waves, right.time_in_waves),
          (ch11.check_where_bytes_come_from, right.where_bytes_come_from),
          (ch11.check_my_tile, right.my_tile)]


@pytest.mark.parametrize(("check", "answer"), CHECKS, ids=[c.__name__ for c, _ in CHECKS])
def test_accepts_the_solution_and_rejects_the_stub(check, answer, capsys):
    check(answer, strict=True)
    check(stub)
    assert "not answered yet" in capsys.readouterr().out


def test_every_solution_can_be_shown(capsys):
    for name in sorted(name for name in REGISTRY if name.startswith("11.")):
        ch11.hint(name)
        ch11.solution(name)
    assert capsys.readouterr().out.count("def ") == 4
