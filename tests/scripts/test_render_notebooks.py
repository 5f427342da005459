import argparse

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from scripts import render_notebooks as render

PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
)


def save(path, *cells):
    notebook = new_notebook(
        cells=[new_code_cell(cell) if isinstance(cell, str) else cell for cell in cells]
    )
    nbformat.write(notebook, path)
    return path


def options(**changed):
    return argparse.Namespace(**{**vars(render.parse([])), **changed})


def rendered(path):
    render.process(path, options())
    return path


def edit(path, change):
    notebook = render.read(path)
    change(notebook)
    nbformat.write(notebook, path)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "90_try_it.ipynb"


class TestRendering:
    def test_keeps_outputs_and_passes_its_own_check(self, path):
        rendered(save(path, "print('hello')", "1 + 1", new_markdown_cell("text")))
        notebook = render.read(path)
        assert notebook.cells[0].outputs[0].text == "hello\n"
        assert notebook.cells[1].outputs[0].data == {"text/plain": "2"}
        render.process(path, options(check=True))

    def test_twice_gives_the_same_bytes(self, path):
        figure = "import matplotlib.pyplot as plt\n_ = plt.plot([1, 2])"
        save(path, "for i in range(3): print(i)", "{'b', 'a', 'c'}", "hash('x')", figure)
        first = rendered(path).read_bytes()
        assert rendered(path).read_bytes() == first
        assert b"image/png" in first

    def test_strips_noise(self, path):
        save(path, "1")
        edit(
            path,
            lambda nb: (
                nb.metadata.update(widgets={"x": 1}, kernelspec={"name": "mine"}, title="kept"),
                nb.cells[0].metadata.update(execution={"t": 1}, scrolled=True, tags=["volatile"]),
            ),
        )
        metadata = render.read(rendered(path)).metadata
        assert set(metadata) == {"kernelspec", "language_info", "flashlib", "title"}
        assert metadata.kernelspec.name == "python3"
        assert "version" not in metadata.language_info
        assert render.read(path).cells[0].metadata == {"tags": ["volatile"]}

    def test_a_widget_leaves_a_sentence_and_no_state(self, path):
        rendered(save(path, "import ipywidgets\nipywidgets.IntSlider()"))
        notebook = render.read(path)
        assert notebook.cells[0].outputs[0].data == {"text/plain": render.WIDGET_TEXT}
        assert "widgets" not in notebook.metadata

    def test_cell_ids_depend_on_their_own_source_only(self, path):
        before = [cell.id for cell in render.read(rendered(save(path, "1", "2", "1"))).cells]
        after = [cell.id for cell in render.read(rendered(save(path, "1", "3", "2", "1"))).cells]
        assert len(set(before)) == 3
        assert before == [after[0], after[2], after[3]]

    @pytest.mark.parametrize(
        "bad",
        ["1 / 0", "import sys; print('x', file=sys.stderr)", "import warnings; warnings.warn('x')"],
    )
    def test_a_failure_leaves_the_file_alone(self, path, bad):
        before = save(path, "print(1)", bad).read_bytes()
        with pytest.raises(render.NotebookError):
            rendered(path)
        assert path.read_bytes() == before

    def test_an_expected_exception_is_still_an_error_output(self, path):
        save(path, new_code_cell("1 / 0", metadata={"tags": ["raises-exception"]}))
        with pytest.raises(render.NotebookError, match="cell 0 ends in ZeroDivisionError"):
            rendered(path)

    def test_a_cell_that_hangs_is_stopped(self, path):
        save(path, "import time; time.sleep(60)")
        with pytest.raises(render.NotebookError, match=r"longer than it may: .* after 1 seconds"):
            render.process(path, options(timeout=1))

    def test_a_sweep_of_many_pictures_has_longer_than_a_cell(self, path, monkeypatch):
        monkeypatch.setattr(render, "SWEEP", "import time; time.sleep(3)")
        save(path, "1")
        assert render.execute(render.read(path), cwd=path.parent, sweep=True, timeout=2)
        monkeypatch.setattr(render, "SWEEP_TIMEOUT_S", 1)
        with pytest.raises(render.NotebookError, match=r"longer than it may: .* after 1 seconds"):
            render.execute(render.read(path), cwd=path.parent, sweep=True, timeout=2)

    def test_a_notebook_over_the_limit_is_refused(self, path, monkeypatch):
        monkeypatch.setattr(render, "SIZE_LIMIT_BYTES", 2000)
        save(path, "print('x' * 3000)")
        with pytest.raises(render.NotebookError, match="the limit is 2,000"):
            rendered(path)


class TestStale:
    def test_never_rendered(self, path):
        with pytest.raises(render.NotebookError, match="never rendered"):
            render.process(save(path, "1"), options(stale=True))

    def test_changed_code(self, path):
        rendered(save(path, "1"))
        render.process(path, options(stale=True))
        edit(path, lambda nb: nb.cells[0].update(source="2"))
        for mode in ("stale", "check"):
            with pytest.raises(render.NotebookError, match="changed after"):
                render.process(path, options(**{mode: True}))

    def test_changed_prose_is_not_stale(self, path):
        rendered(save(path, "1", new_markdown_cell("before")))
        edit(path, lambda nb: nb.cells[1].update(source="after"))
        render.process(path, options(stale=True))


class TestCheck:
    def test_an_output_that_no_longer_comes_is_named(self, path):
        rendered(save(path, "print('read', 1024, 'bytes')"))
        edit(path, lambda nb: nb.cells[0].outputs[0].update(text="read 1025 bytes\n"))
        with pytest.raises(render.NotebookError, match="cell 0 kept '1025' and now says '1024'"):
            render.process(path, options(check=True))

    def test_a_volatile_cell_is_not_compared(self, path):
        cell = new_code_cell("import time; time.time()", metadata={"tags": ["volatile"]})
        render.process(rendered(save(path, cell)), options(check=True))

    def test_an_image_is_not_compared(self, path):
        rendered(save(path, "import matplotlib.pyplot as plt\nplt.plot([1, 2]);"))
        edit(path, lambda nb: nb.cells[0].outputs[0].data.update({"image/png": PNG}))
        render.process(path, options(check=True))

    def test_absent_modules_look_absent(self, path):
        code = (
            "import importlib.util, importlib.metadata\n"
            "assert importlib.util.find_spec('tqdm') is None\n"
            "assert importlib.util.find_spec('tqdm.auto'.split('.')[0]) is None\n"
            "try:\n    import tqdm\nexcept ModuleNotFoundError: print('absent')\n"
            "try:\n    importlib.metadata.version('tqdm')\n"
            "except importlib.metadata.PackageNotFoundError: print('absent')\n"
            "import numpy, importlib.metadata as m; m.version('numpy')"
        )
        fresh = render.execute(
            render.read(save(path, code)), cwd=path.parent, without=("tqdm", "torch")
        )
        assert fresh.cells[0].outputs[0].text == "absent\nabsent\n"

    def test_a_module_that_is_never_asked_for(self, path):
        save(path, "import numpy, json; print('all the same')")
        notebook = render.read(path)
        fresh = render.execute(notebook, cwd=path.parent, never=("tqdm", "torch"))
        assert fresh.cells[0].outputs[0].text == "all the same\n"
        save(path, "try:\n    import tqdm.auto\nexcept ModuleNotFoundError: pass")
        with pytest.raises(render.NotebookError, match="writes to stderr: asks for tqdm"):
            render.execute(render.read(path), cwd=path.parent, never=("tqdm", "torch"))

    def test_another_working_directory(self, path, tmp_path):
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        save(path, "import os; print(os.path.basename(os.getcwd()))")
        fresh = render.execute(render.read(path), cwd=elsewhere)
        assert fresh.cells[0].outputs[0].text == "elsewhere\n"

    def test_the_sweep_cell_leaves_no_trace(self, path, monkeypatch):
        monkeypatch.setattr(render, "SWEEP", "print('swept')")
        rendered(save(path, "1"))
        render.process(path, options(check=True, sweep=True))

    def test_an_error_in_the_sweep_fails(self, path, monkeypatch):
        monkeypatch.setattr(render, "SWEEP", "raise ValueError('a callback failed')")
        rendered(save(path, "1"))
        with pytest.raises(render.NotebookError, match="a callback failed"):
            render.process(path, options(check=True, sweep=True))

    def test_a_control_that_no_sweep_finds_fails(self, path):
        save(path, "import ipywidgets\nipywidgets.IntSlider()")
        with pytest.raises(render.NotebookError, match="no widget was alive"):
            render.execute(render.read(path), cwd=path.parent, sweep=True)


@pytest.mark.parametrize(
    ("was", "comes", "same"),
    [
        ("1,024 bytes", "1,024 bytes", True),
        ("1,024 bytes", "1,025 bytes", False),
        ("error 2.2e-16", "error 4.4e-16", True),
        ("ratio 3.1416", "ratio 3.1417", True),
        ("ratio 3.14", "ratio 3.24", False),
        ("a  b", "a b", True),
        ("a b", "a c", False),
        ("a b", "a b c", False),
        ("<f at 0x7f0011223344>", "<f at 0x7f9911223355>", True),
    ],
)
def test_texts_agree(was, comes, same):
    assert (render._text_difference(was, comes) is None) == same


def test_html_is_compared_by_what_it_says():
    def cell(markup):
        return new_code_cell(
            "x", outputs=[new_output("display_data", data={"text/html": markup})]
        )

    def difference(a, b):
        return render.compare(new_notebook(cells=[cell(a)]), new_notebook(cells=[cell(b)]))

    assert difference("<td class=a>1</td>", "<td class=b>1</td>") is None
    assert "'1' and now says '2'" in difference("<td>1</td>", "<td>2</td>")


class TestCommandLine:
    def test_counts_and_exit_code(self, path, capsys):
        other = save(path.with_name("91_break_it.ipynb"), "1 / 0")
        assert render.main([str(save(path, "1"))]) == 0
        assert render.main([str(path), str(other)]) == 1
        said = capsys.readouterr().out
        assert "ZeroDivisionError" in said
        assert said.endswith("notebooks: 1 rendered, 1 failed\n")
        assert render.main(["--stale", str(path)]) == 0

    def test_names_are_beginnings(self, path, tmp_path):
        save(path, "1")
        assert render.select(["90"], tmp_path) == [path]
        with pytest.raises(SystemExit, match="No notebook called 17"):
            render.select(["17"], tmp_path)

    def test_rendering_without_a_module_is_refused(self, capsys):
        with pytest.raises(SystemExit):
            render.parse(["--without", "torch"])
        assert "goes with --check" in capsys.readouterr().err
