"""A stale maximum in eight bits: mass is lost exactly where offset + τ leaves the format's range."""

import numpy as np
import pytest

import flashlib as fl
from flashlib import quant
from flashlib.models import stale_maximum

pytest.importorskip("ml_dtypes")

OFFSET = 8.0
ROOM = np.log2(quant.E4M3_MAX) - OFFSET


def logits(std, rows=128, N=8192, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, N)) * std * np.log2(np.e)


def smallest(std, tau, **more):
    left = stale_maximum.mass(logits(std, **more), Bc=128, tau=tau, offset=OFFSET,
                                  round_to=quant.round_to)
    return left.kept.min(), left.saturated.sum()


@pytest.mark.parametrize("std, published", [(1, 0.96), (2, 0.78), (4, 0.39)])
def test_at_tau_4_mass_is_lost(std, published):
    """The smallest of 128 rows depends on the draw: the median of five draws."""
    kept, saturated = np.transpose([smallest(std, tau=4.0, seed=seed) for seed in range(5)])
    assert np.median(kept) == pytest.approx(published, abs=0.07) and saturated.min() > 100


@pytest.mark.parametrize("std", [1, 2, 4, 8])
@pytest.mark.parametrize("tau", [0.0, 0.5, ROOM])
def test_while_offset_and_tau_fit_none_is_lost(std, tau):
    """No weight saturates, and what is left is rounding: half a step is 1/16 of a value at most."""
    kept, saturated = smallest(std, tau)
    assert saturated == 0 and 1 - 1 / 16 < kept < 1 + 1 / 16


def test_the_bound_is_sharp():
    """A row whose maximum rises by exactly τ: just within the format, and just beyond."""
    for tau, fits in ((ROOM - 1e-6, True), (ROOM + 0.05, False)):
        S = np.array([[0.0, tau]])
        left = stale_maximum.mass(S, Bc=1, tau=tau, offset=OFFSET, round_to=quant.round_to)
        assert (left.saturated[0] == 0) == fits


def test_a_smaller_offset_makes_room_for_tau():
    S = logits(4)
    left = stale_maximum.mass(S, Bc=128, tau=4.0, offset=4.0, round_to=quant.round_to)
    assert left.saturated.sum() == 0 and left.kept.min() > 1 - 1 / 16


def test_without_rounding_nothing_is_lost_at_any_tau():
    for tau in (0.0, 4.0, 8.0):
        left = stale_maximum.mass(logits(2, rows=20, N=500), Bc=50, tau=tau, offset=OFFSET,
                                  largest=np.inf)
        np.testing.assert_allclose(left.kept, 1, rtol=1e-14)
        assert not left.saturated.any()


@pytest.mark.parametrize("wrong, error", [({"tau": -1}, ValueError), ({"tau": 65}, ValueError),
                                          ({"Bc": 0}, ValueError), ({"Bc": 1.5}, TypeError)], ids=str)
def test_wrong_arguments_are_refused(wrong, error):
    (name,) = wrong
    with pytest.raises(error, match=f"^{name}: expected"):
        stale_maximum.mass(np.zeros((2, 4)), **{"Bc": 2} | wrong)
    with pytest.raises(TypeError, match=r"^logits: expected a NumPy array"):
        stale_maximum.mass([[1.0]], Bc=1)


def test_first_steps_are_no_rescales():
    assert stale_maximum.rescales([]) == (0, 0, 0, 0) and stale_maximum.rescales([]).rows_skipped == 1
    votes = [((0, 4), 4), ((0, 4), 1), ((0, 4), 0), ((4, 6), 2), ((4, 6), 2)]
    got = stale_maximum.rescales(votes)
    assert got == (4 + 4 + 2, 1 + 0 + 2, 3, 2)
    assert got.rows_skipped == pytest.approx(0.7) and got.tiles_skipped == pytest.approx(1 / 3)


@pytest.mark.parametrize("tau", [0.0, 0.7, 3.0])
def test_references_renew_where_the_machine_votes(tau):
    Q, K, V = np.random.default_rng(9).normal(size=(3, 60, 8))
    machine = fl.Machine()
    fl.flash_v4(2 * Q, K, V, Br=60, Bc=6, scale=1.0, tau=tau, machine=machine)
    tiles = (2 * Q @ K.T).reshape(60, 10, 6).max(axis=2) * np.log2(np.e)
    renewed = stale_maximum.references(tiles, tau).renewed
    assert [ayes for _, ayes in machine.trace.votes("rescale")] == renewed.sum(axis=0).tolist()


def test_references_lag_by_tau_at_most():
    maxima = np.random.default_rng(10).normal(scale=4, size=(50, 30))
    running = np.maximum.accumulate(maxima, axis=1)
    for tau in (0.0, 2.0, 8.0):
        used = stale_maximum.references(maxima, tau)
        assert (used.m <= running).all() and (running - used.m <= tau).all()
        assert (np.diff(used.m, axis=1) > tau)[used.renewed[:, 1:]].all()
        assert used.renewed[:, 0].all()
    np.testing.assert_array_equal(stale_maximum.references(maxima, 0.0).m, running)
