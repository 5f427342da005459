"""The sweep of labs, which sets each control to each option, and which notebooks have a lab.

The notebooks themselves are swept by `scripts/render_notebooks.py --check --sweep`, which .ci/run runs.
How long a redraw takes, `make bench-course` measures.
"""

import json
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from flashlib.course.bench import course
from scripts import render_notebooks as render
from tests import labs

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def kernels_import_this_checkout(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=":")


def sweep(notebook, cwd):
    """Execute a notebook and sweep its widgets; return (widget, control, option, seconds)."""
    probed = nbformat.from_dict(notebook)
    probed.cells.append(new_code_cell(course.PROBE))
    printed = "".join(o.get("text", "") for o in render.execute(probed, cwd=cwd).cells[-1].outputs)
    return json.loads(printed.rpartition("PROBE")[2])["redraws"]


LAB = """
from flashlib import plots, widgets
from flashlib.course.widgets import base

def draw(rows):
    return plots.show(Q=[[6.0 / {divisor}]])

lab = widgets.Lab("seeded", {{"rows": base.choice([1, 2, 3], 1, "rows")}}, draw)
lab
"""


@pytest.mark.parametrize("divisor, failure", [
    ("rows", None),
    ("(rows - 2)", "widget 'seeded', control 'rows', option 2: ZeroDivisionError"),
], ids=["whole", "broken"])
def test_a_widget_that_breaks_at_one_option_fails_the_sweep(divisor, failure, tmp_path):
    notebook = new_notebook(cells=[new_code_cell(LAB.format(divisor=divisor))])
    assert labs.makes_a_widget(notebook)
    if failure is None:
        assert [option for *_, option, _ in sweep(notebook, tmp_path)] == ["1", "2", "3"]
        return
    with pytest.raises(render.NotebookError) as caught:
        sweep(notebook, tmp_path)
    assert failure in str(caught.value)


@pytest.mark.parametrize("source, expected", [
    ("import flashlib as fl\nfl.widgets.play(trace, 8, 8)", True),
    ("from flashlib.course.ch99 import lab\nmine = lab.some_future_lab(N=4)", True),
    ("from flashlib import widgets\nwidgets.play(trace, 8, 8)", True),
    ("from flashlib import widgets as w\nw.Lab('name', {}, draw)", True),
    ("from flashlib.course.ch06.lab import block_lab as mine\nmine()", True),
    ("from flashlib.course.ch04.lab import picture, softmax_steps\nsoftmax_steps()", True),
    ("from flashlib.course.ch04.lab import picture, softmax_steps\npicture()", False),
    ("from flashlib.course.ch04 import lab\nlab.walk(x)", False),
    ("from flashlib import widgets\nwidgets.sweep()", False),
    ("import flashlib as fl\nfl.flash_v2(Q, K, V)", False),
    ("%matplotlib inline\nplay()", False),
])
def test_labs_are_found_in_the_code(source, expected):
    assert labs.makes_a_widget(new_notebook(cells=[new_code_cell(source)])) is expected


def test_some_notebook_has_a_lab():
    assert labs.LABS


@pytest.mark.parametrize("path", labs.NOTEBOOKS, ids=lambda path: path.stem)
def test_what_shows_a_control_was_found_in_the_code_and_is_one_that_sweep_knows(path):
    notebook = render.read(path)
    assert labs.makes_a_widget(notebook) or not labs.shows_a_widget(notebook)
    assert not labs.imports(notebook) & {"ipywidgets", "anywidget"}


def test_the_bench_of_the_course_says_what_it_measures(capsys):
    with pytest.raises(SystemExit) as end:
        course.main(["--help"])
    assert end.value.code == 0 and "peak memory of every" in " ".join(capsys.readouterr().out.split())


def test_with_labs_alone_code_stays_where_a_control_is_made_and_what_it_needs():
    sources = ["import flashlib as fl\nfrom flashlib import plots", "n = 4", "plots.show(Q=[[n]])",
               "m = n + 1", "fl.widgets.play(m)", "n = 5"]
    notebook = new_notebook(cells=[new_code_cell(source) for source in sources])
    control = {"text/plain": render.WIDGET_TEXT}
    notebook.cells[4].outputs = [nbformat.v4.new_output("display_data", control)]
    kept = labs.with_labs_alone(notebook)
    assert [cell.source for cell in kept.cells] == [*sources[:2], "", *sources[3:5], ""]
    assert [cell.source for cell in notebook.cells] == sources
