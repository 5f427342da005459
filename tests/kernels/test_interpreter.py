"""The Triton kernels keep every promise in Triton's interpreter, which runs in its own process."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.kernels.behaviours import SMALL_SHAPES  # noqa: E402
from tests.kernels.interpreter_oblong import OBLONG  # noqa: E402
from tests.kernels.once import run_once  # noqa: E402
from tests.kernels.promises import LAYOUT, PROMISES  # noqa: E402


def outcomes():
    return run_once("-m", "tests.kernels.interpreter_cases")


NAMES = [*(f"{promise}-float32" for promise in PROMISES),
         *(f"{promise}-float16" for promise in PROMISES if promise not in LAYOUT),
         *(f"tiles of {M}×{N}" for M, N in OBLONG),
         *(f"{shape}-{dtype}" for dtype in ("float32", "float16") for shape in SMALL_SHAPES)]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_promise(name):
    assert outcomes().get(name, outcomes().get("error", "did not run")) == ""


@pytest.mark.slow
def test_nothing_ran_unlisted():
    assert set(outcomes()) == set(NAMES)


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
