"""The roofline lab: every choice draws, and the figures of chapter 01 say what they show."""

import itertools

import pytest

pytest.importorskip("matplotlib")

import flashlib as fl
from flashlib import hardware
from flashlib.course.ch01 import figures, layer_figures
from flashlib.course.ch01.lab import draw, roofline_lab
from flashlib.course.plots.theme import alt_text
from flashlib.models import hierarchy, transformer
from flashlib.models.roofline import time_s
from tests.course.choices import corners, draw_every_choice

GPT2 = transformer.layer(transformer.GPT2_MEDIUM, 1024, 64)


def words(fig):
    return [t.get_text() for ax in fig.axes for t in ax.texts]


def test_every_choice_draws():
    lab = roofline_lab()
    assert draw_every_choice(lab) == {key: len(c.options) for key, c in lab.controls.items()}


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


def test_memories_show_room_and_rate_of_every_gpu():
    fig = figures.memory_pyramids({g.name: hierarchy.levels(g) for g in hardware.ALL})
    assert "17.3 MiB" in words(fig) and "19.5 TB/s" in words(fig)
    assert "L2 7" not in alt_text(fig).replace("L2 72 MiB", "")
    for name in ("T4", "A100", "B200"):
        assert f"{int(hardware.get(name).sms)} SMs" in alt_text(figures.gpu_anatomy(name))


def test_predicted_and_measured_stand_side_by_side():
    fig = figures.predicted_measured({"softmax": (1e-3, 2.5e-3)})
    assert "measured 2.50 ms, 2.50 ×" in words(fig)
