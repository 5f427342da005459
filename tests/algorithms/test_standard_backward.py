"""The standard backward with its N×N matrices: the oracle, dropout, and wrong inputs."""

import numpy as np
import pytest

import flashlib as fl
from tests import oracle
from tests.algorithms.backward_cases import assert_gradients, problem
from tests.cases import qkv

GOOD, KEEP = np.ones((4, 3)), np.ones((4, 4), bool)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("Nq, Nk, d", [(9, 9, 4), (5, 8, 3), (8, 5, 3), (0, 4, 2), (4, 0, 2)])
def test_standard_backward_equals_the_oracle(Nq, Nk, d, causal):
    Q, K, V, _, _, dO, _ = problem(18, Nq, Nk, d)
    O, P, Z = fl.standard_training_forward(Q, K, V, causal=causal)
    np.testing.assert_allclose(O, oracle.attention(Q, K, V, causal=causal)[0], atol=1e-14)
    np.testing.assert_array_equal(P, Z)
    got = fl.standard_backward(Q, K, V, P, dO)
    assert_gradients(got, oracle.gradients(Q, K, V, dO, causal=causal))


def test_standard_backward_with_dropout_equals_finite_differences():
    Q, K, V, _, _, dO, _ = problem(19, 6, 7, 3)
    keep = np.random.default_rng(20).random((6, 7)) < 0.7
    options = {"keep": keep, "drop": 0.3, "scale": 0.9}
    _, P, Z = fl.standard_training_forward(Q, K, V, **options)
    got = fl.standard_backward(Q, K, V, P, dO, Z=Z, **options)
    h = 1e-5
    for array, gradient in zip((Q, K, V), got, strict=True):
        for place in np.ndindex(array.shape):
            here, values = array[place], []
            for step in (h, -h):
                array[place] = here + step
                values.append((fl.standard_training_forward(Q, K, V, **options)[0] * dO).sum())
            array[place] = here
            assert gradient[place] == pytest.approx((values[0] - values[1]) / (2 * h), abs=1e-8)


def test_dropout_scales_the_survivors_up():
    """O and Z against dropout written out: a kept weight grows by 1/(1 − drop), so that means stay."""
    Q, K, V = qkv(21, 6, 7, 3)
    keep = np.random.default_rng(22).random((6, 7)) < 0.7
    O, P, Z = fl.standard_training_forward(Q, K, V, keep=keep, drop=0.3)
    for i in range(6):
        weights = [P[i, j] / 0.7 if keep[i, j] else 0.0 for j in range(7)]
        np.testing.assert_allclose(Z[i], weights, rtol=1e-14)
        np.testing.assert_allclose(O[i], np.dot(weights, V), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(P.sum(axis=1), 1, rtol=1e-14)


@pytest.mark.parametrize("changes, error, message", [
    ({"P": GOOD}, ValueError, r"P: expected shape \(4, 4\), got \(4, 3\)"),
    ({"dO": np.ones((5, 3))}, ValueError, r"dO: expected shape \(4, 3\)"),
    ({"keep": KEEP}, ValueError, "Z, keep: expected both"),
    ({"Z": np.ones((4, 4))}, ValueError, "Z, keep: expected both"),
    ({"drop": 0.1}, ValueError, "keep: expected a mask for drop=0.1, got None"),
    ({"keep": KEEP, "drop": 1.0}, ValueError, "drop: expected a share"),
    ({"keep": KEEP, "drop": "x"}, TypeError, "drop: expected a number"),
    ({"keep": KEEP * 1.0}, TypeError, "keep: expected a NumPy array of booleans"),
    ({"keep": KEEP[:3]}, ValueError, r"keep: expected shape \(4, 4\), got \(3, 4\)"),
    ({"machine": fl.Machine(sram_bytes=1000)}, fl.SRAMOverflow, "ideal baseline"),
])
def test_wrong_inputs_to_the_standard_backward(changes, error, message):
    arguments = {"Q": GOOD, "K": GOOD, "V": GOOD, "P": np.ones((4, 4)), "dO": GOOD}
    with pytest.raises(error, match=message):
        fl.standard_backward(**arguments | changes)
