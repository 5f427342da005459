"""The matmul lab and film: every choice draws, says the truth, and is red where it must be."""

import itertools

import numpy as np
import pytest

pytest.importorskip("matplotlib")

import flashlib as fl
from flashlib import hardware
from flashlib.course.ch02 import figures, thread_figures
from flashlib.course.ch02.lab import draw, matmul_lab
from flashlib.course.plots.theme import OVER, alt_text, human_bytes
from flashlib.models import traffic
from flashlib.models.matmul import matmul_tiles
from tests.course.choices import draw_choices


def words(fig):
    axes_texts = [t for ax in fig.axes for t in ax.texts]
    return {t.get_text(): t.get_color() for t in [*fig.texts, *axes_texts]}


def test_the_default_picture_says_what_the_closed_form_says():
    shown = words(draw(shape=(4096, 4096, 4096), gpu="A100"))
    size = dict(M=4096, N=4096, K=4096)
    cost = traffic.tiled_matmul(**size, Bm=128, Bn=128, Bk=32)
    naive = traffic.naive_matmul(**size)
    assert {f"these tiles, {human_bytes(cost.hbm_bytes)}",
            f"naive, {human_bytes(naive.hbm_bytes)}"} <= set(shown)
    assert f"{naive.hbm_bytes / cost.hbm_bytes:,.3g} times fewer bytes than naive" in shown
    assert (f"{cost.matmul_flops / cost.hbm_bytes:.3g} FLOP per byte, below HBM's ridge of 153: at full"
            " speed only if L2 answers a part") in shown
    assert "the tiles fit" in shown


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_the_verdict_turns_red_at_the_very_byte(over):
    need = sum(size for *_, size in matmul_tiles(96, 64, 32))
    pocket = hardware.GPU.custom("Pocket", sram_bytes=need - over, hbm_bytes_per_s=5e11,
                                 matmul_flops_per_s=5e13)
    shown = words(draw(Bm=96, Bn=64, Bk=32, shape=(4096, 4096, 4096), gpu=pocket))
    assert ("the tiles fit" in shown) == (over <= 0)
    assert (shown.get("does not fit: 1 B too many") == OVER) == (over == 1)


def test_tiles_larger_than_the_matrix_take_what_it_has():
    small = draw(Bm=512, Bn=512, Bk=256, shape=(8, 16, 4), gpu="T4")
    assert "the tiles fit" in words(small)


def test_a_tile_of_one_element_is_as_bad_as_naive():
    assert "as many bytes as naive" in words(draw(Bm=1, Bn=1, Bk=1, shape=(64, 64, 64)))


def test_it_opens_on_the_product_where_no_tile_helps_and_its_axis_stays():
    assert any("no tile reaches it" in text for text in words(draw()))
    assert draw().axes[0].get_xscale() == "linear"                      # naive moves but twice as much
    limits = {draw(Bm=b, shape=(4096, 4096, 4096)).axes[0].get_xlim() for b in (1, 16, 512)}
    assert len(limits) == 1
    large = words(draw(Bm=512, Bn=512, shape=(4096, 4096, 4096), gpu="A100"))
    assert any("HBM alone could feed it" in text for text in large)


def test_every_control_draws():
    lab = matmul_lab()
    assert set(draw_choices(lab)) == set(lab.controls)


@pytest.mark.parametrize("corner", [{"Bm": 1, "Bn": 1, "Bk": 1}, {"Bm": 512, "Bn": 512, "Bk": 256},
                                    {"Bm": 1, "Bn": 512, "Bk": 1}])
def test_the_corners_draw_too(corner):
    lab = matmul_lab()
    shapes = [value for _, value in lab.controls["shape"].options]
    for shape, gpu in itertools.product(shapes, ("T4", "B200")):
        assert alt_text(lab.figure(**corner, shape=shape, gpu=gpu))


def test_it_opens_with_a_gpu_a_shape_and_sizes_of_the_readers_own():
    pocket = hardware.GPU.custom("Pocket", sram_bytes=24_000, hbm_bytes_per_s=5e11,
                                 matmul_flops_per_s=5e13)
    lab = matmul_lab(Bm=20, Bn=24, Bk=5, shape=(100, 200, 300), gpu=pocket)
    assert "100 × 300 times 300 × 200 on Pocket" in alt_text(lab.figure())
    for wrong in ({"Bm": 0}, {"Bk": 7}, {"gpu": "abacus"}, {"shape": "a circle"}):
        with pytest.raises(ValueError, match="expected one of"):
            lab.set(**wrong)


@pytest.fixture
def machine():
    machine = fl.Machine(sram_bytes=2048)
    rng = np.random.default_rng(0)
    fl.tiled_matmul(rng.normal(size=(20, 12)), rng.normal(size=(12, 28)), Bm=8, Bn=7, Bk=7,
                    machine=machine)
    return machine


def test_the_film_says_how_often_tiles_were_loaded_and_shows_every_step(machine):
    naive = traffic.naive_matmul(M=20, N=28, K=12)
    film = figures.film(machine.trace, 20, 28, 12, naive=naive, sram_bytes=2048)
    assert "a tile of A was loaded 4 times and a tile of B 3 times" in film.alt
    assert "in 24 steps" in film.alt                # tiles of C times steps along K
    assert f"and {human_bytes(machine.traffic.hbm_bytes)} moved" in film.alt
    fig = figures.matmul_visits(machine.trace, 20, 28, 12, naive=naive)
    times = {t.get_text() for ax in fig.axes for t in ax.texts if t.get_gid() == "times"}
    assert times == {"3", "4"}                     # ⌈20/8⌉ rows of tiles, ⌈28/7⌉ columns of them
    assert human_bytes(naive.hbm_bytes) in words(fig)


def test_intensity_names_ridges_and_tiles():
    fig = figures.intensity_by_tile([1, 2, 4, 8], [0.5, 1, 2, 4], {2: 1.0},
                                    ("T4", 3.0, 4), band=("L2", 1.5, 2.5),
                                    recorded=("a kernel", 6, 3.1), title="none fits")
    assert "T4: ridge of HBM 3, SRAM full at b = 4, reached at b = 8." in alt_text(fig)
    assert "L2: 2 to 2. a kernel: 3 at 6." in alt_text(fig)
    assert {"T4, HBM: 3", "a kernel: 3", "L2", "b = 8 would reach it"} <= set(words(fig))
    high = figures.intensity_by_tile([1, 2, 4, 8], [0.5, 1, 2, 4], {2: 1.0}, ("H100", 9.0, 6),
                                     band=("L2", 1.5, 2.5), recorded=("a kernel", 6, 3.1))
    circles = [[list(line.get_xdata()) for line in f.axes[0].lines if line.get_gid() == "needed"]
               for f in (fig, high)]
    assert circles == [[[8]], []] and "reached" not in alt_text(high)


def test_what_is_asked_for_and_what_arrives_stand_where_they_belong():
    fig = figures.asked_and_arrived([("a cache helps", 8e9, 2e9, 0.5), ("a tile", 2e9, 2e9, 0.25)],
                                    title="one title")
    assert "a cache helps: 8 GB asked for, 2 GB arrived, 500 ms" in alt_text(fig)
    points = {line.get_gid(): list(line.get_xdata()) for line in fig.axes[0].lines if line.get_gid()}
    assert points["asked a cache helps"] == [8e9] and points["arrived a cache helps"] == [2e9]
    said = [t.get_text() for t in fig.axes[0].texts]
    assert said.count("8 GB") == 1 and said.count("2 GB") == 2          # "asked" is not said twice


def test_the_hierarchy_counts_its_parts_and_refuses_what_does_not_divide():
    text = alt_text(thread_figures.launch_hierarchy((512, 512), (128, 128), (32, 64), (8, 8)))
    assert "16 blocks" in text and "8 warps" in text and "32 threads" in text
    with pytest.raises(ValueError, match="expected a size that divides"):
        thread_figures.launch_hierarchy((512, 512), (100, 128), (32, 64), (8, 8))


def test_lines_and_banks_are_those_of_the_model():
    lane = np.arange(32)
    text = alt_text(thread_figures.coalescing({"row": 4 * lane, "column": 256 * lane}, row_bytes=256,
                                              rows=32))
    assert "row: lines 1, sectors 4, bytes used 128" in text
    assert "column: lines 32, sectors 32, bytes used 128" in text
    text = alt_text(thread_figures.banks({"column": (128 * lane, 32), "padded": (132 * lane, 33)}))
    assert "column: passes 32, banks at work 1" in text
    assert "padded: passes 1, banks at work 32" in text
