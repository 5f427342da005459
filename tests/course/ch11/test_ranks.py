"""How orders are compared, and that the study's models come closer to the measured one."""

import math

import numpy as np
import pytest

from flashlib.course.ch11 import ranks
from flashlib.course.notebook.data import measurements
from flashlib.models import predict as model


def test_spearman_by_hand():
    assert ranks.ranks([10, 30, 10]).tolist() == [1.5, 3, 1.5]
    assert ranks.spearman([1, 2, 3], [10, 100, 1000]) == pytest.approx(1)
    assert ranks.spearman([1, 2, math.inf], [3, 2, 1]) == pytest.approx(-1)
    assert ranks.spearman([1, 2, 3, 4], [2, 1, 4, 3]) == pytest.approx(1 - 6 * 4 / (4 * 15))
    assert math.isnan(ranks.spearman([1, 1], [1, 2]))
    with pytest.raises(ValueError, match="equally many"):
        ranks.spearman([1, 2], [1])
    with pytest.raises(ValueError, match="without NaN"):
        ranks.spearman([1, math.nan], [1, 2])


def test_tuning_finds_the_best_in_the_end():
    seconds = [4.0, 1.0, 2.0]
    assert ranks.best_so_far([1, 3, 2], seconds).tolist() == [4, 2, 1]
    assert ranks.best_so_far([2, 1, 1], [1, 4, 2]).tolist() == [3, 2, 1]      # 4 or 2 first
    np.testing.assert_allclose(ranks.expected_best(seconds), [7 / 3, 4 / 3, 1])


@pytest.mark.parametrize("d", [64, 128])
def test_each_study_ends_better_than_it_began(d):
    rows = measurements("blocks_h200").where(d=d, status="ok").rows
    seconds = [row["seconds"] for row in rows]
    first, last = (ranks.spearman(model.predict_rows("H200", rows, level=level), seconds)
                   for level in (model.LEVELS[0], model.LEVELS[-1]))
    assert first < 0.6 < 0.7 < last
