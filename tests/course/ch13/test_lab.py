"""The FP8 lab draws every choice, and its bars are the model's errors."""

import functools

import numpy as np
import pytest

pytest.importorskip("ipywidgets")
pytest.importorskip("ml_dtypes")

from flashlib import quant
from flashlib.course.ch13 import lab as module
from flashlib.course.ch13.lab import fp8_lab
from flashlib.course.widgets import base
from flashlib.models import fp8
from tests.course.choices import draw_choices


@pytest.fixture(autouse=True)
def no_other_widgets():
    kept = dict(base.LIVE)
    base.LIVE.clear()
    yield
    base.LIVE.clear()
    base.LIVE.update(kept)


def test_every_control_draws(monkeypatch):
    monkeypatch.setattr(module, "DRAWS", 1)                 # of four: this test is about what draws
    monkeypatch.setattr(module, "errors_of", functools.cache(module.errors_of.__wrapped__))
    lab = fp8_lab()
    assert set(draw_choices(lab)) == set(lab.controls)


def test_the_figure_says_what_the_bits_and_the_errors_are(monkeypatch):
    monkeypatch.setattr(module, "DRAWS", 1)
    monkeypatch.setattr(module, "errors_of", module.errors_of.__wrapped__)
    figure = fp8_lab().figure(value=-17.0, scale=1.0, size=30.0)
    bits = quant.fields(-17.0)
    assert bits.bits in figure._alt and "outliers of size 30 in 0.10%" in figure._alt
    rng = np.random.default_rng(0)
    p = fp8.problem(*(fp8.outliers((4096, 64), size=30.0, seed=rng) for _ in range(3)), rows=64, seed=0)
    error = fp8.error(p, fp8.Recipe("", "e4m3", module.BLOCK, True), seed=0)
    assert f"block scales, rotated: {error:.2e}" in figure._alt
    weight = float(np.median(p.P.max(axis=1)))
    assert f"largest weight P of a row, median: {weight:.2g}" in [t.get_text() for t in figure.texts]


def test_it_shows_what_the_chapter_says_and_no_bar_leaves_the_axis():
    """Rotation gains twofold by itself, blocks add nothing to it; without outliers neither gains."""
    def gains(**choice):
        rows, _ = module.errors_of(**{"fmt": "e4m3", "rate": 0.001, "size": 10.0, **choice})
        errors = {row["recipe"]: row["rmse"] for row in rows}
        return {name: errors["one scale"] / e for name, e in errors.items()}

    shown = gains()
    assert shown["one scale, rotated"] > 2 and shown["one scale, rotated"] > 1.3 * shown["block scales"]
    assert shown["block scales, rotated"] == pytest.approx(shown["one scale, rotated"], rel=0.05)
    assert all(gain == pytest.approx(1, rel=0.05) for name, gain in gains(rate=0.0).items()
               if name != "float16")
    most = [gain for rate in (0.001, 0.03) for gain in gains(rate=rate, size=1000.0).values()]
    assert min(most) > 1 / 1.3


@pytest.mark.parametrize("x", [-448.0, 448.0, 0.0, 1e6, 0.3])
def test_the_neighbors_are_values_of_the_format(x):
    near = module._near(x, "e4m3")
    assert len(near) == 2 * module.AROUND and set(near) <= set(quant.values())
    assert (near[0] <= x <= near[-1]) or abs(x) > 448


def test_a_value_of_your_own_is_added():
    lab = fp8_lab(value=123.0)
    assert 123.0 in [value for _, value in lab.controls["value"].options]
    assert "123" in lab.figure()._alt
