"""The figures of chapter 11 draw what they are given."""

import numpy as np
import pytest

from flashlib.course.ch11 import figures
from flashlib.course.plots import theme

SIZES = [32, 64]


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
