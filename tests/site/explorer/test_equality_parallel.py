"""Decoding in parts and the ring: the explorer's numbers are Python's, on random inputs, exactly."""

import random

import pytest

from flashlib import hardware
from flashlib.algorithms.layouts import LAYOUTS, block
from flashlib.course.ch15 import lab, plan
from flashlib.course.ch16 import plan as ring_plan
from flashlib.models import occupancy, ring
from flashlib.models.ring import Rates, Sharing
from scripts.explorer_data import camel, gpus, ring_rates

pytestmark = pytest.mark.site

CASES = 3000


def js(given):
    """Return keywords as TypeScript takes them."""
    return {camel(key): value for key, value in given.items()}


def random_sharing(rng):
    """Return a sequence on some ranks, whole numbers of any kind, that every layout can share out."""
    P, group = rng.choice([1, 2, 3, 4, 8, 16, rng.randint(1, 24)]), rng.randint(1, 8)
    Hk = rng.randint(1, 16)
    N = 2 * P * rng.choice([1, 2, rng.randint(1, 50), rng.randint(1, 2**15)])
    return {"P": P, "N": N, "H": Hk * group, "Hk": Hk, "d": rng.randint(1, 256),
            "causal": rng.random() < 0.7, "layout": rng.choice(LAYOUTS),
            "backward": rng.random() < 0.4, "element_bytes": rng.choice([1, 2, 4])}


def random_rates(rng):
    return {"flops_per_s": rng.uniform(1e12, 2e15), "link_bytes_per_s": rng.uniform(1e9, 9e11),
            "memory_bytes_per_s": rng.uniform(1e11, 9e12), "merge_bytes": rng.choice([0, 10, 38]),
            "call_s": rng.choice([0, 4e-5, rng.uniform(0, 1e-3)]), "hidden": rng.random() < 0.6}


def test_every_number_of_the_ring_is_pythons_on_random_inputs(node):
    rng, calls, wants, bound = random.Random(30), [], [], set()
    for _ in range(CASES):
        shape, given = random_sharing(rng), random_rates(rng)
        s, rates = Sharing(**shape), Rates(**given)
        for method in ring.METHODS:
            calls += [("ringSeconds", js(shape), js(given), method), ("sentBytes", js(shape), method),
                      ("roomBytes", js(shape), method), ("efficiency", js(shape), js(given), method)]
            wants += [ring.seconds(s, rates, method), ring.traffic(s, method), ring.memory(s, method),
                      ring.efficiency(s, rates, method)]
        rank, source = rng.randrange(s.P), rng.randrange(s.P)
        calls += [("oneGpuSeconds", js(shape), js(given)), ("balance", js(shape)),
                  ("stepSeconds", js(shape), js(given), rank, source),
                  ("pairsOf", js(shape), rank, source), ("workOf", js(shape), rank, source)]
        wants += [ring.one_gpu_seconds(s, rates), ring.balance(s),
                  ring.step_seconds(s, rates, rank, source), s.pairs(rank, source),
                  s.work(rank, source)]
        bound.add((s.layout, s.causal, s.backward, rates.hidden, s.P > 1))
    got = node(calls)
    assert len(bound) > 40, "which paths were taken"
    sums = [k for k, call in enumerate(calls) if call[0] == "balance"]    # Python sums row by row
    assert [got[k] for k in sums] == pytest.approx([wants[k] for k in sums], rel=1e-12)
    different = [(call, a, b) for call, a, b in zip(calls, got, wants, strict=True)
                 if a != b and call[0] != "balance"]
    assert different == []


def test_blocks_and_the_tokens_that_hide_a_link_are_pythons(node):
    rng, calls, wants = random.Random(31), [], []
    for _ in range(1500):
        layout, n, causal = rng.choice(LAYOUTS), rng.randint(1, 40), rng.random() < 0.8
        rank, source = rng.randrange(9), rng.randrange(9)
        found = block(layout, rank, source, n, causal)
        calls.append(("blockOf", layout, rank, source, n, causal))
        wants.append(found and {"rows": [found[0].start, found[0].stop],
                                "keys": [found[1].start, found[1].stop], "masked": found[2]})
        rates = rng.uniform(1e12, 2e15), rng.uniform(1e9, 9e11), rng.randint(1, 64), rng.randint(1, 64)
        ways = {"zigzag": rng.random() < 0.5, "backward": rng.random() < 0.5,
                "element_bytes": rng.randint(1, 4)}
        calls.append(("hidesFrom", *rates, js(ways)))
        wants.append(ring.hides_from(*rates, **ways))
    assert node(calls) == wants


def test_bytes_by_tensor_add_up(node):
    rng, calls, wants = random.Random(32), [], []
    for _ in range(500):
        shape, method = random_sharing(rng), rng.choice(ring.METHODS)
        calls.append(("byTensor", js(shape), method))
        s = Sharing(**shape)
        wants.append([ring.traffic(s, method), ring.memory(s, method)])
    for got, (sent, room) in zip(node(calls), wants, strict=True):
        assert sum(got["room"].values()) == room
        assert sent == pytest.approx(sum(got["sent"].values()), abs=2, rel=1e-15)


def test_decoding_in_parts_is_pythons_on_random_calls(node):
    rng, calls, wants = random.Random(33), [], []
    for _ in range(CASES):
        keys = rng.choice([rng.randint(1, 300), rng.randint(1, 2**18)])
        shape = {"B": rng.randint(1, 70), "N_k": keys,
                 "H_k": rng.randint(1, 40), "group": rng.randint(1, 16), "d": rng.randint(1, 256)}
        case, js_case = plan.Case(**shape), {key.replace("_", ""): n for key, n in shape.items()}
        rates = [rng.uniform(0, 1e-4), rng.uniform(1e11, 9e12), rng.uniform(1e9, 1e11),
                 rng.uniform(0, 1e-4)]
        js_rates = js(dict(zip(plan.Rates._fields, rates, strict=True)))
        sms, parts = rng.randint(1, 160), rng.choice([1, 2, rng.randint(1, 600)])
        w = case.waves(parts, sms)
        calls += [("kvBytes", js_case), ("partBytes", js_case, parts), ("cut", js_case, parts),
                  ("decodeSeconds", js_case, parts, sms, js_rates), ("wavesOf", w.programs, sms)]
        wants += [case.kv_bytes, case.part_bytes(parts), case.cut(parts),
                  plan.Rates(*rates).seconds(case, parts, sms),
                  {"programs": w.programs, "sms": sms, "waves": w.waves, "idle": w.idle_sms,
                   "efficiency": w.efficiency}]
    assert node(calls) == wants


def test_the_best_number_of_parts_is_pythons(node):
    rng, calls, wants = random.Random(34), [], []
    for _ in range(300):
        gpu = rng.choice(hardware.ALL)
        case = plan.Case(2 ** rng.randint(0, 6), 2 ** rng.randint(6, 17), 2 ** rng.randint(0, 5),
                         2 ** rng.randint(0, 4), rng.choice([64, 128, 80]))
        sheet = next(sheet for sheet in gpus() if sheet["name"] == gpu.name)
        rates = plan.Rates(*sheet["decode"].values())
        state = {"algorithm": "decode", "gpu": gpu.name, "B": case.B, "cache": case.N_k, "Hk": case.H_k,
                 "group": case.group, "d": case.d, "parts": rng.choice([1, 3, 16, 256])}
        best = rates.best(case, sheet["sms"])
        many = case.cut(state["parts"])
        calls.append(("decodeOf", state))
        wants.append({"parts": many, "best": best, "seconds": rates.seconds(case, many, sheet["sms"]),
                      "bestSeconds": rates.seconds(case, best, sheet["sms"])})
    assert node(calls) == wants


def test_what_was_recorded_is_brought_to_every_gpu():
    h200 = ring_plan.rates()
    for gpu, sheet in zip(hardware.ALL, gpus(), strict=True):
        assert list(sheet["decode"].values()) == pytest.approx(list(lab.rates_on(gpu)), rel=1e-9)
        assert sheet["sms"] == occupancy.waves(1, gpu).sms
        assert sheet["ring"] == pytest.approx(
            {camel(key): rate for key, rate in ring_rates(gpu).items()}, rel=1e-9)
        if gpu.name == "H200":
            assert ring_rates(gpu) == {key: getattr(h200, key) for key in ring_rates(gpu)}
