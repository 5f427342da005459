"""The Triton kernels keep every promise in Triton's interpreter, which runs in its own process."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.kernels.behaviours import SMALL_SHAPES  # noqa: E402
from tests.kernels.interpreter_oblong import OBLONG  # noqa: E402
from tests.kernels.once import run_once  # noqa: E402
from tests.kernels.promises import LAYOUT, PROMISES  # noqa: E402


def outcomes(dtype):
    return run_once("-m", "tests.kernels.interpreter_cases", dtype)


NAMES = {"float32": [*(f"{promise}-float32" for promise in PROMISES),
                     *(f"tiles of {M}×{N}" for M, N in OBLONG),
                     *(f"{shape}-float32" for shape in SMALL_SHAPES)],
         "float16": [*(f"{promise}-float16" for promise in PROMISES if promise not in LAYOUT),
                     *(f"{shape}-float16" for shape in SMALL_SHAPES)]}
TIERS = {"float32": [], "float16": pytest.mark.more}


@pytest.mark.slow
@pytest.mark.parametrize("dtype, name", [pytest.param(dtype, name, marks=TIERS[dtype], id=name)
                                         for dtype, names in NAMES.items() for name in names])
def test_promise(dtype, name):
    assert outcomes(dtype).get(name, "did not run") == ""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [pytest.param(name, marks=mark) for name, mark in TIERS.items()])
def test_nothing_ran_unlisted(dtype):
    assert set(outcomes(dtype)) == set(NAMES[dtype])


def test_rows_beyond_2_to_the_31_elements_are_stored_where_they_belong():
    assert run_once("-m", "tests.kernels.interpreter_offsets") == {"O": 0, "LSE": 0, "DELTA": 0}


def test_what_makes_the_interpreter_quick_changes_no_bit():
    found = run_once("-m", "tests.kernels.interpreter_cases", "bfloat16")["quickened"]
    assert found == [[True] * 5] * 2


def test_bfloat16_is_refused_because_the_interpreter_is_wrong():
    """One 32×32 matmul there: float32 and float16 are right; bfloat16 is garbage, so we refuse it.

    When this fails because bfloat16 became right, the refusal can go.
    """
    errors = run_once("-m", "tests.kernels.interpreter_cases", "bfloat16")
    assert errors["float32"] < 1e-5 and errors["float16"] < 1e-5
    assert errors["bfloat16"] > 1 or errors["bfloat16"] != errors["bfloat16"]
    assert "interpreter is wrong for torch.bfloat16" in errors["refusal"]
    assert "expected float32 or float16" in errors["refusal"]
