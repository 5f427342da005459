"""What holds for every list of planted bugs, as one class of tests.

    TestMutants = examine(MUTANTS, CHECKS, build, at_least=18)
"""

import functools

import numpy as np
import pytest

from tests.mutants.build import patched


def examine(mutants, checks, build, *, at_least, patched=patched, blind=None):
    """Return a class of tests: `build(module, edits)` makes what `checks[name]` examines.

    Every bug is caught by the check that was named for it, by a failure and not by a crash; the checks
    that cannot see it pass; the list has `at_least` bugs, none twice, and uses every check.
    `patched(module, edits)` returns a changed source, for modules that build.py does not list. `blind`
    holds checks that catch none of these bugs, and that a bug may name among those it survives.
    """
    every_mutant = pytest.mark.parametrize(
        "mutant", [pytest.param(m, id=m.name.replace(" ", "_")) for m in mutants])
    unmutated = functools.cache(build)

    class Mutants:
        @pytest.mark.parametrize("check", checks)
        def test_the_unmutated_source_passes(self, check):
            checks[check](unmutated())

        @every_mutant
        def test_the_named_check_catches_it(self, mutant):
            built = build(mutant.module, mutant.edits)
            with np.errstate(all="ignore"), pytest.raises(AssertionError):  # another error fails here
                checks[mutant.caught_by](built)

        @pytest.mark.more
        @every_mutant
        def test_the_checks_that_cannot_see_it_pass(self, mutant):
            assert mutant.caught_by not in mutant.survives
            built = build(mutant.module, mutant.edits)
            for check in mutant.survives:
                (checks | (blind or {}))[check](built)

        def test_the_list_is_long_and_no_bug_stands_in_it_twice(self):
            assert len(mutants) >= at_least
            assert len({m.name for m in mutants}) == len(mutants)
            assert len({patched(m.module, m.edits) for m in mutants}) == len(mutants)
            assert {m.caught_by for m in mutants} == checks.keys()

        def test_a_patch_that_does_not_fit_is_an_error(self):
            module = mutants[0].module
            with pytest.raises(LookupError, match="expected exactly one 'no such line', found 0"):
                build(module, [("no such line", "")])

    return Mutants
