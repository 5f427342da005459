"""Who is ahead, shares, gains and bytes are those of the recorded files and of the closed forms."""

import pytest

from flashlib.course.ch17 import race, text
from flashlib.course.notebook.data import measurements


def test_the_best_other_is_the_fastest_of_those_in_the_race():
    source = measurements("attention_backward_h200")
    found = race.leads(source, mode="backward")
    assert len(found) == 16 and sum(lead.ratio > 1 for lead in found) == 4
    for lead in found:
        assert lead.best not in race.ASIDE and lead.low <= lead.ratio <= lead.high
    rows = {row["impl"]: row["seconds"] for row in source.rows[:20]
            if (row["N_q"], row["d"], row["causal"]) == (4096, 32, 0)}
    best = min(seconds for impl, seconds in rows.items() if impl not in race.ASIDE)
    assert found[0].ratio == pytest.approx(best / rows["ours"])


def test_amdahl_there_and_back():
    part = race.share(2048, 1280, 2)
    assert part == pytest.approx(0.2105, abs=1e-4)
    assert race.part_behind(race.speedup(part, 2), 2) == pytest.approx(part)
    assert race.speedup(1, 3) == 3 and race.speedup(0, 3) == 1


def test_a_step_is_the_matrices_and_two_rates():
    assert race.step_s(1, 4, 10, 3, 5, (1e3, 1e3)) == pytest.approx(1 + 3.5 * 10 * 3 * 2 * 4 * 5 / 1e3)


def test_recorded_lengths_are_those_that_ran():
    steps = measurements("model_steps_h200")
    assert max(race.by_length(steps, "standard")) == 4096
    assert max(race.by_length(steps, "ours")) == 65536
    losses = measurements("model_losses_h200")
    assert race.apart(losses, 1, 0) < 1e-3 < race.apart(losses, 1, 190)


def test_tokens_are_bytes_over_the_rate():
    assert race.tokens_per_s(3e8, 1e8, 4e12) == 1e4 and race.parameters(2, 8, 10) == 2 * 768 + 80


def test_the_manual_is_frozen():
    manual = text.manual()
    kinds, numbers = text.numbered(manual)
    assert len(manual) == len(numbers) == 465126 and len(kinds) == 103
    assert "".join(kinds[n] for n in numbers[:50]) == manual[:50]
    one, other = (next(text.batches(numbers, 8, 3, seed=1)) for _ in range(2))
    assert one.shape == (3, 9) and (one == other).all()
