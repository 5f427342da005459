"""Every bug planted in the forward algorithms is caught by the check that was named for it."""

from tests.mutants.build import build
from tests.mutants.catalogue import MUTANTS
from tests.mutants.checks import CHECKS
from tests.mutants.runner import examine

TestMutants = examine(MUTANTS, CHECKS, build, at_least=61)
