"""Every bug planted in the Gluon kernels is caught in the interpreter, and called by its name."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton.experimental.gluon")

from tests.kernels.gluon_bugs import ARITHMETIC, MUTANTS, SYNCHRONISATION  # noqa: E402
from tests.kernels.gluon_mutated import CHECKS  # noqa: E402
from tests.kernels.once import run_once  # noqa: E402

pytestmark = pytest.mark.slow


def outcomes(half):
    return run_once("-m", "tests.kernels.gluon_mutated", half)


@pytest.mark.parametrize("check", CHECKS)
def test_the_true_kernels_pass(check):
    assert outcomes("true")[check] == ""


@pytest.mark.more
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name.replace(" ", "_"))
def test_the_named_check_catches_it_and_says_what_it_is(mutant):
    said = outcomes("planted")[mutant.name]
    assert said, f"{mutant.check} did not notice that {mutant.name}"
    assert not said.startswith("crash"), said
    assert mutant.words in said, said


def test_every_check_catches_something_and_no_bug_stands_in_the_list_twice():
    assert {m.check for m in MUTANTS} == CHECKS.keys()
    assert len({m.name for m in MUTANTS}) == len({m[1:4] for m in MUTANTS}) == len(MUTANTS)
    assert len(ARITHMETIC) >= 40 and len(SYNCHRONISATION) >= 25
