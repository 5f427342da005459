"""The block-size lab: every choice draws, and what does not fit says by how many bytes."""

import itertools

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from flashlib import hardware
from flashlib.course.ch06 import figures
from flashlib.course.ch06.lab import block_lab, draw, resident_tiles
from flashlib.course.plots.theme import OVER, alt_text
from flashlib.models import traffic
from flashlib.models.blocks import working_set_bytes
from flashlib.models.roofline import time_s
from tests.course.choices import corners, draw_every_choice


def words(fig):
    axes_texts = [t for ax in fig.axes for t in ax.texts]
    return {t.get_text(): t.get_color() for t in [*fig.texts, *axes_texts]}


@pytest.mark.parametrize("algorithm", ["flash_v1", "flash_v2"])
def test_the_gauge_shows_the_working_set(algorithm):
    for Br, Bc, d in itertools.product((1, 16, 100), (1, 64, 200), (32, 128)):
        held = sum(size for _, _, size in resident_tiles(algorithm, Br=Br, Bc=Bc, d=d))
        assert held == working_set_bytes(algorithm, Br=Br, Bc=Bc, d=d)


def test_the_default_picture_says_that_v1_loses_to_the_ideal_and_wins_against_the_same_blocks():
    fig = draw()
    flash = traffic.flash_v1(Nq=4096, Nk=4096, d=128, Br=64, Bc=64)
    ideal = traffic.standard_attention(Nq=4096, Nk=4096, d=128)
    same = traffic.standard_attention(Nq=4096, Nk=4096, d=128, Br=64, Bc=64)
    shown = words(fig)
    assert shown[f"{flash.hbm_bytes / ideal.hbm_bytes:.2f} × the ideal, which does not fit"] == OVER
    assert f"{flash.hbm_bytes / same.hbm_bytes:.2f} × standard, same blocks" in shown
    assert "A100: v1 fits" in shown
    assert "Br=64" in alt_text(fig)


@pytest.mark.parametrize(("N", "d", "gpu", "fits"), [
    (512, 64, "A100", True), (1024, 64, "A100", True), (512, 64, "T4", False),
    (4096, 128, "H100", False), (128, 64, "T4", True)])
def test_the_lab_says_whether_the_ideal_fits(N, d, gpu, fits):
    text = alt_text(draw(N=N, d=d, gpu=gpu, Br=16, Bc=16))
    assert ("the ideal, which fits too" in text) == fits
    assert ("the ideal, which does not fit" in text) != fits


def test_short_times_are_not_zero():
    text = alt_text(draw(N=128, d=32, Br=128, Bc=128))
    cost = traffic.flash_v1(Nq=128, Nk=128, d=32, Br=128, Bc=128)
    assert f"at best {1e9 * time_s(cost, 'A100', 'float16').time_s:.0f} ns" in text


def test_what_does_not_fit_is_red_and_says_by_how_many_bytes():
    shown = words(draw(Br=256, Bc=128, gpu="T4", algorithm="flash_v2"))
    need = working_set_bytes("flash_v2", Br=256, Bc=128, d=128)
    over = need - hardware.get("T4").sram_bytes
    assert over > 0
    assert shown[f"T4: {over:,} B too many"] == OVER


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_the_verdict_turns_at_the_very_byte(over):
    need = working_set_bytes("flash_v1", Br=64, Bc=96, d=64)
    shown = words(draw(Br=64, Bc=96, d=64, sram_bytes=need - over))
    assert ("A100: v1 fits" in shown) == (over <= 0)
    assert ("A100: 1 B too many" in shown) == (over == 1)


def test_another_sram_takes_the_place_of_that_of_the_gpu():
    assert "A100: v1 fits" in words(draw())
    assert "A100: v1 fits" not in words(draw(sram_bytes=16 * 1024))


def test_every_choice_draws():
    lab = block_lab()
    assert draw_every_choice(lab) == {key: len(c.options) for key, c in lab.controls.items()}


@pytest.mark.parametrize("corner", [
    {"N": 65536, "d": 256, "Br": 8, "Bc": 8}, {"N": 512, "d": 32, "Br": 512, "Bc": 512},
    {"N": 512, "d": 256, "Br": 512, "Bc": 8}, {"N": 65536, "d": 32, "Br": 8, "Bc": 512}])
def test_the_corners_draw_too(corner):
    lab = block_lab()
    for algorithm, causal, gpu in corners(("flash_v1", "flash_v2"), (False, True), ("T4", "B200")):
        fig = lab.figure(**corner, algorithm=algorithm, causal=causal, gpu=gpu)
        assert alt_text(fig)


def test_invalid_choices_cannot_be_made():
    lab = block_lab()
    for wrong in ({"Br": 0}, {"Bc": 7}, {"N": -1}, {"d": 0}, {"gpu": "abacus"}):
        with pytest.raises(ValueError, match="expected one of"):
            lab.set(**wrong)
    with pytest.raises(ValueError, match="algorithm"):
        draw(algorithm="flash_v9")


def test_it_opens_with_a_gpu_and_sizes_of_the_readers_own():
    pocket = hardware.GPU.custom("Pocket", sram_bytes=24_000, hbm_bytes_per_s=5e11,
                                 matmul_flops_per_s=5e13)
    lab = block_lab(gpu=pocket, Br=20, Bc=24, d=40, N=1000, sram_bytes=10_000)
    assert lab.values["gpu"] == "Pocket"
    assert "Pocket" in alt_text(lab.figure())


def test_tile_classes_counts_what_the_mask_makes():
    fig = figures.tile_classes({"square": (56, 56, 14, 14), "wide": (40, 56, 8, 8)})
    assert "square: 6 full, 4 cut, 6 skipped of 16" in alt_text(fig)
    assert "wide: 20 full, 5 cut, 10 skipped of 35" in alt_text(fig)
    with pytest.raises(ValueError, match="cases"):
        figures.tile_classes({})


def test_ratio_maps_say_how_many_choices_win():
    fits = np.array([[True, True], [True, False]])
    fig = figures.ratio_maps([16, 32], [16, 32], {"v1": np.array([[0.5, 2.0], [0.9, 0.1]])}, fits=fits)
    assert "v1: below 1 in 2 of 3 choices that fit" in alt_text(fig)
    with pytest.raises(ValueError, match="expected shape"):
        figures.ratio_maps([16], [16, 32], {"v1": np.ones((2, 2))})
