"""The backward pass: gradients from three independent sources, accounting to the byte, wrong inputs."""

import random
import tracemalloc

import numpy as np
import pytest

import flashlib as fl
from flashlib.models import traffic
from tests import oracle
from tests.cases import normal, qkv, shape_id

SHAPES = [                         # Nq, Nk, d, Br, Bc
    (1, 1, 1, 1, 1),
    (2, 2, 1, 1, 2),
    (13, 13, 4, 1, 1),
    (63, 63, 16, 8, 5),
    (97, 97, 40, 32, 17),
    (5, 5, 3, 64, 64),
    (33, 33, 59, 8, 16),
    (40, 70, 8, 16, 16),
    (70, 40, 8, 16, 16),
    (3, 50, 5, 2, 7),
    (50, 3, 5, 7, 2),
    (9, 1, 4, 2, 2),
    (1, 9, 4, 2, 3),
    (0, 7, 4, 2, 2),
    (7, 0, 4, 2, 2),
    (0, 0, 4, 2, 2),
]
NAMES = ("dQ", "dK", "dV")

either_order = pytest.mark.parametrize("order", ["kv", "q"])
either_mask = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
shapes_by_name = pytest.mark.parametrize("shape", SHAPES, ids=[shape_id(*s) for s in SHAPES])


def problem(seed, Nq, Nk, d, *, causal=False, window=None, scale=None, dtype=np.float64):
    """Return Q, K, V, O, lse, dO and dlse."""
    Q, K, V = qkv(seed, Nq, Nk, d, dtype)
    dO, dlse = normal(seed + 1, (Nq, d), (Nq,), dtype=dtype)
    O, lse = fl.flash_v2(Q, K, V, Br=5, Bc=4, causal=causal, window=window, scale=scale)
    return Q, K, V, O, lse, dO, dlse


def assert_gradients(got, expected, dtype=np.float64, what="", factor=64):
    for name, a, b in zip(NAMES, got, expected, strict=True):
        assert a.shape == b.shape and a.dtype == dtype
        size = np.abs(b).max(initial=1)
        np.testing.assert_allclose(a, b, rtol=0, atol=factor * np.finfo(dtype).eps * size,
                                   err_msg=f"{name} {what}")


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


# Accounting

SHAPES_COUNTED, CHUNKS = 1800, 12  # two thirds of them with a window


def random_shapes(chunk):
    rng = random.Random(chunk)
    for n in range(SHAPES_COUNTED // CHUNKS):
        longest = rng.choice([3, 7, 13])
        bounds = [None if rng.random() < 0.3 else rng.randint(0, longest + 2) for _ in "lr"]
        yield (dict(Nq=rng.randint(0, longest), Nk=rng.randint(0, longest), d=rng.randint(1, 6)),
               dict(Br=rng.randint(1, 9), Bc=rng.randint(1, 9), order=rng.choice(["kv", "q"]),
                    causal=rng.random() < 0.4, window=tuple(bounds) if n % 3 else None),
               rng.random() < 0.4,
               dict(element_bytes=rng.randint(1, 8), stats_bytes=rng.randint(1, 8),
                    accumulator_bytes=rng.randint(1, 8)))


def empty_problem(Nq, Nk, d, dlse):
    rows, keys = np.zeros((Nq, d)), np.zeros((Nk, d))
    return (rows, keys, keys, rows, np.zeros(Nq), rows), np.zeros(Nq) if dlse else None


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_flash_backward_counts_its_closed_form(chunk):
    for shape, blocks, with_lse, sizes in random_shapes(chunk):
        arrays, dlse = empty_problem(**shape, dlse=with_lse)
        machine = fl.Machine(**sizes, record=False)
        fl.flash_backward(*arrays, dlse=dlse, **blocks, machine=machine)
        form = traffic.flash_backward(**shape, **blocks, dlse=with_lse, **sizes)
        assert machine.traffic == form, (shape, blocks, with_lse, sizes)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_standard_attention_in_training_counts_its_closed_forms(chunk):
    for shape, blocks, dropout, sizes in random_shapes(chunk):
        (Q, K, V, _, _, dO), _ = empty_problem(**shape, dlse=False)
        mask = {"keep": np.ones((len(Q), len(K)), bool), "drop": 0.1} if dropout else {}
        hides = {name: blocks[name] for name in ("causal", "window")}
        forward, backward = fl.Machine(**sizes, record=False), fl.Machine(**sizes, record=False)
        _, P, Z = fl.standard_training_forward(Q, K, V, **hides, **mask, machine=forward)
        fl.standard_backward(Q, K, V, P, dO, Z=Z if dropout else None, **mask, machine=backward)
        shape |= {"dropout": dropout, **sizes}
        assert forward.traffic == traffic.standard_training_forward(**shape, **hides), shape
        assert backward.traffic == traffic.standard_backward(**shape), shape


def test_more_than_a_thousand_different_shapes_were_counted():
    drawn = [shape for chunk in range(CHUNKS) for shape in random_shapes(chunk)]
    assert len({str(shape) for shape in drawn}) > 1600
    assert len({str(shape) for shape in drawn if shape[1]["window"] not in (None, (None, None))}) > 1000


@pytest.mark.parametrize("Nq, Nk, d, Br, Bc", [s for s in SHAPES if s[0] and s[1]])
def test_bytes_and_flops_written_out(Nq, Nk, d, Br, Bc):
    """A third derivation, unmasked: element and statistic counts as a reader would add them up."""
    Tr, Tc = -(-Nq // Br), -(-Nk // Bc)
    arrays, dlse = empty_problem(Nq, Nk, d, True)
    kv, q = fl.Machine(), fl.Machine()
    for order, machine in (("kv", kv), ("q", q)):
        fl.flash_backward(*arrays, dlse=dlse, Br=Br, Bc=Bc, order=order, machine=machine)
    pre_elements, pre_stats = 2 * Nq * d, 2 * Nq               # O, dO; dlse in, delta out
    main_elements = 4 * Nk * d + 2 * Tc * Nq * d               # K, V, dK, dV; Q and dO
    main_stats = 2 * Tc * Nq                                   # lse, delta
    assert kv.traffic.hbm_bytes == (2 * (pre_elements + main_elements + (1 + 2 * Tc) * Nq * d)
                                    + 4 * (pre_stats + main_stats))
    assert q.traffic.hbm_bytes == (2 * (pre_elements + main_elements + 3 * Nq * d + 2 * Tr * Nk * d)
                                   + 4 * (pre_stats + main_stats + 2 * Nq))
    assert kv.traffic.matmul_flops == 5 * 2 * Nq * Nk * d
    assert q.traffic.matmul_flops == 7 * 2 * Nq * Nk * d
    assert kv.traffic.exps == Nq * Nk and q.traffic.exps == 2 * Nq * Nk


@either_mask
def test_atomic_updates_are_the_visited_tiles_of_the_first_order_only(causal):
    Q, K, V, O, lse, dO, _ = problem(15, 22, 17, 4, causal=causal)
    kv, q = fl.Machine(), fl.Machine()
    for order, machine in (("kv", kv), ("q", q)):
        fl.flash_backward(Q, K, V, O, lse, dO, Br=5, Bc=4, order=order, causal=causal,
                          machine=machine)
    atomic = [e for e in kv.trace if e.atomic]
    assert kv.trace.atomic_updates() == len(kv.trace.visits("S")) == len(atomic)
    assert {e.tensor for e in atomic} == {"dQ"}
    assert len(atomic) == (0 + 2 + 3 + 4 + 5 if causal else 5 * 5)
    assert q.trace.atomic_updates() == 0


@either_order
@either_mask
def test_capacity_of_the_peak_suffices_and_one_byte_less_raises(order, causal):
    Q, K, V, O, lse, dO, dlse = problem(16, 13, 11, 4, causal=causal)

    def run(capacity):
        machine = fl.Machine(sram_bytes=capacity)
        fl.flash_backward(Q, K, V, O, lse, dO, Br=5, Bc=4, dlse=dlse, order=order, causal=causal,
                          machine=machine)
        return machine.traffic.sram_peak_bytes

    peak = run(None)
    assert run(peak) == peak
    with pytest.raises(fl.SRAMOverflow, match="1 B too many"):
        run(peak - 1)


@either_order
def test_nothing_of_size_n_by_n_is_made(order):
    N, d, B = 1024, 16, 64
    Q, K, V, dO = normal(17, (N, d), (N, d), (N, d), (N, d))
    O, lse = fl.flash_v2(Q, K, V, Br=B, Bc=B)

    def run():
        fl.flash_backward(Q, K, V, O, lse, dO, Br=B, Bc=B, order=order)

    tracemalloc.start()
    try:
        start = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        run()
        peak = tracemalloc.get_traced_memory()[1] - start
    finally:
        tracemalloc.stop()
    assert peak < 8 * N * N / 5                        # three gradients twice, and a few tiles


# The standard backward

@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("Nq, Nk, d", [(9, 9, 4), (5, 8, 3), (8, 5, 3), (0, 4, 2), (4, 0, 2)])
def test_standard_backward_equals_the_oracle(Nq, Nk, d, causal):
    Q, K, V, _, _, dO, _ = problem(18, Nq, Nk, d)
    O, P, Z = fl.standard_training_forward(Q, K, V, causal=causal)
    np.testing.assert_allclose(O, oracle.attention(Q, K, V, causal=causal)[0], atol=1e-14)
    np.testing.assert_array_equal(P, Z)
    got = fl.standard_backward(Q, K, V, P, dO)
    assert_gradients(got, oracle.gradients(Q, K, V, dO, causal=causal))


def test_standard_backward_with_dropout_equals_finite_differences():
    Q, K, V, _, _, dO, _ = problem(19, 6, 7, 3)
    keep = np.random.default_rng(20).random((6, 7)) < 0.7
    options = {"keep": keep, "drop": 0.3, "scale": 0.9}
    _, P, Z = fl.standard_training_forward(Q, K, V, **options)
    got = fl.standard_backward(Q, K, V, P, dO, Z=Z, **options)
    h = 1e-5
    for array, gradient in zip((Q, K, V), got, strict=True):
        for place in np.ndindex(array.shape):
            here, values = array[place], []
            for step in (h, -h):
                array[place] = here + step
                values.append((fl.standard_training_forward(Q, K, V, **options)[0] * dO).sum())
            array[place] = here
            assert gradient[place] == pytest.approx((values[0] - values[1]) / (2 * h), abs=1e-8)


def test_dropout_scales_the_survivors_up():
    """O and Z against dropout written out: a kept weight grows by 1/(1 − drop), so that means stay."""
    Q, K, V = qkv(21, 6, 7, 3)
    keep = np.random.default_rng(22).random((6, 7)) < 0.7
    O, P, Z = fl.standard_training_forward(Q, K, V, keep=keep, drop=0.3)
    for i in range(6):
        weights = [P[i, j] / 0.7 if keep[i, j] else 0.0 for j in range(7)]
        np.testing.assert_allclose(Z[i], weights, rtol=1e-14)
        np.testing.assert_allclose(O[i], np.dot(weights, V), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(P.sum(axis=1), 1, rtol=1e-14)


def test_the_passes_over_n_by_n_are_those_of_the_table():
    """At d ≪ N: 6 + 7 passes, with dropout 18 in all, in units of Nq·Nk elements."""
    size = dict(Nq=1 << 20, Nk=1 << 20, d=1)
    unit = 2 * size["Nq"] * size["Nk"]

    def passes(**options):
        return (traffic.standard_training_forward(**size, **options).hbm_bytes / unit,
                traffic.standard_backward(**size, **options).hbm_bytes / unit)

    assert passes() == pytest.approx((6, 7), abs=1e-4)
    assert passes(dropout=True) == pytest.approx((8.5, 9.5), abs=1e-4)


# Wrong inputs

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


KEEP = np.ones((4, 4), bool)


@pytest.mark.parametrize("changes, error, message", [
    ({"P": GOOD}, ValueError, r"P: expected shape \(4, 4\), got \(4, 3\)"),
    ({"dO": np.ones((5, 3))}, ValueError, r"dO: expected shape \(4, 3\)"),
    ({"keep": KEEP}, ValueError, "Z, keep: expected both"),
    ({"Z": np.ones((4, 4))}, ValueError, "Z, keep: expected both"),
    ({"drop": 0.1}, ValueError, "keep: expected a mask for drop=0.1, got None"),
    ({"keep": KEEP, "drop": 1.0}, ValueError, "drop: expected a share"),
    ({"keep": KEEP, "drop": "x"}, TypeError, "drop: expected a number"),
    ({"keep": KEEP * 1.0}, TypeError, "keep: expected a NumPy array of booleans"),
    ({"keep": KEEP[:3]}, ValueError, r"keep: expected shape \(4, 4\), got \(3, 4\)"),
    ({"machine": fl.Machine(sram_bytes=1000)}, fl.SRAMOverflow, "ideal baseline"),
])
def test_wrong_inputs_to_the_standard_backward(changes, error, message):
    arguments = {"Q": GOOD, "K": GOOD, "V": GOOD, "P": np.ones((4, 4)), "dO": GOOD}
    with pytest.raises(error, match=message):
        fl.standard_backward(**arguments | changes)
