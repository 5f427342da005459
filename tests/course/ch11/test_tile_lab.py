"""The block-size lab of chapter 11 draws what the model says, and nothing of its own."""

import pytest

from flashlib import hardware
from flashlib.course.ch11.lab import draw
from flashlib.course.plots.theme import OVER, alt_text
from flashlib.models import predict as model

SHAPE = {"batch": 4, "heads": 16, "N": 4096, "d": 128}


def written(fig):
    return {text.get_text(): text.get_color() for text in fig.texts}


def test_the_sentences_are_the_models():
    p = model.predict("H200", model.Config(128, 64, 4, 2), **SHAPE)
    shown = written(draw())
    assert f"128 × 64: {1e3 * p.time_s:.2f} ms, longest: {p.bound}" in shown
    assert shown[f"{p.registers} of 255 registers a thread: {p.spilled_words} spill"] == OVER
    assert shown["96 of 227 KiB of shared memory"] != OVER
    assert f"{p.per_sm} programs per SM, limited by {p.limit}" in shown
    assert f"{p.waves.waves} waves of {p.waves.slots}, the last holds {p.waves.last}" in shown


def test_the_map_holds_the_models_times_and_marks_the_best():
    fig = draw(64, 64, 8, 2, "A100")
    texts = {text.get_text() for text in fig.axes[0].texts}
    times = {(r, c): model.predict("A100", model.Config(r, c, 8, 2), **SHAPE).time_s
             for r in (32, 64, 128, 256) for c in (32, 64, 128, 256)}
    fitting = {tile: s for tile, s in times.items() if s < float("inf")}
    assert texts == {f"{1e3 * s:.2f}" for s in fitting.values()}
    best = [tile for tile, s in fitting.items() if s <= min(fitting.values()) * (1 + 1e-9)]
    assert len(best) == 2                   # a tie, and both are marked
    bold = [text for text in fig.axes[0].texts if text.get_fontweight() == "bold"]
    assert {text.get_text() for text in bold} == {f"{1e3 * fitting[best[0]]:.2f}"}
    sizes = (32, 64, 128, 256)
    assert [text.get_position() for text in bold] == [(sizes.index(c), sizes.index(r)) for r, c in best]
    hatched = sum(patch.get_hatch() is not None for patch in fig.axes[0].patches)
    assert hatched == len(times) - len(fitting) > 0
    assert "Best of the map: 64×32 and 64×64, " in alt_text(fig)


def test_the_bars_are_the_parts_of_the_prediction():
    p = model.predict("H200", model.Config(64, 128, 4, 2), **SHAPE)
    bars = {bar.get_gid(): bar.get_width() for bar in draw(64, 128).axes[1].patches}
    assert bars == {f"part {name}": pytest.approx(1e3 * s) for name, s in p.seconds.items()}


def test_what_does_not_fit_is_red_and_has_no_time():
    shown = written(draw(256, 128, 8, 3, "RTX 4090"))
    assert shown["256 × 128 does not fit"] == OVER
    assert shown["256 of 99 KiB of shared memory"] == OVER
    assert not any("per SM" in text or "wave" in text for text in shown)


def test_a_gpu_on_which_nothing_fits_says_so():
    pocket = hardware.get("A100").with_(name="Pocket", shared_memory_per_sm_bytes=8 << 10,
                                        shared_memory_per_block_bytes=7 << 10)
    assert "No tile of the map fits" in alt_text(draw(gpu=pocket))
