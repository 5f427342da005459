"""Packed sequences in Triton's interpreter: what must hold, and the planted bugs that break it."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.kernels.once import run_once  # noqa: E402
from tests.kernels.packed_mutated import CHECKS, MUTANTS  # noqa: E402

pytestmark = pytest.mark.slow


def outcomes(half):
    return run_once("-m", "tests.kernels.packed_mutated", half)


@pytest.mark.parametrize("check", CHECKS)
def test_the_true_kernels_pass(check):
    assert outcomes("true")[check] == ""


@pytest.mark.more
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name.replace(" ", "_"))
def test_the_named_check_catches_it(mutant):
    said = outcomes("planted")[mutant.name]
    assert said, f"{mutant.check} did not notice that {mutant.name}"
    assert not said.startswith("crash"), said


def test_no_bug_stands_in_the_list_twice():
    assert {m.check for m in MUTANTS} <= CHECKS.keys()
    assert len({m.name for m in MUTANTS}) == len({m[1:] for m in MUTANTS}) == len(MUTANTS) >= 30
