"""Every planted bug is caught by the check that was named for it, and by a failure, not a crash."""

import collections

import numpy as np
import pytest

from tests.mutants.build import build, patched
from tests.mutants.catalogue import MUTANTS
from tests.mutants.checks import CHECKS

every_mutant = pytest.mark.parametrize(
    "mutant", [pytest.param(m, id=m.name.replace(" ", "_")) for m in MUTANTS])


@pytest.fixture(scope="module")
def unmutated():
    return build()


@pytest.mark.parametrize("check", CHECKS)
def test_the_unmutated_source_passes(check, unmutated):
    CHECKS[check](unmutated)


@every_mutant
def test_the_named_check_catches_it(mutant):
    built = build(mutant.module, mutant.edits)
    with np.errstate(all="ignore"), pytest.raises(AssertionError):     # any other error fails here
        CHECKS[mutant.caught_by](built)


@every_mutant
def test_the_checks_that_cannot_see_it_pass(mutant):
    assert mutant.caught_by not in mutant.survives
    built = build(mutant.module, mutant.edits)
    for check in mutant.survives:
        CHECKS[check](built)


def test_the_list_is_long_and_no_bug_stands_in_it_twice():
    assert len(MUTANTS) >= 18
    assert len({m.name for m in MUTANTS}) == len(MUTANTS)
    assert len({patched(m.module, m.edits) for m in MUTANTS}) == len(MUTANTS)
    used = collections.Counter(m.caught_by for m in MUTANTS)
    assert used.keys() == CHECKS.keys()


def test_a_patch_that_does_not_fit_is_an_error():
    with pytest.raises(LookupError, match="expected exactly one 'no such line', found 0"):
        build("flash_v2", [("no such line", "")])
