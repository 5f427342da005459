"""The plan of chapter 16: recorded rates, links that differ, hosts, and the numbers on the page."""

import numpy as np
import pytest

from flashlib.course.ch16 import plan
from flashlib.models import ring
from flashlib.models.ring import Sharing
from flashlib.models.ring_timeline import timeline

RATES = plan.rates()


def test_rates_are_the_recorded_ones_of_one_gpu():
    assert RATES.flops_per_s == pytest.approx(686e12, rel=0.01)
    assert RATES.memory_bytes_per_s == pytest.approx(4.27e12, rel=0.01)
    assert 1e-5 < RATES.call_s < 5e-5 and plan.rates("PCIe 5").link_bytes_per_s == 64e9


@pytest.mark.parametrize("link", plan.LINKS)
@pytest.mark.parametrize("P", [1, 2, 4, 8])
def test_links_alike_take_what_the_simulated_ranks_take(P, link):
    s, rates = Sharing(P, 32768), plan.rates(link)
    found = plan.over_links(s, rates, rates.link_bytes_per_s)
    assert found == pytest.approx(timeline(s, rates).cycles / 1e6)
    assert found == pytest.approx(ring.seconds(s, rates))


def test_one_slow_link_slows_all():
    s = Sharing(8, 65536)
    links = [376e9] * 7 + [12.5e9]
    slow = plan.over_links(s, RATES, links)
    assert slow > 1.5 * plan.over_links(s, RATES, 376e9)
    assert slow <= plan.over_links(s, RATES, 12.5e9)
    assert slow == pytest.approx(plan.over_links(s, RATES, np.roll(links, 3)))


def test_only_a_zigzag_has_all_gpus_alike():
    with pytest.raises(ValueError, match="expected the layout 'zigzag'"):
        plan.over_links(Sharing(4, 4096, layout="stripe"), RATES, 1e11)


def test_in_one_host_a_ring_meets_no_network():
    s = Sharing(8, 2**20)
    assert plan.flat(s, RATES, 376e9, 1.0) == plan.flat(s, RATES, 376e9, 1e12)


def test_rings_between_hosts_hide_with_an_eighth_of_the_tokens():
    for P in (64, 128, 256, 1024):
        s = Sharing(P, 2**20)
        assert plan.by_hosts(s, RATES, 376e9, 50e9) > plan.flat(s, RATES, 376e9, 50e9)
    with pytest.raises(ValueError, match="multiples of 8"):
        plan.by_hosts(Sharing(16, 2**20, Hk=4), RATES, 376e9, 50e9)


def test_where_the_link_shows_twice_the_gpus_are_no_faster():
    one, two = (plan.flat(Sharing(P, 2**20), RATES, 376e9, 50e9) for P in (512, 1024))
    assert two == pytest.approx(one / 2, rel=0.01)


def test_the_numbers_of_the_page():
    million = Sharing(4, 2**20)
    assert million.kv_bytes * 4 == 2**32                             # 4.3 GB
    assert 13 < ring.one_gpu_seconds(million, RATES) < 13.2
    assert ring.seconds(million, RATES) == pytest.approx(3.3, abs=0.01)
    assert ring.traffic(million) / plan.LINKS["NVLink"] == pytest.approx(8.6e-3, rel=0.01)
    assert ring.one_gpu_seconds(Sharing(4, 65536), RATES) / 4 == pytest.approx(12.8e-3, abs=5e-5)
    hidden = {name: ring.hides_from(RATES.flops_per_s, W, 32, 8) for name, W in plan.LINKS.items()}
    assert [round(hidden[name]) for name in ("NVLink", "400 Gb/s network", "100 Gb/s network")] == [
        912, 6861, 27446]
    assert 2**20 / hidden["400 Gb/s network"] == pytest.approx(153, abs=0.5)


@pytest.mark.parametrize("P", [2, 4])
@pytest.mark.parametrize("layout, impl", [("zigzag", "ring"), ("contiguous", "ring_contiguous")])
def test_the_simulation_is_what_was_measured_from_65536_tokens_on(P, layout, impl):
    for N, row in plan.measured(P, "forward", impl).items():
        if N >= 65536:
            simulated = timeline(Sharing(P, N, layout=layout), RATES).cycles / 1e6
            assert simulated == pytest.approx(row["seconds"], rel=0.01 if N == 65536 else 0.03)


def test_with_the_link_of_two_SMs_it_is_nearer_with_few_tokens():
    for P, N, off in ((2, 16384, 0.05), (4, 16384, 0.2), (4, 32768, 0.1), (4, 65536, 0.01)):
        s, found = Sharing(P, N), plan.measured(P, "forward", "ring")[N]["seconds"]
        assert timeline(s, plan.of_two_sms(s)).cycles / 1e6 == pytest.approx(found, rel=off)
    link = plan.of_two_sms(Sharing(4, 65536)).link_bytes_per_s
    assert ring.hides_from(RATES.flops_per_s, link, 32, 8) == pytest.approx(9700, abs=50)


def test_what_the_page_says_of_the_race():
    at = {impl: plan.measured(4, "forward", impl)[65536]["seconds"] for impl in (
        "ring", "gather", "ulysses", "torch_alltoall_CUDNN", "torch_allgather_CUDNN")}
    assert min(at.values()) == at["ring"]
    few = [plan.measured(4, "forward", f"ring{x}")[16384]["seconds"] for x in (
        "", "_stripe", "_contiguous")]
    assert max(few) < 3.3e-3 and min(few) > 2.7e-3


def test_bars_are_those_of_the_schedule():
    s = Sharing(4, 65536)
    bars = plan.bars(timeline(s, RATES))
    assert sum(kind == "work" for *_, kind in bars) == 16 and len(bars) == 16 + 12
    assert max(end for _, _, end, *_ in bars) == pytest.approx(1e3 * ring.seconds(s, RATES))
    assert {(gpu, source) for gpu, _, _, source, kind in bars if kind == "work"} == {
        (a, b) for a in range(4) for b in range(4)}


def test_rounding_at_each_merge_grows_like_the_root_of_the_gpus():
    rng = np.random.default_rng(0)
    Q, K, V = rng.standard_normal((3, 1024, 32))
    P = np.exp(Q @ K.T / np.sqrt(32))
    exact = P / P.sum(axis=1, keepdims=True) @ V
    found = {shards: plan.rounded_error(Q, K, V, shards, exact) for shards in (1, 4, 16)}
    assert found[1] == pytest.approx(1, rel=0.01)
    assert 1.3 < found[4] < 2 and 1.6 < found[16] / found[4] < 2.1
