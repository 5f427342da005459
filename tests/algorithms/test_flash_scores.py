"""`flash_scores`: softcap, ALiBi and sinks on the paper machine, right and counted to the byte."""

import itertools
import math

import numpy as np
import pytest

import flashlib as fl
from flashlib.algorithms.flash_scores import flash_scores
from flashlib.models import scores as forms
from flashlib.scores import softcap_derivative, softcapped
from tests import oracle

SHAPES = [(1, 1, 1, 1, 1), (9, 13, 4, 4, 5), (13, 9, 3, 5, 4), (16, 16, 8, 4, 8), (5, 33, 2, 3, 7)]
MASKS = [(False, None), (True, None), (False, (3, 1)), (True, (2, None))]
SCORES = [{}, {"softcap": 1.5}, {"alibi": 0.4}, {"sink": 2.0},
          {"softcap": 20.0, "alibi": 0.05, "sink": -1.0}]


def given(Nq, Nk, d, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(Nq, d)), rng.normal(size=(Nk, d)), rng.normal(size=(Nk, d))


def dense(Q, K, V, *, softcap=None, alibi=None, sink=None, causal=False, window=None, scale=None):
    """Return O and lse row by row, as the definition reads."""
    (Nq, d), Nk = Q.shape, len(K)
    O, lse = np.zeros((Nq, d)), np.full(Nq, -math.inf)
    for i, seen in enumerate(oracle.sees(Nq, Nk, causal, window)):
        s = [float(K[j] @ Q[i]) * (1 / math.sqrt(d) if scale is None else scale) for j in range(Nk)]
        s = [x if softcap is None else softcap * math.tanh(x / softcap) for x in s]
        s = [x - (alibi or 0.0) * abs(Nk - Nq + i - j) for j, x in enumerate(s)]
        weights = {j: math.exp(s[j]) for j in range(Nk) if seen[j]}
        mass = math.fsum(weights.values()) + (0.0 if sink is None else math.exp(sink))
        if mass:
            O[i] = sum((w * V[j] for j, w in weights.items()), np.zeros(d)) / mass
            lse[i] = math.log(mass)
    return O, lse


@pytest.mark.parametrize("scores", SCORES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_equals_the_definition(shape, scores):
    Nq, Nk, d, Br, Bc = shape
    Q, K, V = given(Nq, Nk, d)
    for (causal, window), scale in itertools.product(MASKS, (None, -0.8)):
        options = {"causal": causal, "window": window, "scale": scale, **scores}
        got = flash_scores(Q, K, V, Br=Br, Bc=Bc, **options)
        for x, y in zip(got, dense(Q, K, V, **options), strict=True):
            np.testing.assert_allclose(x, y, rtol=0, atol=1e-13)


@pytest.mark.parametrize("scores", SCORES, ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, (0, 3, 2, 2, 2), (3, 0, 2, 2, 2)], ids=str)
def test_it_costs_what_the_closed_form_says(shape, scores):
    Nq, Nk, d, Br, Bc = shape
    for causal, window in MASKS:
        machine = fl.Machine()
        flash_scores(*given(Nq, Nk, d), Br=Br, Bc=Bc, causal=causal, window=window, machine=machine,
                        **scores)
        assert machine.traffic == forms.flash_scores(
            Nq=Nq, Nk=Nk, d=d, Br=Br, Bc=Bc, causal=causal, window=window,
            **dict.fromkeys(scores, True))


def test_without_scores_it_is_flash_v2_bit_for_bit():
    Q, K, V = given(13, 17, 4)
    for x, y in zip(flash_scores(Q, K, V, Br=4, Bc=5, causal=True),
                    fl.flash_v2(Q, K, V, Br=4, Bc=5, causal=True), strict=True):
        assert np.array_equal(x, y)


def test_a_sink_is_one_more_element_of_the_monoid():
    Q, K, V = given(7, 11, 4)
    S = Q @ K.T / 2
    sink = fl.SoftmaxState(np.full(7, 1.3), np.ones(7), np.zeros((7, 4)))
    for state in (sink.merge(fl.SoftmaxState.of(S, V)),
                  fl.SoftmaxState.of(S[:, :4], V[:4]).merge(sink).merge(
                      fl.SoftmaxState.of(S[:, 4:], V[4:]))):
        for x, y in zip(state.finish(), flash_scores(Q, K, V, Br=3, Bc=4, sink=1.3), strict=True):
            np.testing.assert_allclose(x, y, rtol=0, atol=1e-14)


def test_the_kernels_op_means_the_same():
    torch = pytest.importorskip("torch")
    Q, K, V = given(9, 14, 4)
    got = flash_scores(Q, K, V, Br=4, Bc=5, softcap=2.0, alibi=0.25, sink=0.5, causal=True)
    right = fl.flash_attention(*(torch.from_numpy(x)[None, None] for x in (Q, K, V)), causal=True,
                               softcap=2.0, alibi=torch.tensor([0.25]), sink=torch.tensor([0.5]),
                               return_lse=True)
    for x, y in zip(got, right, strict=True):
        np.testing.assert_allclose(x, y[0, 0].numpy(), rtol=0, atol=1e-13)


def test_the_derivative_of_a_softcap_by_differences():
    S, step = np.linspace(-9, 9, 37), 1e-6
    slope = (softcapped(S + step, 3.0) - softcapped(S - step, 3.0)) / (2 * step)
    np.testing.assert_allclose(softcap_derivative(softcapped(S, 3.0), 3.0), slope, rtol=0, atol=1e-9)


@pytest.mark.parametrize("wrong, kind, said", [
    ({"softcap": 0.0}, ValueError, "softcap: expected a number above 0"),
    ({"softcap": "1"}, TypeError, "softcap: expected a number, got '1'"),
    ({"alibi": math.nan}, ValueError, "alibi: expected a finite number, got nan"),
    ({"sink": [1.0]}, TypeError, r"sink: expected a number, got \[1.0\]")])
def test_wrong_scores_are_refused(wrong, kind, said):
    with pytest.raises(kind, match=said):
        flash_scores(*given(3, 3, 2), Br=2, Bc=2, **wrong)
