"""Without Triton a notebook gets stand-ins, one sentence, and the outputs that the course recorded."""

import json

import pytest

from flashlib.course.notebook import without_triton


@pytest.fixture
def absent(monkeypatch, tmp_path):
    cell = {"cell_type": "code", "source": ["# needs Triton\n", "run()"], "outputs": [
        {"output_type": "stream", "name": "stdout", "text": ["recorded ", "text\n"]}]}
    (tmp_path / "09_x.ipynb").write_text(json.dumps({"cells": [cell]}))
    monkeypatch.setattr(without_triton, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(without_triton, "_recorded", {})
    monkeypatch.setattr(without_triton, "_replayed", set())
    monkeypatch.setattr(without_triton.importlib.util, "find_spec",
                        lambda name: None if name in ("torch", "triton") else object())


def test_stand_ins_name_what_is_missing(absent, capsys):
    torch, triton, tl = without_triton.import_triton("09_x")
    out = capsys.readouterr().out
    assert out.count("\n") == 1 and "torch and triton cannot be imported here" in out
    assert tl.constexpr and tl.float32
    assert triton.jit(test_stand_ins_name_what_is_missing) is test_stand_ins_name_what_is_missing
    with pytest.raises(NotImplementedError, match="cannot be imported"):
        torch.zeros(3)


def test_cells_that_need_triton_show_what_was_recorded(absent, capsys):
    without_triton.replay("09_x")
    capsys.readouterr()
    assert without_triton._redirect(["x = 1\n"]) == ["x = 1\n"]
    (line,) = without_triton._redirect(["# needs Triton\n", "run()\n"])
    exec(line)
    assert capsys.readouterr().out == "recorded text\n"
    (line,) = without_triton._redirect(["# needs Triton\n", "edited()\n"])
    exec(line)
    assert "no output of it is recorded" in capsys.readouterr().out


def test_a_notebook_that_is_not_there_is_no_error(absent, capsys):
    without_triton.replay("10_nothing")
    assert "recorded" in capsys.readouterr().out


def test_cells_that_need_torch_only_run_where_it_is(monkeypatch, capsys):
    monkeypatch.setattr(without_triton, "_replayed", set())
    monkeypatch.setattr(without_triton.importlib.util, "find_spec",
                        lambda name: None if name == "torch" else object())
    torch = without_triton.import_torch("16_nothing")
    out = capsys.readouterr().out
    assert out.startswith("torch cannot be imported here (") and "'# needs torch'" in out
    with pytest.raises(NotImplementedError):
        torch.zeros(3)
    assert without_triton._redirect(["# needs torch\n"]) != ["# needs torch\n"]
    assert without_triton._redirect(["# needs Triton\n"]) == ["# needs Triton\n"]
