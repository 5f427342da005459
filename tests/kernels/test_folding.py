"""Keys folded into a state that is given: on the CPU, in both interpreters, and what is refused."""

import math

import pytest

torch = pytest.importorskip("torch")

from flashlib.kernels import flash_attention, fold, ops  # noqa: E402
from flashlib.kernels.problem import FULL, Problem  # noqa: E402
from flashlib.masks import Window  # noqa: E402
from tests.kernels.fold_cases import CHECKS  # noqa: E402
from tests.kernels.once import run_once  # noqa: E402

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
INTERPRETED = [*(f"triton {check} {dtype}" for dtype in ("float32", "float16") for check in CHECKS),
               *(f"gluon {check} {dtype}" for dtype in ("float16", "bfloat16") for check in CHECKS)]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).split(".")[1])
@pytest.mark.parametrize("check", CHECKS)
def test_the_reference_keeps_it(check, dtype):
    CHECKS[check]("reference", dtype)


def test_float64_folds_in_float64():
    q, k, v = (torch.randn(1, 2, 30, 8, dtype=torch.float64) for _ in range(3))
    state = None
    for some_k, some_v in zip(k.split(7, 2), v.split(7, 2), strict=True):
        state = fold(q, some_k, some_v, state, scale=-0.4, softcap=3.0)
    expected = flash_attention(q, k, v, scale=-0.4, softcap=3.0, return_lse=True)
    for x, y in zip(state, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


def test_a_negative_scale_adds_to_gradients():
    q, k, v, do = (torch.randn(1, 2, 30, 8, dtype=torch.float64) for _ in range(4))
    o, lse = flash_attention(q, k, v, scale=-0.4, return_lse=True)
    one = ops.backward(q, k, v, o, lse, do, None, Window(), -0.4, "reference")
    sums = [torch.ones_like(x) for x in one]
    ops.backward(q, k, v, o, lse, do, None, Window(), -0.4, "reference", into=sums)
    for x, y in zip(sums, one, strict=True):
        torch.testing.assert_close(x, y + 1, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(0, 2, 5, 8), (1, 2, 0, 8)])
def test_nothing_to_fold_changes_nothing(shape):
    q = torch.randn(shape)
    o, lse = fold(q, q, q)
    assert o.shape == q.shape and lse.shape == q.shape[:3]
    x = torch.randn(1, 2, 5, 8)
    state = fold(x, x, x)
    before = [y.clone() for y in state]
    fold(x, x[:, :, :0], x[:, :, :0], state)
    assert all(map(torch.equal, state, before))
    sums = tuple(torch.ones(1, 2, n, 8) for n in (5, 0, 0))
    assert ops.backward(x, x[:, :, :0], x[:, :, :0], *state, x, None, Window(), 1.0, "auto",
                        into=sums) is sums


def test_autograd_notices_that_the_state_has_changed():
    x = torch.randn(1, 2, 5, 8)
    state = fold(x, x, x)
    weight = torch.ones((), requires_grad=True)
    said = (weight * state[0]).sum()
    fold(x, x, x, state)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        said.backward()


def inputs(Nq=6, dtype=torch.float16):
    q = torch.zeros(1, 2, Nq, 8, dtype=dtype)
    return q, torch.zeros(1, 2, 4, 8, dtype=dtype), torch.zeros(1, 2, 4, 8, dtype=dtype)


O, LSE = torch.zeros(1, 2, 6, 8), torch.full((1, 2, 6), -math.inf)


@pytest.mark.parametrize("state, error, words", [
    (O, TypeError, r"state: expected None or a pair of tensors \(O, lse\), got Tensor"),
    ((O, LSE, LSE), TypeError, "state: .*got 3 of them"),
    ((O, 1.0), TypeError, "state: expected lse to be a torch.Tensor, got float"),
    ((O.half(), LSE), TypeError, "state: expected O in torch.float32, .*got torch.float16"),
    ((O, LSE.double()), TypeError, "state: expected lse in torch.float32, .*got torch.float64"),
    ((O[:, :, :5], LSE), ValueError, r"state: expected O of shape \(1, 2, 6, 8\) as q, got \(1, 2, 5"),
    ((O, LSE[:, :1]), ValueError, r"state: expected lse of shape \(1, 2, 6\) as q, got \(1, 1, 6\)"),
    ((O.to("meta"), LSE), ValueError, "state: expected O on cpu as q, got meta"),
    ((O[:, :1].expand(1, 2, 6, 8), LSE), ValueError, r"state: expected O to hold each number once"),
])
def test_a_state_that_is_none_is_refused(state, error, words):
    with pytest.raises(error, match=words):
        fold(*inputs(), state)


def test_other_refusals_name_the_argument():
    q, k, v = inputs()
    with pytest.raises(ValueError, match=r"impl: expected one of .*got 'decode'"):
        fold(q, k, v, impl="decode")
    with pytest.raises(NotImplementedError, match="fold has no derivative"):
        fold(q.float().requires_grad_(), k.float(), v.float())
    with pytest.raises(ValueError, match=r"into: expected no sink and no packed .* beside a state"):
        ops.forward(q, k, v, Window(), 1.0, "auto", None, None, None, torch.zeros(2), into=(O, LSE))
    with pytest.raises(ValueError, match=r"into: expected no sink and no packed .* beside sums"):
        ops.backward(q, k, v, q, LSE, q, None, Window(), 1.0, "auto", None, None, torch.zeros(1, 2),
                     into=(O, O, O))
    with pytest.raises(ValueError, match="delta: expected sums to add to beside it, into=, got none"):
        ops.backward(q, k, v, None, LSE, q, None, Window(), 1.0, "auto", delta=LSE)


def test_who_folds_on_a_hopper(hopper):
    """Gluon, but for wide windows and gradients, and for what its copy engine cannot read."""
    from flashlib.kernels.backends import choose

    def name(direction="forward", D=64, window=FULL, step=1):
        x = torch.empty(1, 2, 600, D, dtype=torch.bfloat16)
        o = torch.empty(1, 2, 600, D * step)[..., ::step]
        more = (o,) if direction == "forward" else (x, x, o, o, o)
        return choose(Problem.of(x, x, x, *more, window=window, into=True), "auto", direction).name

    assert name() == name(D=256) == name(D=128, window=Window(30, 0)) == "gluon"
    assert name("backward") == name("backward", D=128, window=Window(30, 0)) == "gluon"
    assert name(D=256, window=Window(30, 0)) == name(step=2) == "triton"
    assert name("backward", D=256) == name("backward", step=2) == "triton"
    x = torch.empty(1, 2, 600, 64, dtype=torch.bfloat16)
    p = Problem.of(x, x, x, torch.empty(1, 2, 600, 128)[..., ::2], into=True)
    with pytest.raises(NotImplementedError, match="'gluon' expected a state's O as the copy engine"):
        choose(p, "gluon", "forward")
    with pytest.raises(NotImplementedError, match="'decode' folds keys into no state"):
        choose(p, "decode", "forward")


@pytest.mark.parametrize("reserve, programs", [(0, 4), (1, 3), (3, 1), (9, 1)])
def test_a_launch_leaves_SMs_to_others(hopper, reserve, programs):
    from flashlib.kernels import plans
    from flashlib.kernels.backends import gluon

    q = torch.empty(1, 8, 1024, 64, dtype=torch.float16)
    p = Problem.of(q, q, q, reserve=reserve)
    assert plans.launches_for(gluon.BACKEND, p, "forward")["forward"].grid == (programs, 1, 1)
    assert (p is Problem.of(q, q, q)) == (reserve == 0)


@pytest.mark.parametrize("reserve", [-1, 1.0, True])
def test_what_cannot_be_left_is_refused(reserve):
    with pytest.raises((TypeError, ValueError), match="reserve: expected a whole number from 0"):
        ops.forward(*inputs(), Window(), 1.0, "auto", reserve=reserve)


@pytest.mark.slow
@pytest.mark.parametrize("name", INTERPRETED)
def test_the_kernels_keep_it_in_the_interpreters(name):
    pytest.importorskip("triton.experimental.gluon")
    assert run_once("-m", "tests.kernels.fold_interpreted")[name] == ""
