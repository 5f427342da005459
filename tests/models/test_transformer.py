"""A layer's operators: FLOPs and bytes from shapes, attention equal to its closed form, fusion."""

import math
from dataclasses import replace

import pytest

from flashlib.machine.traffic import Traffic
from flashlib.models import hierarchy, roofline, traffic
from flashlib.models.transformer import (
    ATTENTION,
    GPT2_MEDIUM,
    LLAMA_3_8B,
    SHAPES,
    Shape,
    fuse,
    layer,
    total,
    with_head_dimension,
)

TINY = Shape("tiny", 8, 4, 2, 2, 12, True, 1, "made up")


def named(operators):
    return {op.name: op for op in operators}


@pytest.mark.parametrize("N, batch", [(1, 1), (7, 3), (1024, 64)])
def test_attention_of_equal_heads_is_standard_attention_once_per_head(N, batch):
    ops = named(layer(GPT2_MEDIUM, N, batch))
    one, many = traffic.standard_attention(Nq=N, Nk=N, d=64), batch * 16
    found = total(ops[name] for name in ATTENTION)
    assert found.flops == many * one.flops
    assert found.exps == many * one.exps
    assert found.by_tensor == {t: type(m)(many * m.read_bytes, many * m.write_bytes)
                               for t, m in one.by_tensor.items()}


def test_grouped_queries_read_fewer_keys_and_compute_the_same():
    few = named(layer(TINY, 5, 3))
    all_heads = named(layer(replace(TINY, kv_heads=4), 5, 3))
    assert few["S = QKᵀ"].flops == all_heads["S = QKᵀ"].flops
    assert few["S = QKᵀ"].traffic.by_tensor["K'"].read_bytes == 3 * 2 * 5 * 2 * 2
    assert 2 * few["O = PV"].traffic.by_tensor["V"].read_bytes == \
        all_heads["O = PV"].traffic.by_tensor["V"].read_bytes


def test_every_sequence_of_a_batch_is_rotated_by_the_same_angles():
    for batch in (1, 3):
        moved = named(layer(TINY, 5, batch))["rotate"].traffic.by_tensor
        assert moved["angles"].read_bytes == 2 * 5 * TINY.d
        assert moved["Q"].read_bytes == 2 * batch * 5 * 8


def test_a_projection_by_hand():
    op = named(layer(TINY, 5, 3))["project Q, K, V"]                 # 15 tokens, 8 → 8 + 4 + 4
    assert op.matmul_flops == 2 * 15 * 8 * 16
    assert op.vector_flops == 0
    assert op.hbm_read_bytes == 2 * (15 * 8 + 8 * 16)
    assert op.hbm_write_bytes == 2 * 15 * 16


def test_a_bias_is_read_and_added():
    plain, biased = (named(layer(replace(TINY, modern=modern), 5, 3))["project O"]
                     for modern in (True, False))
    assert biased.vector_flops == 15 * 8
    assert biased.hbm_read_bytes - plain.hbm_read_bytes == 2 * 8


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
def test_matmul_flops_are_two_for_every_weight_and_token_and_those_of_attention(shape):
    N, batch = 256, 2
    ops = layer(shape, N, batch)
    weights = shape.d_model * shape.d * (2 * shape.heads + 2 * shape.kv_heads)
    weights += (3 if shape.modern else 2) * shape.d_model * shape.ffn
    attention = 4 * batch * shape.heads * N * N * shape.d
    assert total(ops).matmul_flops == 2 * batch * N * weights + attention


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
def test_what_is_read_was_made_before_or_comes_from_outside(shape):
    made = set()
    for op in layer(shape, 64):
        read = {t for t, m in op.traffic.by_tensor.items() if m.read_bytes}
        outside = {t for t in read if t.startswith("W ")} | {"x", "angles"}
        assert read <= made | outside, op.name
        made |= {t for t, m in op.traffic.by_tensor.items() if m.write_bytes}


def test_published_sizes_give_the_published_number_of_parameters():
    wide = LLAMA_3_8B.heads * LLAMA_3_8B.d
    assert wide == LLAMA_3_8B.d_model
    per_layer = 4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336
    assert math.isclose(32 * per_layer + 2 * 128_256 * 4096, 8.03e9, rel_tol=2e-3)
    assert GPT2_MEDIUM.heads * GPT2_MEDIUM.d == GPT2_MEDIUM.d_model == GPT2_MEDIUM.ffn // 4


@pytest.mark.parametrize("dtype, size", [("float32", 4), ("bfloat16", 2), ("float8", 1)])
def test_bytes_follow_the_dtype_and_arithmetic_does_not(dtype, size):
    half, other = total(layer(TINY, 9)), total(layer(TINY, 9, dtype=dtype))
    assert 2 * other.hbm_bytes == size * half.hbm_bytes
    assert other.flops == half.flops


def test_fused_attention_moves_its_inputs_and_its_output_only():
    ops = layer(GPT2_MEDIUM, 128, 2)
    one = fuse(ops, ATTENTION)
    assert set(one.traffic.by_tensor) == {"Q", "K", "V", "O"}
    assert one.hbm_bytes == 2 * 4 * 2 * 16 * 128 * 64
    assert one.flops == sum(op.flops for op in ops if op.name in ATTENTION)


def test_fusing_one_operator_changes_nothing():
    ops = layer(TINY, 16)
    for op in ops:
        assert fuse(ops, [op.name]).traffic == op.traffic


def test_what_others_need_is_still_written():
    ops = layer(TINY, 16)
    one = fuse(ops, ["residual 1", "norm 2"]).traffic.by_tensor
    assert one["x1"].write_bytes == 2 * 16 * 8                       # residual 2 reads it
    assert one["x1"].read_bytes == 0
    assert one["n2"].write_bytes == 2 * 16 * 8


def test_the_whole_layer_fused_reads_weights_and_x_and_writes_the_result():
    ops = layer(TINY, 16)
    one = fuse(ops, [op.name for op in ops]).traffic.by_tensor
    assert one["x"].read_bytes == 2 * 16 * 8                         # twice in the layer
    assert {t for t, m in one.items() if m.write_bytes} == {"x2"}


def test_operators_go_straight_into_the_roofline():
    waits = {op.name: roofline.time_s(op, "H200", "float16").bound
             for op in layer(GPT2_MEDIUM, 1024, 64)}
    assert {n for n, b in waits.items() if b == "matmul"} == {
        "project Q, K, V", "project O", "FFN up", "FFN down"}
    assert {b for n, b in waits.items() if n in ATTENTION} == {"memory"}


def test_head_dimension_changes_the_number_of_heads_and_no_projection():
    wider = with_head_dimension(LLAMA_3_8B, 256)
    assert (wider.heads, wider.kv_heads) == (16, 4)
    a, b = named(layer(LLAMA_3_8B, 64)), named(layer(wider, 64))
    assert a["project Q, K, V"].traffic == b["project Q, K, V"].traffic
    assert a["softmax"].hbm_bytes == 2 * b["softmax"].hbm_bytes
    with pytest.raises(ValueError, match="d: expected a divisor"):
        with_head_dimension(GPT2_MEDIUM, 100)


@pytest.mark.parametrize("call, error", [
    (lambda: layer(TINY, 0), "N:"), (lambda: layer(TINY, 4, 0), "batch:"),
    (lambda: layer(TINY, 4, dtype="int8"), "dtype:"), (lambda: fuse(layer(TINY, 4), []), "names:"),
    (lambda: fuse(layer(TINY, 4), ["softmaxx"]), "names:"),
    (lambda: replace(TINY, kv_heads=3), "heads:")])
def test_wrong_sizes_are_refused_by_name(call, error):
    with pytest.raises(ValueError, match=error):
        call()


def test_total_of_nothing_is_nothing():
    assert total([]) == Traffic()


def test_levels_sum_over_the_chip_and_say_where_they_are_from():
    found = {m.name: m for m in hierarchy.levels("A100")}
    assert list(found) == ["registers", "SRAM", "L2", "HBM"]
    assert float(found["SRAM"].room) == 108 * 164 * 1024
    assert float(found["SRAM"].rate) == pytest.approx(128 * 108 * 1.41e9)
    assert float(found["L2"].rate) == pytest.approx(7.2192e12)
    # 64 float32 lanes an SM, each reading three operands of 4 B in a clock
    assert float(found["registers"].rate) == pytest.approx(108 * 64 * 3 * 4 * 1.41e9, rel=0.01)
    assert all(m.room.source and (m.rate is None or m.rate.source) for m in found.values())
    assert hierarchy.levels("B200")[2].rate is None
    with pytest.raises(ValueError, match="clock_hz"):
        hierarchy.levels(replace(hierarchy.hardware.A100, clock_hz=None))


def test_the_sram_of_a_t4_delivers_half_of_its_banks():
    assert float(hierarchy.levels("T4")[1].rate) == pytest.approx(64 * 40 * 1.59e9)


def test_nvidia_says_that_the_l2_of_the_a100_is_2_3_times_as_fast_as_that_of_the_v100():
    a, v = (float(hierarchy.levels(name)[2].rate) for name in ("A100", "V100"))
    assert a / v == pytest.approx(2.3, abs=0.05)
