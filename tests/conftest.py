"""What holds for every test: an order, no window, no figure left open, no clock."""

import gc
import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("MPLBACKEND", "Agg")
# For nbformat jsonschema would build a grammar of addresses, two seconds long, that no notebook needs.
sys.modules.setdefault("rfc3987_syntax", None)

# A slow machine is no counterexample, and CI searches the same examples every time.
settings.register_profile("course", deadline=None, print_blob=True)
settings.register_profile("ci", settings.get_profile("course"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "course")


# The files that take longest, those first: one process would end on one of them, and the other wait.
LONG = ("parallel/test_parallel.py", "kernels/test_interpreter.py", "kernels/test_folding.py",
        "kernels/test_gluon_interpreted_backward.py",
        "algorithms/test_attention.py", "models/test_traffic.py", "kernels/test_gluon_interpreted.py",
        "lens/test_gluon.py", "lens/test_into.py", "scripts/test_render_notebooks.py",
        "teaching/test_grade.py", "lens/test_defaults.py", "lens/test_report.py",
        "kernels/test_decode_kernels.py",
        "algorithms/test_properties.py", "teaching/test_editions.py", "course/ch05/test_lab.py",
        "kernels/test_reference.py", "algorithms/test_windows.py", "kernels/test_packed_kernels.py",
        "kernels/test_softmax.py", "kernels/test_compile.py", "lens/test_gluon_backward.py",
        "lens/test_scores.py", "kernels/test_backends.py", "lens/test_decode.py",
        "teaching/test_grade_guard.py", "lens/test_gluon_requests.py", "course/ch02/test_lab.py",
        "course/exercises/test_interpreted.py", "course/ch06/test_lab.py",
        "course/ch09/test_exercises.py", "course/ch12/test_kernels.py", "algorithms/test_backward.py",
        "kernels/test_gluon_mutants.py", "kernels/test_kernel_mutants.py", "mutants/test_mutants.py",
        "teaching/test_grade_warden.py", "models/test_fp8.py", "mutants/test_window_mutants.py",
        "mutants/test_backward_mutants.py")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Keep the garbage collector off while tests are found, and from looking through them later.

    Ten thousand tests and their modules are half a million objects, which stay to the end: to go
    through them again and again was a seventh of the time of a test process. What tests make it looks
    through less often than by default.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(100_000, 20, 20)
        gc.enable()


def pytest_collection_modifyitems(items):
    """Put long files first; the tests of a file stay in their order."""
    here = Path(__file__).parent
    place = {here / name: n for n, name in enumerate(LONG)}
    if missing := [str(path) for path in place if not path.is_file()]:
        raise pytest.UsageError(f"LONG: expected files of tests, got {', '.join(missing)}")
    items.sort(key=lambda item: place.get(item.path, len(place)))


@pytest.fixture(autouse=True)
def close_figures():
    """Close what a test drew, so that no test meets another's figures."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
