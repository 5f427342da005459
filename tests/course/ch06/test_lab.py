"""The block-size lab: every choice draws, and what does not fit says by how many bytes."""

import io
import itertools

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from matplotlib.patches import Rectangle
from PIL import Image

from flashlib import Machine, flash_v1, hardware
from flashlib.course.ch06 import figures
from flashlib.course.ch06.lab import SIZES, block_lab, draw, ratio_maps, resident_tiles
from flashlib.course.plots.theme import OVER, alt_text
from flashlib.models import traffic
from flashlib.models.blocks import working_set_bytes
from tests.course.choices import corners, draw_choices


def words(fig):
    axes_texts = [t for ax in fig.axes for t in ax.texts]
    return {t.get_text(): t.get_color() for t in [*fig.texts, *axes_texts]}


@pytest.mark.parametrize("algorithm", ["flash_v1", "flash_v2"])
def test_the_gauge_shows_the_working_set(algorithm):
    for Br, Bc, d in itertools.product((1, 16, 100), (1, 64, 200), (32, 128)):
        held = sum(size for _, _, size in resident_tiles(algorithm, Br=Br, Bc=Bc, d=d))
        assert held == working_set_bytes(algorithm, Br=Br, Bc=Bc, d=d)


def test_the_default_picture_says_that_v1_loses_to_both_baselines():
    fig = draw()
    flash = traffic.flash_v1(Nq=4096, Nk=4096, d=128, Br=32, Bc=32)
    ideal = traffic.standard_attention(Nq=4096, Nk=4096, d=128)
    same = traffic.standard_attention(Nq=4096, Nk=4096, d=128, Br=32, Bc=32)
    assert flash.hbm_bytes > same.hbm_bytes > ideal.hbm_bytes
    shown = words(fig)
    assert shown[f"{flash.hbm_bytes / ideal.hbm_bytes:.2f} × the ideal, which does not fit"] == OVER
    assert shown[f"{flash.hbm_bytes / same.hbm_bytes:.2f} × standard, same blocks"] == OVER
    assert "A100: v1 fits" in shown
    assert "Br=32" in alt_text(fig)


@pytest.mark.parametrize(("N", "d", "gpu", "fits"), [
    (512, 64, "A100", True), (1024, 64, "A100", True), (512, 64, "T4", False),
    (4096, 128, "H100", False), (128, 64, "T4", True)])
def test_the_lab_says_whether_the_ideal_fits(N, d, gpu, fits):
    text = alt_text(draw(N=N, d=d, gpu=gpu, Br=16, Bc=16))
    assert ("the ideal, which fits too" in text) == fits
    assert ("the ideal, which does not fit" in text) != fits


def bars(fig):
    """Return the bar at each height: (left, right) in multiples of the axis' 1×."""
    ax = fig.axes[0]
    (one,) = [line.get_xdata()[0] for line in ax.lines if line.get_xdata()[0] > 0][:1]
    found = {}
    for patch in ax.patches + ax.artists:
        if isinstance(patch, Rectangle) and patch.get_height() == pytest.approx(0.66):
            y = round(patch.get_y() + 0.33)
            found.setdefault(y, []).append((patch.get_x() + patch.get_width()) / one)
    return {y: max(ends) for y, ends in found.items()}


@pytest.mark.parametrize("choice", [{"Br": 8, "Bc": 8}, {"Br": 512, "Bc": 16}, {"N": 512, "d": 32},
                                    {"algorithm": "flash_v2", "Br": 256, "causal": True}])
def test_no_choice_moves_the_axis_of_the_bars(choice):
    fig, default = draw(**choice), draw()
    assert bars(fig)[0] == pytest.approx(1)
    assert max(bars(fig).values()) <= figures.LONGEST + 1e-9
    ends = [ax.transData.transform([(0, 0), (one, 0)])[:, 0].tolist() for ax, one in (
        (f.axes[0], max(line.get_xdata()[0] for line in f.axes[0].lines)) for f in (fig, default))]
    assert ends[0] == pytest.approx(ends[1])


def test_a_bar_longer_than_the_axis_ends_in_an_arrow_and_says_how_long_it_is():
    ratio = (traffic.flash_v1(Nq=4096, Nk=4096, d=128, Br=8, Bc=8).hbm_bytes
             / traffic.standard_attention(Nq=4096, Nk=4096, d=128).hbm_bytes)
    fig = draw(Br=8, Bc=8)
    assert ratio > figures.LONGEST and bars(fig)[2] == pytest.approx(figures.LONGEST)
    assert f"{ratio:.2f}×" in words(fig)
    assert sum(getattr(text, "arrow_patch", None) is not None for text in fig.axes[0].texts) == 2
    assert not any(getattr(text, "arrow_patch", None) for text in draw().axes[0].texts)


def test_every_choice_on_the_map_has_its_own_count():
    (image,) = draw(algorithm="flash_v2", causal=True, N=512, d=64).axes[2].images
    ideal = traffic.standard_attention(Nq=512, Nk=512, d=64, causal=True).hbm_bytes
    for i, j in ((0, 0), (3, 7), (12, 2)):
        moved = traffic.flash_v2(Nq=512, Nk=512, d=64, causal=True, Br=SIZES[i], Bc=SIZES[j]).hbm_bytes
        assert image.get_array()[i, j] == pytest.approx(np.log2(moved / ideal))


def test_the_map_frames_the_choice_and_crosses_out_what_is_too_large():
    ax = draw(Br=48, Bc=16, gpu="T4").axes[2]
    (chosen,) = [a for a in ax.patches + ax.artists if a.get_gid() == "chosen"]
    assert (chosen.get_x(), chosen.get_y()) == (SIZES.index(16) - 0.5, SIZES.index(48) - 0.5)
    (path,) = next(c for c in ax.collections if c.get_hatch()).get_paths()
    crossed = {tuple(cell[:4].mean(axis=0).round().astype(int)[::-1]) for cell in path.to_polygons()}
    room = hardware.get("T4").sram_bytes
    for i, j in itertools.product(range(len(SIZES)), repeat=2):
        need = working_set_bytes("flash_v1", Br=SIZES[i], Bc=SIZES[j], d=128)
        too_large = any(abs(a - i) + abs(b - j) == 0 for a, b in crossed)
        assert too_large == (need > room), (SIZES[i], SIZES[j])


def test_what_does_not_fit_is_red_and_says_by_how_many_bytes():
    shown = words(draw(Br=256, Bc=128, gpu="T4", algorithm="flash_v2"))
    need = working_set_bytes("flash_v2", Br=256, Bc=128, d=128)
    over = need - hardware.get("T4").sram_bytes
    assert over > 0
    assert shown[f"T4: {over:,} B too many"] == shown["does not fit"] == OVER
    assert not any("× the ideal" in text for text in shown)
    assert "does not fit" not in words(draw())


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_the_verdict_turns_at_the_very_byte(over):
    need = working_set_bytes("flash_v1", Br=64, Bc=96, d=64)
    shown = words(draw(Br=64, Bc=96, d=64, sram_bytes=need - over))
    assert ("A100: v1 fits" in shown) == (over <= 0)
    assert ("A100: 1 B too many" in shown) == (over == 1)


def test_another_sram_takes_the_place_of_that_of_the_gpu():
    assert "A100: v1 fits" in words(draw())
    assert "A100: v1 fits" not in words(draw(sram_bytes=16 * 1024))


def test_every_control_draws():
    lab = block_lab()
    assert set(draw_choices(lab)) == set(lab.controls)


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


def test_what_the_fold_on_equal_srams_says():
    """Of 64 KiB at d = 256: v2 moves about 12 / 10 of what matmuls at their own best heights do."""
    N, d, R = 4096, 256, 64 * 1024
    tallest = [max(b for b in range(1, N) if need(b) <= R) for need in (
        lambda b: 2 * (b * d + d + b), lambda b: 4 * b * d + 2 * (b + d))]      # QKᵀ, then P V
    visits = sum(-(-N // b) for b in tallest)
    standard = 2 * (4 * N * N + 2 * N * d + visits * N * d)
    Br = max(b for b in range(1, N) if working_set_bytes("flash_v2", Br=b, Bc=1, d=d) <= R)
    v2 = traffic.flash_v2(Nq=N, Nk=N, d=d, Br=Br, Bc=1).hbm_bytes
    assert v2 / standard == pytest.approx(1.224, abs=5e-4)
    assert v2 / standard == pytest.approx(12 / (4 + 6), rel=0.03)


def test_the_three_maps_hold_the_counts_of_the_closed_forms():
    fig = ratio_maps(N=512, d=64, gpu="T4", sizes=(16, 64))
    texts = [[t.get_text() for t in ax.texts] for ax in fig.axes]
    shape = {"Nq": 512, "Nk": 512, "d": 64}
    v1, v2 = (form(**shape, Br=16, Bc=64).hbm_bytes for form in (traffic.flash_v1, traffic.flash_v2))
    ideal = traffic.standard_attention(**shape).hbm_bytes
    same = traffic.standard_attention(**shape, Br=16, Bc=64).hbm_bytes
    for shown, ratio in zip(texts, (v1 / ideal, v2 / ideal, v1 / same), strict=True):
        assert float(shown[1]) == pytest.approx(ratio, abs=0.05)
    assert "v1 / ideal: below 1 in 2 of 4 choices that fit" in alt_text(fig)


def test_the_film_shows_every_visit():
    machine = Machine()
    flash_v1(*np.ones((3, 4, 2)), Br=2, Bc=2, machine=machine)
    shown = figures.film(machine.trace, 4, title="two by two")
    assert shown.alt.startswith("two by two: 4 tiles of a 4 × 4 matrix are visited")
    with Image.open(io.BytesIO(shown.png)) as file:
        assert file.n_frames == 6                              # the still, four visits, the end
