"""Plant bugs one after another and print what their named checks say: what `once.run_once` reads."""

from __future__ import annotations

import json
import sys
import tempfile
import warnings

import torch


def outcome(check, failures=AssertionError):
    """Return "" or what a check said; a crash is told apart, and does not count."""
    try:
        check()
    except failures as error:
        return str(error) or "assertion"
    except Exception as error:
        return f"crash: {type(error).__name__}: {error}"
    return ""


def everything(half, checks, mutants, install, failures=AssertionError):
    """Yield (name, outcome): each check on the true kernels, or each mutant's.

    Args:
        half: "true" for the true kernels, or "planted" for the bugs.
        checks: name → function.  mutants: with `name`, and `check`, the name of one.
        install: a function of a folder, and of a mutant or nothing, that puts the kernels in place.
        failures: the exceptions by which a check says that it has noticed something.
    """
    with tempfile.TemporaryDirectory() as folder:
        install(folder)
        for name, check in checks.items() if half == "true" else ():
            yield name, outcome(check, failures)
        for mutant in mutants if half == "planted" else ():
            try:
                install(folder, mutant)
            except LookupError as error:
                yield mutant.name, f"crash: {error}"
            else:
                yield mutant.name, outcome(checks[mutant.check], failures)


def report(*given) -> None:
    """Print as JSON what `everything` finds of the half that the command line names."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")                         # NumPy's, on a mutant's way
    print(json.dumps(dict(everything(sys.argv[1], *given))))
