"""What eight-bit operands do to attention: errors by recipe, on sampled query rows.

Rows of attention do not depend on each other, so a sample of queries against all keys estimates the
error of the whole. With outliers most of the squared error sits in a few rows, so half of the sample
is taken from the sixteenth of the queries that can meet the largest products, and weighs less. The
reference is float64 on the unrounded tensors; the recipes compute in float32 and round where a kernel
would. Taught in notebook 13.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from flashlib import quant
from flashlib.arguments import check_block, check_choice, check_number, check_share

LARGEST = 16                    # one query in so many counts among those with the largest products
PEAKS = {"e4m3": 256.0, "e5m2": 256.0, "int8": 127.0}     # what the largest weight of a row becomes


@dataclass(frozen=True)
class Recipe:
    """Where attention rounds, and how.

    Args:
        name: for tables.
        fmt: of Q, K and V: "float16", "e4m3", "e5m2" or "int8".
        block: rows that share a scale; None for one scale per tensor.
        rotation: whether Q and K are rotated before they are rounded.
        fused: a FlashAttention: logits stay in float32 and the unfinished weights are rounded to
            `fmt`; otherwise logits and finished weights are rounded to float16.
        paper: RMSE in Table 3 of the FlashAttention-3 paper, if it is there.
    """

    name: str
    fmt: str = "e4m3"
    block: int | None = None
    rotation: bool = False
    fused: bool = True
    paper: float | None = None


TABLE_3 = (
    Recipe("standard, float16", "float16", fused=False, paper=3.2e-4),
    Recipe("FlashAttention, float16", "float16", paper=1.9e-4),
    Recipe("standard, FP8 per tensor", fused=False, paper=2.4e-2),
    Recipe("FlashAttention-3, FP8", block=128, rotation=True, paper=9.1e-3),
    Recipe("… without block scales", rotation=True, paper=9.3e-3),
    Recipe("… without rotation", block=128, paper=2.4e-2),
)


class Problem(NamedTuple):
    """Q, K and V, the sampled query rows and what each counts, their exact logits, weights, outputs."""

    Q: np.ndarray
    K: np.ndarray
    V: np.ndarray
    rows: np.ndarray
    share: np.ndarray
    S: np.ndarray
    P: np.ndarray
    O: np.ndarray


def outliers(shape, *, rate=0.001, size=10.0, seed: int | np.random.Generator = 0) -> np.ndarray:
    """Return N(0, 1) + N(0, size²)·Bernoulli(rate): the data of the FlashAttention-3 paper.

    `seed` is a whole number, or a generator that is drawn from.
    """
    rate, size = check_share("rate", rate), check_number("size", size, least=0)
    rng = np.random.default_rng(seed)
    return rng.normal(size=shape) + rng.normal(size=shape) * size * (rng.random(shape) < rate)


def problem(Q, K, V, *, rows=None, seed=0) -> Problem:
    """Return the exact attention of `rows` queries, an even number, drawn by `seed`; None for all.

    Half of them come from the sixteenth of the queries with the largest products of an entry and the
    largest entry of that column of K. `share` makes a mean over the sample one over all queries.
    """
    Q, K, V = (np.asarray(a, np.float64) for a in (Q, K, V))
    at, share = np.arange(len(Q)), np.full(len(Q), 1 / max(len(Q), 1))
    if rows is not None:
        half, largest = check_block("rows", rows, least=2) // 2, len(Q) // LARGEST
        if 2 * half != rows or half > largest:
            raise ValueError(f"rows: expected an even number of at most {2 * largest}, got {rows}")
        order = np.argsort((np.abs(Q) * np.abs(K).max(axis=0)).max(axis=1))
        rng = np.random.default_rng(seed)
        at = np.concatenate([rng.choice(part, half, replace=False)
                             for part in (order[:-largest], order[-largest:])])
        share = np.repeat([1 - largest / len(Q), largest / len(Q)], half) / half
    S = Q[at] @ K.T / np.sqrt(Q.shape[1])
    P = np.exp(S - S.max(axis=1, keepdims=True))
    P /= P.sum(axis=1, keepdims=True)
    return Problem(Q, K, V, at, share, S, P, P @ V)


def paper_problem(seed, *, N=16384, d=128, rows=256, rate=0.001, size=10.0) -> Problem:
    """Return the paper's data at one seed: three tensors (N, d) with outliers, `rows` queries."""
    rng = np.random.default_rng(seed)
    Q, K, V = (outliers((N, d), rate=rate, size=size, seed=rng) for _ in range(3))
    return problem(Q, K, V, rows=rows, seed=seed)


def half(x) -> np.ndarray:
    """Round float32 to float16 and back, by the bits: several times faster than to convert twice.

    In the normal range it adds to the thirteen bits that go, ties to even; below it, adding and
    subtracting 0.75 leaves whole multiples of 2⁻²⁴, the subnormals.
    """
    x = np.asarray(x, np.float32)
    if not np.abs(x).max(initial=0) < 65504:               # overflow, infinity and NaN are rare
        with np.errstate(over="ignore"):
            return x.astype(np.float16).astype(np.float32)
    bits = x.view(np.uint32)
    odd = (bits >> np.uint32(13)) & np.uint32(1)
    normal = ((bits + np.uint32(0xFFF) + odd) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.abs(x) < np.float32(2.0**-14), (x + np.float32(0.75)) - np.float32(0.75), normal)


def rounded(x, recipe: Recipe) -> np.ndarray:
    """Return a tensor as the recipe keeps it, in float32: rounded, and multiplied by its scale."""
    x = np.asarray(x, np.float32)
    if check_choice("fmt", recipe.fmt, ("float16", *quant.FORMATS)) == "float16":
        return half(x)
    return quant.quantise(x, block=recipe.block, fmt=recipe.fmt).dequantise()


def operands(p: Problem, recipe: Recipe, *, seed=0):
    """Return Q and K before and after rounding, both rotated if the recipe rotates, and V after."""
    Q, K = p.Q.astype(np.float32), p.K.astype(np.float32)
    if recipe.rotation:
        signs = quant.random_signs(Q.shape[1], seed)
        Q, K = quant.rotate(Q, signs), quant.rotate(K, signs)
    return (Q, K), (rounded(Q, recipe), rounded(K, recipe)), rounded(p.V, recipe)


def logits(p: Problem, recipe: Recipe, *, seed=0) -> np.ndarray:
    """Return the recipe's logits of the sampled rows, in float32."""
    _, (Q, K), _ = operands(p, recipe, seed=seed)
    return _logits(Q[p.rows], K, recipe)


def _logits(Q, K, recipe):
    S = Q @ K.T * np.float32(1 / np.sqrt(Q.shape[1]))
    return S if recipe.fused else half(S)


def outputs(p: Problem, recipe: Recipe, *, seed=0) -> np.ndarray:
    """Return the recipe's outputs of the sampled rows, stored in float16."""
    _, (Q, K), V = operands(p, recipe, seed=seed)
    S = _logits(Q[p.rows], K, recipe)
    P = np.exp(S - S.max(axis=1, keepdims=True))
    mass = P.sum(axis=1, keepdims=True)
    if not recipe.fused:
        O = half(P / mass) @ V
    elif recipe.fmt == "float16":
        O = half(P) @ V / mass
    else:
        peak = np.float32(PEAKS[recipe.fmt])
        O = quant.round_to(P * peak, recipe.fmt) @ V / (mass * peak)
    return half(O).astype(np.float64)


def error(p: Problem, recipe: Recipe, *, seed=0) -> float:
    """Return the root mean square error of the recipe's outputs on the sampled rows."""
    return _root_mean((outputs(p, recipe, seed=seed) - p.O) ** 2, p)


def _root_mean(squares, p) -> float:
    return float(np.sqrt(p.share @ squares.mean(axis=1)))


def dissect(p: Problem, recipe: Recipe, *, seed=0) -> dict[str, float]:
    """Return where the error comes from, from the operands on.

    "operands": of Q and K, relative. "logits": root mean square over all logits of the sample.
    "weighted": the same, each logit counted by its share P of its row, which is how much it matters.
    "output": of O.
    """
    before, after, _ = operands(p, recipe, seed=seed)
    gap = _logits(after[0][p.rows], after[1], recipe) - p.S
    return {"operands": float(np.sqrt(np.mean([quant.relative_error(a, b) ** 2
                                               for a, b in zip(after, before, strict=True)]))),
            "logits": _root_mean(gap**2, p),
            "weighted": float(np.sqrt(p.share @ (p.P * gap**2).sum(axis=1))),
            "output": error(p, recipe, seed=seed)}


def error_table(*, N=16384, d=128, seeds=(0, 1, 2, 3), rows=256, recipes=TABLE_3) -> list[dict]:
    """Return the RMSE of every recipe on the paper's data, over all seeds, with the spread.

    Args:
        N, d: length and head dimension.  seeds: one set of tensors and of sampled rows for each.
        rows: query rows per seed; the error is the root of the mean over all of them.
    Returns:
        for each recipe its name, "rmse", the "lowest" and "highest" of a single seed, and "paper".
    """
    errors = []
    for seed in seeds:
        p = paper_problem(seed, N=N, d=d, rows=rows)
        errors.append([error(p, recipe, seed=seed) for recipe in recipes])
    together = np.sqrt(np.mean(np.square(errors), axis=0))
    return [{"recipe": recipe.name, "rmse": float(together[n]), "lowest": min(e[n] for e in errors),
             "highest": max(e[n] for e in errors), "paper": recipe.paper}
            for n, recipe in enumerate(recipes)]
