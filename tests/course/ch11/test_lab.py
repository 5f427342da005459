"""The block-size lab of chapter 11: every choice draws, and quickly."""

import pytest

pytest.importorskip("matplotlib")

from flashlib import hardware
from flashlib.course.ch11.lab import draw, tile_lab
from flashlib.course.plots.theme import alt_text
from tests.course.choices import corners, draw_choices


def test_every_control_draws():
    lab = tile_lab()
    assert set(draw_choices(lab)) == set(lab.controls)


@pytest.mark.parametrize("gpu", ["A100", "RTX 4090", "H100", "H200"])
def test_the_corners_draw_too(gpu):
    lab = tile_lab(gpu=gpu)
    for Br, Bc, warps, stages, d in corners((16, 256), (16, 256), (4, 8), (2, 4), (32, 256)):
        words = alt_text(lab.figure(Br=Br, Bc=Bc, warps=warps, stages=stages, d=d, N=256))
        assert words.startswith(f"Tile lab. Predicted: {gpu}")


def test_it_opens_with_a_gpu_of_the_readers_own():
    pocket = hardware.get("A100").with_(name="Pocket", sms=7)
    lab = tile_lab(gpu=pocket, Br=64, d=64)
    assert "Pocket" in alt_text(lab.figure())
    with pytest.raises(ValueError, match="expected one of"):
        lab.set(Br=48)


def test_a_gpu_without_bfloat16_is_refused_by_name():
    with pytest.raises(ValueError, match=r"gpu: expected one with a bfloat16 rate.*got 'T4'"):
        tile_lab(gpu="T4")


@pytest.mark.parametrize("show", [draw, tile_lab])
def test_a_gpu_with_tensor_memory_is_refused_by_name(show):
    with pytest.raises(ValueError, match=r"expected one that keeps O and S in registers.*got 'B200'"):
        show(gpu="B200")
