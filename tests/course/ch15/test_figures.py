"""The figures of chapter 15 show what they are given."""

import pytest

pytest.importorskip("matplotlib")

from flashlib.course.ch15 import figures, page_figures, plan, unit_figures
from flashlib.course.plots.theme import OVER, alt_text


def texts(fig):
    return [t.get_text() for t in [*fig.texts, *(t for ax in fig.axes for t in ax.texts)]]


def titles(fig):
    return [ax.get_title(loc="left") for ax in fig.axes]


def test_the_u_says_its_ends_its_floor_and_who_chooses_what():
    choices = {"x": 16, "y": 16, "flashlib": 32}
    fig = figures.u_shape({1: 7e-4, 16: 7e-5, 256: 9e-5}, 6e-5, choices, "here",
                          predicted={1: 7e-4, 256: 8e-5}, ours=7e-5)
    shown = texts(fig)
    assert {"x, y: 16", "flashlib: 32", "700 µs", "70.0 µs", "90 µs", "predicted"} <= set(shown)
    assert "only reading K and V: 60.0 µs" in shown
    assert "1 part 700.0 µs; 16 parts 70.0 µs" in alt_text(fig)


def test_sms_count_the_idle_ones_and_many_idle_are_red():
    case = plan.Case(1, 65536)
    fig = figures.sms({f"{n} parts": case.waves(n, 132) for n in (1, 16, 32, 33)})
    assert titles(fig)[0] == "1 parts: 8 programs, 124 of 132 SMs idle"
    assert titles(fig)[1:] == ["16 parts: 128 programs, 4 of 132 SMs idle",
                               "32 parts: 256 programs, 1 to 2 an SM",
                               "33 parts: 264 programs, 2 an SM"]
    assert fig.axes[0]._left_title.get_color() == OVER != fig.axes[1]._left_title.get_color()


def test_lines_say_constant_and_rate():
    points = {"do_bench": {1e8: 4e-5, 5e8: 1.4e-4}, "rotating": {1e8: 3e-5, 5e8: 1.3e-4}}
    fig = figures.harnesses(points, {name: plan.line(p) for name, p in points.items()}, "here")
    assert any("(do_bench): 15.0 µs + bytes / 4.00 TB/s" in t for t in texts(fig))
    assert any("turns): 5.0 µs + bytes / 4.00 TB/s" in t for t in texts(fig))


def test_the_map_marks_ours_and_says_the_best():
    times = {(B, N): {1: 8e-5, 2: 4e-5, 4: 5e-5} for B in (1, 4) for N in (2048, 8192)}
    fig = figures.parts_map(times, dict.fromkeys(times, 4), dict.fromkeys(times, 2), "here")
    assert texts(fig).count("2.0") == 4 and texts(fig).count("1.25") == 4
    assert "B 4, 8,192 keys: best 2 parts" in alt_text(fig)


def test_a_cell_ten_times_slower_is_the_darkest():
    assert figures._SLOWER(1.0)[0] < 0.2


def test_memory_counts_what_is_empty_and_who_shares():
    tables = [[3, 7, 1], [4, 0], [3, 7, 6], [8]]
    fig = page_figures.memory([9, 5, 12, 2], tables, page=4, room=16, pool=12)
    assert {"a room each: 36 of 64 empty", "pages of 4: 8 of 28 empty", "3 AC", "0 B", "11 ",
            "pages 3 7 6"} <= set(
        texts(fig))


def test_a_program_is_a_box_and_another_order_is_red():
    fig = unit_figures.units([1, 8, 4])
    programs = [p for p in fig.axes[0].patches if p.get_gid() == "program"]
    assert sorted(round(p.get_width() + 0.08) for p in programs) == [1] * 16 + [4] * 4 + [8] * 2
    shown = {t.get_text(): t.get_color() for t in fig.axes[0].texts}
    assert shown["4 units a program"] == OVER != shown["8 units a program"]
    assert shown["(0·1·2·3) · (4·5·6·7): another order"] == OVER
    assert "8 units a program: 0·1·2·3·4·5·6·7, by the program" in alt_text(fig)


def test_the_timeline_has_a_box_for_each_wave_and_the_merge():
    case = plan.Case(1, 65536)
    spans = {"start": 2e-6, "read": 6e-5, "merge": 4e-6, "floor": 5.8e-5}
    fig = figures.timeline("what", case.waves(32, 132), spans, ["more"], late=False)
    assert "floor 60.0 µs" in texts(fig) and alt_text(fig) == "what. more."
