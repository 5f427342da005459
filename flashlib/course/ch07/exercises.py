"""Exercises of chapter 07: delta, dS of one tile, dK and dV over tiles, and the updates of dQ."""

import numpy as np

from flashlib.course.exercises.core import Wrong, exercise, expect_close, hint, parts, solution

__all__ = ["check_dK_dV", "check_dQ_updates", "check_dS", "check_delta", "hint", "solution"]


def _problem(seed, rows, keys, d, scale=0.5):
    """Return Q, K, V, dO, O, and the lse and delta of attention over more keys than these."""
    rng = np.random.default_rng(seed)
    Q, dO = rng.normal(size=(2, rows, d))
    K, V = rng.normal(size=(2, 3 * keys, d))
    S = Q @ K.T * scale
    lse = np.log(np.exp(S).sum(axis=1))
    O = np.exp(S - lse[:, None]) @ V
    return Q, K[keys:2 * keys], V[keys:2 * keys], dO, O, lse, (dO * O).sum(axis=1)


@exercise("07.1", "delta in one line", difficulty=1, minutes=3, solution="delta",
          hints=("One number per query: the inner product of two rows that the backward pass has in"
                 " its hands before it has seen a single key.",
                 "Row i of dO with row i of O: an elementwise product, and a sum over axis 1."))
def check_delta(delta):
    """Accept `delta(O, dO) -> (Nq,)`, the row sums of dO∘O."""
    _, _, _, dO, O, _, right = _problem(71, 4, 4, 4)
    got = delta(O.copy(), dO.copy())
    if got is not None and np.shape(got) == (4, 4):
        raise Wrong("shape (4, 4): the matrix product O·dOᵀ has the answer on its diagonal and"
                    " costs N² numbers; or the sum over the row is missing")
    if got is not None and np.shape(got) == (4, 1):
        raise Wrong("shape (4, 1): expected one number per query, shape (4,)")
    expect_close(got, right, "delta of four rows", mistakes={
        "summed over the queries: delta has one number per query, so sum over axis 1":
            (dO * O).sum(axis=0),
        "the row sums of dO alone: O is missing": dO.sum(axis=1),
        "every row of O met every row of dO: pair row i with row i alone, (dO * O), then sum":
            (O @ dO.T).sum(axis=1),
        "every row of dO met every row of O: pair row i with row i alone, (dO * O), then sum":
            (dO @ O.T).sum(axis=1),
        "O twice: one of the two is dO": (O * O).sum(axis=1),
        "dO twice: one of the two is O": (dO * dO).sum(axis=1),
        "the mean: delta is the sum": right / 4,
        "the product of the sums is not the sum of the products": dO.sum(axis=1) * O.sum(axis=1)})
    return "N numbers stand for a row sum over N × N."


@exercise("07.2", "dS of one tile", difficulty=2, minutes=8, solution="dS_tile",
          hints=("Four steps: the logits of the tile, the weights P with the row's lse, dP = dO·Vᵀ,"
                 " and the softmax Jacobian.",
                 "P = e^(S − lse) is final: no maximum, no division, and the tile need not know its"
                 " neighbours.",
                 "dS = P * (dP − delta[:, None]). The scale is inside S; dS itself is not scaled."))
def check_dS(dS_tile):
    """Accept `dS_tile(Qi, Kj, Vj, dOi, lse_i, delta_i, scale) -> (Br, Bc)`."""
    for rows, keys in ((5, 3), (4, 4)):
        scale = 0.3                                       # not 1/√d, which the answer must not assume
        Q, K, V, dO, _, lse, delta = _problem(72, rows, keys, 4, scale)
        S = Q @ K.T * scale
        dP, lse_i = dO @ V.T, lse[:, None]
        P, gap = np.exp(S - lse_i), dP - delta[:, None]
        local = np.exp(S) / np.exp(S).sum(axis=1, keepdims=True)
        right = P * gap
        mistakes = {
            "delta is missing: this is P∘dP": P * dP,
            "delta is added: it has to be subtracted": P * (dP + delta[:, None]),
            "these weights are normalised over the tile alone: lse knows the whole row": local * gap,
            "e^(S − m) leaves ℓ out: use lse": np.exp(S - S.max(axis=1, keepdims=True)) * gap,
            "the weights are e^S: subtract lse": np.exp(S) * gap,
            "e^S divided by lse, a logarithm: subtract it in the exponent": np.exp(S) / lse_i * gap,
            "a bracket is missing: P∘(dP − delta), not P∘dP − delta": P * dP - delta[:, None],
            "the logits are not scaled: P = e^(scale·QKᵀ − lse)": np.exp(Q @ K.T - lse_i) * gap,
            "S was divided by √d: use the scale that was handed in": np.exp(Q @ K.T / 2 - lse_i) * gap,
            "the scale belongs to dQ and dK, not to dS; the library puts it in early": right * scale,
            "this is P: it still has to meet dP − delta": P,
            "this is dP − delta: multiply it by P": gap,
            "delta was computed from this tile alone, as rowsum(dP∘P): it needs all keys, and the"
            " one that was handed in has them": P * (dP - (P * dP).sum(axis=1, keepdims=True)),
            "dP is dO·Vᵀ, not dO·Kᵀ": P * (dO @ K.T - delta[:, None])}
        if rows == keys:
            mistakes["delta went along the columns: row i needs delta[i]"] = P * (dP - delta)
            mistakes["lse went along the columns: row i needs lse[i]"] = np.exp(S - lse) * gap
        expect_close(dS_tile(Q.copy(), K.copy(), V.copy(), dO.copy(), lse.copy(), delta.copy(),
                             scale), right, f"dS of a {rows} × {keys} tile", mistakes=mistakes)
    with np.errstate(all="ignore"):                       # K + 2,000 adds a constant to each row of S
        far = dS_tile(Q, K + 2e3, V, dO, lse + 2e3 * scale * Q.sum(axis=1), delta, scale)
    if not np.isfinite(far).all():
        raise Wrong("not finite for large logits: e^S and e^lse overflow, e^(S − lse) does not")
    return "all that the tile needed was its own rows, and two numbers for each of them."


@exercise("07.3", "dK and dV of a tile of keys", difficulty=2, minutes=8, solution="dK_dV",
          hints=("Every query looks at this tile of keys, so every tile of queries adds something to"
                 " dK and dV: start from zero and accumulate.",
                 "dV += Pᵀ·dO and dK += scale · dSᵀ·Q. Which matrix must be transposed follows from"
                 " the shapes: keys outside, queries summed over."))
def check_dK_dV(dK_dV):
    """Accept `dK_dV(tiles, scale) -> (dKj, dVj)`; tiles is a list of (Qi, dOi, Pij, dSij)."""
    rng, scale = np.random.default_rng(73), 0.3            # not 1/√d, as above
    for height, keys in ((4, 4), (3, 5)):
        tiles = [tuple(rng.normal(size=(height, n)) for n in (4, 4, keys, keys)) for _ in range(3)]
        dV = sum(P.T @ dO for _, dO, P, _ in tiles)
        dK = scale * sum(dS.T @ Q for Q, _, _, dS in tiles)
        got = dK_dV([tuple(a.copy() for a in tile) for tile in tiles], scale)
        got = parts(list(got) if isinstance(got, np.ndarray) else got, "(dKj, dVj)")
        if np.shape(got[0]) == dV.shape and np.allclose(got[0], dV) and not np.allclose(got[1], dV):
            raise Wrong("dK and dV are swapped: return (dKj, dVj)")
        alone = {"only the last tile of queries is left: accumulate": tiles[-1],
                 "only the first tile of queries was counted: is the return inside the loop?": tiles[0]}
        mean = "this is the mean over the tiles of queries: dK and dV are sums"
        wrong_K = {mean: dK / 3, "the scale is missing: S = scale·QKᵀ": dK / scale,
                   "the scale is applied twice": dK * scale,
                   "dSᵀ·Q was divided by √d: use the scale that was handed in": dK / scale / 2,
                   "made from dO: dK needs Q": scale * sum(s.T @ o for _, o, _, s in tiles),
                   "made from P: dK needs dS": scale * sum(p.T @ q for q, _, p, _ in tiles)}
        wrong_V = {mean: dV / 3, "dV has no scale: V does not enter the logits": scale * dV,
                   "made from dS: dV needs P": sum(s.T @ o for _, o, _, s in tiles),
                   "made from Q: dV needs dO": sum(p.T @ q for q, _, p, _ in tiles)}
        if height == 4:
            wrong_K["dS is not transposed: sum over queries"] = scale * sum(s @ q for q, *_, s in tiles)
            wrong_V["P is not transposed: sum over queries"] = sum(p @ o for _, o, p, _ in tiles)
        for why, (Q, dO, P, dS) in alone.items():
            wrong_K[why], wrong_V[why] = scale * dS.T @ Q, P.T @ dO
        expect_close(got[0], dK, "dK of a tile", mistakes=wrong_K)
        expect_close(got[1], dV, "dV of a tile", mistakes=wrong_V)
    return "these two sums are why K and V stay outside: they leave the chip once, finished."


@exercise("07.4", "Count the updates of dQ", difficulty=2, minutes=6, solution="dQ_updates",
          hints=("How many tiles of S are there? Each adds something to one tile of dQ.",
                 "An update reads a tile of dQ and writes it back. For one tile of keys that is all"
                 " N·d elements of dQ, each way; and dQ has to start from zero.",
                 "updates = ⌈N/Br⌉·⌈N/Bc⌉; bytes = (1 + 2·⌈N/Bc⌉)·N·d·element_bytes"))
def check_dQ_updates(dQ_updates):
    """Accept `dQ_updates(N, d, Br, Bc, element_bytes) -> (updates, bytes)`, unmasked, order "kv"."""
    for N, d, Br, Bc, e in ((64, 16, 16, 16, 2), (100, 8, 32, 24, 2), (70, 5, 7, 35, 4)):
        Tr, Tc, row = -(-N // Br), -(-N // Bc), N * d * e
        right, padded = (1 + 2 * Tc) * row, Tr * Br * d * e
        got = parts(dQ_updates(N, d, Br, Bc, e), "(updates, bytes)")
        where = f"at {N=}, {d=}, {Br=}, {Bc=}"
        expect_close(got[0], Tr * Tc, f"updates {where}", mistakes={
            "a ragged tile is an update, too: round up": (N // Br) * (N // Bc),
            "these are the bytes: return (updates, bytes)": right,
            "these are updates of rows: count tiles": N * Tc,
            "each tile of dQ is updated once for every tile of keys": Tr,
            "each tile of keys updates every tile of dQ": Tc})
        expect_close(got[1], right, f"bytes of dQ {where}", mistakes={
            "dQ is set to zero first: that is a write, too": 2 * Tc * row,
            "dQ is set to zero by a write alone: nothing is read for that": (2 + 2 * Tc) * row,
            "an update reads before it writes": (1 + Tc) * row,
            "these are elements, not bytes": right / e,
            "a ragged tile moves the rows that it has: N of them, not Tr·Br": (1 + 2 * Tc) * padded,
            "an update of a ragged tile moves the rows that it has": row + 2 * Tc * padded,
            "the passes over dQ are set by the tiles of keys, not of queries": (1 + 2 * Tr) * row,
            'that is dQ written once, as in order "q"': row})
    return "and now you know what a larger tile of keys buys."
