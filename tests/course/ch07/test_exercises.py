"""The checks of chapter 07 accept the solution and name each seeded mistake."""

import numpy as np
import pytest

from flashlib.course.ch07 import exercises as ch07
from flashlib.course.ch07 import solutions as right
from flashlib.models import traffic
from tests.course.exercises.examine import examine


def _dS(Q, K, V, dO, lse, delta, scale, *, logits=None, weights=None, dP=None, rule=None):
    S = (logits or (lambda: Q @ K.T * scale))()
    P = weights(S, lse) if weights else np.exp(S - lse[:, None])
    dP = dO @ (K if dP == "K" else V).T
    return (rule or (lambda P, dP, D: P * (dP - D)))(P, dP, delta[:, None])


def _sum(tiles, scale, *, dK=lambda Q, dO, P, dS: dS.T @ Q, dV=lambda Q, dO, P, dS: P.T @ dO,
         factor=None):
    return ((scale if factor is None else factor) * sum(dK(*t) for t in tiles),
            sum(dV(*t) for t in tiles))


WRONG = [
    (ch07.check_delta, lambda O, dO: (dO * O).sum(axis=0), "sum over axis 1"),
    (ch07.check_delta, lambda O, dO: dO.sum(axis=1), "O is missing"),
    (ch07.check_delta, lambda O, dO: (O * O).sum(axis=1), "O twice"),
    (ch07.check_delta, lambda O, dO: (dO * dO).sum(axis=1), "dO twice"),
    (ch07.check_delta, lambda O, dO: (dO * O).mean(axis=1), "the mean"),
    (ch07.check_delta, lambda O, dO: dO @ O.T, "diagonal"),
    (ch07.check_delta, lambda O, dO: (dO * O).sum(axis=1, keepdims=True), "one number per query"),
    (ch07.check_delta, lambda O, dO: (O @ dO.T).sum(axis=1), "every row of O met"),
    (ch07.check_delta, lambda O, dO: (dO @ O.T).sum(axis=1), "every row of dO met"),
    (ch07.check_dS, lambda *a: _dS(*a, rule=lambda P, dP, D: P * dP), "delta is missing"),
    (ch07.check_dS, lambda *a: _dS(*a, logits=lambda: a[0] @ a[1].T / np.sqrt(a[0].shape[1])),
     "use the scale that was handed in"),
    (ch07.check_dS, lambda *a: _dS(*a, rule=lambda P, dP, D: P * (dP + D)), "subtracted"),
    (ch07.check_dS, lambda *a: _dS(*a, rule=lambda P, dP, D: P), "meet dP"),
    (ch07.check_dS, lambda *a: _dS(*a, rule=lambda P, dP, D: dP - D), "multiply it by P"),
    (ch07.check_dS, lambda *a: _dS(*a, weights=lambda S, lse: np.exp(S) / np.exp(S).sum(
        axis=1, keepdims=True)), "normalised over the tile"),
    (ch07.check_dS, lambda *a: _dS(*a, weights=lambda S, lse: np.exp(S)), "subtract lse"),
    (ch07.check_dS, lambda *a: _dS(*a, logits=lambda: a[0] @ a[1].T), "not scaled"),
    (ch07.check_dS, lambda *a: _dS(*a) * a[-1], "the scale belongs to dQ"),
    (ch07.check_dS, lambda *a: _dS(*a, dP="K"), "not dO·Kᵀ"),
    (ch07.check_dS, lambda *a: _dS(*a, rule=lambda P, dP, D: P * (
        dP - (P * dP).sum(axis=1, keepdims=True))), "from this tile alone"),
    (ch07.check_dS, lambda *a: _dS(*a, weights=lambda S, lse: np.exp(S - S.max(
        axis=1, keepdims=True))), "leaves ℓ out"),
    (ch07.check_dS, lambda *a: _dS(*a, weights=lambda S, lse: np.exp(S) / np.exp(lse)[:, None]),
     "overflow"),
    (ch07.check_dS, lambda *a: _dS(*a, weights=lambda S, lse: np.exp(S) * np.exp(-lse)[:, None]),
     "overflow"),
    (ch07.check_dS, lambda *a: right.dS_tile(*a).T, "expected shape"),
    (ch07.check_dS, lambda *a: _dS(*a, rule=lambda P, dP, D: P * dP - D), "a bracket is missing"),
    (ch07.check_dS, lambda *a: _dS(*a, weights=lambda S, lse: np.exp(S) / lse[:, None]),
     "divided by lse"),
    (ch07.check_dK_dV, lambda tiles, scale: right.dK_dV(tiles[-1:], scale), "accumulate"),
    (ch07.check_dK_dV, lambda tiles, scale: right.dK_dV(tiles[:1], scale), "inside the loop"),
    (ch07.check_dK_dV, lambda tiles, scale: (right.dK_dV(tiles, scale)[0],
                                             right.dK_dV(tiles[:1], scale)[1]), "inside the loop"),
    (ch07.check_dK_dV, lambda t, s: right.dK_dV(t, s)[::-1], "swapped"),
    (ch07.check_dK_dV, lambda t, s: _sum(t, s, factor=1), "scale is missing"),
    (ch07.check_dK_dV, lambda t, s: _sum(t, s, factor=s * s), "applied twice"),
    (ch07.check_dK_dV, lambda t, s: _sum(t, s, factor=t[0][0].shape[1] ** -0.5), "handed in"),
    (ch07.check_dK_dV, lambda t, s: _sum(t, s, factor=t[0][2].shape[1] ** -0.5), "handed in"),
    (ch07.check_dK_dV, lambda t, s: [np.resize(part, t[0][0].shape[1:] * 2)
                                     for part in right.dK_dV(t, s)], "expected shape"),
    (ch07.check_dK_dV, lambda t, s: _sum(t, s, dK=lambda Q, dO, P, dS: dS @ Q), "dS is not trans"),
    (ch07.check_dK_dV, lambda t, s: _sum(t, s, dV=lambda Q, dO, P, dS: P @ dO), "P is not trans"),
    (ch07.check_dK_dV, lambda t, s: _sum(t, s, dV=lambda Q, dO, P, dS: dS.T @ dO), "dV needs P"),
    (ch07.check_dK_dV, lambda t, s: _sum(t, s, dV=lambda Q, dO, P, dS: s * P.T @ dO),
     "dV has no scale"),
    (ch07.check_dK_dV, lambda t, s: _sum(t, s, dK=lambda Q, dO, P, dS: P.T @ Q), "dK needs dS"),
    (ch07.check_dK_dV, lambda t, s: _sum(t, s, dK=lambda Q, dO, P, dS: dS.T @ dO), "dK needs Q"),
    (ch07.check_dK_dV, lambda t, s: (*right.dK_dV(t, s), 0), "expected a tuple"),
    (ch07.check_dK_dV, lambda t, s: [part / len(t) for part in right.dK_dV(t, s)], "the mean over"),
    (ch07.check_dQ_updates, lambda N, d, Br, Bc, e: (
        (N // Br) * (N // Bc), right.dQ_updates(N, d, Br, Bc, e)[1]), "round up"),
    (ch07.check_dQ_updates, lambda N, d, Br, Bc, e: (N * -(-N // Bc), 0), "count tiles"),
    (ch07.check_dQ_updates, lambda N, d, Br, Bc, e: (
        right.dQ_updates(N, d, Br, Bc, e)[0], 2 * -(-N // Bc) * N * d * e), "set to zero first"),
    (ch07.check_dQ_updates, lambda N, d, Br, Bc, e: (
        right.dQ_updates(N, d, Br, Bc, e)[0], (1 + -(-N // Bc)) * N * d * e), "reads before"),
    (ch07.check_dQ_updates, lambda N, d, Br, Bc, e: (
        right.dQ_updates(N, d, Br, Bc, e)[0], (1 + 2 * -(-N // Bc)) * N * d), "elements"),
    (ch07.check_dQ_updates, lambda N, d, Br, Bc, e: (
        right.dQ_updates(N, d, Br, Bc, e)[0], (1 + 2 * -(-N // Br)) * N * d * e), "not of queries"),
    (ch07.check_dQ_updates, lambda N, d, Br, Bc, e: (
        right.dQ_updates(N, d, Br, Bc, e)[0], (2 + 2 * -(-N // Bc)) * N * d * e), "by a write alone"),
    (ch07.check_dQ_updates, lambda N, d, Br, Bc, e: 3, "expected a tuple"),
    (ch07.check_dQ_updates, lambda *a: right.dQ_updates(*a)[::-1], "these are the bytes"),
    (ch07.check_dQ_updates, lambda N, d, Br, Bc, e: (
        right.dQ_updates(N, d, Br, Bc, e)[0],
        N * d * e + 2 * -(-N // Bc) * -(-N // Br) * Br * d * e), "an update of a ragged tile"),
    (ch07.check_dQ_updates, lambda N, d, Br, Bc, e: (
        right.dQ_updates(N, d, Br, Bc, e)[0], (1 + 2 * -(-N // Bc)) * -(-N // Br) * Br * d * e),
     "the rows that it has"),
]
PAIRS = [(ch07.check_delta, right.delta), (ch07.check_dS, right.dS_tile),
         (ch07.check_dK_dV, right.dK_dV), (ch07.check_dQ_updates, right.dQ_updates)]

TestAnswers = examine(right=PAIRS, wrong=WRONG)


@pytest.mark.parametrize("case", [(64, 16, 16, 16, 2), (100, 8, 32, 24, 2), (70, 5, 7, 35, 4)])
def test_the_bytes_of_dQ_are_those_of_the_machine(case):
    N, d, Br, Bc, e = case
    moved = traffic.flash_backward(Nq=N, Nk=N, d=d, Br=Br, Bc=Bc, element_bytes=e).by_tensor["dQ"]
    assert right.dQ_updates(*case)[1] == moved.total_bytes


@pytest.mark.parametrize(("check", "answer"), [
    (ch07.check_delta, lambda O, dO: right.delta(O, dO).astype(np.float32)),
    (ch07.check_delta, lambda O, dO: np.einsum("ij,ij->i", dO, O)),
    (ch07.check_dS, lambda *a: right.dS_tile(*(np.float32(x) for x in a))),
    (ch07.check_dS, lambda *a: right.dS_tile(*a).tolist()),
    (ch07.check_dS, lambda Q, K, V, dO, lse, delta, scale: (
        np.exp(K @ Q.T * scale - lse) * (V @ dO.T - delta)).T),
    (ch07.check_dK_dV, lambda tiles, scale: list(right.dK_dV(tiles, scale))),
    (ch07.check_dK_dV, lambda tiles, scale: np.array(right.dK_dV(tiles, scale))),
    (ch07.check_dQ_updates, lambda *a: list(right.dQ_updates(*a))),
    (ch07.check_dQ_updates, lambda *a: np.array(right.dQ_updates(*a)))],
    ids=["float32", "einsum", "dS in float32", "dS as a list", "dS by columns", "list",
         "array", "list of counts", "array of counts"])
def test_other_right_forms_pass(check, answer):
    assert check(answer)
