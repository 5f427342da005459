"""The FP8 lab draws every choice, and its bars are the model's errors."""

import numpy as np
import pytest

pytest.importorskip("ipywidgets")
pytest.importorskip("ml_dtypes")

from flashlib import quant
from flashlib.course.ch13 import lab as module
from flashlib.course.ch13.lab import fp8_lab
from flashlib.course.widgets import base
from flashlib.models import fp8
from tests.course.choices import draw_every_choice


@pytest.fixture(autouse=True)
def no_other_widgets():
    kept = dict(base.LIVE)
    base.LIVE.clear()
    yield
    base.LIVE.clear()
    base.LIVE.update(kept)


def test_every_control_draws_every_option():
    lab = fp8_lab()
    assert draw_every_choice(lab) == {key: len(c.options) for key, c in lab.controls.items()}


def test_the_figure_says_what_the_bits_and_the_errors_are():
    figure = fp8_lab().figure(value=-17.0, scale=1.0, size=30.0)
    bits = quant.fields(-17.0)
    assert bits.bits in figure._alt and "outliers of size 30 in 0.10%" in figure._alt
    p = module._problem(0.001, 30.0)
    error = fp8.error(p, fp8.Recipe("", "e4m3", module.BLOCK, True))
    assert f"block scales, rotated: {error:.2e}" in figure._alt
    weight = float(np.median(p.P.max(axis=1)))
    assert f"largest weight P of a row, median: {weight:.2f}" in [t.get_text() for t in figure.texts]


def test_without_outliers_a_rotation_gains_little_and_with_some_much():
    def gain(rate):
        errors = {row["recipe"]: row["rmse"] for row in module._errors("e4m3", rate, 10.0)}
        return errors["block scales"] / errors["block scales, rotated"]

    assert gain(0.0) == pytest.approx(1, abs=0.1) and gain(0.001) > 1.2


@pytest.mark.parametrize("x", [-448.0, 448.0, 0.0, 1e6, 0.3])
def test_the_neighbors_are_values_of_the_format(x):
    near = module._near(x, "e4m3")
    assert len(near) == 2 * module.AROUND and set(near) <= set(quant.values())
    assert (near[0] <= x <= near[-1]) or abs(x) > 448


def test_a_value_of_your_own_is_added():
    lab = fp8_lab(value=123.0)
    assert 123.0 in [value for _, value in lab.controls["value"].options]
    assert "123" in lab.figure()._alt
