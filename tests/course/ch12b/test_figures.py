"""The figures of chapter 12b show what they are given."""

import pytest

pytest.importorskip("matplotlib")

from flashlib.course.ch12b import figures, step
from flashlib.course.ch12b import order as orders
from flashlib.course.plots.theme import alt_text


def texts(fig):
    return [t.get_text() for t in [*fig.texts, *(t for ax in fig.axes for t in ax.texts)]]


def test_a_schedule_has_a_row_for_each_sm_and_a_number_for_each_visit():
    s = orders.simulate("apart", tiles=4, sms=4, hand=1)
    fig = figures.timelines({"apart": s}, 4)
    assert [t.get_text() for t in fig.axes[0].get_yticklabels()] == [f"keys {n}" for n in (3, 2, 1, 0)]
    numbers = [int(t) for t in texts(fig) if t.isdigit()]
    assert sorted(numbers) == sorted(step.visit.m for step in s.steps)
    assert "apart: 9.0 steps, 11 % idle" in alt_text(fig)


def test_the_sums_grow_to_all_turns_and_mark_the_second_sum():
    shown = {name: orders.simulate(name, tiles=4, sms=4, hand=1) for name in ("together", "apart")}
    none = figures.sums(shown, 4, 0)
    assert "together: 0 of 32 added; apart: 0 of 32 added" in alt_text(none)
    full = figures.sums(shown, 4, 30)
    assert "32 of 32" in alt_text(full)
    turns = [t for t in texts(full) if t.rstrip("′").isdigit()]
    assert len(turns) == 64 and sum(t.endswith("′") for t in turns) == 2 * (1 + 2 + 3)


def test_who_waits_is_told_from_who_computes():
    s = orders.simulate("together", tiles=4, sms=4, hand=1)
    looks = {(x.tile, x.visit.m): figures._look(x, 1.5) for x in s.steps}
    assert looks[3, 0] == "computes" and looks[2, 0] == looks[0, 0] == "waits"
    assert looks[0, 1] == "computes" and looks[0, 2] == "to come"


def test_the_film_moves_and_is_small():
    made = figures.film(tiles=3)
    assert b"acTL" in made.png[:100] and len(made.png) < 100_000
    assert "7 steps (each at its own)" in str(made._repr_mimebundle_())


def test_rooms_say_their_sums_and_who_is_over():
    rooms = {f"d = {d}": step.rooms(d) for d in step.STAGES}
    fig = figures.rooms(rooms, 232_448)
    assert {"89.5 KiB", "162 KiB", "225 KiB", "352 KiB"} <= set(texts(fig))


def test_launches_and_comparison_say_their_numbers():
    fig = figures.launches({"d = 64": {"before": 1e-4, "fused": 1.8e-3, "after": 1e-4}}, "somewhere")
    assert "2.00 ms, 90 % in the fused kernel" in texts(fig)
    fig = figures.side_by_side([{"name": "x", "predicted": [1, 0.98, 0.9], "measured": 0.95},
                                {"name": "y", "predicted": [1, 1.001], "measured": 1}], "somewhere",
                               "1.2 µs")
    assert {"0.90 … 1.00 | 0.95", "1.00 | 1.00"} <= set(texts(fig))
    assert "x: 0.90 … 1.00 and 0.95; y: 1.00 and 1.00" in alt_text(fig)
