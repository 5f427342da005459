"""The tiled torch backend keeps every promise of the op, in each dtype of the CPU."""

import pytest

torch = pytest.importorskip("torch")

from flashlib.kernels import flash_attention  # noqa: E402
from flashlib.kernels.backends import reference  # noqa: E402
from tests.kernels.behaviours import SHAPES, Backend, check_values  # noqa: E402
from tests.kernels.problems import Shape, dense, off, problem, solve  # noqa: E402
from tests.kernels.promises import PROMISES, SCORES, WINDOWS  # noqa: E402

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).split(".")[1])


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Tiles of 128 rows, so that a problem of 150 has several."""
    monkeypatch.setattr(reference, "ELEMENTS", 0)


def at(dtype, impl="reference"):
    return Backend(impl, dtype, N=150)


@every_dtype
@pytest.mark.parametrize("promise", [x for x in PROMISES if x not in WINDOWS | SCORES])
def test_promise(promise, dtype):
    PROMISES[promise](at(dtype))


@every_dtype
@pytest.mark.parametrize("promise", WINDOWS | SCORES)
def test_promise_in_small_tiles(promise, dtype, monkeypatch):
    monkeypatch.setattr(reference, "BLOCKS", (32, 32))
    PROMISES[promise](Backend("reference", dtype, N=70))


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


@pytest.mark.parametrize("window", [(2, 1), (0, 0), (None, 2), (1, None)], ids=str)
def test_gradcheck_of_a_window(window):
    inputs = [x.requires_grad_() for x in problem(Shape(1, 2, 1, 6, 7, 3), torch.float64)[:3]]
    assert torch.autograd.gradcheck(
        lambda *x: flash_attention(*x, window=window, return_lse=True), inputs)


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


@every_dtype
@pytest.mark.parametrize("poison", [float("nan"), float("inf")], ids=str)
def test_a_query_or_its_gradient_never_reaches_a_key_that_it_may_not_see(poison, dtype):
    """The other way round: dK and dV of keys beyond what the poisoned row sees, in its tile too."""
    given = problem(Shape(1, 2, 1, 150, 150, 8, True), dtype, with_lse=False)
    clean = solve(given, at(dtype))
    for row in (3, 127, 140):
        for name in ("q", "do"):
            x = getattr(given, name).clone()
            x[:, :, row] = poison
            dk, dv = solve(given._replace(**{name: x}), at(dtype))[3:]
            for got, expected in ((dk, clean[3]), (dv, clean[4])):
                assert torch.equal(got[:, :, row + 1:], expected[:, :, row + 1:])
                assert not got[:, :, :row + 1].isfinite().all()


def test_a_nan_in_one_head_is_seen_in_that_head_alone():
    """In a tile that the mask cuts: the rows that see it, its own column, and no other head."""
    given = problem(Shape(2, 3, 3, 150, 150, 8, True), torch.float64)
    expected = flash_attention(*given[:3], causal=True)
    given.v[1, 2, 140, 3] = float("nan")
    o = flash_attention(*given[:3], causal=True)
    assert o[1, 2, 140:, 3].isnan().all()
    o[1, 2, 140:, 3] = expected[1, 2, 140:, 3]
    assert off(o, expected) < 1e-13


def test_a_finite_entry_beside_a_nan_counts_once():
    """The other columns of a value that holds a NaN or an infinity, for the rows that see it."""
    for poison in (float("nan"), float("inf")):
        given = problem(Shape(1, 1, 1, 150, 150, 8, True), torch.float64)
        clean = flash_attention(*given[:3], causal=True)
        given.v[:, :, 130, 3] = poison
        o = flash_attention(*given[:3], causal=True)
        others = [0, 1, 2, 4, 5, 6, 7]
        assert off(o[..., others], clean[..., others]) < 1e-13


class TestAutocast:
    """Autocast changes no product inside; unlike dtypes it unites, as for torch's own attention."""

    @pytest.fixture(params=[torch.bfloat16, torch.float16], ids=str)
    def lower(self, request):
        return request.param

    @pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
    def test_forward_and_backward_are_bit_for_bit_those_without(self, lower, dtype):
        given = problem(Shape(1, 2, 1, 150, 140, 16, True), dtype)
        expected = solve(given, flash_attention)
        with torch.autocast("cpu", dtype=lower):
            for x, y in zip(solve(given, flash_attention), expected, strict=True):
                assert x.dtype == y.dtype and torch.equal(x, y)

    def test_scores_beyond_float16_stay_finite(self, lower):
        x = torch.full((1, 1, 20, 64), 250.0)
        with torch.autocast("cpu", dtype=lower):
            assert torch.equal(flash_attention(x, x, x), x)
            assert torch.equal(flash_attention(x.half(), x.half(), x.half()), x.half())

    def test_unlike_dtypes_are_cast_to_autocast_s(self, lower):
        given = problem(Shape(1, 2, 1, 20, 20, 16), torch.float32)
        q, k, v = (x.clone().requires_grad_() for x in given[:3])
        with torch.autocast("cpu", dtype=lower):
            o = flash_attention(q.to(lower), k, v)
            assert o.dtype == torch.nn.functional.scaled_dot_product_attention(
                q.to(lower), k, v, enable_gqa=True).dtype == lower
        assert torch.equal(o, flash_attention(*(x.to(lower) for x in given[:3])))
        o.float().sum().backward()
        assert all(x.grad.dtype == torch.float32 and x.grad.any() for x in (q, k, v))

    def test_without_autocast_and_with_float64_unlike_dtypes_are_refused(self, lower):
        x = torch.ones(1, 1, 2, 4)
        with pytest.raises(TypeError, match="q, k, v: expected one dtype"):
            flash_attention(x.to(lower), x, x)
        with torch.autocast("cpu", dtype=lower), pytest.raises(TypeError, match="expected one dtype"):
            flash_attention(x.double(), x, x)


@pytest.mark.parametrize("causal", [False, True])
def test_meta_tensors_give_shapes(causal):
    q, k = (torch.ones(2, 4, N, 8, device="meta", requires_grad=True) for N in (150, 130))
    o, lse = flash_attention(q, k, k, causal=causal, return_lse=True)
    assert o.is_meta and o.shape == q.shape and lse.shape == q.shape[:3]
    o.sum().backward()
    assert q.grad.shape == q.shape and k.grad.shape == k.shape


def test_values_as_large_as_a_sum_over_all_keys_allows():
    """The division comes last, so a sum of N_k values must stay within float32."""
    N = 150
    given = problem(Shape(1, 1, 1, 5, N, 8))
    largest = torch.full_like(given.v, 3.4e38 / N)
    assert off(flash_attention(given.q, given.k, largest) / largest[:, :, :5],
               torch.ones(1, 1, 5, 8)) < 1e-6


@pytest.mark.parametrize("window", [None, (100, 30), (0, 0), (300, None)], ids=str)
def test_larger_tiles_give_the_same(window, monkeypatch):
    given = problem(Shape(1, 2, 1, 700, 650, 8, window is None), torch.float64)._replace(window=window)
    small = solve(given, flash_attention)
    monkeypatch.undo()
    rows = reference._tiling(given.q, given.k, reference.Window())[1]
    assert rows == 512 and reference._tiling(given.q.expand(64, 2, 700, 8), given.k,
                                             reference.Window())[1] == 128
    for x, y in zip(solve(given, flash_attention), small, strict=True):
        assert off(x, y) < 1e-13


@pytest.mark.parametrize("poison", [float("nan"), float("inf")], ids=str)
def test_a_key_outside_the_window_never_reaches_a_row(poison):
    """Row by row on both sides, forward and dQ."""
    given = problem(Shape(1, 2, 1, 300, 310, 8), torch.float64, with_lse=False)
    given = given._replace(window=(20, 9))
    clean = solve(given, flash_attention)
    for bad in (0, 127, 128, 200, 309):
        k, v = given.k.clone(), given.v.clone()
        k[:, :, bad], v[:, :, bad] = poison, poison
        got = solve(given._replace(k=k, v=v), flash_attention)
        on = torch.arange(300) + 10
        blind = (bad < on - 20) | (bad > on + 9)
        for x, y in zip(got[:3], clean[:3], strict=True):
            assert torch.equal(x[:, :, blind], y[:, :, blind])
        assert got[0][:, :, ~blind].isnan().all()


def test_the_work_of_a_window_grows_with_its_width_and_not_with_n_squared(monkeypatch):
    """Tiles outside are skipped: multiply-adds, counted from the shapes of all products."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Products(TorchDispatchMode):
        tiles = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            name = function.overloadpacket.__name__
            if "bmm" in name:
                a, b = args[-2:]
                self.tiles += a.numel() * b.shape[2] / (64 * 64 * 16)
            else:
                assert "mm" not in name and "matmul" not in name, f"a product not counted: {name}"
            return function(*args, **(kwargs or {}))

    monkeypatch.setattr(reference, "BLOCKS", (64, 64))
    for N, window, visited in ((1024, (64, 0), 2 * 16 - 1), (2048, (64, 0), 2 * 32 - 1),
                               (2048, (128, 0), 3 * 32 - 3), (2048, None, 32 * 32)):
        with Products() as seen:
            solve(problem(Shape(1, 1, 1, N, N, 16))._replace(window=window), flash_attention)
        assert seen.tiles == 7 * visited                    # two products forward, five backward


def test_memory_is_linear_in_n(monkeypatch):
    """The largest tensor that is made has O(N) elements or those of a tile: nothing N×N."""
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
    monkeypatch.undo()
    with Largest() as seen:
        solve(given, at(torch.float32))
    assert seen.elements <= reference.ELEMENTS < 2048 ** 2


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
