"""The backward pass: gradients from three independent sources, and wrong inputs."""

import numpy as np
import pytest

import flashlib as fl
from tests import oracle
from tests.algorithms.backward_cases import SHAPES, assert_gradients, either_mask, either_order, problem
from tests.cases import normal, shape_id

shapes_by_name = pytest.mark.parametrize("shape", SHAPES, ids=[shape_id(*s) for s in SHAPES])


@pytest.mark.parametrize("with_lse", [False, True], ids=["dO", "dO-and-dlse"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["f64", "f32"])
@either_mask
@either_order
@shapes_by_name
def test_equals_the_chain_rule_through_a_dense_jacobian(shape, order, causal, dtype, with_lse):
    Nq, Nk, d, Br, Bc = shape
    Q, K, V, O, lse, dO, dlse = problem(Nq + 7 * Nk, Nq, Nk, d, causal=causal, dtype=dtype)
    dlse = dlse if with_lse else None
    inputs = [a for a in (Q, K, V, O, lse, dO, dlse) if a is not None]
    copies = [a.copy() for a in inputs]
    machine = fl.Machine()
    got = fl.flash_backward(Q, K, V, O, lse, dO, Br=Br, Bc=Bc, dlse=dlse, order=order,
                            causal=causal, machine=machine)
    assert_gradients(got, oracle.gradients(Q, K, V, dO, dlse=dlse, causal=causal), dtype)
    for array, copy in zip(inputs, copies, strict=True):
        np.testing.assert_array_equal(array, copy)
    tiles = -(-Nq // Br) * -(-Nk // Bc) * (1 if order == "kv" else 2)
    visits = len(machine.trace.visits("S"))            # the path taken: as many tiles as there are
    assert visits == tiles if not causal else visits <= tiles


def loss(Q, K, V, dO, dlse, causal, scale):
    O, lse = oracle.attention(Q, K, V, causal=causal, scale=scale)
    seen = np.isfinite(lse)
    return (dO * O).sum() + (dlse * np.where(seen, lse, 0)).sum()


@either_mask
@either_order
@pytest.mark.parametrize("scale", [None, 0.0, -0.7, 1.5], ids=str)
def test_equals_central_finite_differences(order, causal, scale):
    Q, K, V, O, lse, dO, dlse = problem(3, 7, 5, 3, causal=causal, scale=scale)
    got = fl.flash_backward(Q, K, V, O, lse, dO, Br=3, Bc=2, dlse=dlse, order=order, causal=causal,
                            scale=scale)
    h = 1e-5
    for array, gradient in zip((Q, K, V), got, strict=True):
        for place in np.ndindex(array.shape):
            here = array[place]
            array[place] = here + h
            up = loss(Q, K, V, dO, dlse, causal, scale)
            array[place] = here - h
            down = loss(Q, K, V, dO, dlse, causal, scale)
            array[place] = here
            assert gradient[place] == pytest.approx((up - down) / (2 * h), abs=2e-8)


@either_mask
@either_order
@pytest.mark.parametrize("Nq, Nk", [(11, 11), (6, 11), (11, 6)])
def test_equals_torch_autograd(order, causal, Nq, Nk):
    torch = pytest.importorskip("torch")
    Q, K, V, O, lse, dO, dlse = problem(4, Nq, Nk, 5, causal=causal)
    got = fl.flash_backward(Q, K, V, O, lse, dO, Br=4, Bc=3, dlse=dlse, order=order, causal=causal)
    q, k, v = (torch.tensor(a, requires_grad=True) for a in (Q, K, V))
    visible = torch.ones(Nq, Nk, dtype=torch.bool)
    if causal:
        visible = torch.arange(Nk)[None] <= torch.arange(Nq)[:, None] + Nk - Nq
    seeing = visible.any(dim=1)
    S = (q @ k.T / np.sqrt(5)).masked_fill(~visible, -1e30)
    P = torch.softmax(S, dim=1).masked_fill(~visible, 0)
    value = (P @ v * torch.tensor(dO)).sum()
    value = value + (torch.logsumexp(S, dim=1) * torch.tensor(dlse))[seeing].sum()
    value.backward()
    assert_gradients(got, [t.grad.numpy() for t in (q, k, v)], what="against torch")


@either_mask
def test_both_orders_give_the_same_numbers(causal):
    """Bit for bit, since either order adds the tiles of a gradient from the first to the last."""
    Q, K, V, O, lse, dO, dlse = problem(5, 23, 31, 8, causal=causal)
    kv, q = (fl.flash_backward(Q, K, V, O, lse, dO, Br=5, Bc=7, dlse=dlse, order=order,
                               causal=causal) for order in ("kv", "q"))
    for a, b in zip(kv, q, strict=True):
        np.testing.assert_array_equal(a, b)


@either_order
@either_mask
def test_any_blocks_give_the_same_gradients(order, causal):
    Q, K, V, O, lse, dO, dlse = problem(6, 12, 14, 3, causal=causal)
    expected = oracle.gradients(Q, K, V, dO, dlse=dlse, causal=causal)
    for Br in (1, 2, 5, 11, 12, 40):
        for Bc in (1, 3, 7, 13, 14, 40):
            got = fl.flash_backward(Q, K, V, O, lse, dO, Br=Br, Bc=Bc, dlse=dlse, order=order,
                                    causal=causal)
            assert_gradients(got, expected, what=f"{Br=} {Bc=}")


@either_order
def test_rows_that_see_nothing_have_zero_gradients(order):
    Q, K, V, O, lse, dO, dlse = problem(7, 11, 4, 5, causal=True)
    assert (lse[:7] == -np.inf).all()
    dQ, dK, dV = fl.flash_backward(Q, K, V, O, lse, dO, Br=3, Bc=3, dlse=dlse, order=order,
                                   causal=True)
    assert not dQ[:7].any() and np.isfinite(dQ).all() and np.isfinite(dK).all()
    blind = dO.copy()
    blind[:7] = 1e6                                    # what blind rows are told changes nothing
    for a, b in zip(fl.flash_backward(Q, K, V, O, lse, blind, Br=3, Bc=3, dlse=dlse, order=order,
                                      causal=True), (dQ, dK, dV), strict=True):
        np.testing.assert_array_equal(a, b)


@either_order
def test_lse_of_the_two_kinds_of_forward_serves_equally(order):
    Q, K, V, _, _, dO, _ = problem(8, 20, 20, 4)
    for forward in (fl.flash_v1, fl.flash_v2, fl.standard_attention):
        O2, lse2 = forward(Q, K, V, Br=6, Bc=5)
        assert_gradients(fl.flash_backward(Q, K, V, O2, lse2, dO, Br=6, Bc=5, order=order),
                         oracle.gradients(Q, K, V, dO))


@either_order
def test_a_gradient_through_lse_alone_is_that_of_logsumexp(order):
    """With dO = 0 and dlse = 1: dQ = scale·P·K, dK = scale·Pᵀ·Q, dV = 0."""
    Q, K, V, O, lse, _, _ = problem(9, 9, 8, 4)
    dQ, dK, dV = fl.flash_backward(Q, K, V, O, lse, np.zeros_like(Q), Br=4, Bc=3,
                                   dlse=np.ones(9), order=order)
    P = oracle.softmax(Q @ K.T / 2)
    assert_gradients((dQ, dK, dV), (P @ K / 2, P.T @ Q / 2, np.zeros_like(V)))


@either_order
@pytest.mark.parametrize("which", ["K", "V"])
def test_nan_in_a_forbidden_key_never_reaches_another_row(order, which):
    Q, K, V, *_ = problem(10, 12, 12, 4)
    clean = {"K": K, "V": V}
    dO, dlse = normal(11, (12, 4), (12,))
    expected = oracle.gradients(Q, K, V, dO, dlse=dlse, causal=True)[0]
    for j in range(1, 12):
        dirty = {name: a.copy() for name, a in clean.items()}
        dirty[which][j] = np.nan
        O, lse = fl.flash_v2(Q, **dirty, Br=5, Bc=4, causal=True)
        dQ, _, _ = fl.flash_backward(Q, *dirty.values(), O, lse, dO, Br=5, Bc=4, dlse=dlse,
                                     order=order, causal=True)
        np.testing.assert_allclose(dQ[:j], expected[:j], atol=1e-13)
        assert np.isnan(dQ[j:]).any(axis=1).all()      # and it is not hidden from those that see it


@either_order
def test_nan_in_a_later_query_never_reaches_a_key_that_it_cannot_see(order):
    """Row 0 of 3 sees no key of 2: a NaN in its Q or dO touches no gradient but its own."""
    Q, K, V, O, lse, dO, _ = problem(12, 9, 8, 4, causal=True)
    expected = fl.flash_backward(Q, K, V, O, lse, dO, Br=3, Bc=3, order=order, causal=True)
    Q[0], dO[0] = np.nan, np.nan
    got = fl.flash_backward(Q, K, V, O, lse, dO, Br=3, Bc=3, order=order, causal=True)
    for a, b in zip(got[1:], expected[1:], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-14)
    assert not got[0][0].any()


@either_order
@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["f64", "f32"])
def test_logits_of_ten_thousand_stay_finite(order, dtype):
    rng = np.random.default_rng(13)
    Q = rng.integers(-100, 101, size=(20, 1)).astype(dtype)
    K = rng.integers(-100, 101, size=(20, 1)).astype(dtype)
    V, dO = normal(14, (20, 1), (20, 1), dtype=dtype)
    O, lse = fl.flash_v2(Q, K, V, Br=7, Bc=4, scale=1.0)
    got = fl.flash_backward(Q, K, V, O, lse, dO, Br=7, Bc=4, order=order, scale=1.0)
    expected = oracle.gradients(Q, K, V, dO, scale=1.0)
    for a, b in zip(got, expected, strict=True):
        assert np.isfinite(a).all()
        size = np.abs(b).max() + 100
        np.testing.assert_allclose(a, b, atol=2e4 * np.finfo(dtype).eps * size)


GOOD = np.ones((4, 3))
ROWS = np.zeros(4)


def call(machine=None, **changes):
    arguments = {"Q": GOOD, "K": GOOD, "V": GOOD, "O": GOOD, "lse": ROWS, "dO": GOOD, "Br": 2,
                 "Bc": 2}
    return fl.flash_backward(**arguments | changes, machine=machine)


@pytest.mark.parametrize("changes, error, message", [
    ({"O": GOOD[:3]}, ValueError, r"O: expected shape \(4, 3\), got \(3, 3\)"),
    ({"dO": np.ones((4, 2))}, ValueError, r"dO: expected shape \(4, 3\), got \(4, 2\)"),
    ({"lse": GOOD}, ValueError, r"lse: expected 1 dimensions, got shape \(4, 3\)"),
    ({"lse": np.zeros(5)}, ValueError, r"lse: expected shape \(4,\), got \(5,\)"),
    ({"dlse": np.zeros(3)}, ValueError, r"dlse: expected shape \(4,\), got \(3,\)"),
    ({"dlse": 1.0}, TypeError, "dlse: expected a NumPy array, got float"),
    ({"dO": GOOD.astype(np.float32)}, TypeError, "expected one dtype for all"),
    ({"lse": ROWS.astype(int)}, TypeError, "lse: expected dtype float64 or float32, got int64"),
    ({"K": np.ones((4, 2))}, ValueError, "K: expected head dimension 3"),
    ({"order": "v2"}, ValueError, "order: expected one of .* got 'v2'"),
    ({"order": None}, ValueError, "order: expected one of .* got None"),
    ({"Br": 0}, ValueError, "Br: expected a whole number of at least 1, got 0"),
    ({"Bc": 2.0}, TypeError, "Bc: expected a whole number, got 2.0"),
    ({"causal": 1}, TypeError, "causal: expected True or False"),
    ({"scale": np.inf}, ValueError, "scale: expected a finite number"),
    ({"machine": 3}, TypeError, "machine: expected a flashlib.Machine or None, got 3"),
])
def test_wrong_inputs_are_refused_before_anything_moves(changes, error, message):
    machine = fl.Machine()
    with pytest.raises(error, match=message):
        call(**{"machine": machine} | changes)
    assert machine.traffic == fl.Traffic()
