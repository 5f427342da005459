"""Packed sequences: each is attended to by itself, forward and backward, of any lengths."""

import math

import pytest

torch = pytest.importorskip("torch")

from flashlib.kernels import flash_attention, flash_attention_varlen  # noqa: E402

LENGTHS = ([5, 1, 9], [7, 3, 9]), ([4, 0, 6], [0, 5, 6]), ([8], [3])
MASKS = ((False, None), (True, None), (False, (3, 1)), (True, (2, 0)))


def cumulative(lengths):
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


def normal(rows, heads, seed):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(rows, heads, 8, generator=rng, dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("causal, window", MASKS)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_each_sequence_is_attended_to_by_itself(lengths, causal, window):
    q_lengths, k_lengths = lengths
    q, k, v = normal(sum(q_lengths), 4, 0), normal(sum(k_lengths), 2, 1), normal(sum(k_lengths), 2, 2)
    o, lse = flash_attention_varlen(q, k, v, cumulative(q_lengths), cumulative(k_lengths),
                                    causal=causal, window=window, return_lse=True)
    assert o.shape == q.shape and lse.shape == (4, len(q))
    do, at = torch.randn(o.shape, dtype=torch.float64), 0
    gradients = torch.autograd.grad((o * do).sum() + lse.clamp_min(-9).sum(), (q, k, v))
    right = [torch.zeros_like(x) for x in (q, k, v)]
    key = 0
    for n, m in zip(q_lengths, k_lengths, strict=True):
        rows, keys = slice(at, at + n), slice(key, key + m)
        one = [x[s].detach().transpose(0, 1)[None].requires_grad_() for x, s in
               ((q, rows), (k, keys), (v, keys))]
        O, LSE = flash_attention(*one, causal=causal, window=window, return_lse=True)
        torch.testing.assert_close(o[rows], O[0].transpose(0, 1), rtol=0, atol=1e-13)
        torch.testing.assert_close(lse[:, rows], LSE[0], rtol=0, atol=1e-13)
        found = torch.autograd.grad((O[0].transpose(0, 1) * do[rows]).sum()
                                    + LSE.clamp_min(-9).sum(), one)
        for into, x, s in zip(right, found, (rows, keys, keys), strict=True):
            into[s] = x[0].transpose(0, 1)
        at, key = at + n, key + m
    for x, y in zip(gradients, right, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-12)


def test_a_neighbour_reaches_nobody():
    q, k, v = (normal(12, 2, seed).detach() for seed in range(3))
    cu = cumulative([5, 7])
    right = flash_attention_varlen(q, k, v, cu)[:5]
    k[5:], v[5:] = math.nan, math.inf
    assert torch.equal(flash_attention_varlen(q, k, v, cu)[:5], right)


@pytest.mark.parametrize("cu", [[0], [0, 0, 0]], ids=str)
def test_no_row_at_all(cu):
    x = torch.ones(0, 2, 8, requires_grad=True)
    o, lse = flash_attention_varlen(x, x, x, torch.tensor(cu, dtype=torch.int32), return_lse=True)
    assert o.shape == (0, 2, 8) and lse.shape == (2, 0)
    o.sum().backward()
    assert x.grad.shape == x.shape


X, CU = torch.ones(6, 2, 8), cumulative([2, 4])
WRONG = {
    "4-D": ({"q": X[None]}, ValueError, r"q: expected 3 dimensions \(T, H, D\), got shape"),
    "a list": ({"v": [1.0]}, TypeError, "v: expected a torch.Tensor, got list"),
    "D": ({"k": X[..., :7]}, ValueError, "k: expected head dimension 8 as in q, got 7"),
    "lengths as a list": ({"cu_q": [0, 6]}, TypeError, "cu_q: expected a torch.Tensor, got list"),
    "long lengths": ({"cu_q": CU.long()}, TypeError, "cu_q: expected int32, got torch.int64"),
    "lengths in 2-D": ({"cu_q": CU[None]}, ValueError, r"cu_q: expected shape \(N \+ 1,\)"),
    "not from 0": ({"cu_q": CU + 1}, ValueError, r"cu_q: expected numbers from 0 .* to 6.*\[1, 3, 7\]"),
    "too many rows": ({"cu_q": CU + CU}, ValueError, r"cu_q: .* up to 6, the rows of q, got \[0, 4, 1"),
    "too many keys": ({"k": X[:5], "v": X[:5]}, ValueError, r"cu_q: .* up to 5, the rows of k, got"),
    "decreasing": ({"cu_q": CU[[0, 1, 1, 2]], "cu_k": CU[[0, 2, 1, 2]]}, ValueError,
                   r"cu_k: expected numbers from 0 that never decrease, .* got \[0, 6, 2, 6\]"),
    "another number": ({"cu_k": CU[[0, 1, 1, 2]]}, ValueError,
                       "cu_k: expected 3 numbers as cu_q, got 4"),
    "return_lse": ({"return_lse": 1}, TypeError, "return_lse: expected True or False, got 1"),
    "causal": ({"causal": 1}, TypeError, "causal: expected True or False, got 1"),
}


@pytest.mark.parametrize("change, error, message", WRONG.values(), ids=WRONG)
def test_wrong_inputs_are_refused_by_name(change, error, message):
    with pytest.raises(error, match=f"^{message}"):
        flash_attention_varlen(**{"q": X, "k": X, "v": X, "cu_q": CU, **change})
