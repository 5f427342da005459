"""What must hold for every input: the algebra of attention, in float64, for every algorithm."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flashlib as fl
from tests import oracle
from tests.cases import ATTENTION, PROPERTY, TILED, normal

every_algorithm = pytest.mark.parametrize("algorithm", ATTENTION)
every_tiled = pytest.mark.parametrize("algorithm", TILED)
size = st.integers(1, 10)
seeds = st.integers(0, 2**32 - 1)
EXACT = {"rtol": 1e-12, "atol": 1e-12}


@st.composite
def problems(draw, least_keys=1, square=False):
    """Draw Q, K, V and block sizes from 1 to one beyond the lengths."""
    Nq, d = draw(size), draw(st.integers(1, 6))
    Nk = Nq if square else draw(st.integers(least_keys, 10))
    rng = np.random.default_rng(draw(seeds))
    spread = draw(st.sampled_from([0.1, 1.0, 5.0]))
    Q, K, V = (rng.normal(size=(n, d)) for n in (Nq, Nk, Nk))
    blocks = {"Br": draw(st.integers(1, Nq + 1)), "Bc": draw(st.integers(1, Nk + 1))}
    return spread * Q, K, V, blocks


def same(got, expected):
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, **EXACT)


@every_algorithm
@PROPERTY
@given(problems(), seeds)
def test_the_order_of_keys_does_not_matter(algorithm, problem, seed):
    Q, K, V, blocks = problem
    order = np.random.default_rng(seed).permutation(len(K))
    run = ATTENTION[algorithm]
    same(run(Q, K[order], V[order], **blocks), run(Q, K, V, **blocks))


@every_algorithm
@PROPERTY
@given(problems(), st.booleans())
def test_seeing_every_key_twice_adds_ln_2(algorithm, problem, interleaved):
    Q, K, V, blocks = problem
    twice = (lambda a: np.repeat(a, 2, axis=0)) if interleaved else (lambda a: np.tile(a, (2, 1)))
    O, lse = ATTENTION[algorithm](Q, K, V, **blocks)
    same(ATTENTION[algorithm](Q, twice(K), twice(V), **blocks), (O, lse + np.log(2)))


@every_algorithm
@PROPERTY
@given(problems(), seeds, st.floats(-3, 3))
def test_moving_every_key_by_u_moves_lse_by_scale_q_u(algorithm, problem, seed, scale):
    Q, K, V, blocks = problem
    u, = normal(seed, (Q.shape[1],))
    O, lse = ATTENTION[algorithm](Q, K, V, scale=scale, **blocks)
    got = ATTENTION[algorithm](Q, K + u, V, scale=scale, **blocks)
    np.testing.assert_allclose(got[0], O, rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(got[1], lse + scale * (Q @ u), rtol=1e-12, atol=1e-11)


@every_algorithm
@PROPERTY
@given(problems(), st.booleans())
def test_any_block_sizes_give_the_same(algorithm, problem, causal):
    Q, K, V, blocks = problem
    expected = oracle.attention(Q, K, V, causal=causal)
    same(ATTENTION[algorithm](Q, K, V, causal=causal, **blocks), expected)


@every_tiled
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_all_block_sizes_of_one_shape_give_the_same(algorithm, causal):
    Q, K, V = normal(0, (5, 3), (7, 3), (7, 3))
    expected = oracle.attention(Q, K, V, causal=causal)
    for Br in range(1, 6):
        for Bc in range(1, 8):
            same(TILED[algorithm](Q, K, V, Br=Br, Bc=Bc, causal=causal), expected)


@every_algorithm
@PROPERTY
@given(problems(), st.booleans())
def test_values_of_one_give_outputs_of_one(algorithm, problem, causal):
    Q, K, V, blocks = problem
    O, lse = ATTENTION[algorithm](Q, K, np.ones_like(V), causal=causal, **blocks)
    np.testing.assert_allclose(O, np.where(lse > -np.inf, 1.0, 0.0)[:, None] * np.ones_like(O),
                               rtol=1e-14)


@every_algorithm
@PROPERTY
@given(problems())
def test_outputs_stay_inside_the_range_of_the_values(algorithm, problem):
    Q, K, V, blocks = problem
    O, _ = ATTENTION[algorithm](Q, K, V, **blocks)
    slack = 1e-14 * np.abs(V).max()
    assert (V.min(axis=0) - slack <= O).all() and (V.max(axis=0) + slack >= O).all()


@every_algorithm
@PROPERTY
@given(problems(least_keys=2), st.data())
def test_later_keys_leave_a_causal_row_alone_to_the_bit(algorithm, problem, data):
    """Whatever stands in a key or value that a row may not see: NaN and ∞ too, in any tile."""
    Q, K, V, blocks = problem
    first = data.draw(st.integers(0, len(K) - 1), label="first changed key")
    poison = st.sampled_from([np.nan, np.inf, -np.inf, 1e300, 0.0, -7.0])
    K2, V2 = K.copy(), V.copy()
    K2[first:], V2[first:] = data.draw(poison, label="keys"), data.draw(poison, label="values")
    before = ATTENTION[algorithm](Q, K, V, causal=True, **blocks)
    after = ATTENTION[algorithm](Q, K2, V2, causal=True, **blocks)
    unaware = np.arange(len(Q)) + len(K) - len(Q) < first
    for a, b in zip(before, after, strict=True):
        assert a[unaware].tobytes() == b[unaware].tobytes()


@every_algorithm
@PROPERTY
@given(problems(square=True), st.data())
def test_a_prefix_gives_the_same_rows_as_the_whole(algorithm, problem, data):
    Q, K, V, blocks = problem
    n = data.draw(st.integers(0, len(Q)), label="length of the prefix")
    O, lse = ATTENTION[algorithm](Q, K, V, causal=True, **blocks)
    same(ATTENTION[algorithm](Q[:n], K[:n], V[:n], causal=True, **blocks), (O[:n], lse[:n]))


@every_algorithm
@PROPERTY
@given(problems(square=True), st.data())
def test_the_last_queries_alone_give_the_same_rows(algorithm, problem, data):
    """Bottom-right alignment is what decoding needs: n new queries against the whole cache."""
    Q, K, V, blocks = problem
    n = data.draw(st.integers(0, len(Q)), label="number of new queries")
    O, lse = ATTENTION[algorithm](Q, K, V, causal=True, **blocks)
    got = ATTENTION[algorithm](Q[len(Q) - n:], K, V, causal=True, **blocks)
    same(got, (O[len(Q) - n:], lse[len(Q) - n:]))


@every_algorithm
@PROPERTY
@given(problems(), st.booleans(), st.floats(-4, 4))
def test_a_scale_of_either_sign(algorithm, problem, causal, scale):
    Q, K, V, blocks = problem
    got = ATTENTION[algorithm](Q, K, V, causal=causal, scale=scale, **blocks)
    same(got, oracle.attention(Q, K, V, causal=causal, scale=scale))
    negated = ATTENTION[algorithm](-Q, K, V, causal=causal, scale=-scale, **blocks)
    same(got, negated)


@pytest.mark.parametrize("algorithm", [name for name in ATTENTION if name != "ideal"])
@PROPERTY
@given(problems(), st.booleans())
def test_exactly_the_peak_suffices_and_one_byte_less_does_not(algorithm, problem, causal):
    Q, K, V, blocks = problem
    sizes = {"element_bytes": 3, "stats_bytes": 5, "accumulator_bytes": 7}

    def run(sram_bytes):
        machine = fl.Machine(sram_bytes, **sizes)
        O, _ = ATTENTION[algorithm](Q, K, V, causal=causal, machine=machine, **blocks)
        return machine.traffic, O

    free, expected = run(None)
    peak = free.sram_peak_bytes
    fitted, got = run(peak)
    assert fitted == free
    np.testing.assert_array_equal(got, expected)
    with pytest.raises(fl.SRAMOverflow) as overflow:
        run(peak - 1)
    assert overflow.value.capacity_bytes == peak - 1 < overflow.value.needed_bytes <= peak


def test_the_ideal_baseline_refuses_every_finite_machine():
    Q, K, V = normal(0, (4, 2), (4, 2), (4, 2))
    for sram_bytes in (1, 100, 10**12):
        machine = fl.Machine(sram_bytes)
        with pytest.raises(fl.SRAMOverflow, match="without limit: give Br and Bc"):
            fl.standard_attention(Q, K, V, machine=machine)
        assert machine.traffic == fl.Traffic()


@every_tiled
def test_a_run_is_the_same_to_the_bit_every_time(algorithm):
    Q, K, V = normal(1, (50, 8), (60, 8), (60, 8))
    first = TILED[algorithm](Q, K, V, Br=16, Bc=8, causal=True)
    for _ in range(3):
        again = TILED[algorithm](Q, K, V, Br=16, Bc=8, causal=True)
        assert all(a.tobytes() == b.tobytes() for a, b in zip(first, again, strict=True))
