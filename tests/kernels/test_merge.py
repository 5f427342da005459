"""`merge`: the parts of an attention become the whole, with gradients, empty parts included."""

import math

import pytest

torch = pytest.importorskip("torch")

from flashlib.kernels import flash_attention, merge  # noqa: E402

O, LSE = torch.ones(2, 3, 4), torch.zeros(2, 3)


def parts(dtype=torch.float64, cut=7, seed=0):
    """Return q, k, v, and attention of q to the keys before and behind a cut."""
    rng = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(2, 2, n, 8, generator=rng, dtype=torch.float64).to(dtype).requires_grad_()
               for n in (5, 12, 12))
    two = [flash_attention(q, k[:, :, s], v[:, :, s], return_lse=True)
           for s in (slice(0, cut), slice(cut, None))]
    return q, k, v, two


@pytest.mark.parametrize("cut", [0, 1, 7, 12])
def test_parts_become_the_whole_with_the_same_gradients(cut):
    q, k, v, ((o_a, lse_a), (o_b, lse_b)) = parts(cut=cut)
    got = merge(o_a, lse_a, o_b, lse_b)
    right = flash_attention(q, k, v, return_lse=True)
    for x, y in zip(got, right, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-12)
    gradients = [torch.autograd.grad((o * v[:, :, :5]).sum() + lse.sin().sum(), (q, k, v))
                 for o, lse in (got, right)]
    for x, y in zip(*gradients, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-12)


def test_gradients_by_differences():
    rng = torch.Generator().manual_seed(1)
    inputs = [torch.randn(*shape, generator=rng, dtype=torch.float64, requires_grad=True)
              for shape in ((2, 3), (2,), (2, 3), (2,))]
    assert torch.autograd.gradcheck(merge, inputs)


def test_an_empty_part_changes_nothing_whatever_it_holds():
    o, lse = torch.randn(4, 3), torch.randn(4)
    empty = torch.full((4, 3), math.nan), torch.full((4,), -math.inf)
    for got in (merge(o, lse, *empty), merge(*empty, o, lse)):
        assert torch.equal(got[0], o) and torch.equal(got[1], lse)


def test_two_empty_parts_are_empty_and_no_gradient_is_nan():
    o_a, o_b = (torch.zeros(2, 3, requires_grad=True) for _ in range(2))
    lse_a = torch.tensor([-math.inf, 0.5], requires_grad=True)
    lse_b = torch.tensor([-math.inf, -math.inf], requires_grad=True)
    o, lse = merge(o_a, lse_a, o_b, lse_b)
    assert not o.any() and lse[0] == -math.inf and lse[1] == 0.5
    gradients = torch.autograd.grad(o.sum() + lse[1], (o_a, lse_a, o_b, lse_b))
    assert all(torch.isfinite(x).all() for x in gradients)
    assert not gradients[2].any() and not gradients[3].any()


def test_it_commutes_bit_by_bit_and_associates_to_rounding():
    x = [(torch.randn(50, 4, dtype=torch.float64), 30 * torch.randn(50, dtype=torch.float64))
         for _ in range(3)]
    for a, b in zip(merge(*x[0], *x[1]), merge(*x[1], *x[0]), strict=True):
        assert torch.equal(a, b)
    left, right = merge(*merge(*x[0], *x[1]), *x[2]), merge(*x[0], *merge(*x[1], *x[2]))
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)


def test_lse_of_any_size():
    big = torch.tensor([1e4, -1e4, 3e38])
    o, lse = merge(torch.ones(3, 2), big, torch.zeros(3, 2), big)
    torch.testing.assert_close(o, torch.full((3, 2), 0.5))
    assert torch.isfinite(lse).all()


def test_16_bits_are_merged_in_float32():
    o_a, o_b = (torch.randn(40, 8).bfloat16() for _ in range(2))
    lse_a, lse_b = torch.randn(40), torch.randn(40)
    o, lse = merge(o_a, lse_a, o_b, lse_b)
    wide = merge(o_a.float(), lse_a, o_b.float(), lse_b)
    assert o.dtype == torch.bfloat16 and lse.dtype == torch.float32
    assert torch.equal(o, wide[0].bfloat16()) and torch.equal(lse, wide[1])


WRONG = {
    "a list": ({"o_b": [1.0]}, TypeError, "o_b: expected a torch.Tensor, got list"),
    "integers": ({"lse_a": LSE.int()}, TypeError,
                 "lse_a: expected floating point numbers, got torch.int32"),
    "another shape": ({"o_b": O[:1]}, ValueError,
                      r"o_b: expected shape \(2, 3, 4\) to match o_a \(2, 3, 4\), got \(1, 3, 4\)"),
    "lse with D": ({"lse_b": O}, ValueError, r"lse_b: expected shape \(2, 3\) .* got \(2, 3, 4\)"),
    "another dtype": ({"o_b": O.half()}, TypeError,
                      "o_b: expected torch.float32 as in the other part, got torch.float16"),
    "lse in 16 bits": ({"lse_a": LSE.half(), "lse_b": LSE.half()}, TypeError,
                       "lse_a: expected float32 or float64, got torch.float16"),
    "another device": ({"lse_b": LSE.to("meta")}, ValueError,
                       "lse_b: expected a tensor on cpu as o_a, got meta"),
    "a number": ({"o_a": torch.tensor(1.0)}, ValueError, "o_a: expected at least one dimension"),
}


@pytest.mark.parametrize("change, error, message", WRONG.values(), ids=WRONG)
def test_wrong_inputs_are_refused_by_name(change, error, message):
    with pytest.raises(error, match=f"^{message}"):
        merge(**{"o_a": O, "lse_a": LSE, "o_b": O, "lse_b": LSE, **change})
