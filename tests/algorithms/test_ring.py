"""Attention over several ranks equals one; links carry what the closed form says; no rank hangs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flashlib as fl
from flashlib.algorithms import layouts, ring, ring_rivals
from flashlib.algorithms.layouts import LAYOUTS
from flashlib.errors import Deadlock
from flashlib.machine import Machine
from flashlib.machine.ranks import Links, compute, get, put
from flashlib.masks import Window, window_of
from tests.cases import PROPERTY, normal

P_S = st.integers(1, 8)
LAYOUT = st.sampled_from(LAYOUTS)
SIDE = st.none() | st.integers(0, 20)
BLOCKS = {"Br": 16, "Bc": 16}


def problem(P, chunks, layout, d=3, seed=0):
    """Return Q, K, V and dO of a length that the layout can share out."""
    return normal(seed, *[(chunks * P * (2 if layout == "zigzag" else 1), d)] * 4)


def covered(layout, P, n, window):
    """Count how often each pair of positions is computed, (N, N)."""
    at = [layouts.positions(layout, rank, P, P * n) for rank in range(P)]
    count = np.zeros((P * n, P * n), int)
    for rank in range(P):
        for source in range(P):
            for rows, keys, seen in layouts.blocks(layout, rank, source, P, n, window):
                i, j = at[rank][rows], at[source][keys]
                first, stop = seen.keys_of(np.arange(len(i)), len(i), len(j))
                sees = (first[:, None] <= np.arange(len(j))) & (np.arange(len(j)) < stop[:, None])
                assert (sees.any(1).all() and sees.any(0).all()) or window == Window(None, 0)
                count[np.ix_(i, j)] += sees
    return count


@given(P=P_S, chunks=st.integers(1, 5), layout=LAYOUT, left=SIDE, right=SIDE)
@PROPERTY
def test_the_calls_of_all_ranks_compute_every_visible_pair_once(P, chunks, layout, left, right):
    n, window = chunks * (2 if layout == "zigzag" else 1), Window(left, right)
    first, stop = window.keys_of(np.arange(P * n), P * n, P * n)
    j = np.arange(P * n)
    assert np.array_equal(covered(layout, P, n, window), (first[:, None] <= j) & (j < stop[:, None]))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("P", [1, 2, 3, 4, 8])
def test_without_a_window_there_is_one_call_a_step(P, layout):
    for window in (Window(), Window(None, 0)):
        calls = [layouts.blocks(layout, rank, source, P, 4, window)
                 for rank in range(P) for source in range(P)]
        assert max(map(len, calls)) == 1
        idle = layout == "contiguous" and window.right == 0
        assert sum(map(len, calls)) == (P * (P + 1) // 2 if idle else P * P)


@pytest.mark.parametrize("P", [2, 3, 4, 8])
def test_zigzag_gives_every_rank_the_same_causal_work(P):
    def work(layout, n=8):
        count = covered(layout, P, n, Window(None, 0)).sum(1)
        return [count[layouts.positions(layout, rank, P, P * n)].sum() for rank in range(P)]
    assert len(set(work("zigzag"))) == 1
    stripe, contiguous = work("stripe"), work("contiguous")
    assert stripe == sorted(stripe) and stripe[-1] - stripe[0] == (P - 1) * 8
    assert contiguous[-1] / contiguous[0] == pytest.approx((2 * (P - 1) * 8 + 9) / 9)


@given(P=P_S, chunks=st.integers(1, 4), layout=LAYOUT, axis=st.integers(-2, 1))
@PROPERTY
def test_unshard_undoes_shard(P, chunks, layout, axis):
    x = problem(P, chunks, layout)[0]
    x = x if axis in (0, -2) else x.T
    shards = [layouts.shard(x, layout, rank, P, axis) for rank in range(P)]
    assert np.array_equal(layouts.unshard(shards, layout, axis), x)
    at = [layouts.positions(layout, rank, P, x.shape[axis]) for rank in range(P)]
    assert all((np.diff(a) > 0).all() for a in at)
    assert np.array_equal(np.sort(np.concatenate(at)), np.arange(x.shape[axis]))


@given(P=P_S, chunks=st.integers(1, 3), layout=LAYOUT, causal=st.booleans(), left=SIDE, right=SIDE,
       scale=st.sampled_from([None, 0.3, -0.7]), seed=st.integers(0, 99))
@PROPERTY
def test_a_ring_equals_one_device(P, chunks, layout, causal, left, right, scale, seed):
    Q, K, V, dO = problem(P, chunks, layout, seed=seed)
    options = {"causal": causal, "window": (left, right), "scale": scale}
    O, lse = fl.flash_v2(Q, K, V, **BLOCKS, **options)
    expected = (O, lse, *fl.flash_backward(Q, K, V, O, lse, dO, **BLOCKS, **options))
    shared = {"P": P, "layout": layout, **options}
    forward, backward = Links(), Links()
    got = (*ring.ring_attention(Q, K, V, links=forward, **shared),
           *ring.ring_attention_backward(Q, K, V, O, lse, dO, links=backward, **shared))
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)
    kv = 2 * len(Q) // P * Q.shape[1] * 8
    assert set(forward.bytes.values()) == ({(P - 1) * kv} if P > 1 else set())
    assert set(backward.bytes.values()) == ({(2 * P - 1) * kv} if P > 1 else set())
    assert set(forward.bytes) == {(rank, (rank + 1) % P) for rank in range(P) if P > 1}


@given(P=st.integers(2, 6), layout=LAYOUT, order=st.randoms(use_true_random=False))
@PROPERTY
def test_the_order_of_the_ranks_changes_no_bit(P, layout, order):
    Q, K, V, _ = problem(P, 2, layout)
    turns = list(range(P))
    order.shuffle(turns)
    one, other = (ring.ring_attention(Q, K, V, P=P, layout=layout, causal=True, order=turns)
                  for turns in (None, turns))
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_float32_stays_float32_and_equals_one_device():
    Q, K, V, _ = (x.astype(np.float32) for x in problem(4, 3, "zigzag"))
    O, lse = ring.ring_attention(Q, K, V, P=4, causal=True)
    expected = fl.flash_v2(*(x.astype(float) for x in (Q, K, V)), **BLOCKS, causal=True)
    assert O.dtype == lse.dtype == np.float32
    np.testing.assert_allclose(O, expected[0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(lse, expected[1], rtol=0, atol=1e-5)


def test_the_machine_counts_what_all_ranks_move_as_it_does_one_pass_over_each_block():
    Q, K, V, _ = problem(4, 4, "contiguous")
    machine, alone = Machine(), Machine()
    ring.ring_attention(Q, K, V, P=4, layout="contiguous", machine=machine)
    for _ in range(16):                                     # each rank on the keys of each
        fl.flash_v2(Q[:4], K[:4], V[:4], **BLOCKS, machine=alone)
    assert machine.traffic.hbm_bytes == alone.traffic.hbm_bytes


@given(P=P_S, chunks=st.integers(1, 3), causal=st.booleans(),
       layout=st.sampled_from(["contiguous", "zigzag"]))
@PROPERTY
def test_gathered_keys_equal_one_device(P, chunks, causal, layout):
    Q, K, V, _ = problem(P, chunks, layout)
    links = Links()
    got = ring_rivals.gather_attention(Q, K, V, P=P, causal=causal, layout=layout, links=links)
    for a, b in zip(got, fl.flash_v2(Q, K, V, **BLOCKS, causal=causal), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)
    sent = {rank: sum(size for (source, _), size in links.bytes.items() if source == rank)
            for rank in range(P)}
    assert set(sent.values()) == {(P - 1) * 2 * len(Q) // P * Q.shape[1] * 8}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("P", [1, 2, 4])
def test_exchanged_heads_equal_one_device(P, causal):
    q, k, v = normal(0, (8, 12, 3), (4, 12, 3), (4, 12, 3))
    links = Links()
    got = ring_rivals.ulysses_attention(q, k, v, P=P, causal=causal, links=links)
    for h in range(8):
        one, _ = fl.flash_v2(q[h], k[h // 2], v[h // 2], **BLOCKS, causal=causal)
        np.testing.assert_allclose(got[h], one, rtol=0, atol=1e-12)
    assert sum(links.bytes.values()) == (P - 1) * 12 // P * 3 * 8 * (2 * 8 + 2 * 4)


@pytest.mark.parametrize("P", [1, 2, 3, 4, 6])
def test_a_tree_decodes_like_one_device(P):
    Q, K, V = normal(0, (2, 3), (12, 3), (12, 3))
    links = Links()
    got = ring_rivals.tree_decode(Q, K, V, P=P, links=links)
    for a, b in zip(got, fl.flash_v2(Q, K, V, **BLOCKS), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)
    assert set(links.bytes.values()) <= {2 * (3 + 1) * 8}   # O and lse, whatever the keys


def test_a_deadlock_is_named():
    def nothing(*_):
        pass
    ranks = [ring.ring_forward(rank, 3, np.zeros(2), nothing) for rank in range(3)]
    with pytest.raises(Deadlock, match="rank 0 waits to put KV to rank 1; rank 1 waits to put KV to"
                       " rank 2; rank 2 waits to put KV to rank 0"):
        Links(rendezvous=True).run(ranks)


def test_even_ranks_first_ends_where_all_first_does_not():
    def program(rank, P=4):
        after, before = (rank + 1) % P, (rank - 1) % P
        requests = [put(after, "KV", rank), get(before, "KV")]
        answers = []
        for request in requests if rank % 2 == 0 else requests[::-1]:
            answers.append((yield request))
        return [answer for answer in answers if answer is not None]
    assert Links(rendezvous=True).run([program(rank) for rank in range(4)]) == [[3], [0], [1], [2]]


def test_a_message_that_nobody_gets_is_named():
    def program(rank):
        if rank == 0:
            yield put(1, "KV", np.zeros(2))
        yield compute(rank, lambda: None)
    with pytest.raises(Deadlock, match="nobody got KV from rank 0 to rank 1"):
        Links().run([program(0), program(1)])


def test_a_rank_does_not_send_to_itself():
    with pytest.raises(ValueError, match="rank 0: expected a peer out of the other ranks of 1"):
        Links().run([iter_of(put(0, "KV", np.zeros(2)))])


def iter_of(request):
    """Return the program that makes one request."""
    yield request


@pytest.mark.parametrize("options, message", [
    ({"P": 3}, "N: expected a multiple of 2·P = 6 for layout 'zigzag', got 8"),
    ({"P": 3, "layout": "stripe"}, "N: expected a multiple of P = 3 for layout 'stripe', got 8"),
    ({"P": 2, "layout": "spiral"}, r"layout: expected one of \('contiguous', 'zigzag', 'stripe'\)"),
    ({"P": 0}, "P: expected a whole number of at least 1, got 0"),
])
def test_what_cannot_be_shared_out_is_refused(options, message):
    Q, K, V = normal(0, *[(8, 2)] * 3)
    with pytest.raises(ValueError, match=message):
        ring.ring_attention(Q, K, V, **options)


def test_other_refusals():
    Q, K, V = normal(0, *[(8, 2)] * 3)
    with pytest.raises(ValueError, match="Q: expected as many rows as K, 8, got 4"):
        ring.ring_attention(Q[:4], K, V, P=2)
    with pytest.raises(ValueError, match="whose rows are runs, got 'stripe'"):
        ring_rivals.gather_attention(Q, K, V, P=2, layout="stripe")
    with pytest.raises(ValueError, match="K: expected a number of heads that P, 2, divides, got 3"):
        ring_rivals.ulysses_attention(*normal(0, (6, 8, 2), (3, 8, 2), (3, 8, 2)), P=2)
    with pytest.raises(ValueError, match="rank: expected a whole number from 0 to 1, got 2"):
        layouts.positions("zigzag", 2, 2, 8)
    assert window_of(True, (3, None)) == Window(3, 0)
