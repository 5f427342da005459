"""The checks of chapter 00 accept the solution and name each seeded mistake."""

import numpy as np
import pytest

from flashlib.course.ch00 import exercises as ch00
from flashlib.course.ch00 import solutions as right
from tests.course.exercises.examine import examine


def _copy(machine, x, factor, rows_per_tile, *, scale=True, free=True, twice=False, rows=None,
          rebind=False):
    source, target = machine.hbm(x=x), machine.hbm_empty("y", x.shape)
    with machine.kernel("copy") as sram:
        for start in range(0, rows or len(x), rows_per_tile):
            part = slice(start, start + rows_per_tile)
            tile = sram.load(source[part])
            if twice:
                sram.free(tile)
                tile = sram.load(source[part])
            if rebind:
                tile = tile * factor
            elif scale:
                tile[...] = tile * factor
            sram.store(tile, target[part])
            if free:
                sram.free(tile)
    return target.to_host()


WRONG = [
    (ch00.check_bytes_of_S, lambda N, e: N * N, "multiply by element_bytes"),
    (ch00.check_bytes_of_S, lambda N, e: N * e, "N rows of N"),
    (ch00.check_bytes_of_S, lambda N, e: N * N * 2, "element_bytes is an argument"),
    (ch00.check_bytes_of_S, lambda N, e: N * (N + 1) // 2 * e, "triangle"),
    (ch00.check_break_even_length, lambda d: 4 * d, "one later"),
    (ch00.check_break_even_length, lambda d: 3 * d + 1, "O counts"),
    (ch00.check_break_even_length, lambda d: d + 1, "not all"),
    (ch00.check_scaled_copy, lambda machine, x, f, r: f * x, "nothing moved"),
    (ch00.check_break_even_length, lambda d: 2 * d + 1, "without P"),
    (ch00.check_scaled_copy, lambda *a: _copy(*a, scale=False), "not scaled"),
    (ch00.check_scaled_copy, lambda *a: _copy(*a, scale=False) * a[2], "only copied"),
    (ch00.check_scaled_copy, lambda *a: _copy(*a, free=False), "free every tile"),
    (ch00.check_scaled_copy, lambda *a: _copy(*a, twice=True), "each element once"),
    (ch00.check_scaled_copy, lambda *a: _copy(*a, rebind=True), "write into it"),
    (ch00.check_scaled_copy, lambda *a: _copy(*a, rebind=True, free=False), "scale in place"),
    (ch00.check_scaled_copy, lambda m, x, f, r: _copy(m, x, f, r, rows=9), "last rows"),
    *((ch00.check_scaled_copy, lambda m, x, f, r, rows=rows: _copy(m, x, f, rows), "rows_per_tile rows")
      for rows in (1, 2)),
    (ch00.check_scaled_copy, lambda m, x, f, r: m.hbm(x=x), "to_host()"),
    (ch00.check_scaled_copy, lambda m, x, f, r: m.hbm(x=x) * f, "sram.load"),
    (ch00.check_seconds_at_least, lambda f, b, F, B: f / F + b / B, "do not add"),
    (ch00.check_seconds_at_least, lambda f, b, F, B: min(f / F, b / B), "faster of the two"),
    (ch00.check_seconds_at_least, lambda f, b, F, B: f / F, "left the bytes out"),
    (ch00.check_seconds_at_least, lambda f, b, F, B: b / B, "left the FLOPs out"),
    (ch00.check_seconds_at_least, lambda f, b, F, B: f * F, "a rate divides"),
    (ch00.check_seconds_at_least, lambda f, b, F, B: np.array([f / F]), "left the bytes out"),
    (ch00.check_seconds_at_least, lambda f, b, F, B: (f / F, b / B), "expected one number"),
    (ch00.check_seconds_at_least, lambda f, b, F, B: max(f / F, b * B), "for 1e12 FLOP and 1e9 B: exp"),
    (ch00.check_seconds_at_least, lambda f, b, F, B: "0.01", "expected one number"),
]
PAIRS = [(ch00.check_bytes_of_S, right.bytes_of_S),
         (ch00.check_break_even_length, right.break_even_length),
         (ch00.check_scaled_copy, right.scaled_copy),
         (ch00.check_seconds_at_least, right.seconds_at_least)]

TestAnswers = examine(right=PAIRS, wrong=WRONG)


@pytest.mark.parametrize("form", [np.array, np.float64, lambda s: np.array([s]), lambda s: [s]])
def test_seconds_pass_in_every_form_of_one_number(form):
    assert ch00.check_seconds_at_least(lambda *a: form(right.seconds_at_least(*a)), strict=True)
