"""The figures of chapter 11 draw what they are given."""

import numpy as np
import pytest

from flashlib.course.ch11 import figures
from flashlib.course.plots import theme

SIZES = [32, 64]


def test_bytes_are_three_bars_a_program_and_said():
    reads = {"v2's order": (4e9, 3e9, 1e8), "mine": (2e9, 2e9, 2e9)}
    fig = figures.whose_bytes(reads, ("counted", "L2", "DRAM"))
    assert [bar.get_width() for bar in fig.axes[0].patches] == [4, 3, 0.1, 2, 2, 2]
    assert [bar.get_hatch() is not None for bar in fig.axes[0].patches] == [False, False, True] * 2
    texts = [text.get_text() for text in fig.axes[0].texts]
    assert texts[:4] == ["4.00 GB counted", "3.00 GB L2", "0.10 GB DRAM", "v2's order"]
    assert "v2's order: 4.00 GB counted, 3.00 GB L2, 0.10 GB DRAM; mine:" in theme.alt_text(fig)


def test_read_rates_are_in_terabytes_over_mebibytes():
    fig = figures.l2_rates({"loads": ([2**20, 2**24], [2e13, 1e13])}, l2_bytes=60 * 2**20,
                           dram_rate=4.8e12)
    line, size, sheet = fig.axes[0].lines
    assert line.get_xydata().tolist() == [[1, 20], [16, 10]]
    assert set(size.get_xdata()) == {60} and set(sheet.get_ydata()) == {4.8}
    assert "loads: 20.0 TB/s at 1 MiB, 10.0 at 16" in theme.alt_text(fig)


def test_time_maps_frame_the_best_and_hatch_what_has_no_time():
    seconds = np.array([[2e-3, np.nan], [np.inf, 1e-3]])
    fig = figures.time_maps({"measured": seconds}, SIZES, SIZES)
    texts = [text.get_text() for text in fig.axes[0].texts]
    assert texts == ["2.00", "1.00"]
    assert sum(patch.get_hatch() is not None for patch in fig.axes[0].patches) == 2
    assert "best 1.00 ms at 64×64" in theme.alt_text(fig)
    with pytest.raises(ValueError, match="maps: expected shape"):
        figures.time_maps({"measured": seconds[:1]}, SIZES, SIZES)


def test_scatter_agreement_and_curves_draw_every_series():
    pair = (np.array([1e-3, 2e-3]), np.array([2e-3, 3e-3]))
    fig = figures.predicted_scatter({"d = 64": {"a": pair}, "d = 128": {"a": pair, "b": pair}})
    assert [len(ax.lines) for ax in fig.axes] == [2, 3]
    fig = figures.agreement(("bytes", "L2"), {"x": [0.2, 0.8], "y": [0.1, 0.9]})
    assert "x from 0.20 to 0.80" in theme.alt_text(fig)
    fig = figures.tuning_curves({"p": {"guided": [1.2, 1.0], "random": [2.0, 1.5]}})
    assert "p, guided: 1.20 after one trial" in theme.alt_text(fig)
