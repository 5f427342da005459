import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import flashlib
from flashlib import plots, widgets
from flashlib.course.widgets import base

pytest.importorskip("ipywidgets")

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def no_other_widgets():
    kept = dict(base.LIVE)
    base.LIVE.clear()
    yield
    base.LIVE.clear()
    base.LIVE.update(kept)
    gc.collect()


def picture(**values):
    return plots.show(Q=np.array([[float(v) for v in values.values()]]))


def lab(draw=picture, **kinds):
    kinds = kinds or {"Br": "slider", "Bc": "dropdown"}
    return base.Lab("lab", {key: base.choice([1, 2, 3], 2, f"{key}, rows", kind=kind)
                            for key, kind in kinds.items()}, draw)


@pytest.mark.parametrize("kind", ["slider", "dropdown", "toggle", "play"])
def test_every_control_has_a_name_and_redraws(kind):
    one = lab(Br=kind)
    handle = one.widget and one._handles["Br"]
    assert "Br, rows" in handle.description and handle.tooltip
    before = one._image.value
    one.set(Br=3)
    assert one.values == {"Br": 3} and one._image.value != before


@pytest.mark.parametrize("kind", ["slider", "dropdown", "toggle", "play"])
def test_an_option_may_be_none(kind):
    control = base.choice([("that of the GPU", None), ("16", 16)], None, "SRAM", kind=kind)
    one = base.Lab("lab", {"sram_bytes": control}, lambda sram_bytes: picture(a=sram_bytes or 0))
    handle = one.widget and one._handles["sram_bytes"]
    assert handle.value == 0, "None would show as no choice at all"
    one.set(sram_bytes=16)
    assert one.values == {"sram_bytes": 16} and handle.value == 1
    one.set(sram_bytes=None)
    assert one.values == {"sram_bytes": None}


def test_the_default_picture_is_the_static_one():
    one = lab()
    _ = one.widget
    assert one.figure().png(base._DPI, fast=True) == one._image.value
    assert one.values == {"Br": 2, "Bc": 2}
    assert one.figure(Br=1)._alt


def test_sweep_sets_every_control_to_every_option():
    seen = []

    def draw(**values):
        seen.append(values)
        return picture(**values)

    one = lab(draw)
    rows = widgets.sweep()
    assert [(r.widget, r.control, r.option) for r in rows] == [
        ("lab", key, option) for key in ("Br", "Bc") for option in (1, 2, 3)]
    assert all(r.seconds > 0 for r in rows)
    for values in ({"Br": b, "Bc": 2} for b in (1, 2, 3)):
        assert values in seen
    assert one.values == {"Br": 2, "Bc": 2}, "what the reader had chosen is back"


def test_sweep_names_what_fails_and_why():
    def draw(Br, Bc):
        if Bc == 3:
            raise ZeroDivisionError("three is too many")
        return picture(Br=Br)

    lab(draw)
    with pytest.raises(RuntimeError, match="'lab', control 'Bc', option 3: ZeroDivisionError") as e:
        widgets.sweep()
    assert isinstance(e.value.__cause__, ZeroDivisionError)
    assert not isinstance(e.value, ExceptionGroup)


def test_an_error_is_shown_and_not_swallowed():
    def draw(Br, Bc):
        if Br == 1:
            raise ValueError("Br: expected <more>")
        return picture(Br=Br)

    one = lab(draw)
    _ = one.widget
    one.set(Br=1)
    assert isinstance(one.error, ValueError)
    assert "Br = 1" in one._message.value and "&lt;more&gt;" in one._message.value
    assert one._image.layout.display == "none"
    one.set(Br=3)
    assert one.error is None and "ValueError" not in one._message.value
    assert one._image.layout.display is None


def test_a_later_widget_of_that_name_replaces_the_earlier():
    lab()
    second = lab()
    assert list(widgets.LIVE.values()) == [second]


def test_readers_without_a_kernel_get_a_sentence():
    data, _ = lab()._repr_mimebundle_()
    assert data["text/plain"] == base.FALLBACK
    assert "application/vnd.jupyter.widget-view+json" in data


def test_without_ipywidgets_there_is_a_picture_and_a_remedy(monkeypatch, capsys):
    monkeypatch.setattr(base, "ipywidgets", None)
    data, _ = lab()._repr_mimebundle_()
    assert "image/png" in data
    out = capsys.readouterr().out
    assert "pip install 'ipywidgets>=8.1'" in out and out.count("\n") == 1
    assert len(widgets.sweep()) == 6


def test_version_7_of_ipywidgets_is_as_good_as_none(tmp_path):
    """A stand-in with what our code would find there: widgets that cannot show themselves our way."""
    (tmp_path / "ipywidgets.py").write_text("class Widget: pass\nclass VBox(Widget): pass\n")
    code = ("from flashlib import plots, widgets; from flashlib.course.widgets.base import Lab, choice;"
            "lab = Lab('lab', {'a': choice([1, 2], 1, 'a')}, lambda a: plots.show(Q=[[float(a)]]));"
            "print(*lab._repr_mimebundle_()[0], [row.option for row in widgets.sweep()])")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "image/png" in done.stdout and "ipywidgets>=8.1" in done.stdout
    assert done.stdout.rstrip().endswith("[1, 2]")


def test_a_picture_has_two_dots_a_pixel_and_is_never_wider_than_drawn():
    one = lab()
    _ = one.widget
    drawn = int.from_bytes(one._image.value[16:20], "big")              # of the PNG's header
    width = one._image.layout.width
    assert f"min(100%, {drawn // 2}px, " in width
    assert one._image.layout.align_self == "flex-start"


def test_controls_with_long_texts_take_both_columns():
    long = base.choice(["x" * 60], "x" * 60, "head", kind="dropdown")
    one = base.Lab("lab", {"head": long, "a": base.choice([1], 1, "a"), "b": base.choice([1], 1, "b")},
                   lambda **_: picture(a=1))
    assert one.widget and one._lines == 2
    assert one._handles["head"].layout.grid_column == "1 / -1"
    assert one._handles["a"].layout.grid_column is None


@pytest.mark.parametrize("kwargs, message", [
    (dict(options=[1], default=2, description="x"), "default: expected one of"),
    (dict(options=[1], default=1, description=""), "description: expected"),
    (dict(options=[1], default=1, description="x", kind="knob"), "kind: expected one of"),
])
def test_a_wrong_control_is_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        base.choice(**kwargs)


def test_an_invalid_option_is_refused():
    with pytest.raises(ValueError, match="Br: expected one of"):
        lab().set(Br=99)


def traced(algorithm, **kwargs):
    Q, K, V = np.random.default_rng(0).normal(size=(3, 16, 4))
    machine = flashlib.Machine()
    algorithm(Q, K, V, machine=machine, **kwargs)
    return machine.trace


def test_the_player_has_a_frame_for_each_tile_and_the_end():
    trace = traced(flashlib.flash_v2, Br=8, Bc=4)
    player = widgets.play(trace, 16, 16)
    assert len(player.controls["frame"].options) == 9
    assert len(widgets.sweep()) == 9
    assert "8 of 8 tiles" in player.figure(frame=9)._alt


def test_the_player_replays_two_algorithms_side_by_side():
    traces = {"v1": traced(flashlib.flash_v1, Br=8, Bc=8),
              "v2": traced(flashlib.flash_v2, Br=8, Bc=8)}
    player = widgets.play(traces, 16, 16, start=2)
    assert "v1: 2 tiles visited" in player.figure()._alt
    widgets.sweep()


def test_importing_the_package_imports_neither_matplotlib_nor_ipywidgets():
    code = ("import sys, flashlib; flashlib.plots, flashlib.widgets;"
            "print([m for m in ('matplotlib', 'ipywidgets') if m in sys.modules])")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
