"""v4 beyond the common contract: its threshold, its emulated share, its votes and what they cost."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flashlib as fl
from flashlib import exp2
from flashlib.models import stale_maximum, traffic
from tests import oracle
from tests.cases import PROPERTY, normal, qkv

TAUS = (0.5, 1.0, 4.0, 8.0)


def votes_of(machine):
    return machine.trace.votes("rescale")


def rescaled_rows(machine):
    return sum(stop - start for (start, stop), ayes in votes_of(machine) if ayes)


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("spread", [0.3, 1.0, 4.0])
def test_any_threshold_gives_the_same_to_rounding(tau, causal, spread):
    Q, K, V = qkv(0, 50, 63, 8)
    eager = fl.flash_v4(spread * Q, K, V, Br=16, Bc=5, causal=causal)
    lazy = fl.flash_v4(spread * Q, K, V, Br=16, Bc=5, causal=causal, tau=tau)
    for a, b in zip(eager, lazy, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-13)


@PROPERTY
@given(st.integers(0, 2**32 - 1), st.floats(0, 8), st.floats(0, 6), st.integers(1, 9),
       st.integers(1, 13), st.booleans())
def test_tau_up_to_8_changes_nothing(seed, tau, spread, Br, Bc, causal):
    Q, K, V = qkv(seed, 9, 12, 3)
    eager = fl.flash_v4(spread * Q, K, V, Br=Br, Bc=Bc, causal=causal)
    lazy = fl.flash_v4(spread * Q, K, V, Br=Br, Bc=Bc, causal=causal, tau=tau)
    for a, b in zip(eager, lazy, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_at_tau_0_it_is_v2():
    Q, K, V = qkv(1, 40, 56, 8)
    for a, b in zip(fl.flash_v4(Q, K, V, Br=8, Bc=8), fl.flash_v2(Q, K, V, Br=8, Bc=8), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("degree", range(1, 8))
@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_the_error_of_an_emulated_share_is_bounded_by_that_of_its_exponentials(degree, share):
    """Weights off by a factor 1 ± e move a weighted mean by 2e of V's range at most, lse by e."""
    Q, K, V = qkv(2, 33, 70, 8)
    O, lse = fl.flash_v4(Q, K, V, Br=16, Bc=10, exp2_degree=degree, emulated_share=share, tau=4.0)
    exact_O, exact_lse = oracle.attention(Q, K, V)
    e = exp2.largest_error(degree, points=4096) * 1.01 + 1e-14
    assert np.abs(O - exact_O).max() <= 2 * e * np.abs(V).max()
    assert np.abs(lse - exact_lse).max() <= 1.1 * e
    if degree <= 3:                                    # and it is there: the polynomial was used
        assert np.abs(lse - exact_lse).max() > e / 1000


@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["f64", "f32"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_software_exponentials_of_large_logits_and_blind_rows(dtype, causal):
    Q, K, V = qkv(3, 30, 17, 4, dtype)
    O, lse = fl.flash_v4(1e4 * Q, K, V, Br=7, Bc=4, causal=causal, exp2_degree=5, emulated_share=1.0,
                         tau=8.0)
    assert np.isfinite(O).all() and not np.isnan(lse).any()
    if causal:
        assert (lse[:13] == -np.inf).all() and not O[:13].any()


def test_a_nan_shows_through_the_polynomial_too():
    Q, K, V = qkv(4, 12, 12, 4)
    K[6, 1] = np.nan
    O, lse = fl.flash_v4(Q, K, V, Br=5, Bc=4, causal=True, exp2_degree=3, emulated_share=1.0, tau=8.0)
    np.testing.assert_array_equal(np.isnan(O).any(axis=1), np.arange(12) >= 6)
    np.testing.assert_array_equal(np.isnan(lse), np.arange(12) >= 6)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("tau", [0.0, 2.0, 8.0])
@pytest.mark.parametrize("Nq, Nk, Br, Bc, causal", [
    (40, 56, 16, 12, False), (56, 40, 7, 16, True), (33, 33, 8, 8, True), (5, 60, 16, 7, False)])
def test_the_count_is_the_closed_form_given_the_votes(share, tau, Nq, Nk, Br, Bc, causal):
    Q, K, V = qkv(5, Nq, Nk, 8)
    machine = fl.Machine()
    keywords = {"exp2_degree": 3, "emulated_share": share}
    fl.flash_v4(3 * Q, K, V, Br=Br, Bc=Bc, causal=causal, tau=tau, machine=machine, **keywords)
    form = traffic.flash_v4(Nq=Nq, Nk=Nk, d=8, Br=Br, Bc=Bc, causal=causal,
                            rescaled_rows=rescaled_rows(machine), **keywords)
    assert machine.traffic == form
    v2 = traffic.flash_v2(Nq=Nq, Nk=Nk, d=8, Br=Br, Bc=Bc, causal=causal)
    assert form.by_tensor == v2.by_tensor and form.sram_peak_bytes == v2.sram_peak_bytes


def test_exponentials_move_from_their_unit_to_the_vector_lanes():
    Q, K, V = qkv(6, 32, 64, 8)
    counts = {}
    for share in (0.0, 0.25, 1.0):
        machine = fl.Machine()
        fl.flash_v4(0 * Q, K, V, Br=16, Bc=16, exp2_degree=3, emulated_share=share, machine=machine)
        counts[share] = machine.traffic
    for share in (0.25, 1.0):
        moved = counts[0.0].exps - counts[share].exps
        assert moved == share * 32 * 64
        assert counts[share].vector_flops - counts[0.0].vector_flops == moved * exp2.vector_flops(3)


def test_votes_by_hand():
    """Logits rise by 1, 3 and 9 in units of log 2; tiles of one key; τ = 2."""
    logits = np.array([0.0, 1.0, 4.0, 13.0, 5.0]) / exp2.LOG2E
    Q, K, V = np.ones((2, 1)), logits[:, None].copy(), np.arange(5.0)[:, None]
    machine = fl.Machine()
    O, _ = fl.flash_v4(Q, K, V, Br=2, Bc=1, scale=1.0, tau=2.0, machine=machine)
    assert votes_of(machine) == [((0, 2), 2), ((0, 2), 0), ((0, 2), 2), ((0, 2), 2), ((0, 2), 0)]
    assert stale_maximum.rescales(votes_of(machine)) == (8, 4, 4, 2)
    assert machine.traffic.exps == 10 + 3 * 2                 # P, and alpha of three rescaling steps
    np.testing.assert_allclose(O, oracle.attention(Q, K, V, scale=1.0)[0], rtol=1e-14)


def test_the_threshold_is_in_units_of_log_2_and_not_reached_by_equality():
    for rise, ayes in ((2.0, 0), (2.0 + 1e-9, 1), (2.0 - 1e-9, 0), (np.log(4.0) * exp2.LOG2E / 2, 0)):
        K = np.array([[0.0], [rise / exp2.LOG2E]])
        machine = fl.Machine()
        fl.flash_v4(np.ones((1, 1)), K, K, Br=1, Bc=1, scale=1.0, tau=2.0, machine=machine)
        assert votes_of(machine)[1] == ((0, 1), ayes), rise


def test_a_row_tile_rescales_as_soon_as_one_row_does():
    Q, K, V = qkv(7, 64, 400, 8)
    skipped = {}
    for Br in (1, 8, 64):
        machine = fl.Machine()
        fl.flash_v4(Q, K, V, Br=Br, Bc=20, machine=machine)
        skipped[Br] = stale_maximum.rescales(votes_of(machine))
    assert len({s.rows_skipped for s in skipped.values()}) == 1
    assert skipped[1].tiles_skipped > skipped[8].tiles_skipped > skipped[64].tiles_skipped


def test_without_a_threshold_a_row_rescales_as_often_as_a_record_is_broken():
    """Exchangeable keys: tile k holds the largest logit so far with probability 1/k."""
    Q, K, V = qkv(8, 400, 320, 16)
    machine = fl.Machine()
    fl.flash_v4(Q, K, V, Br=400, Bc=16, machine=machine)
    expected = sum(1 / k for k in range(2, 21)) / 19
    share = 1 - stale_maximum.rescales(votes_of(machine)).rows_skipped
    assert abs(share - expected) < 0.015


def test_logits_that_rise_gently_skip_and_those_that_jump_do_not():
    for step, skipped in ((0.5, True), (9.0, False)):
        K = (np.arange(12.0) * step / exp2.LOG2E)[:, None]
        machine = fl.Machine()
        fl.flash_v4(np.ones((1, 1)), K, K, Br=1, Bc=1, scale=1.0, tau=8.0, machine=machine)
        got = stale_maximum.rescales(votes_of(machine))
        assert (got.tile_rescales == 0) == skipped and got.tile_rescales in (0, 11)


WRONG = {
    "share too large": ({"exp2_degree": 3, "emulated_share": 1.1}, ValueError,
                        "emulated_share: expected a number from 0 to 1, got 1.1"),
    "share negative": ({"exp2_degree": 3, "emulated_share": -0.1}, ValueError, "emulated_share:"),
    "share nan": ({"exp2_degree": 3, "emulated_share": np.nan}, ValueError, "emulated_share:"),
    "share a text": ({"emulated_share": "half"}, TypeError, "emulated_share: expected a number"),
    "share a flag": ({"exp2_degree": 3, "emulated_share": True}, TypeError, "emulated_share:"),
    "no degree": ({"emulated_share": 0.5}, ValueError, "exp2_degree: expected a degree for"),
    "degree 0": ({"exp2_degree": 0}, ValueError, "exp2_degree: expected a whole number of at least 1"),
    "degree 20": ({"exp2_degree": 20}, ValueError, "exp2_degree: expected a degree of at most"),
    "degree 2.5": ({"exp2_degree": 2.5}, TypeError, "exp2_degree: expected a whole number"),
    "tau negative": ({"tau": -1}, ValueError, "tau: expected a number from 0 to 64, got -1"),
    "tau infinite": ({"tau": np.inf}, ValueError, "tau: expected a finite number, got inf"),
    "tau nan": ({"tau": np.nan}, ValueError, "tau: expected a finite number, got nan"),
    "tau none": ({"tau": None}, TypeError, "tau: expected a number, got None"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_arguments_are_refused_before_anything_moves(wrong):
    changes, error, message = WRONG[wrong]
    machine, (Q,) = fl.Machine(), normal(0, (4, 3))
    with pytest.raises(error, match=message):
        fl.flash_v4(Q, Q, Q, Br=2, Bc=2, machine=machine, **changes)
    assert machine.traffic == fl.Traffic()


def test_the_closed_form_refuses_votes_that_cannot_be():
    size = dict(Nq=8, Nk=8, d=4, Br=4, Bc=4)
    for rows in (7, 17):
        with pytest.raises(ValueError, match=f"rescaled_rows: expected 8 to 16, got {rows}"):
            traffic.flash_v4(**size, rescaled_rows=rows)
    with pytest.raises(ValueError, match="exp2_degree: expected a degree"):
        traffic.flash_v4(**size, emulated_share=0.5)
    with pytest.raises(ValueError, match="emulated_share: expected a number from 0 to 1, got 2"):
        traffic.flash_v4(**size, exp2_degree=3, emulated_share=2)
