"""Values with another head dimension than keys: 192 and 128, as many a model has them, and others."""

import itertools

import pytest

torch = pytest.importorskip("torch")

from flashlib.kernels import flash_attention, flash_attention_varlen, ops  # noqa: E402
from tests.kernels.behaviours import close  # noqa: E402
from tests.kernels.problems import Shape, dense, problem, solve  # noqa: E402

WIDTHS = [(192, 128), (8, 24), (24, 8), (40, 1), (1, 40), (256, 64), (64, 256)]
OPTIONS = {"plain": {}, "scale": {"scale": -0.3}, "scores": {
    "softcap": 5.0, "alibi": torch.tensor([0.1, 0.2, 0.0, 0.4]), "sink": torch.tensor([1.0, -2, 0, 3])}}


def unlike(D, D_v, *masks, scale=None, **scores):
    """Return a problem of float64 whose values have D_v columns."""
    given = problem(Shape(2, 4, 2, 21, 34, D, *masks), torch.float64, scale=scale)
    other = problem(Shape(2, 4, 2, 21, 34, D_v), torch.float64, seed=1)
    if "sink" in scores:
        scores["sink"] = scores["sink"].double()
    return given._replace(v=other.v, do=other.do, **scores)


def ones(*shape, **options):
    return torch.ones(shape, **options)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("D, D_v", WIDTHS)
def test_o_lse_and_every_gradient_equal_dense_attention(D, D_v, options):
    for masks in itertools.product((False, True), (None, (9, 0))):
        given = unlike(D, D_v, *masks, **options)
        got = solve(given, flash_attention)
        assert [x.shape[-1] for x in (got[0], *got[2:5])] == [D_v, D, D, D_v]
        close(got, dense(given), torch.float64, f"{D} {D_v} {masks}")


def test_o_without_its_lse_and_without_gradients_is_the_same():
    for dtype in (torch.float64, torch.float16):
        given = [x.to(dtype) for x in unlike(24, 8)[:3]]
        assert torch.equal(flash_attention(*given), flash_attention(*given, return_lse=True)[0])


def test_no_key_or_no_query_gives_what_it_gives_otherwise():
    q, k, v, *_ = unlike(24, 8)
    o, lse = flash_attention(q, k[:, :, :0], v[:, :, :0], return_lse=True)
    assert o.shape == (2, 4, 21, 8) and not o.any() and (lse == -torch.inf).all()
    assert flash_attention(q[:, :, :0], k, v).shape == (2, 4, 0, 8)


@pytest.mark.parametrize("D, D_v", WIDTHS)
def test_packed_sequences_equal_one_after_the_other(D, D_v):
    q, k, v, do, *_ = unlike(D, D_v)
    packed = [x.transpose(1, 2).flatten(0, 1).requires_grad_() for x in (q, k, v)]
    cu_q, cu_k = (torch.arange(3, dtype=torch.int32) * n for n in (21, 34))
    o, lse = flash_attention_varlen(*packed, cu_q, cu_k, causal=True, return_lse=True)
    got = torch.autograd.grad(o, packed, do.transpose(1, 2).flatten(0, 1))
    single = [x.requires_grad_() for x in (q, k, v)]
    O, L = flash_attention(*single, causal=True, return_lse=True)
    expected = torch.autograd.grad(O, single, do)
    torch.testing.assert_close(lse.unflatten(1, (2, 21)).transpose(0, 1), L, rtol=0, atol=1e-12)
    for x, y in zip((o, *got), (O, *expected), strict=True):
        torch.testing.assert_close(x.unflatten(0, (2, -1)).transpose(1, 2), y, rtol=0, atol=1e-12)


def test_traced_and_transformed_calls_take_them():
    q, k, v, do, *_ = unlike(24, 8)

    def loss(q, k, v):
        return (flash_attention(q, k, v, causal=True) * do).sum()

    single = [x.clone().requires_grad_() for x in (q, k, v)]
    expected = torch.autograd.grad(loss(*single), single)
    traced = torch.compile(loss, fullgraph=True, backend="aot_eager")
    compiled = torch.autograd.grad(traced(*single), single)
    transformed = torch.func.grad(loss, (0, 1, 2))(q, k, v)
    for found in (compiled, transformed):
        for x, y in zip(found, expected, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=1e-12)
    mapped = torch.func.vmap(flash_attention)(*(torch.stack([x, 2 * x]) for x in (q, k, v)))
    torch.testing.assert_close(mapped[1], flash_attention(2 * q, 2 * k, 2 * v), rtol=0, atol=1e-12)


WRONG = {
    "N of v": ({"v": ones(2, 4, 6, 7)}, ValueError, r"v: expected the shape of k.* got \(2, 4, 6, 7\)"),
    "no D of v": ({"v": ones(2, 4, 5, 0)}, ValueError, r"v: expected the shape of k.* \(2, 4, 5, 0\)"),
    "D of v 257": ({"v": ones(2, 4, 5, 257)}, ValueError, r"v: expected the shape of k.* 5, 257\)"),
    "D of k": ({"k": ones(2, 4, 5, 7), "v": ones(2, 4, 5, 9)}, ValueError,
               "k: expected head dimension 8 as in q, got 7"),
    "D of q": ({"q": ones(2, 4, 5, 0), "k": ones(2, 4, 5, 0)}, ValueError,
               "q: expected a head dimension D of at least 1, got 0"),
    "mixed dtypes": ({"v": ones(2, 4, 5, 7).half()}, TypeError, "q, k, v: expected one dtype, got"),
    "mixed devices": ({"v": ones(2, 4, 5, 7, device="meta")}, ValueError, "q, k, v: expected one dev"),
    "return_lse": ({"return_lse": 1}, TypeError, "return_lse: expected True or False, got 1"),
    "scale": ({"scale": float("nan")}, ValueError, "scale: expected a finite number, got nan"),
    "impl": ({"impl": "cuda"}, ValueError, r"impl: expected one of \('auto', .*\), got 'cuda'"),
    "sparse": ({"v": ones(2, 4, 5, 7).to_sparse()}, TypeError, "v: expected a dense tensor, got"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_arguments_are_refused_by_name_before_any_launch(wrong, monkeypatch):
    changes, error, message = WRONG[wrong]
    monkeypatch.setattr(ops, "choose", lambda *a: pytest.fail("it came to a launch"))
    good = {"q": ones(2, 4, 5, 8), "k": ones(2, 4, 5, 8), "v": ones(2, 4, 5, 7)}
    with pytest.raises(error, match=f"^{message}"):
        flash_attention(**good | changes)
