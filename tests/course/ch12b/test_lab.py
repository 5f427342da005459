"""The lab of chapter 12b: every choice draws, and the title says what the simulator says."""

import pytest

pytest.importorskip("matplotlib")

from flashlib.course.ch12b import lab
from flashlib.course.ch12b import order as orders
from flashlib.course.plots.theme import OVER, alt_text
from tests.course.choices import draw_choices


def words(fig):
    return {t.get_text(): t.get_color() for t in fig.texts}


def test_the_title_says_what_the_simulator_says():
    s = orders.simulate("together", tiles=8, heads=2, sms=8, hand=1)
    title = f"all start at query tile 0: {s.length:g} steps, {100 * s.idle:.0f} % of the SMs' time idle"
    assert title in words(lab.draw())


def test_who_waits_for_ever_says_so_in_red():
    shown = words(lab.draw("one_ring", heads=1, sms=7))
    (title,) = [text for text in shown if "hangs" in text]
    assert "7 wait for ever, keys 7 of head 0 at query tile 0" in title and shown[title] == OVER


def test_every_control_draws():
    made = lab.order_lab()
    assert set(draw_choices(made)) == set(made.controls)


@pytest.mark.parametrize("order", list(orders.ORDERS))
@pytest.mark.parametrize("causal", [False, True])
def test_every_order_draws_under_both_masks_on_one_sm_and_on_many(order, causal):
    for sms in (1, 24):
        assert "idle" in alt_text(lab.draw(order, tiles=4, heads=3, sms=sms, causal=causal)) or (
            "wait for ever" in alt_text(lab.draw(order, tiles=4, heads=3, sms=sms, causal=causal)))


def test_broken_kernels_hang_or_are_hazards_but_for_the_one_that_only_loses_its_order(capsys):
    pytest.importorskip("torch")
    pytest.importorskip("triton.experimental.gluon")
    lab.break_each()
    said = capsys.readouterr().out
    blocks = [block for block in said.replace("\n    ", " ").splitlines() if block]
    assert [block.split(" at `")[0].split(": ends")[0] for block in blocks] == [
        "nothing", "a lock is never counted up", "one sum, not two", "the first key tile adds first",
        "no wait for an empty buffer", "no fence before dQ leaves", "no wait for a lock"]
    assert ["waits for ever" in block for block in blocks] == [False, True, True, True] + [False] * 3
    assert "overwrites dq slot 0" in blocks[4] and "fence_async_shared() is missing" in blocks[5]
    assert "ends, and differs from float64 by at most" in blocks[0] and "ends, and" in blocks[6]
