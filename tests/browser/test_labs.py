"""The labs in JupyterLab in a real browser: they run, say what they are, and follow the keyboard.

`make test-browser`; the screenshots are kept under build/browser/.
"""

from statistics import median

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from scripts.render_notebooks import KERNEL_METADATA
from tests.labs import LABS, with_labs_alone

WINDOWS = [(1366, 768), (1440, 900), (1920, 1080)]
LEAST = 560

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module", params=LABS, ids=lambda path: path.stem)
def notebook(request, open_notebook, tmp_path_factory):
    """A chapter: the first as it is; of the others, which are executed elsewhere, the labs alone."""
    path = request.param
    if path != LABS[0]:
        path = tmp_path_factory.mktemp("labs") / path.name
        nbformat.write(with_labs_alone(nbformat.read(request.param, as_version=4)), path)
    with open_notebook(path) as opened:
        yield opened


def test_it_runs_and_shows_its_labs(notebook):
    print(f"opened and run in {notebook.run_s:.1f} s")
    assert notebook.errors() == []
    labs = list(notebook.labs())
    assert labs
    for lab in labs:
        assert lab.controls() and not lab.strangers() and not lab.alerts()


def test_every_control_says_what_it_is(notebook):
    for lab in notebook.labs():
        assert lab.alt(), "nothing says what the picture shows"
        for kind, control in lab.controls():
            label = lab.label(kind, control)
            assert label.is_visible() and label.inner_text().strip(), f"a {kind} without a name"
            name = label.inner_text()
            cut = label.evaluate("e => e.scrollWidth > e.clientWidth + 1")
            assert not cut, f"{name} ({kind}): its name is cut off"
            assert lab.tooltip(control), f"{name} ({kind}): no tooltip"
            assert lab.shows_a_choice(kind, control), f"{name} ({kind}): nothing is chosen"


@pytest.mark.parametrize("width, height", WINDOWS)
def test_controls_and_a_sharp_picture_are_on_screen_together(notebook, width, height):
    notebook.resize(width, height)
    for lab in notebook.labs():
        found = lab.sizes()
        print(f"{lab.name} at {width}×{height}: {found}")
        lab.keep_picture(f"window-{width}")
        assert found["lab"] <= found["room"]
        assert found["drawn"] >= 2 * found["shown"], "a screen with two dots a pixel shows it blurred"
        assert found["shown"] >= LEAST, "too small to read"
        assert found["shape"] == pytest.approx(found["drawn_shape"], abs=0.01)


def test_every_control_draws_another_picture(notebook):
    for lab in notebook.labs():
        lab.keep_picture("default")
        seconds = {}
        for number, (kind, control) in enumerate(lab.controls()):
            seconds.setdefault(kind, []).append(lab.move(kind, control))
            lab.keep_picture(f"{number}-{kind}")
        for kind, each in seconds.items():
            print(f"{lab.name}: {len(each)} {kind}, {1e3 * median(each):.0f} ms to a picture")
    assert notebook.errors() == []


def test_a_saved_lab_still_shows_when_its_notebook_is_opened_again(open_notebook, tmp_path):
    path = tmp_path / "98_sleep_and_wake.ipynb"
    cells = [new_code_cell("from flashlib.course.ch06 import lab\nlab.block_lab()")]
    nbformat.write(new_notebook(cells=cells, metadata=KERNEL_METADATA), path)
    with open_notebook(path) as notebook:
        notebook.save()
        notebook.end_kernel()
        notebook.open()
        root = notebook.page.locator(".jp-Notebook .flashlib-lab")
        root.locator("img.widget-image").wait_for(state="visible")
        assert root.locator(".widget-slider").count() == 4
        assert root.locator("img.widget-image").evaluate("e => e.naturalWidth") > 0
        assert "Error displaying widget" not in notebook.page.locator(".jp-Notebook").inner_text()


BROKEN = """
import flashlib as fl
from flashlib.course.widgets import base

def broken(rows, still, loud):
    if rows == 2:
        raise ZeroDivisionError("two rows are too many")
    return fl.plots.show(Q=[[float(rows + loud)]])

lab = fl.widgets.Lab("broken", {
    "rows": base.choice([1, 2], 1, "rows"),
    "still": base.choice([1, 2], 1, "still", kind="dropdown"),
    "loud": base.choice([1, 2], 1, "loud", kind="toggle"),
}, broken)

def listen(change):
    raise KeyError("a callback of its own")

lab.widget, lab._handles["loud"].observe(listen, names="value")
lab
"""


def test_a_broken_lab_is_noticed(open_notebook, tmp_path):
    path = tmp_path / "99_break_a_lab.ipynb"
    cells = [new_code_cell(BROKEN), new_code_cell("1 / 0")]
    nbformat.write(new_notebook(cells=cells, metadata=KERNEL_METADATA), path)
    with open_notebook(path) as notebook:
        assert any("ZeroDivisionError: division by zero" in error for error in notebook.errors())
        (lab,) = notebook.labs()
        moves = {kind: control for kind, control in lab.controls()}
        with pytest.raises(AssertionError, match=r"still .*: no other picture came"):
            lab.move("dropdown", moves["dropdown"], picture_s=3)
        lab.move("toggle", moves["toggle"])
        for _ in range(50):                                 # the picture may come before the message
            if any("a callback of its own" in error for error in notebook.errors()):
                break
            notebook.page.wait_for_timeout(100)
        assert any("a callback of its own" in error for error in notebook.errors())
        with pytest.raises(AssertionError, match=r"rows .*: .*two rows are too many"):
            lab.move("slider", moves["slider"])
        notebook.page.evaluate("() => { setTimeout(() => { throw new Error('in the page') }) }")
        notebook.page.wait_for_timeout(200)
        assert any("page: " in error and "in the page" in error for error in notebook.errors())
