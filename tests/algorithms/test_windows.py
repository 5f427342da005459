"""Windows: what every algorithm does with (left, right), held against a whole matrix of booleans."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flashlib as fl
from flashlib.masks import Window, tiles
from flashlib.models import traffic
from tests import oracle
from tests.cases import ATTENTION, PROPERTY, TILED, normal, qkv

every_algorithm = pytest.mark.parametrize("algorithm", ATTENTION)
either_order = pytest.mark.parametrize("order", ["kv", "q"])
LENGTHS = [(11, 11), (7, 12), (12, 7), (1, 9), (9, 1), (0, 5), (5, 0)]
WINDOWS = [(0, 0), (2, 0), (3, 1), (None, 2), (4, None), (30, 1)]
BLOCKS = [{"Br": 4, "Bc": 3}, {"Br": 2, "Bc": 5}, {"Br": 20, "Bc": 20}]


def tilings(algorithm):
    """Return the blocks to run an algorithm with; one that has none would ignore them."""
    return BLOCKS if algorithm in TILED else BLOCKS[:1]


def identical(got, expected):
    for a, b in zip(got, expected, strict=True):
        assert a.tobytes() == b.tobytes()


def close(got, expected):
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def seen_tiles(Nq, Nk, Br, Bc, **mask):
    """Count the tiles in which some row sees some key, by looking at every one."""
    sees = oracle.sees(Nq, Nk, **mask)
    return sum(sees[rows, keys].any() for rows in tiles(Nq, Br) for keys in tiles(Nk, Bc))


@st.composite
def problems(draw):
    """Draw Q, K, V, block sizes, and a mask: a window, with causal or without."""
    Nq, Nk, d = draw(st.integers(1, 10)), draw(st.integers(0, 10)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    bound = st.one_of(st.none(), st.integers(0, 12))
    mask = {"window": (draw(bound), draw(bound)), "causal": draw(st.booleans())}
    blocks = {"Br": draw(st.integers(1, Nq + 1)), "Bc": draw(st.integers(1, Nk + 1))}
    Q, K, V = (rng.normal(size=(n, d)) for n in (Nq, Nk, Nk))
    return draw(st.sampled_from([0.1, 1.0, 5.0])) * Q, K, V, mask, blocks


# Forward

@every_algorithm
@PROPERTY
@given(problems())
def test_any_window_equals_the_oracle(algorithm, problem):
    Q, K, V, mask, blocks = problem
    close(ATTENTION[algorithm](Q, K, V, **mask, **blocks), oracle.attention(Q, K, V, **mask))


@every_algorithm
@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["f64", "f32"])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_the_awkward_shapes(algorithm, window, dtype):
    for Nq, Nk in LENGTHS:
        Q, K, V = qkv(Nq + 7 * Nk, Nq, Nk, 4, dtype)
        for blocks in tilings(algorithm):
            got = ATTENTION[algorithm](Q, K, V, window=window, **blocks)
            oracle.assert_attention(got, Q, K, V, window=window)


@every_algorithm
@pytest.mark.parametrize("Nq, Nk", LENGTHS)
def test_without_a_left_bound_and_right_0_it_is_causal_to_the_bit_and_the_byte(algorithm, Nq, Nk):
    Q, K, V = qkv(1, Nq, Nk, 4)
    one, other = fl.Machine(), fl.Machine()
    for blocks in tilings(algorithm):
        identical(ATTENTION[algorithm](Q, K, V, window=(None, 0), machine=one, **blocks),
                  ATTENTION[algorithm](Q, K, V, causal=True, machine=other, **blocks))
    assert one.traffic == other.traffic


@every_algorithm
@pytest.mark.parametrize("Nq, Nk", LENGTHS)
def test_a_window_wider_than_everything_is_full_attention(algorithm, Nq, Nk):
    Q, K, V = qkv(2, Nq, Nk, 4)
    one, other = fl.Machine(), fl.Machine()
    for blocks in tilings(algorithm):
        full = ATTENTION[algorithm](Q, K, V, machine=other, **blocks)
        identical(ATTENTION[algorithm](Q, K, V, window=(Nk + Nq, Nk + Nq), machine=one, **blocks), full)
        identical(ATTENTION[algorithm](Q, K, V, window=(None, None), **blocks), full)
        identical(ATTENTION[algorithm](Q, K, V, window=Window(10**30, None), **blocks), full)
    assert one.traffic == other.traffic


@every_algorithm
def test_causal_with_a_window_looks_back_only(algorithm):
    Q, K, V = qkv(3, 13, 17, 4)
    for blocks in tilings(algorithm):
        expected = ATTENTION[algorithm](Q, K, V, window=(3, 0), **blocks)
        for right in (0, 2, None):
            got = ATTENTION[algorithm](Q, K, V, causal=True, window=(3, right), **blocks)
            identical(got, expected)


@every_algorithm
def test_a_row_that_sees_one_key_takes_its_value(algorithm):
    Q, K, V = qkv(4, 9, 12, 4)
    for blocks in tilings(algorithm):
        O, lse = ATTENTION[algorithm](Q, K, V, window=(0, 0), **blocks)
        np.testing.assert_allclose(O, V[3:], rtol=1e-14)
        np.testing.assert_allclose(lse, (Q * K[3:]).sum(axis=1) / 2, rtol=1e-13)


@every_algorithm
@pytest.mark.parametrize("window", [(2, 1), (0, 0), (None, 2), (5, 3)], ids=str)
def test_rows_that_see_nothing_are_zero_and_minus_infinity(algorithm, window):
    Q, K, V = qkv(5, 14, 5, 4)
    blind = 14 - 5 - window[1]
    for blocks in tilings(algorithm):
        O, lse = ATTENTION[algorithm](Q, K, V, window=window, **blocks)
        assert not O[:blind].any() and (lse[:blind] == -np.inf).all()
        assert O[blind:].all() and np.isfinite(lse[blind:]).all()


@every_algorithm
@PROPERTY
@given(problems(), st.data())
def test_what_a_row_may_not_see_leaves_it_alone_to_the_bit(algorithm, problem, data):
    """NaN, ∞ or other numbers in keys before or after the window, in any tile."""
    Q, K, V, mask, blocks = problem
    poison = st.sampled_from([np.nan, np.inf, -np.inf, 1e300, 0.0, -7.0])
    changed = np.zeros(len(K), bool)
    first = data.draw(st.integers(0, len(K)), label="first changed key")
    changed[first:data.draw(st.integers(first, len(K)), label="end of changed keys")] = True
    K2, V2 = K.copy(), V.copy()
    K2[changed], V2[changed] = data.draw(poison, label="keys"), data.draw(poison, label="values")
    unaware = ~oracle.sees(len(Q), len(K), **mask)[:, changed].any(axis=1)
    for a, b in zip(ATTENTION[algorithm](Q, K, V, **mask, **blocks),
                    ATTENTION[algorithm](Q, K2, V2, **mask, **blocks), strict=True):
        assert a[unaware].tobytes() == b[unaware].tobytes()


@every_algorithm
@pytest.mark.parametrize("which", ["K", "V"])
def test_a_nan_inside_of_the_window_shows(algorithm, which):
    arrays = dict(zip("QKV", qkv(6, 12, 12, 4), strict=True))
    arrays[which][6] = np.nan
    O, _ = ATTENTION[algorithm](*arrays.values(), Br=5, Bc=4, window=(3, 1))
    rows = np.arange(12)
    np.testing.assert_array_equal(np.isnan(O).any(axis=1), (rows >= 5) & (rows <= 9))


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_eight_bits_see_the_same_keys(causal):
    """FP8 with a window: near the oracle, and a NaN outside of it never reaches a row."""
    Q, K, V = qkv(7, 40, 40, 16)
    mask, eight = {"window": (9, 4), "causal": causal}, {"Br": 8, "Bc": 5, "dtype": "e4m3"}
    O, lse = fl.flash_v3(Q, K, V, **mask, **eight)
    exact, exact_lse = oracle.attention(Q, K, V, **mask)
    assert np.abs(O - exact).max() < 0.3 and np.abs(lse - exact_lse).max() < 0.2
    K[:10], V[:10] = np.nan, np.nan
    O, _ = fl.flash_v3(Q, K, V, **mask, **eight)
    np.testing.assert_array_equal(np.isnan(O).any(axis=1),
                                  oracle.sees(40, 40, **mask)[:, :10].any(axis=1))


# What is visited, and what it costs

@pytest.mark.parametrize("algorithm", [name for name in TILED if name != "standard"])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_exactly_the_tiles_that_somebody_sees_are_visited(algorithm, window):
    for Nq, Nk in LENGTHS:
        for blocks in BLOCKS:
            machine = fl.Machine()
            TILED[algorithm](*qkv(8, Nq, Nk, 2), window=window, machine=machine, **blocks)
            assert len(machine.trace.visits("S")) == seen_tiles(Nq, Nk, **blocks, window=window)


def test_standard_attention_stays_dense():
    """A mask saves the baseline nothing: every byte and every FLOP but those of masking itself."""
    size = dict(Nq=40, Nk=40, d=8, Br=8, Bc=8)
    dense, windowed = (traffic.standard_attention(**size, window=w) for w in (None, (2, 2)))
    assert windowed.by_tensor == dense.by_tensor and windowed.matmul_flops == dense.matmul_flops
    assert windowed.vector_flops - dense.vector_flops == 40 * 40


def test_the_cost_of_a_window_grows_with_n_and_not_with_its_square():
    """A window of 1,024 keys: twice the sequence costs twice as much; closed forms, any N."""
    def cost(N, form=traffic.flash_v2, **more):
        return form(Nq=N, Nk=N, d=64, Br=128, Bc=128, causal=True, window=(1024, 0), **more)
    for N in (8192, 16384, 1 << 20):
        for name in ("hbm_bytes", "matmul_flops", "exps"):
            for more in ({}, {"form": traffic.flash_v1}, {"form": traffic.flash_backward}):
                ratio = getattr(cost(2 * N, **more), name) / getattr(cost(N, **more), name)
                assert 2 <= ratio < 2.2
    full = traffic.flash_v2(Nq=16384, Nk=16384, d=64, Br=128, Bc=128, causal=True)
    assert 6.5 < full.matmul_flops / cost(16384).matmul_flops < 8


@pytest.mark.parametrize("share", [0.0, 0.4])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_v4_counts_its_closed_form_given_the_votes(window, share):
    """Rows that see nothing of a tile first grow in a later one: the fewest rescales are more."""
    keywords = {"exp2_degree": 3, "emulated_share": share}
    for Nq, Nk in ((40, 56), (56, 40)):
        Q, K, V = qkv(9, Nq, Nk, 4)
        machine, size = fl.Machine(), dict(Nq=Nq, Nk=Nk, d=4, Br=16, Bc=7, window=window)
        fl.flash_v4(2 * Q, K, V, Br=16, Bc=7, window=window, tau=1.0, machine=machine, **keywords)
        rows = sum(b - a for (a, b), ayes in machine.trace.votes("rescale") if ayes)
        assert machine.traffic == traffic.flash_v4(**size, rescaled_rows=rows, **keywords)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_fp8_counts_its_closed_form(window):
    for Nq, Nk in LENGTHS:
        for blocks in BLOCKS:
            machine = fl.Machine(element_bytes=1)
            fl.flash_v3(*qkv(10, Nq, Nk, 4), window=window, dtype="e4m3", machine=machine, **blocks)
            assert machine.traffic == traffic.flash_v3(Nq=Nq, Nk=Nk, d=4, window=window, fp8=True,
                                                       element_bytes=1, **blocks)


@pytest.mark.parametrize("algorithm", [name for name in ATTENTION if name != "ideal"])
@PROPERTY
@given(problems())
def test_exactly_the_peak_suffices_and_one_byte_less_does_not(algorithm, problem):
    Q, K, V, mask, blocks = problem

    def run(sram_bytes):
        machine = fl.Machine(sram_bytes, element_bytes=3, stats_bytes=5, accumulator_bytes=7)
        ATTENTION[algorithm](Q, K, V, **mask, **blocks, machine=machine)
        return machine.traffic

    peak = run(None).sram_peak_bytes
    assert run(peak).sram_peak_bytes == peak
    with pytest.raises(fl.SRAMOverflow):
        run(peak - 1)


# Backward

def saved(seed, Nq, Nk, **mask):
    """Return Q, K, V, O, lse, dO and dlse."""
    Q, K, V = qkv(seed, Nq, Nk, 3)
    dO, dlse = normal(seed + 1, (Nq, 3), (Nq,))
    return Q, K, V, *fl.flash_v2(Q, K, V, Br=5, Bc=4, **mask), dO, dlse


def backward(Q, K, V, O, lse, dO, dlse, **keywords):
    return fl.flash_backward(Q, K, V, O, lse, dO, dlse=dlse, **keywords)


@either_order
@PROPERTY
@given(problems(), st.integers(0, 2**32 - 1))
def test_gradients_of_any_window_equal_the_oracle(order, problem, seed):
    Q, K, V, mask, blocks = problem
    dO, dlse = normal(seed, Q.shape, (len(Q),))
    O, lse = fl.flash_v2(Q, K, V, **mask, **blocks)
    got = backward(Q, K, V, O, lse, dO, dlse, order=order, **mask, **blocks)
    for a, b in zip(got, oracle.gradients(Q, K, V, dO, dlse=dlse, **mask), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12 * max(1, np.abs(b).max(initial=0)))


@either_order
@pytest.mark.parametrize("window", [(2, 1), (0, 0), (1, None)], ids=str)
@pytest.mark.parametrize("Nq, Nk", [(6, 6), (4, 7), (7, 4)])
def test_gradients_equal_central_finite_differences(order, window, Nq, Nk):
    Q, K, V, O, lse, dO, dlse = saved(11, Nq, Nk, window=window)
    got = backward(Q, K, V, O, lse, dO, dlse, Br=3, Bc=2, order=order, window=window)

    def loss():
        O, lse = oracle.attention(Q, K, V, window=window)
        return (dO * O).sum() + (dlse * np.where(np.isfinite(lse), lse, 0)).sum()

    h = 1e-5
    for array, gradient in zip((Q, K, V), got, strict=True):
        for place in np.ndindex(array.shape):
            here = array[place]
            array[place] = here + h
            up = loss()
            array[place] = here - h
            down = loss()
            array[place] = here
            assert gradient[place] == pytest.approx((up - down) / (2 * h), abs=2e-8)


@either_order
@pytest.mark.parametrize("Nq, Nk", LENGTHS)
def test_gradients_of_causal_and_of_full_windows_are_the_same_to_the_bit(order, Nq, Nk):
    for window, mask in (((None, 0), {"causal": True}), ((Nk + Nq, Nk + Nq), {})):
        arrays = saved(12, Nq, Nk, **mask)
        for blocks in BLOCKS:
            one, other = fl.Machine(), fl.Machine()
            identical(backward(*arrays, order=order, window=window, machine=one, **blocks),
                      backward(*arrays, order=order, machine=other, **mask, **blocks))
            assert one.traffic == other.traffic


@either_order
def test_rows_that_see_nothing_and_keys_that_nobody_sees_have_zero_gradients(order):
    arrays = saved(13, 12, 5, window=(1, 2))
    for blocks in BLOCKS:
        dQ, dK, dV = backward(*arrays, order=order, window=(1, 2), **blocks)
        assert not dQ[:5].any() and dQ[6:].all() and dK.all() and dV.all()
    arrays = saved(14, 4, 15, window=(2, 0))
    for blocks in BLOCKS:
        dQ, dK, dV = backward(*arrays, order=order, window=(2, 0), **blocks)
        assert dQ.all() and not dK[:9].any() and not dV[:9].any() and dK[9:].all() and dV[9:].all()


@either_order
@pytest.mark.parametrize("which", ["K", "V", "Q", "dO"])
def test_a_nan_outside_of_the_window_reaches_no_gradient(order, which):
    """Row i sees the keys i − 2 … i + 1: NaN in key 6 or in row 6 touches those that meet it only."""
    window, names = (2, 1), ("Q", "K", "V", "dO")
    Q, K, V, _, _, dO, _ = saved(15, 12, 12, window=window)
    arrays = dict(zip(names, (Q, K, V, dO), strict=True))
    clean = oracle.gradients(*arrays.values(), window=window)
    arrays[which][6] = np.nan
    Q, K, V, dO = arrays.values()
    O, lse = fl.flash_v2(Q, K, V, Br=5, Bc=4, window=window)
    dQ, dK, dV = backward(Q, K, V, O, lse, dO, None, Br=5, Bc=4, order=order, window=window)
    sees = oracle.sees(12, 12, window=window)
    hit = sees[:, 6] if which in ("K", "V") else np.arange(12) == 6    # rows whose P or dO is NaN
    keys = sees[hit].any(axis=0)                                       # and all keys that they see
    np.testing.assert_allclose(dQ[~hit], clean[0][~hit], atol=1e-13)
    np.testing.assert_allclose(dK[~keys], clean[1][~keys], atol=1e-13)
    np.testing.assert_allclose(dV[~keys], clean[2][~keys], atol=1e-13)
    assert np.isnan(dQ[hit]).any(axis=1).all()             # and it is not hidden from those


@either_order
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_the_backward_pass_visits_the_tiles_that_somebody_sees(order, window):
    for Nq, Nk in LENGTHS:
        arrays = saved(16, Nq, Nk, window=window)
        for blocks in BLOCKS:
            machine = fl.Machine()
            backward(*arrays, order=order, window=window, machine=machine, **blocks)
            passes = 1 if order == "kv" else 2
            expected = passes * seen_tiles(Nq, Nk, **blocks, window=window)
            assert len(machine.trace.visits("S")) == expected


def test_training_forward_takes_a_window():
    Q, K, V = qkv(17, 9, 11, 4)
    O, P, _ = fl.standard_training_forward(Q, K, V, window=(2, 1))
    np.testing.assert_allclose(O, oracle.attention(Q, K, V, window=(2, 1))[0], atol=1e-14)
    assert ((P > 0) == oracle.sees(9, 11, window=(2, 1))).all()
