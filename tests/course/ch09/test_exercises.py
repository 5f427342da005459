"""The checks of chapter 09 accept the solution and name each seeded mistake."""

import itertools
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flashlib import hardware
from flashlib.course.ch09 import exercises as ch09
from flashlib.course.ch09 import solutions as right
from flashlib.course.exercises.core import ExerciseFailed
from flashlib.course.notebook.without_triton import why_not
from flashlib.models.occupancy import occupancy
from tests.course.exercises.examine import examine, stub

ROOT = Path(__file__).parents[3]
needs_triton = pytest.mark.skipif(bool(why_not()), reason="torch or Triton is not installed")


def _programs(registers, shared, warps, *, threads=32, slots=32, most=64, reserved=1024, pick=min,
              regs=True, smem=True):
    counts = [slots, most // warps]
    counts += [65536 // (registers * threads * warps)] * regs
    counts += [233472 // max(shared + reserved, 1)] * smem
    return pick(counts)


def _exactly(r, s, w):
    return min(65536 / (32 * w * r), 64 / w, 32, 233472 / (s + 1024))


WRONG = [
    (lambda *a: _programs(*a, threads=1), "registers can run out"),
    (lambda r, s, w: min(65536 // r, 64 // w, 32, 233472 // (s + 1024)), "each with registers"),
    (lambda *a: _programs(*a, pick=max), "scarcest resource"),
    (lambda r, s, w: min(65536 // (32 * r), 64 // w, 32, 233472 // (s + 1024)), "num_warps times"),
    (lambda *a: _programs(*a, regs=False), "registers can run out"),
    (lambda *a: _programs(*a, smem=False), "shared memory can run out"),
    (lambda *a: _programs(*a, most=10**6), "64 warps at most"),
    (lambda *a: _programs(*a, slots=10**6), "32 programs at most"),
    (lambda *a: _programs(*a, reserved=0), "1,024 bytes"),
    (lambda r, s, w: min(65536 / (r * 32 * w), 64 / w, 32, 233472 / (s + 1024)), "round down"),
    (lambda r, s, w: min(65536 // (32 * w * r), 64 // w, 32, 232448 // max(s, 1)), "of its own"),
    (lambda r, s, w: occupancy(hardware.get("H100").sm, threads=32 * w, registers=r,
                               shared_bytes=s).programs, "43 are 43"),
    (lambda r, s, w: _programs(-(-r // 8) * 8, s, w), "in steps of 8"),
    (lambda *a: round(_exactly(*a)), "to the nearest"),
    (lambda *a: math.ceil(_exactly(*a)), "rounded up"),
    (lambda r, s, w: min(65536 // (32 * w * r), 64 // w, 32, 228 // (s // 1024 + 1)),
     "expected 2, got 3"),
    (lambda r, s, w: 3.5, "expected"),
    (lambda r, s, w: min(65536 // (32 * w * r), 64 // w, 32, 232448 // (s + 1024)),
     "nothing is kept besides"),
]
RUNS_OUT = {"registers": lambda r, s, w: 65536 // (32 * w * r), "shared memory": lambda r, s, w:
            233472 // (s + 1024), "warps": lambda r, s, w: 64 // w, "room for programs": lambda *_: 32}
WRONG += [(lambda *case, kept=kept: min(RUNS_OUT[name](*case) for name in kept), text)
          for n in (1, 2) for kept in itertools.combinations(RUNS_OUT, n)
          for text in RUNS_OUT if text not in kept]


@pytest.fixture(scope="module")
def verdicts():
    """What kernels_ch09.py found, in one process that set TRITON_INTERPRET first."""
    done = subprocess.run([sys.executable, str(Path(__file__).with_name("kernels_ch09.py"))],
                          capture_output=True, text=True, timeout=300,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@needs_triton
def test_kernels_that_are_right_pass(verdicts):
    assert verdicts["right"] == dict.fromkeys(
        ("check_transposed", "check_row_max", "check_online", "check_matmul"), True)


@needs_triton
def test_other_right_kernels_pass(verdicts):
    assert len(verdicts["forms"]) >= 9
    assert [form for form in verdicts["forms"] if not form.startswith("✓")] == []
    for doubt in ("a GPU rounds A and B to TF32", "matrix units stay idle"):
        assert any(doubt in form for form in verdicts["forms"])


@needs_triton
def test_each_kernels_mistake_is_named(verdicts):
    assert len(verdicts["wrong"]) >= 74
    unnamed = [case for case in verdicts["wrong"] if case[2] or case[1] not in case[3]]
    assert unnamed == []
    for check in ("check_transposed", "check_row_max", "check_online", "check_matmul"):
        assert len([case for case in verdicts["wrong"] if case[0] == check]) >= 3


@needs_triton
def test_without_the_interpreter_a_check_runs_in_a_process_of_its_own():
    assert ch09.check_row_max(right.row_max_kernel)
    assert "last element is missing" in ch09.check_row_max(_short).message


if not why_not():
    import triton.language as tl

    def _short(X, Y, stride_xm, N, BLOCK: tl.constexpr):
        row, col = tl.program_id(0), tl.arange(0, BLOCK)
        x = tl.load(X + row * stride_xm + col, mask=col < N - 1, other=float("-inf"))
        tl.store(Y + row, tl.max(x, 0))


TestAnswers = examine(right=[(ch09.check_programs_per_sm, right.programs_per_sm)],
                      wrong=[(ch09.check_programs_per_sm, *case) for case in WRONG])


@pytest.mark.parametrize("check", [ch09.check_transposed, ch09.check_row_max, ch09.check_online,
                                   ch09.check_matmul])
def test_stub_is_not_answered_and_strict_raises(check):
    assert "not answered yet" in check(stub).message
    with pytest.raises(ExerciseFailed):
        check(stub, strict=True)
