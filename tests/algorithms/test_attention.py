"""One contract for every attention algorithm: the value, the awkward shapes, the awkward inputs."""

import numpy as np
import pytest

import flashlib as fl
from tests import oracle
from tests.cases import ATTENTION, STREAMED, TILED, normal, qkv, shape_id

SHAPES = [                         # Nq, Nk, d, Br, Bc
    (1, 1, 1, 1, 1),
    (2, 2, 1, 1, 2),
    (13, 13, 4, 1, 1),
    (63, 63, 16, 8, 5),
    (97, 97, 40, 32, 17),
    (1025, 1025, 16, 128, 96),
    (5, 5, 3, 64, 64),
    (20, 20, 8, 20, 19),
    (17, 17, 8, 16, 16),
    (33, 33, 1, 8, 8),
    (33, 33, 59, 8, 16),
    (20, 20, 111, 7, 6),
    (64, 64, 32, 64, 1),
    (64, 64, 32, 1, 64),
    (40, 70, 8, 16, 16),
    (70, 40, 8, 16, 16),
    (31, 8, 4, 8, 4),
    (3, 50, 5, 2, 7),
    (50, 3, 5, 7, 2),
    (9, 1, 4, 2, 2),
    (1, 9, 4, 2, 3),
    (0, 7, 4, 2, 2),
    (7, 0, 4, 2, 2),
    (0, 0, 4, 2, 2),
]
STREAMED_LIMIT = 1_500             # pairs of a query and a key, each a Python step


def cases():
    for algorithm in ATTENTION:
        for shape in SHAPES:
            if algorithm in STREAMED and shape[0] * shape[1] > STREAMED_LIMIT:
                continue
            for causal in (False, True):
                name = f"{algorithm}-{shape_id(*shape)}{'-causal' * causal}"
                yield pytest.param(algorithm, shape, causal, id=name)


every_algorithm = pytest.mark.parametrize("algorithm", ATTENTION)
either_mask = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["f64", "f32"])
@pytest.mark.parametrize("algorithm, shape, causal", cases())
def test_equals_the_oracle(algorithm, shape, causal, dtype):
    Nq, Nk, d, Br, Bc = shape
    Q, K, V = qkv(Nq + 7 * Nk + d, Nq, Nk, d, dtype)
    copies = [a.copy() for a in (Q, K, V)]
    machine = fl.Machine()
    got = ATTENTION[algorithm](Q, K, V, Br=Br, Bc=Bc, causal=causal, machine=machine)
    oracle.assert_attention(got, Q, K, V, causal=causal)
    for array, copy in zip((Q, K, V), copies, strict=True):
        np.testing.assert_array_equal(array, copy)
    if algorithm in TILED and Nq and Nk:              # the path taken: as many tiles as there are
        tiles = -(-Nq // Br) * -(-Nk // Bc)
        visits = machine.trace.visits("S")
        if algorithm == "standard":                   # its softmax makes room for S once more
            visits = [n for n in visits if machine.trace[n].kernel == "S = QKᵀ"]
        assert len(visits) == tiles if algorithm == "standard" or not causal else visits


@every_algorithm
@either_mask
def test_without_a_machine_the_result_is_the_same(algorithm, causal):
    Q, K, V = qkv(1, 13, 16, 8)
    run = ATTENTION[algorithm]
    free = run(Q, K, V, Br=5, Bc=7, causal=causal)
    counted = run(Q, K, V, Br=5, Bc=7, causal=causal, machine=fl.Machine(element_bytes=1))
    for a, b in zip(free, counted, strict=True):
        np.testing.assert_array_equal(a, b)


@every_algorithm
def test_results_are_new_arrays_of_the_caller(algorithm):
    Q, K, V = qkv(2, 9, 9, 4)
    O, lse = ATTENTION[algorithm](Q, K, V, Br=4, Bc=4)
    O[...], lse[...] = 0, 0                           # writable, and nobody else's
    again = ATTENTION[algorithm](Q, K, V, Br=4, Bc=4)
    oracle.assert_attention(again, Q, K, V)


@every_algorithm
def test_rows_that_see_nothing_are_zero_and_minus_infinity(algorithm):
    Q, K, V = qkv(3, 11, 4, 5)
    O, lse = ATTENTION[algorithm](Q, K, V, Br=3, Bc=3, causal=True)
    assert not O[:7].any() and (lse[:7] == -np.inf).all()
    assert O[7:].all() and np.isfinite(lse[7:]).all()
    np.testing.assert_allclose(O[7], V[0], rtol=1e-15)        # the first row with a key sees one


@every_algorithm
@pytest.mark.parametrize("scale", [0.0, -0.7, 1, 3.5, np.float32(0.25), -1e-300], ids=str)
def test_scales_of_every_sign(algorithm, scale):
    Q, K, V = qkv(4, 12, 15, 6)
    got = ATTENTION[algorithm](Q, K, V, Br=5, Bc=4, scale=scale)
    oracle.assert_attention(got, Q, K, V, scale=float(scale))
    if scale == 0:
        np.testing.assert_allclose(got[0], np.tile(V.mean(axis=0), (12, 1)), atol=1e-15)
        np.testing.assert_allclose(got[1], np.log(15), rtol=1e-15)


@every_algorithm
@either_mask
@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["f64", "f32"])
@pytest.mark.parametrize("order", ["rising", "falling", "random"])
def test_logits_of_ten_thousand(algorithm, causal, dtype, order):
    """Whole-number logits up to ±10,000 are exact in both dtypes: no excuse for a large error."""
    rng = np.random.default_rng(5)
    Q = rng.integers(-100, 101, size=(18, 1)).astype(dtype)
    keys = rng.integers(-100, 101, size=(18, 1))
    keys = {"rising": np.sort(keys, axis=0), "falling": -np.sort(-keys, axis=0), "random": keys}
    K, V = keys[order].astype(dtype), rng.normal(size=(18, 1)).astype(dtype)
    Q[0], K[0], K[-1] = 100, -100, 100
    got = ATTENTION[algorithm](Q, K, V, Br=7, Bc=4, causal=causal, scale=1.0)
    assert np.isfinite(got[0]).all() and np.isfinite(got[1]).all()
    oracle.assert_attention(got, Q, K, V, causal=causal, scale=1.0, exact_logits=True)


@every_algorithm
@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["f64", "f32"])
def test_values_at_the_end_of_half_precision(algorithm, dtype):
    Q, K, _ = qkv(6, 20, 20, 8, dtype)
    V = np.full((20, 8), 65_504, dtype)
    O, _ = ATTENTION[algorithm](Q, K, V, Br=6, Bc=4)
    np.testing.assert_allclose(O, 65_504, rtol=8 * np.finfo(dtype).eps)
    V[::2] *= -1
    oracle.assert_attention(ATTENTION[algorithm](Q, K, V, Br=6, Bc=4), Q, K, V)


@every_algorithm
@either_mask
def test_values_whose_unnormalised_sum_nearly_overflows(algorithm, causal):
    Q, K, _ = qkv(6, 16, 16, 4)
    V = np.full((16, 4), 1e307)
    O, _ = ATTENTION[algorithm](0 * Q, K, V, Br=6, Bc=4, causal=causal)
    np.testing.assert_allclose(O, 1e307, rtol=1e-14)


def layouts():
    def base(seed=7):
        return qkv(seed, 9, 13, 6)

    def frozen(a):
        a = a.copy()
        a.flags.writeable = False
        return a

    x, = normal(8, (10, 6))
    yield "transposed", [np.ascontiguousarray(a.T).T for a in base()]
    yield "strided rows", [np.repeat(a, 3, axis=0)[::3] for a in base()]
    yield "strided last axis", [np.repeat(a, 2, axis=1)[:, ::2] for a in base()]
    yield "reversed", [a[::-1, ::-1] for a in base()]
    yield "offset slice", [np.pad(a, 3)[3:-3, 3:-3] for a in base()]
    yield "expanded rows", [np.broadcast_to(a[:1], a.shape) for a in base()]
    yield "expanded columns", [np.broadcast_to(a[:, :1], a.shape) for a in base()]
    yield "one number", [np.broadcast_to(np.float64(0.5), a.shape) for a in base()]
    yield "read-only", [frozen(a) for a in base()]
    yield "q is k is v", [x, x, x]
    yield "overlapping", [np.lib.stride_tricks.sliding_window_view(np.arange(15.0) % 5, 6)] * 3
    big, = normal(9, (40, 6))
    yield "slices of one buffer", [big[:9], big[7:20], big[19:32]]
    packed, = normal(9, (11, 18))
    yield "packed qkv", [packed[:, :6], packed[:, 6:12], packed[:, 12:]]


@every_algorithm
@either_mask
@pytest.mark.parametrize("arrays", [pytest.param(a, id=n.replace(" ", "_")) for n, a in layouts()])
def test_memory_layouts(algorithm, causal, arrays):
    copies = [a.copy() for a in arrays]
    flags = [(a.flags.writeable, a.strides) for a in arrays]
    got = ATTENTION[algorithm](*arrays, Br=4, Bc=5, causal=causal)
    oracle.assert_attention(got, *copies, causal=causal)
    assert [(a.flags.writeable, a.strides) for a in arrays] == flags
    for array, copy in zip(arrays, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


@every_algorithm
@pytest.mark.parametrize("which", ["Q", "K", "V"])
def test_a_nan_that_is_seen_shows(algorithm, which):
    """A NaN must spread to every row that sees it: a maximum that swallows NaN would hide it."""
    arrays = dict(zip("QKV", qkv(10, 12, 12, 4), strict=True))
    arrays[which][6, 1] = np.nan
    O, lse = ATTENTION[algorithm](*arrays.values(), Br=5, Bc=4, causal=True)
    rows = np.arange(12)
    hit = rows == 6 if which == "Q" else rows >= 6
    np.testing.assert_array_equal(np.isnan(O).any(axis=1), hit)
    np.testing.assert_array_equal(np.isnan(lse), hit if which != "V" else np.zeros(12, bool))


@every_algorithm
def test_an_infinite_value_that_is_seen_shows(algorithm):
    Q, K, V = qkv(11, 9, 9, 3)
    V[4, 0] = np.inf
    O, _ = ATTENTION[algorithm](Q, K, V, Br=4, Bc=2, causal=True)
    assert np.isfinite(O[:4]).all() and not np.isfinite(O[4:, 0]).any()
    assert np.isfinite(O[:, 1:]).all()


@every_algorithm
def test_blocks_and_flags_may_be_numpy_scalars(algorithm):
    Q, K, V = qkv(12, 9, 9, 3)
    got = ATTENTION[algorithm](Q, K, V, Br=np.int64(4), Bc=np.int32(2), causal=np.True_,
                               scale=np.float64(0.3))
    oracle.assert_attention(got, Q, K, V, causal=True, scale=0.3)
