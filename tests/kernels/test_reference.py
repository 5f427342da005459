"""The tiled torch backend keeps every promise of the op, in each dtype of the CPU."""

import pytest

torch = pytest.importorskip("torch")

from flashlib.kernels import flash_attention  # noqa: E402
from tests.kernels.behaviours import PROMISES, SHAPES, Backend, check_values  # noqa: E402
from tests.kernels.problems import Shape, dense, off, problem, solve  # noqa: E402

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).split(".")[1])


def at(dtype, impl="reference"):
    return Backend(impl, dtype, N=150)


@every_dtype
@pytest.mark.parametrize("promise", PROMISES)
def test_promise(promise, dtype):
    PROMISES[promise](at(dtype))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_in_float64(shape):
    check_values(at(torch.float64), shape)


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=lambda d: str(d).split(".")[1])
def test_values_in_narrower_dtypes(dtype):
    for shape in SHAPES[:12]:
        check_values(at(dtype), shape, seed=1)


def test_auto_is_the_reference_on_the_cpu():
    given = problem(Shape(2, 2, 1, 150, 140, 16, True))
    for x, y in zip(solve(given, flash_attention), solve(given, flash_attention, impl="reference"),
                    strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("shape", [(1, 2, 1, 5, 7, 3, True), (1, 1, 1, 6, 4, 2, True),
                                   (2, 2, 2, 3, 4, 1, False)], ids=str)
@pytest.mark.parametrize("scale", [None, -0.7])
def test_gradcheck(shape, scale):
    """Finite differences, through O and through the lse of the rows that see a key."""
    given = problem(Shape(*shape), torch.float64)
    sees = max(0, given.q.shape[2] - given.k.shape[2]) if given.causal else 0

    def outputs(q, k, v):
        o, lse = flash_attention(q, k, v, causal=given.causal, scale=scale, return_lse=True)
        return o, lse[:, :, sees:]

    inputs = [x.requires_grad_() for x in given[:3]]
    assert torch.autograd.gradcheck(outputs, inputs)


@every_dtype
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")], ids=str)
@pytest.mark.parametrize("Nq, Nk", [(150, 150), (140, 150), (150, 131)])
def test_a_forbidden_key_or_value_never_reaches_a_row(Nq, Nk, poison, dtype):
    """Row by row, forward and dQ, with the poison on the diagonal tile and beyond."""
    given = problem(Shape(1, 2, 1, Nq, Nk, 8, True), dtype, with_lse=False)
    clean = solve(given, at(dtype))
    for where in ("k", "v", "both"):
        for first in (1, 64, 127, 128, Nk - 1):
            k, v = given.k.clone(), given.v.clone()
            if where != "v":
                k[:, :, first:] = poison
            if where != "k":
                v[:, :, first:] = poison
            got = solve(given._replace(k=k, v=v), at(dtype))
            blind = first - (Nk - Nq)                           # the first row that sees key `first`
            for x, y in zip(got[:3], clean[:3], strict=True):
                assert torch.equal(x[:, :, :max(blind, 0)], y[:, :, :max(blind, 0)])


def test_a_visible_nan_is_not_hidden():
    given = problem(Shape(1, 1, 1, 150, 150, 8, True))
    given.v[:, :, 70, 3] = float("nan")
    o = flash_attention(*given[:3], causal=True)
    assert o[:, :, 70:, 3].isnan().all() and not o[:, :, :70].isnan().any()
    assert not o[..., [0, 1, 2, 4, 5, 6, 7]].isnan().any()


def test_memory_is_linear_in_n():
    """The largest tensor that is made has O(N) elements: nothing N×N."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            for x in out if isinstance(out, tuple | list) else [out]:
                if isinstance(x, torch.Tensor):
                    self.elements = max(self.elements, x.numel())
            return out

    given = problem(Shape(1, 1, 1, 2048, 2048, 16, True))
    with Largest() as seen:
        solve(given, at(torch.float32))
    assert seen.elements <= 2048 * 16 < 2048 ** 2


def test_the_oracle_agrees_with_the_numpy_one():
    import numpy as np

    from tests import oracle

    for causal in (False, True):
        given = problem(Shape(1, 1, 1, 7, 5, 3, causal), torch.float64)
        q, k, v, do, dlse = (x[0, 0].numpy() for x in given[:5])
        o, lse = oracle.attention(q, k, v, causal=causal)
        rows = np.isfinite(lse)
        expected = (o, lse, *oracle.gradients(q, k, v, do, dlse=np.where(rows, dlse, 0),
                                              causal=causal))
        for x, y in zip(dense(given), expected, strict=True):
            assert off(x[0, 0], torch.from_numpy(np.asarray(y))) < 1e-13
