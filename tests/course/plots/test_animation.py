"""An animation shows the pictures that it was given, small, slow enough, and the same each time."""

import base64
import importlib.util
import io
import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flashlib import plots
from flashlib.course.plots.animation import SHORTEST_S

SCRIPT = Path(__file__).parents[3] / "scripts" / "render_notebooks.py"


def picture(step, *, height=0.5):
    """Bars, as many as the step says, on a page that is the same each time."""
    fig = plots.figure(height, layout=None)
    fig.text(0.01, 0.4, "bars", fontsize=9)
    ax = fig.add_axes((0.1, 0, 0.9, 1))
    ax.axis("off")
    ax.bar(range(step), np.arange(step) + 1, color=plots.TENSOR_COLORS["S"])
    ax.set(xlim=(-1, 6), ylim=(0, 6))
    return fig


def film(steps=(1, 2, 3), **options):
    return plots.animate((picture(step) for step in steps), alt="Bars are added.", **options)


def frames(film):
    """(the pixels, seconds) of each frame, as a reader of PNG files composes them."""
    with Image.open(io.BytesIO(film.png)) as file:
        found = []
        for number in range(file.n_frames):
            file.seek(number)
            pixels = np.asarray(file.convert("RGB")).astype(int)
            found.append((pixels, file.info["duration"] / 1000))
        return found


def drawn(step):
    fig = picture(step)
    png = fig.png(2 * fig.dpi, fast=True)
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def test_it_opens_on_the_still_and_shows_every_picture_in_its_order():
    shown = frames(film(seconds=[0.5, 0.7, 9.0], rest=2.0, still=1))
    assert [seconds for _, seconds in shown] == pytest.approx([2.0, 0.5, 0.7, 2.0], abs=2e-3)
    for (pixels, _), step in zip(shown, (2, 1, 2, 3), strict=True):
        off = np.abs(pixels - drawn(step)).max(axis=-1)
        assert (pixels[0, 0] == 255).all() and np.mean(off > 24) < 1e-3
    assert all((a != b).any() for (a, _), (b, _) in pairwise(shown))


@pytest.mark.parametrize("colors", [2, 16, 255])
def test_a_few_colors_keep_the_areas_to_the_shade(colors):
    (pixels, _), *_ = frames(film(still=-1, colors=colors))
    exact = np.all(pixels == drawn(3), axis=-1)
    assert exact.mean() > (0.95 if colors > 2 else 0.5)


def test_pictures_that_are_equal_become_one_that_stands_longer():
    shown = frames(film((1, 2, 2, 3), seconds=0.5, rest=1.0))
    assert [seconds for _, seconds in shown] == pytest.approx([1.0, 0.5, 1.0, 1.0])
    assert len(frames(film((1,), rest=1.0))) == 1


def test_the_same_pictures_make_the_same_bytes():
    assert film().png == film().png


def test_a_frame_keeps_only_what_changed():
    still = picture(3)
    alone = len(still.png(2 * still.dpi))
    added = len(film((1, 2, 3)).png) - len(film((1, 3)).png)
    assert 0 < added < alone / 4


def test_it_ends_after_as_many_rounds_as_asked():
    png = film(loops=4).png
    assert struct.unpack(">II", png[png.index(b"acTL") + 4:][:8]) == (4, 4)


def test_it_shows_itself_at_the_width_of_its_pictures_with_its_alt_text():
    shown = film()
    data, metadata = shown._repr_mimebundle_()
    assert set(data) == {"image/png", "text/plain"}
    assert base64.b64decode(data["image/png"]) == shown.png
    assert metadata["image/png"] == {"width": 770, "alt": "Bars are added."}
    assert data["text/plain"] == "Bars are added."
    assert b"Bars are added." in shown.png


def test_a_rendered_notebook_keeps_it_as_it_is(tmp_path):
    import nbformat

    spec = importlib.util.spec_from_file_location("render_notebooks", SCRIPT)
    render = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(render)
    data, metadata = film()._repr_mimebundle_()
    output = nbformat.v4.new_output("execute_result", data, metadata=metadata, execution_count=1)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("film()", outputs=[output])])
    cleaned = render.clean(notebook)
    render.write(tmp_path / "one.ipynb", cleaned)
    [cell] = render.read(tmp_path / "one.ipynb").cells
    assert cell.outputs[0].data["image/png"].strip() == data["image/png"]
    assert cell.outputs[0].metadata == metadata
    assert render.compare(cleaned, notebook) is None


@pytest.mark.parametrize("options, message", [
    ({"seconds": 0.1}, "nothing flashes"), ({"rest": 0.1}, "nothing flashes"),
    ({"rest": 1e3}, "for each frame"), ({"colors": 256}, "colors: expected 2 to 255"),
    ({"still": 3}, "got 3 of 3"),
    ({"seconds": [1.0, 1.0]}, "seconds: expected one number or 3"),
    ({"loops": 0}, "loops: expected at least 1"),
    ({"most_bytes": 1000}, "most_bytes is 1,000"), ({"steps": ()}, "got -1 of 0")])
def test_what_does_not_fit_is_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        film(**options)


def test_pictures_of_two_sizes_and_a_missing_alt_text_are_refused():
    with pytest.raises(ValueError, match="expected one size"):
        plots.animate([picture(1), picture(1, height=0.6)], alt="Bars.")
    with pytest.raises(ValueError, match="alt: expected"):
        plots.animate([picture(1)], alt=" ")


def test_no_frame_is_shorter_than_a_third_of_a_second():
    assert SHORTEST_S >= 1 / 3
