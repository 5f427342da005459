"""The closed forms of several GPUs equal what programs send, and what the simulated timeline takes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashlib.algorithms import ring as programs
from flashlib.algorithms import ring_rivals
from flashlib.algorithms.layouts import LAYOUTS
from flashlib.machine.ranks import Links, compute, get, put
from flashlib.models import ring
from flashlib.models.ring import Rates, Sharing
from flashlib.models.ring_timeline import Ghost, ghost_program, timeline
from flashlib.models.sm.simulator import Deadlock, Hazard
from tests.cases import PROPERTY, normal

NVLINK, RDMA = Rates(), Rates(link_bytes_per_s=45e9)


@given(P=st.integers(1, 8), N=st.sampled_from([1024, 8192, 65536]), layout=st.sampled_from(LAYOUTS),
       causal=st.booleans(), backward=st.booleans(), hidden=st.booleans(),
       link=st.sampled_from([370e9, 45e9, 1e9]))
@PROPERTY
def test_the_timeline_takes_as_long_as_the_closed_form(P, N, layout, causal, backward, hidden, link):
    s = Sharing(P, N * P, layout=layout, causal=causal, backward=backward)
    rates = Rates(hidden=hidden, link_bytes_per_s=link)
    slow_and_uneven = layout == "contiguous" and causal and link < 370e9
    took, form = timeline(s, rates).cycles / 1e6, ring.seconds(s, rates)
    if slow_and_uneven:                                     # ranks that do not wait run ahead
        assert took <= form * (1 + 1e-9)
    else:
        assert took == pytest.approx(form)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("P", [1, 2, 3, 5])
def test_traffic_is_what_the_ring_sends(P, backward):
    s = Sharing(P, 6 * P, H=1, Hk=1, d=2, element_bytes=4, backward=backward)
    Q, K, V, dO = normal(0, *[(s.N, s.d)] * 4, dtype=np.float32)
    links, again = Links(), Links()
    O, lse = programs.ring_attention(Q, K, V, P=P, links=links)
    programs.ring_attention_backward(Q, K, V, O, lse, dO, P=P, links=again)
    sent = again if backward else links
    assert set(sent.bytes.values()) == ({ring.traffic(s)} if P > 1 else set())


def test_traffic_of_the_rivals_is_what_they_send():
    for P in (2, 4):
        s = Sharing(P, 8 * P, H=8, Hk=4, d=2, element_bytes=8)
        q, k, v = normal(0, (8, s.N, 2), (4, s.N, 2), (4, s.N, 2))
        gathered, swapped, decoded = Links(), Links(), Links()
        for h in range(4):
            ring_rivals.gather_attention(q[h], k[h], v[h], P=P, links=gathered)
        ring_rivals.ulysses_attention(q, k, v, P=P, links=swapped)
        for h in range(8):
            ring_rivals.tree_decode(q[h, :1].astype(np.float32), *(
                x[h // 2].astype(np.float32) for x in (k, v)), P=P, links=decoded)
        for links, expected in ((gathered, ring.traffic(s, "gather")),
                                (swapped, ring.traffic(s, "ulysses")),
                                (decoded, ring.tree_bytes(P, 8, 2))):
            assert sum(links.bytes.values()) == P * expected


def test_more_gpus_do_not_send_more_each():
    sent = [ring.traffic(Sharing(P, 2 ** 20)) for P in (2, 4, 8, 1024)]
    assert sent == sorted(sent) and sent[-1] < 2 * sent[0]


@pytest.mark.parametrize("zigzag", [False, True])
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("H, Hk", [(32, 32), (32, 8), (128, 8)])
def test_from_that_length_on_the_link_is_hidden(H, Hk, backward, zigzag):
    n = ring.hides_from(690e12, 370e9, H, Hk, zigzag=zigzag, backward=backward)
    rates = Rates(merge_bytes=0, call_s=0)

    def link_over_work(tokens):
        s = Sharing(4, 4 * tokens, H=H, Hk=Hk, causal=zigzag, backward=backward)
        hop = s.kv_bytes + (s.dkv_bytes if backward else 0)
        return hop / rates.link_bytes_per_s / ring.step_seconds(s, rates, 1, 0)
    assert link_over_work(2 * int(n / 2) - 2) > 1 > link_over_work(2 * int(n / 2) + 2)


def test_the_published_thresholds():
    """Tokens a GPU for H = 32, over NVLink at 370 GB/s and InfiniBand at 45."""
    assert ring.hides_from(690e12, 370e9, 32, 8, zigzag=False) == pytest.approx(466.2, abs=0.1)
    assert ring.hides_from(690e12, 370e9, 32, 32, zigzag=False) == pytest.approx(1864.9, abs=0.1)
    assert ring.hides_from(690e12, 45e9, 32, 8) == pytest.approx(7666.7, abs=0.1)


@pytest.mark.parametrize("P", [2, 4, 8])
def test_contiguous_shards_of_a_causal_sequence_leave_ranks_idle(P):
    uneven = Sharing(P, 65536 * P, layout="contiguous")
    assert ring.balance(uneven) == pytest.approx(1 / (2 - 1 / P), rel=1e-3)
    assert ring.balance(dataclasses.replace(uneven, layout="zigzag")) == pytest.approx(1, rel=1e-4)
    assert ring.balance(dataclasses.replace(uneven, causal=False)) == 1


def test_efficiency_rises_with_the_length_and_falls_with_what_is_not_hidden():
    for backward in (False, True):
        of = [ring.efficiency(Sharing(4, N, backward=backward)) for N in (2 ** 14, 2 ** 16, 2 ** 18)]
        assert of == sorted(of) and of[-1] < 1
    s = Sharing(4, 65536)
    shown = ring.efficiency(s, Rates(hidden=False))
    eager = ring.efficiency(s, Rates(merge_bytes=ring.EAGER_BYTES))
    assert max(shown, eager) < ring.efficiency(s)
    assert ring.efficiency(dataclasses.replace(s, layout="contiguous")) < 0.6 < 0.9 < ring.efficiency(s)


def test_memory_of_a_ring_falls_with_the_ranks_and_of_gathered_keys_does_not():
    for backward in (False, True):
        of = {method: [ring.memory(Sharing(P, 2 ** 20, backward=backward), method) for P in (4, 8)]
              for method in ring.METHODS}
        assert of["ring"][0] == 2 * of["ring"][1] and of["ulysses"][0] == 2 * of["ulysses"][1]
        assert of["gather"][0] == of["gather"][1]
    assert ring.memory(Sharing(4, 2 ** 20), "gather") == 2 * 2 ** 20 * 8 * 128 * 2


def test_the_timeline_shows_who_works_on_whose_keys_and_what_travels():
    events = timeline(Sharing(3, 3 * 8192)).events
    assert [e.tile for e in events if e.role == "gpu 1"] == [1, 0, 2]
    assert [(e.what, e.tile) for e in events if e.role == "link 0→1"] == [("KV", 0), ("KV", 2)]
    backward = timeline(Sharing(3, 3 * 8192, backward=True)).events
    assert [(e.what, e.tile) for e in backward if e.role == "link 0→1"] == [
        ("KV", 0), ("dKV", 0), ("KV", 2), ("dKV", 2), ("dKV", 1)]


def test_blocking_sends_are_a_deadlock():
    with pytest.raises(Deadlock, match="gpu 0 waits for ever at barrier 'here 0→1"):
        timeline(Sharing(4, 4096), rendezvous=True)


def test_old_keys_are_a_hazard():
    s = Sharing(4, 4096)

    def program(rank):
        kv = Ghost("KV", rank, s.kv_bytes)
        for step in range(4):
            if step < 3:
                yield put((rank + 1) % 4, "KV", kv, (rank - 1) % 4)
            yield compute((rank - step) % 4, lambda kv: None, kv)
            if step < 3:
                yield get((rank - 1) % 4, "KV")             # and forgets it
    with pytest.raises(Hazard, match="KV 0"):
        timeline(s, program=program)


def test_a_send_that_begins_after_the_work_hides_nothing():
    s = Sharing(4, 65536, layout="zigzag")

    def late(rank):
        kv = Ghost("KV", rank, s.kv_bytes)
        for step in range(4):
            yield compute((rank - step) % 4, lambda kv: None, kv)
            if step < 3:
                yield put((rank + 1) % 4, "KV", kv, (rank - 1) % 4)
                kv = yield get((rank - 1) % 4, "KV")
    late_us, early_us = timeline(s, program=late).cycles, timeline(s).cycles
    assert late_us == pytest.approx(1e6 * ring.seconds(s, Rates(hidden=False)))
    assert late_us > early_us


def test_a_rank_on_the_wrong_keys_and_a_sum_of_unlike_gradients_are_hazards():
    with pytest.raises(Hazard, match="rank 0 takes KV 0 for KV 1"):
        list(compute_only(ghost_program(Sharing(2, 64), 0), source=1))
    with pytest.raises(Hazard, match="dKV 0 and dKV 1 are added"):
        _ = Ghost("dKV", 0, 4) + Ghost("dKV", 1, 4)


def compute_only(program, source):
    """Give a program's function the right keys and a wrong source."""
    for request in program:
        if request.kind == "compute":
            yield request.function(source, request.payload[1])
            return


@pytest.mark.parametrize("wrong, message", [
    (lambda: Sharing(3, 8), "N: expected a multiple of"),
    (lambda: Sharing(2, 8, H=6, Hk=4), "H: expected a multiple of Hk, 4, got 6"),
    (lambda: Rates(flops_per_s=0), "flops_per_s: expected a number above 0, got 0"),
    (lambda: Rates(call_s=-1), "call_s: expected a number of at least 0"),
    (lambda: ring.traffic(Sharing(2, 8), "star"), "method: expected one of"),
])
def test_refusals(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()
