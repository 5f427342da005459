"""The figures of chapters 00 and 05 show what they are given."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from flashlib import hardware
from flashlib.course.ch00 import figures as ch00_figures
from flashlib.course.ch05 import figures as ch05_figures
from flashlib.course.notebook import chapters
from flashlib.course.plots import theme

BAND = to_rgb("#C5D5E4")


def texts(fig):
    return " ".join(t.get_text() for ax in fig.axes for t in ax.texts)


def test_course_map_names_every_chapter_and_marks_the_ready_ones():
    fig = ch00_figures.course_map(chapters.CHAPTERS, chapters.PARTS)
    shown = texts(fig).split()
    assert all(chapter.number in shown for chapter in chapters.CHAPTERS)
    alt = theme.alt_text(fig)
    assert all(c.number in alt for c in chapters.CHAPTERS if c.ready)
    boxes = [p for p in fig.axes[0].patches if hasattr(p, "get_boxstyle")]
    filled = [p for p in boxes if p.get_facecolor()[:3] != (1.0, 1.0, 1.0)]
    assert len(filled) == sum(c.ready for c in chapters.CHAPTERS)
    assert "or straight on" in " ".join(shown) and "from 00 straight on to 03" in alt


@pytest.mark.parametrize("name", ["A100", "H200", "T4"])
def test_memory_ladder_prints_the_sheet(name):
    gpu = hardware.get(name)
    fig = ch00_figures.memory_ladder(gpu)
    shown = texts(fig)
    assert str(gpu.hbm_bytes) in shown and str(gpu.shared_memory_per_sm_bytes) in shown
    assert str(gpu.hbm_bytes_per_s) in shown
    boxes = [r for r in fig.axes[0].patches if hasattr(r, "get_width")]
    wide, narrow = sorted((r.get_width() for r in boxes if r.get_facecolor()[:3] == BAND), reverse=True)
    clock = 64 if name == "T4" else 128
    assert wide / narrow == pytest.approx(clock * int(gpu.sms) * float(gpu.clock_hz)
                                          / float(gpu.hbm_bytes_per_s))
    dot = min(boxes, key=lambda r: r.get_width())
    field = next(r for r in boxes if r.get_hatch())
    assert (field.get_width() * field.get_height() / (dot.get_width() * dot.get_height()) ==
            pytest.approx(float(gpu.hbm_bytes) / (int(gpu.sms) * int(gpu.shared_memory_per_sm_bytes))))


def test_surprise_draws_bars_of_the_given_heights_and_their_ratio():
    fig = ch00_figures.surprise({"time": ("recorded", "s", {"standard": 4e-3, "flash_v2": 1e-3}),
                                 "bytes": ("counted", "B", {"standard": 1e9, "flash_v2": 1e7}),
                                 "arithmetic": ("counted", "FLOP", {"standard": 6, "flash_v2": 7})})
    heights = [[bar.get_height() for bar in ax.patches] for ax in fig.axes]
    assert heights == [[4e-3, 1e-3], [1e9, 1e7], [6, 7]]
    assert [ax.get_xlabel().split("\n")[0] for ax in fig.axes] == ["÷ 4.0", "÷ 100", "× 1.17"]
    assert "4.00 ms" in texts(fig)


def test_rescale_before_after_draws_the_seen_words_and_the_accumulator():
    words = ["a", "b", "c"]
    weights, o = [np.array([1.0]), np.array([0.5, 1.0])], [np.ones(4), np.arange(4.0)]
    fig = ch05_figures.rescale_before_after(words, weights, o, ["first", "second"], query="q")
    bars = [[bar.get_height() for bar in ax.containers[0]] for ax in fig.axes[::2]]
    assert bars == [[1.0], [0.5, 1.0]]
    assert [bar.get_width() for bar in fig.axes[3].containers[-1]] == [0, 1, 2, 3]
    assert "not read yet" in texts(fig)
