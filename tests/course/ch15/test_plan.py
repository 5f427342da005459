"""The closed forms of chapter 15: bytes, the libraries' rules, a model of the time, whose bits."""

import numpy as np
import pytest

import flashlib as fl
from flashlib.course.ch15 import bits, plan
from flashlib.kernels import configs
from flashlib.models import traffic

KEY = plan.Case(1, 65536), plan.Case(8, 8192), plan.Case(64, 2048)


def test_a_token_leaves_what_the_models_cards_say():
    found = {m.name: m.token_bytes() for m in plan.MODELS}
    assert found == {"GPT-2": 36_864, "SmolLM2-135M": 23_040, "Llama-2-7B": 524_288,
                     "Llama-3.1-8B": 131_072, "Llama-3.1-70B": 327_680}


@pytest.mark.parametrize("parts", [1, 2, 7, 16])
def test_bytes_of_parts_are_those_of_the_machine_s_closed_form(parts):
    case = plan.Case(B=3, N_k=parts * 64, H_k=2, group=4, d=32)
    cost = traffic.flash_decode(Nq=1, Nk=case.N_k, d=32, Br=16, Bc=64, keys=64, group=4)
    moved = sum(cost.by_tensor[name].total_bytes for name in ("parts", "m", "l")
                if name in cost.by_tensor)
    assert case.part_bytes(parts) == case.heads * moved
    kv = cost.by_tensor["K"].read_bytes + cost.by_tensor["V"].read_bytes
    assert case.kv_bytes == case.heads * kv
    if parts > 1:
        assert moved / kv == pytest.approx(2 * 4 / 64 * (1 + 2 / 32))


def test_the_rules_choose_what_the_sources_say():
    chosen = {name: tuple(rule(case) for case in KEY) for name, rule in plan.RULES.items()}
    assert chosen == {"FlashAttention-3": (15, 2, 1), "FlexDecoding": (32, 4, 1),
                      "FlashInfer": (33, 4, 1), "vLLM": (16, 16, 1), "flashlib": (32, 4, 1)}


@pytest.mark.parametrize("B", [1, 2, 5, 16, 64])
@pytest.mark.parametrize("N_k", [512, 2048, 8192, 65536])
def test_ours_is_the_rule_of_the_backend(B, N_k):
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from dataclasses import replace

    from flashlib.kernels.backends import decode as backend
    from flashlib.kernels.problem import Problem

    q, k = torch.empty(B, 32, 1, 128, dtype=torch.bfloat16), torch.empty(1, dtype=torch.bfloat16)
    k = k.expand(B, 8, N_k, 128)
    p = Problem.of(q, k, k)
    p = replace(p, device=p.device._replace(sms=132, capability=(9, 0)))
    config = configs.decode_config_for((9, 0), 2, 128, 4)
    units = backend.units_of(p, config)
    assert plan.ours(plan.Case(B, N_k)) == backend.parts(p, config, units)


def test_a_cut_is_of_whole_tiles():
    case = plan.Case(1, 65536)
    assert [case.cut(n) for n in (1, 15, 16, 17, 96, 1024, 9999)] == [1, 15, 16, 17, 94, 1024, 1024]


RATES = plan.Rates(start_s=2e-6, bytes_per_s=4e12, sm_bytes_per_s=5e10, merge_s=3e-6)


def test_the_time_is_an_sm_s_while_programs_are_few_and_the_memory_s_when_they_are_many():
    case = plan.Case(1, 65536)
    one = RATES.seconds(case, 1)
    assert one == pytest.approx(2e-6 + case.kv_bytes / 8 / 5e10)
    sixteen = RATES.seconds(case, 16) - 5e-6 - case.part_bytes(16) / 4e12
    assert sixteen == pytest.approx(case.kv_bytes / 4e12)
    assert RATES.seconds(case, 17) > RATES.seconds(case, 16)          # four SMs have two programs
    assert RATES.seconds(case, 1024) > RATES.seconds(case, 64)        # the bytes of parts
    assert RATES.best(case) in range(10, 17) and RATES.best(plan.Case(64, 2048)) == 1


def test_a_line_goes_through_points_that_lie_on_one():
    points = {x: 3e-6 + x / 4e12 for x in (1e6, 1e8, 2e8, 5e8)}
    constant, rate = plan.line(points, least=1e7)
    assert constant == pytest.approx(3e-6) and rate == pytest.approx(4e12)
    assert plan.line(points | {1e6: 1.0}, least=1e7) == pytest.approx((constant, rate))


def test_the_recorded_times_give_the_model_its_numbers():
    recorded, splits = map(fl.data.measurements, ("decode_h200", "decode_splits_h200"))
    rates = plan.rates_of(recorded, plan.sm_rate(splits))
    assert rates.seconds(plan.Case(1, 65536), 32) == pytest.approx(
        recorded.where(impl="ours", harness="rotating", B=1, N_k=65536, N_q=1).rows[0]["seconds"])
    assert 4e12 < rates.bytes_per_s < 4.8e12 and 3.6e10 < rates.sm_bytes_per_s < 3.8e10
    assert 1e-6 < rates.start_s < 4e-6 < rates.merge_s < 1e-5


def test_the_model_s_error_is_what_the_page_says():
    recorded, splits = map(fl.data.measurements, ("decode_h200", "decode_splits_h200"))
    rates, case = plan.rates_of(recorded, plan.sm_rate(splits)), plan.Case(1, 65536)
    times = plan.times(splits, 1, 65536)
    ratio = {parts: rates.seconds(case, parts) / seconds for parts, seconds in times.items()}
    assert rates.best(case) == min(times, key=lambda parts: times[parts]) == 16
    assert all(1 < ratio[parts] < 1.055 for parts in ratio if 2 <= parts <= 16)
    assert 0.84 < ratio[1] < 0.87 and 1.27 < ratio[17] < 1.31 and 0.77 < ratio[1024] < 0.8


def test_pages_waste_less_than_a_page_a_sequence():
    rng = np.random.default_rng(0)
    for page in (1, 16, 256):
        lengths = rng.integers(1, 3000, 50).tolist()
        held = plan.pages_of(lengths, page) * page
        assert sum(lengths) <= held <= sum(lengths) + 50 * (page - 1)
        assert plan.wasted(lengths, page=page) == pytest.approx(1 - sum(lengths) / held)
    assert plan.wasted([10, 30], room=80) == 0.75


@pytest.fixture(scope="module")
def qkv():
    rng = np.random.default_rng(1)
    return [rng.standard_normal((n, 64)).astype(np.float32) for n in (4, 4096, 4096)]


def test_units_and_runs_have_the_same_bits_and_other_cuts_have_not(qkv):
    first = bits.in_units(*qkv, each=1)
    assert bits.changed(bits.in_units(*qkv, each=8), first) == 0
    for each in (2, 4):
        assert bits.changed(bits.in_units(*qkv, each=each), first) > 50
    assert bits.changed(bits.in_parts(*qkv, 16), bits.in_parts(*qkv, 8)) > 50


def test_in_bfloat16_the_cut_moves_the_rounding_of_weights_and_hardly_anything_else(qkv):
    exact = bits.in_bfloat16(*qkv, 16, weights=False)
    rounded = bits.in_bfloat16(*qkv, 16, weights=True)
    assert bits.changed(bits.in_bfloat16(*qkv, 4, weights=False), exact) < 0.03 * exact.size
    assert bits.changed(bits.in_bfloat16(*qkv, 4, weights=True), rounded) > 0.2 * exact.size
    assert np.allclose(rounded, bits.in_parts(*qkv, 16), atol=2e-3)


def test_every_cut_is_attention(qkv):
    q, K, V = (x.astype(float) for x in qkv)
    P = np.exp(q @ K.T / 8)
    right = (P / P.sum(1, keepdims=True)) @ V
    for o in (bits.in_units(*qkv, each=1), bits.in_units(*qkv, each=4), bits.in_parts(*qkv, 16)):
        assert o.dtype == np.float32 and np.allclose(o, right, atol=1e-6)
