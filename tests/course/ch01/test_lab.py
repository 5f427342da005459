"""The roofline lab: every choice draws, and the figures of chapter 01 say what they show."""

import itertools

import pytest

pytest.importorskip("matplotlib")

import flashlib as fl
from flashlib import hardware
from flashlib.course.ch01 import figures, layer_figures
from flashlib.course.ch01.lab import draw, roofline_lab
from flashlib.course.notebook import data
from flashlib.course.plots.theme import alt_text
from flashlib.models import hierarchy, transformer
from flashlib.models.roofline import attainable_flops_per_s, ridge, time_s
from tests.course.choices import corners, draw_choices

GPT2 = transformer.layer(transformer.GPT2_MEDIUM, 1024, 64)


def words(fig):
    return [t.get_text() for ax in fig.axes for t in ax.texts]


def test_every_control_draws():
    lab = roofline_lab()
    assert set(draw_choices(lab)) == set(lab.controls)


@pytest.mark.parametrize("shape, attention", itertools.product(
    [s.name for s in transformer.SHAPES], ["standard", "fused"]))
def test_the_corners_draw_too(shape, attention):
    lab = roofline_lab()
    for N, d, dtype, gpu in corners((256, 131072), (16, 256), ("float32", "float8"), ("T4", "B200")):
        fig = lab.figure(shape=shape, attention=attention, N=N, d=d, dtype=dtype, gpu=gpu)
        assert "FLOP/B" in alt_text(fig)


def test_discs_hold_the_shares_of_the_time():
    times = {op.name: time_s(op, "H200", "float16").time_s for op in GPT2}
    share = times["softmax"] / sum(times.values())
    assert f"softmax  {share:.0%}" in words(layer_figures.layer_roofline(GPT2, "H200"))
    assert f"softmax {share:.0%}" in words(layer_figures.layer_shares({"GPT-2": GPT2}, "H200"))


def test_recorded_kernels_stand_below_the_roof_and_the_fused_one_right_of_the_ridge():
    dots = layer_figures.recorded_attention(GPT2, B=64, N=1024)
    assert [label for label, _, _ in dots] == ["", "", "", "FlashAttention-2"]
    for _, intensity, rate in dots:
        assert rate < attainable_flops_per_s(intensity, "H200", "float16")
    once = sum(time_s(op, "H200", "float16").matmul_s for op in GPT2 if op.part == "attention")
    ran = data.measurements("attention_demo_counters_h200").where(impl="flash", mode="forward", B=64)
    assert f"{ran.rows[0]['seconds'] / once:.1f}" == "3.3"        # the text says so, and its times
    assert dots[3][1] > ridge("H200", "float16") > max(x for _, x, _ in dots[:3])
    fig = layer_figures.layer_roofline(GPT2, "H200", recorded=dots)
    assert len([line for line in fig.axes[0].lines if line.get_gid() == "recorded"]) == 4
    assert "FlashAttention-2 at" in alt_text(fig)
    below = attainable_flops_per_s(dots[3][1], "H200", "float16") / dots[3][2]
    assert f"{below:.1f} times below the roof" in words(fig)


def test_the_layer_is_drawn_with_every_operator_and_what_it_does():
    fig = layer_figures.layer_chain(GPT2, layer_figures.GPT2_WORDS)
    boxes = [patch for patch in fig.axes[0].patches if hasattr(patch, "get_boxstyle")]
    assert len(boxes) == len(GPT2) == len(layer_figures.GPT2_WORDS)
    assert all(f"{op.name}: {layer_figures.GPT2_WORDS[op.name]}" in alt_text(fig) for op in GPT2)


def test_a_lower_ceiling_is_drawn_where_it_binds_and_nowhere_else():
    def ceilings(**chosen):
        return {line.get_gid() for line in draw(**chosen).axes[0].lines
                if str(line.get_gid()).startswith("ceiling")}

    assert ceilings(gpu="B200", attention="fused") == {"ceiling exp"}
    assert "exponentials, 2 × below the roof" in words(draw())
    assert ceilings(gpu="B200", attention="fused", d=256) == set()
    assert ceilings(gpu="H200", attention="standard") == set()


def test_the_axes_stay_where_they_are():
    def ticks(fig):
        return {(t.get_text(), *t.get_position()) for t in fig.axes[0].texts
                if t.get_text() in ("0.1", "1,000", "100,000", "100 GFLOP/s", "1 TFLOP/s")}

    first = ticks(draw())
    assert len(first) == 5
    for chosen in ({"N": 131072, "shape": "Llama 3 8B"}, {"gpu": "T4", "attention": "standard"},
                   {"gpu": "RTX 4090", "dtype": "float32"}, {"d": 16, "N": 256, "gpu": "A100"}):
        assert ticks(draw(**chosen)) == first


def test_a_dtype_that_the_gpu_lacks_is_replaced_and_said():
    assert "float16 (it has no float8), T4" in " ".join(words(draw(dtype="float8", gpu="T4")))
    assert "it has no" not in " ".join(words(draw(dtype="float8", gpu="H100")))


def test_fused_attention_is_one_operator_in_place_of_three():
    shown = " ".join(words(draw(attention="fused")))
    assert "attention, fused" in shown and "softmax" not in shown


def test_long_sequences_are_drawn_one_at_a_time():
    assert any("1 × 131,072 tokens" in text for text in words(draw(N=131072)))
    assert any("64 × 1,024 tokens" in text for text in words(draw(N=1024)))


def test_wrong_choices_are_named():
    lab = roofline_lab()
    for wrong in ({"N": 0}, {"d": 3}, {"dtype": "int4"}, {"gpu": "abacus"}, {"shape": "GPT-5"}):
        with pytest.raises(ValueError, match="expected one of"):
            lab.set(**wrong)
    with pytest.raises(ValueError, match="shape"):
        draw("GPT-5")
    with pytest.raises(ValueError, match="attention"):
        draw(attention="flash")


def test_it_opens_with_a_gpu_of_the_readers_own():
    pocket = hardware.GPU.custom("Pocket", sram_bytes=24_000, hbm_bytes_per_s=5e11,
                                 matmul_flops_per_s=5e13)
    lab = roofline_lab(gpu=pocket, N=1000)
    assert "Pocket" in alt_text(lab.figure())


def test_ten_steps_shows_the_bytes_of_the_trace():
    toy, machine = fl.data.toy(), fl.Machine()
    fl.standard_attention(toy.Q, toy.K, toy.V, machine=machine)
    fig = figures.ten_steps(machine.trace)
    assert "in 10 steps" in alt_text(fig)
    assert "480 B" in words(fig)
    assert [t for t in words(fig) if t.startswith("+")] == ["+96", "+72", "+72", "+72", "+120", "+48"]


def test_no_two_matrices_of_the_ten_steps_touch():
    toy, machine = fl.data.toy(), fl.Machine()
    fl.standard_attention(toy.Q, toy.K, toy.V, machine=machine)
    boxes = [p for p in figures.ten_steps(machine.trace).axes[0].patches
             if p.get_zorder() == 3 and p.get_y() > 2]
    spans = sorted((p.get_x(), p.get_x() + p.get_width()) for p in boxes)
    assert len(spans) == 8 and all(a[1] + 0.05 < b[0] for a, b in itertools.pairwise(spans))


@pytest.mark.parametrize("name", ["T4", "A100", "B200"])
def test_the_anatomy_names_the_memories_and_a_rate_of_the_l2_where_there_is_one(name):
    fig, found = figures.gpu_anatomy(name), {level.name: level for level in hierarchy.levels(name)}
    assert f"{int(hardware.get(name).sms)} SMs" in alt_text(fig)
    assert str(found["SRAM"].room) in alt_text(fig) and str(found["HBM"].rate) in alt_text(fig)
    assert any("publishes no rate" in text for text in words(fig)) == (found["L2"].rate is None)
