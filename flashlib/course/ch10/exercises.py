"""Exercises of chapter 10: base 2, strides, the two stages of a causal tile, the folded scale."""

import numpy as np

from flashlib.course.exercises.core import Wrong, exercise, expect_close, given, hint, parts, solution

__all__ = ["check_address", "check_fold", "check_lse", "check_stages", "hint", "solution"]

LN2 = float(np.log(2))


@exercise("10.1", "Give the lse back its natural logarithm", difficulty=1, minutes=4,
          solution="natural_lse",
          hints=("Write the lse as a logarithm of base 2 first: the running maximum is one already,"
                 " and the sum needs one.",
                 "log2(l) + m is the lse in base 2. One factor turns a logarithm of base 2 into a"
                 " natural one: ln x = log2(x) · ln 2."))
def check_lse(natural_lse):
    """Accept `natural_lse(m, l) -> lse`; m is in units of log2, l = Σ 2^(x − m)."""
    S = np.random.default_rng(101).normal(scale=3, size=(5, 9))
    x = S / LN2
    m = x.max(axis=1)
    l = np.exp2(x - m[:, None]).sum(axis=1)
    log2_l, overflowed = np.log2(l), "2^m overflowed: leave m in the exponent, and add logarithms"
    expect_close(natural_lse(m.copy(), l.copy()), np.log(np.exp(S).sum(axis=1)), "lse", mistakes={
        "the sum is of powers of 2: it needs log2 while m is in units of log2": (m + np.log(l)) * LN2,
        "this is the lse in base 2: one factor is missing": m + log2_l,
        "m is in units of log2 and ln l is not: bring m to natural units, too": m + np.log(l),
        "only m was converted: log2(l) is in base 2, too": m * LN2 + log2_l,
        "the wrong way round: ln x = log2(x) · ln 2, not divided by it": (m + log2_l) / LN2,
        "m has to be added, not multiplied: the sum is relative to 2^m": log2_l * m * LN2,
        "m has to be added, not subtracted: the sum is relative to 2^m": (m - log2_l) * LN2,
        "m is missing: the sum is relative to 2^m": log2_l * LN2,
        "the sum is missing: m is the largest logit alone": m * LN2,
        "l is a sum, not a logarithm yet: take its log2 first": (m + l) * LN2})
    try:
        with np.errstate(over="ignore"):
            large = natural_lse(m + 3000, l.copy())
    except OverflowError:
        raise Wrong(f"lse of large logits: {overflowed}") from None
    expect_close(large, (m + 3000 + log2_l) * LN2, "lse of large logits", mistakes={
        overflowed: np.full(m.shape, np.inf)})
    return "one multiplication per row, and nobody outside has to know about base 2."


@exercise("10.2", "Fix a stride bug", difficulty=2, minutes=10, solution="address",
          hints=("A stride says how many elements lie between one index and the next, in this tensor."
                 " No size of the tensor is needed besides.",
                 "Four terms: b · stride_b + … In K, the head is not h.",
                 "GROUP = H / H_k neighboring query heads share one key head: it is h // GROUP."))
def check_address(address):
    """Accept `address(b, h, i, j, strides, GROUP) -> int`: where element (i, j) of K's head lies."""
    B, H, N, D = 3, 4, 5, 3
    for what, strides, group in (
            ("a contiguous tensor, one key head per query head", (H * N * D, N * D, D, 1), 1),
            ("a tensor made as (B, N, H, D) and transposed", (N * H * D, D, H * D, 1), 1),
            ("two key heads for four query heads", (2 * N * D, N * D, D, 1), 2),
            ("every second column of a wider tensor", (2 * H * N * D, 2 * N * D, 2 * D, 2), 1),
            ("one batch entry, expanded (stride 0)", (0, N * D, D, 1), 1)):
        got = np.array([given(address(*map(int, at), strides, group)) for at in np.ndindex(B, H, N, D)])
        got = got.reshape(B, H, N, D) if got.ndim == 1 else got
        (b, h, i, j), (sb, sh, sn, sd) = np.indices((B, H, N, D)), strides
        hk, rest = h // group, i * sn + j * sd
        right = b * sb + hk * sh + rest
        expect_close(got, right, f"address(b, h, i, j) in {what}", mistakes={
            "this is right for a contiguous tensor only: use all four strides":
                ((b * (H // group) + hk) * N + i) * D + j,
            "the query head was used: GROUP query heads share a key head": b * sb + h * sh + rest,
            "heads are mixed up: neighbors share key head h // GROUP; h % 1 is 0 for all of them":
                b * sb + h % group * sh + rest,
            "shared the other way round: it is h // GROUP": b * sb + h * group * sh + rest,
            "GROUP divides the head before its stride: h // GROUP · stride":
                b * sb + h * sh // group + rest,
            "half of a head is no head: divide with //": b * sb + h / group * sh + rest,
            "only heads are shared: // GROUP belongs to h alone": (b * sb + h * sh) // group + rest,
            "only heads are shared, and not batches": b // group * sb + hk * sh + rest,
            "the column's stride is missing: columns need not be neighbors": right - j * sd + j,
            "the column is missing": right - j * sd,
            "the row is missing": right - i * sn,
            "the batch is missing: every sequence has its own keys": right - b * sb,
            "rows and columns changed places": b * sb + hk * sh + i * sd + j * sn,
            "batch and head changed places: the strides are of batch, head, row, column":
                b * sh + hk * sb + rest,
            "heads and rows changed places": b * sb + hk * sn + i * sh + j * sd})
    return "the kernel never asks whether a tensor is contiguous."


@exercise("10.3", "Find where the mask begins", difficulty=2, minutes=15, solution="stages",
          hints=("Row i sees the keys j ≤ i + Nk − Nq. Which row of the tile decides what is *visited*,"
                 " and which decides what needs *no mask*?",
                 "The last row sees the most: end = keys that it sees. The first row sees the fewest:"
                 " only tiles that lie wholly within its keys need no mask.",
                 "Round `cut` down to a multiple of BLOCK_N, and let both lie between 0 and Nk; a"
                 " ragged last tile of keys needs its mask, too."))
def check_stages(stages):
    """Accept `stages(tile, BLOCK_M, BLOCK_N, Nq, Nk) -> (cut, end)`, causal, bottom right."""
    for BM, BN, Nq, Nk in ((16, 8, 32, 72), (64, 64, 256, 256), (128, 32, 256, 256), (32, 64, 256, 256),
                           (16, 16, 32, 80), (16, 8, 50, 50), (16, 16, 32, 47), (16, 16, 33, 47),
                           (16, 16, 64, 24)):
        for tile in range(-(-Nq // BM)):
            shift, a, b = Nk - Nq, tile * BM, (tile + 1) * BM
            first, end = min(Nk, max(a + 1 + shift, 0)), min(Nk, max(b + shift, 0))
            cut = first // BN * BN
            got = stages(tile, BM, BN, Nq, Nk)
            got = parts(tuple(got) if isinstance(got, np.ndarray) else got, "(cut, end)")
            if cut != end and np.array_equal(got, (end, cut)):
                raise Wrong("the two changed places: the order is (cut, end), got (end, cut)")
            where = f"tile {tile}, {BM} × {BN}, {Nq} queries, {Nk} keys"
            expect_close(got[1], end, f"end of {where}", mistakes={
                "the diagonal starts in the top left corner: add Nk − Nq": min(Nk, b),
                "is Nk − Nq the wrong way round?": min(Nk, max(b - shift, 0)),
                "these are tiles: count keys": -(-end // BN),
                "this is negative, or beyond the last key: end lies from 0 to Nk": b + shift,
                "the last row of the tile decides what is visited, not the first": first,
                "nothing was skipped: keys after the last row's are never seen": Nk,
                "row i sees key i, too: one key is missing": min(Nk, max(b + shift - 1, 0)),
                "rounded up to tiles: asked is how many keys the last row sees": -(-end // BN) * BN})
            expect_close(got[0], cut, f"cut of {where}", mistakes={
                "the first row sees its own key, too: a + 1 keys": max(a + shift, 0) // BN * BN,
                "everything is masked: right, but tiles that the first row sees wholly need none": 0,
                "the diagonal starts in the top left corner: add Nk − Nq": (a + 1) // BN * BN,
                "the first row of the tile decides: the last one sees more": end // BN * BN,
                "rounded to tiles of queries: count whole tiles of BLOCK_N keys": first // BM * BM,
                "round down to whole tiles of BLOCK_N keys": first,
                "rounded up: the tile that the diagonal cuts needs a mask": -(-first // BN) * BN,
                "these are tiles: count keys": cut // BN,
                "a row that sees nothing gives 0, not a negative number": (a + 1 + shift) // BN * BN})
    return "keys 0 … cut cost no comparison at all."


@exercise("10.4", "Fold the scale into the exponential", difficulty=3, minutes=15,
          solution="fold_scaled",
          hints=("Everything in the exponent is in units of log2 now, m included. Only qk is raw.",
                 "The maximum of qk · c is max(qk) · c, because c is not negative: scale it once per"
                 " row and not once per logit.",
                 "p = exp2(qk · c − m_new): one fused multiply-add and one exp2 a logit."))
def check_fold(fold_scaled):
    """Accept `fold_scaled(acc, l, m, qk, v, scale_log2) -> (acc, l, m)`: qk raw, m in units of log2."""
    rng = np.random.default_rng(104)
    qk0, qk, v0, v = (rng.normal(scale=s, size=n) for s, n in
                      ((9, (4, 5)), (9, (4, 3)), (1, (5, 6)), (1, (3, 6))))
    qk[0] -= 40                                            # one row whose maximum does not move
    scale = 0.25
    c = scale / LN2
    m = qk0.max(axis=1) * c
    p0 = np.exp2(qk0 * c - m[:, None])
    l, acc = p0.sum(axis=1), p0 @ v0
    top = qk.max(axis=1)
    new = np.maximum(m, top * c)
    alpha, p = np.exp2(m - new), np.exp2(qk * c - new[:, None])
    old, tile = alpha * l, p.sum(axis=1)
    right = alpha[:, None] * acc + p @ v, old + tile, new
    got = parts(fold_scaled(*(x.copy() for x in (acc, l, m, qk, v)), c), "(acc, l, m)", right=right)
    with np.errstate(over="ignore"):
        e = np.exp(qk * c - new[:, None])
        late = np.exp2((qk - new[:, None]) * c)
        upside_down = np.exp2(new - m) * l + tile
    expect_close(got[2], new, "m", mistakes={
        "the maximum of raw logits was compared with a scaled one: scale it": np.maximum(m, top),
        "this is the maximum of the tile alone: earlier keys count, too": top * c,
        "this is the maximum of all rows: each row has its own (axis=1)": np.maximum(m, qk.max() * c),
        "scaled by 1/√d only: log2(e) is inside scale_log2 already": np.maximum(m, top * scale),
        "m was scaled a second time: it is in units of log2 already": np.maximum(m, top) * c,
        "the old m was returned: it may have grown": m})
    expect_close(got[1], right[1], "l", mistakes={
        "e^ in place of 2^: log2(e) in scale_log2 counts twice": np.exp(m - new) * l + e.sum(axis=1),
        "p is e^(…), alpha is 2^(…): both are powers of 2": old + e.sum(axis=1),
        "alpha is e^(…), p is 2^(…): both are powers of 2": np.exp(m - new) * l + tile,
        "m_new was scaled again: it is in units of log2 already": old + late.sum(axis=1),
        "alpha was scaled again: m is in units of log2 already": np.exp2((m - new) * c) * l + tile,
        "alpha is upside down: 2^(m − m_new), at most 1, because the maximum only grows": upside_down,
        "p took the old m, and needs m_new": old + np.exp2(qk * c - m[:, None]).sum(axis=1),
        "the logits were not scaled": old + np.exp2(qk - new[:, None]).sum(axis=1),
        "log2(e) counts twice": old + np.exp2(qk * c / LN2 - new[:, None]).sum(axis=1),
        "the old l was not rescaled by alpha": l + tile,
        "the new weights were rescaled, too: only the past needs it": alpha * (l + tile),
        "the past is missing: l began before this tile": tile,
        "each row has a sum of its own (axis=1)": old + p.sum()})
    expect_close(got[0], right[0], "acc", mistakes={
        "the old acc was not rescaled by alpha": acc + p @ v,
        "the new values were rescaled, too: only the past needs it": alpha[:, None] * (acc + p @ v),
        "the past is missing: acc began before this tile": p @ v,
        "divided by l: that comes once, after the last tile": right[0] / right[1][:, None]})
    seen = _seen(fold_scaled, *(x.copy() for x in (acc, l, m)), qk, v.copy(), c)
    if seen["·"] > 1:
        raise Wrong(f"right, but every logit is multiplied {seen['·']} times, and once is enough: scale"
                    " the maximum of the raw logits, and compute qk · c − m_new once")
    if seen["e^x"]:
        raise Wrong("right, but e^x was used: a GPU has 2^x, np.exp2, which needs no factor ln 2")
    return "one multiplication and one exp2 a logit; a GPU makes qk · c − m_new one multiply-add."


def _seen(fold_scaled, acc, l, m, qk, v, c) -> dict[str, int]:
    """Return how often the fold multiplies as many elements as qk has, and how often it uses e^x."""
    seen = {"·": 0, "e^x": 0}

    class Counted(np.ndarray):
        def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
            plain = [np.asarray(x) if isinstance(x, Counted) else x for x in inputs]
            options |= {} if out is None else {"out": tuple(np.asarray(x) for x in out)}
            result = getattr(ufunc, method)(*plain, **options)
            seen["·"] += ufunc in (np.multiply, np.divide) and np.size(result) == self.size == qk.size
            seen["e^x"] += ufunc in (np.exp, np.expm1)
            return out[0] if out is not None else (
                result.view(Counted) if isinstance(result, np.ndarray) else result)

    fold_scaled(acc, l, m, qk.copy().view(Counted), v, c)
    return seen
