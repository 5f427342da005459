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
    "no lengths": ({"cu_q": CU[:0]}, ValueError, r"cu_q: expected shape \(N \+ 1,\), got \(0,\)"),
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


def test_rows_behind_the_last_sequence_are_not_used():
    q, k, v = (normal(12, 2, seed).detach() for seed in range(3))
    cu = cumulative([2, 5])
    right = flash_attention_varlen(q[:7], k[:7], v[:7], cu, causal=True, return_lse=True)
    for x in (q, k, v):
        x[7:] = math.nan
        x.requires_grad_()
    o, lse = flash_attention_varlen(q, k, v, cu, causal=True, return_lse=True)
    assert torch.equal(o[:7], right[0]) and torch.equal(lse[:, :7], right[1])
    assert not o[7:].any() and bool((lse[:, 7:] == -math.inf).all())
    for x in torch.autograd.grad(o.sum(), (q, k, v)):
        assert not x[7:].any() and bool(torch.isfinite(x).all())


SLOPES, SINK = torch.tensor([0.1, 0.5, 0.0, 1.0]), torch.tensor([0.5, -1.0, 2.0, 0.0])
SCORES = {"softcap": {"softcap": 2.0}, "alibi": {"alibi": SLOPES}, "sink": {"sink": SINK},
          "all": {"softcap": 3.0, "alibi": SLOPES, "sink": SINK}}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scores", SCORES.values(), ids=SCORES)
def test_scores_are_those_of_one_call_a_sequence(scores, causal):
    """A sink learns from rows that see no key, and nothing from rows behind the last sequence."""
    q_lengths, k_lengths = [5, 0, 9, 4], [3, 6, 20, 0]
    tensors = [normal(sum(n) + 3, heads, seed) for seed, (n, heads) in enumerate(
        ((q_lengths, 4), (k_lengths, 2), (k_lengths, 2)))]
    options = {**scores, "causal": causal, "return_lse": True}
    if "sink" in scores:
        tensors.append(scores["sink"].double().requires_grad_())
        options["sink"] = tensors[-1]
    cu_q, cu_k = cumulative(q_lengths), cumulative(k_lengths)
    do, dlse = torch.randn(21, 4, 8).double(), torch.randn(4, 21).double()
    do[18:], dlse[:, 18:] = math.nan, math.nan
    o, lse = flash_attention_varlen(*tensors[:3], cu_q, cu_k, **options)
    found = torch.autograd.grad((o, lse), tensors, (do, dlse))
    total = 0
    for a, b, c, d in zip(cu_q, cu_q[1:], cu_k, cu_k[1:], strict=False):
        one = (x[at].transpose(0, 1)[None] for x, at in zip(tensors, (slice(a, b), slice(c, d),
                                                                    slice(c, d)), strict=False))
        O, LSE = (x[0] for x in flash_attention(*one, **options))
        torch.testing.assert_close(o[a:b], O.transpose(0, 1), rtol=0, atol=1e-12)
        torch.testing.assert_close(lse[:, a:b], LSE, rtol=0, atol=1e-12)
        seen = torch.where(torch.isfinite(LSE), LSE, 0.0)
        total = total + (O.transpose(0, 1) * do[a:b]).sum() + (seen * dlse[:, a:b]).sum()
    for x, y in zip(found, torch.autograd.grad(total, tensors), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore")
def test_torch_compile_takes_it_whole():
    def layer(q, k, v, cu_q, cu_k):
        o, lse = flash_attention_varlen(q * 2, k + 1, v, cu_q, cu_k, causal=True, return_lse=True)
        return torch.tanh(o), lse.clamp_min(-9)

    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for lengths in ([5, 2, 0], [9, 0, 1], [4, 4, 4]):
        given = [normal(12, heads, seed) for seed, heads in enumerate((4, 2, 2))]
        cu, results = (cumulative(lengths), cumulative(lengths[::-1])), []
        for function in (layer, compiled):
            out = function(*given, *cu)
            results.append((*out, *torch.autograd.grad(out[0].sum() + out[1].sum(), given)))
        assert all(map(torch.equal, *results))
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("sink", [None, SINK], ids=["plain", "sink"])
@pytest.mark.parametrize("lengths", [None, [3, 0, 4]], ids=str)
def test_the_registered_ops_hold_to_torchs_rules(lengths, sink):
    from flashlib.kernels import packed_ops

    given = [torch.randn(10, heads, 8).requires_grad_() for heads in (4, 2, 2)]
    cu = cumulative([5, 2, 0]), None if lengths is None else cumulative(lengths)
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    options = None, 0, 0.3, "reference", None, None
    sink = None if sink is None else sink.clone().requires_grad_()
    torch.library.opcheck(packed_ops.packed_forward, (*given, *cu, *options, sink),
                          test_utils=(*tests, "test_aot_dispatch_dynamic"))
    o, lse = (x.detach() for x in packed_ops.packed_forward(*given, *cu, *options, sink))
    given, sink = [x.detach() for x in given], None if sink is None else sink.detach()
    torch.library.opcheck(packed_ops.packed_backward, (*given, *cu, o, lse, torch.ones_like(o), None,
                                                       *options, sink), test_utils=tests[:2])


def test_what_is_not_offered_is_refused():
    x = X.clone().requires_grad_()
    with pytest.raises(NotImplementedError, match="vmap is not offered"):
        torch.func.vmap(lambda q: flash_attention_varlen(q, X, X, CU))(X[None])
    (dq,) = torch.autograd.grad(flash_attention_varlen(x, X, X, CU).pow(2).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="double backward"):
        dq.sum().backward()
    with pytest.raises(NotImplementedError, match="'decode' has no packed sequences"):
        flash_attention_varlen(X, X, X, CU, impl="decode")
