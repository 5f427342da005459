import numpy as np
import pytest

import flashlib
from flashlib import plots
from flashlib.course.ch00 import figures
from flashlib.course.plots import matrices


def texts(ax):
    return [t.get_text() for t in ax.texts]


def cells(fig, name):
    return next(c for c in fig.axes[0].collections if c.get_gid() == f"cells {name}")


def test_every_cell_is_drawn_with_its_number():
    fig = plots.show(S=np.array([[1.0, -2.5], [0.0, -np.inf]]), m=np.array([1.0, 0.0]))
    assert len(cells(fig, "S").get_paths()) == 4
    assert {"1.0", "−2.5", "0", "−∞"} <= set(texts(fig.axes[0]))
    assert "2 × 2" in fig._alt


def test_strength_is_size_and_grey_is_negative():
    fig = plots.show(V=np.array([[0.0, 1.0, 2.0, -2.0]]))
    white, weak, strong, negative = cells(fig, "V").get_facecolors()[:, :3]
    assert white.tolist() == [1, 1, 1]
    assert weak.mean() > strong.mean()
    assert np.ptp(negative) < 1e-9


@pytest.mark.parametrize("cells_", [[(0, 1)], np.array([[False, True], [False, False]])])
def test_a_framed_cell_has_four_sides(cells_):
    fig = plots.show(P=np.eye(2), highlight={"P": cells_})
    (frame,) = [c for c in fig.axes[0].collections if "LineCollection" in type(c).__name__]
    assert len(frame.get_segments()) == 4


def test_neighbors_share_one_frame():
    fig = plots.show(P=np.eye(2), highlight=[(0, 0), (0, 1)])
    (frame,) = [c for c in fig.axes[0].collections if "LineCollection" in type(c).__name__]
    assert len(frame.get_segments()) == 6


def test_words_label_what_they_match():
    fig = plots.show(P=np.eye(2), rows=["a", "b"], cols=["one", "two"], x=np.ones(3))
    assert {"a", "b", "one", "two"} <= set(texts(fig.axes[0]))


def test_many_matrices_wrap_within_the_page():
    fig = plots.show(**{name: np.random.default_rng(0).normal(size=(6, 6)) for name in "QKVSP"})
    assert fig.get_figwidth() <= plots.WIDTH


def test_large_arrays_are_drawn_without_numbers():
    fig = plots.show(S=np.ones((40, 40)))
    assert texts(fig.axes[0]) == ["S", "40 × 40"]


@pytest.mark.parametrize("bad", [np.ones((2, 2, 2)), np.array(["a"])])
def test_what_is_no_matrix_is_refused(bad):
    with pytest.raises(ValueError, match="S: expected numbers"):
        plots.show(S=bad)


def test_nothing_to_show_is_an_error():
    with pytest.raises(ValueError, match="expected at least one"):
        plots.show()


def test_heatmap_carries_its_words():
    fig = figures.heatmap(np.eye(3), rows=["the", "cat", "sat"])
    labels = [t.get_text() for t in fig.axes[0].get_xticklabels()]
    assert labels == ["the", "cat", "sat"]
    assert "largest at query “the”" in fig._alt


def test_heatmap_counts_its_words():
    with pytest.raises(ValueError, match="rows: expected 3 labels, got 2"):
        figures.heatmap(np.eye(3), rows=["a", "b"])


class Shell:
    """What of an IPython shell the registration needs."""

    def __init__(self):
        from IPython.core.formatters import DisplayFormatter

        self.display_formatter = DisplayFormatter()


def test_small_arrays_and_tiles_show_themselves():
    pytest.importorskip("IPython")
    shell = Shell()
    plots.register_formatters(shell)
    png = shell.display_formatter.formatters["image/png"]
    assert png(np.eye(3)) is not None
    assert png(np.eye(13)) is None
    assert png(np.array(["a"])) is None
    machine = flashlib.Machine()
    Q = machine.hbm(Q=np.eye(3))
    with machine.kernel("k") as sram:
        tile = sram.load(Q)
        assert png(tile) is not None
    assert png(Q) is not None
    data, metadata = png(Q)
    assert data.startswith(b"\x89PNG") and metadata["width"] > 0
    assert png(tile) is None, "a freed tile has nothing to show"


def test_showing_a_tile_counts_nothing():
    machine = flashlib.Machine()
    Q = machine.hbm(Q=np.eye(3))
    with machine.kernel("k") as sram:
        tile = sram.load(Q)
        before = machine.traffic
        matrices._grid_png(tile)
        assert machine.traffic == before
