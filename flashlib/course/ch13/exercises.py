"""Exercises of chapter 13: e4m3 by hand, scales of blocks, a rotation for any d, where it belongs."""

import numpy as np

from flashlib import quant
from flashlib.course.exercises.core import Wrong, exercise, expect_close, given, hint, solution

__all__ = ["check_block_scales", "check_by_hand", "check_prepare", "check_rotate", "hint", "solution"]

NUMBERS = (19.0, 0.07, 0.005, 500.0)


def _floats(got):
    """Return an array of numbers, whatever holds them: fractions, decimals, eight-bit floats."""
    eight_bits = "torch.float8" in str(getattr(given(got), "dtype", ""))
    got = np.asarray(got.float() if eight_bits else got)
    return got.astype(float) if got.ndim and got.dtype.kind in "OV" else got


@exercise("13.1", "Round four numbers by hand", difficulty=1, minutes=5, solution="by_hand",
          hints=("Between 2ⁿ and 2ⁿ⁺¹ there are eight steps, each of 2ⁿ/8. Which n is it for 19?",
                 "A tie goes to the even mantissa. Below 2⁻⁶ all steps are 2⁻⁹; the largest is 448."))
def check_by_hand(by_hand):
    """Accept `by_hand() -> (four numbers)`: 19, 0.07, 0.005 and 500 in e4m3, scale 1."""
    got = given(by_hand())
    if np.shape(got) != (4,):
        raise Wrong(f"expected four numbers, got {got!r}")
    right = quant.round_to(np.array(NUMBERS))
    mistakes = (
        {"19 lies midway between 18 and 20; the tie goes to the even mantissa": 18,
         "between 16 and 32 the values are 2 apart: e4m3 does not round to whole numbers": 19},
        {"this keeps two bits of mantissa, as e5m2 does; e4m3 has three": 0.0625,
         "between 1/16 and 1/8 a step is 1/128, and this is one too far": 0.078125,
         "between 1/16 and 1/8 a step is 1/128": 0.07},
        {"0.005 is not lost: subnormals reach down to 2⁻⁹": 0,
         "below 2⁻⁶ a step is 2⁻⁹ = 0.00195": 0.005, "three steps of 2⁻⁹ are nearer": 2 / 512,
         "below 2⁻⁶ the steps stop shrinking: they stay 2⁻⁹ = 0.00195": 10 / 2048},
        {"512 would need one more exponent: beyond 448 it saturates": 512,
         "480 would be 1.875 · 2⁸, but that code is NaN": 480, "500 is no value of e4m3": 500,
         "the conversion saturates, it makes no infinity": np.inf,
         "NumPy's cast makes NaN of it; our conversion saturates": np.nan})
    for value, answer, expected, names in zip(NUMBERS, _floats(got), right, mistakes, strict=True):
        if isinstance(answer, int | float | np.number) and 0 < abs(answer - expected) < 1e-3 * expected:
            raise Wrong(f"{value:g}: you are at the right step; give it exactly, say, as a fraction")
        expect_close(answer, expected, f"{value:g}", mistakes=names)
    return "three stored bits and one that is implied: a relative step of 1/8 to 1/16."


@exercise("13.2", "Pick a scale for each block", difficulty=2, minutes=10, solution="block_scales",
          hints=("The scale is what the block is *divided* by, so that its largest |x| becomes 448.",
                 "The last block may have fewer rows. A block of zeros has no largest value to map:"
                 " scale 1 keeps it as it is."))
def check_block_scales(block_scales):
    """Accept `block_scales(x, rows) -> (blocks,)` for e4m3: x / scale spans ±448 in each block."""
    rng = np.random.default_rng(132)
    for shape, rows, least in (((9, 5), 3, 1), ((10, 3), 4, 1), ((9, 7), 2, 1), ((8, 4), 2, 1e-3)):
        x = rng.normal(size=shape) * np.geomspace(least, 300, shape[0])[:, None]
        x[0, 0] = -np.abs(x).max(initial=0) * 1.5
        expected = quant.scales(x, block=rows)
        amax, blocks, got = 448 * expected, len(expected), _floats(block_scales(x.copy(), rows))
        for shape, words in {
                (len(x),): f"one scale per row, {len(x)} of them: {rows} rows share one, so {blocks}",
                (rows,): f"{rows} is how many rows a block has, not how many blocks: {blocks}",
                (x.shape[1],): "one scale per column: a block is made of rows",
                (len(x) // rows,): f"the last block was dropped: {len(x)} rows make {blocks} of {rows}",
                (): f"one scale for all: expected {blocks}, one per block"}.items():
            if got.shape == shape != (blocks,):
                raise Wrong(words)
        expect_close(got, expected, f"scales of {blocks} blocks of {rows} rows", mistakes={
            "this is 448 over the largest value, what to multiply by: the scale is its inverse":
                1 / expected,
            "the largest |x| would become 1: divide by 448, the largest value of e4m3": amax,
            "this is one scale for the whole tensor, repeated": np.full(blocks, amax.max() / 448),
            "negative values count, too: the largest |x|, not the largest x":
                np.array([x[n:n + rows].max() for n in range(0, len(x), rows)]) / 448,
            "this maps to 256: the largest value of e4m3 is 448": amax / 256,
            "this maps to 57344, as for e5m2: the largest value of e4m3 is 448": amax / 57344,
            "this maps to 127, as for int8: the largest value of e4m3 is 448": amax / 127,
            "a block of small numbers gets its own scale, too: 1 is for a block of zeros alone":
                np.where(amax > 1, expected, 1.0),
            "mapped the root mean square: the outlier would saturate": np.array(
                [np.sqrt(np.mean(x[n:n + rows] ** 2)) for n in range(0, len(x), rows)]) / 448})
    with np.errstate(all="ignore"):
        got = _floats(block_scales(np.repeat([[0.0, 0.0], [1.0, 1.0]], 2, axis=0), 2))
        if not np.isfinite(0 / got[0] * got[0]):
            raise Wrong(f"a block of zeros got the scale {got[0]:g}, which makes NaN of it: take 1")
    expect_close(got[1:], [1 / 448], "scale of a block of ones after one of zeros")
    return "a block pays for its own outliers only."


def _by_blocks(x, width):
    return quant.hadamard(x.reshape(-1, width)).reshape(x.shape)


@exercise("13.3", "Rotate any d", difficulty=3, minutes=15, solution="rotate",
          hints=("The widest power of two that divides d is d & -d: 32 for 96, 16 for 80, 1 for 7.",
                 "Signs first. Then (x * signs).reshape(-1, width) has a row for every block of"
                 " columns, and each row is turned by H of that width.",
                 "`rotate_by_hand` divides by the square root of the width that it is given, as it"
                 " should."))
def check_rotate(rotate):
    """Accept `rotate(x, signs) -> (n, d)`: signs, then H for every block of columns, for any d."""
    rng = np.random.default_rng(133)
    for n, d in ((3, 24), (5, 96), (2, 16), (4, 7), (2, 1)):
        x, signs, width = rng.normal(size=(n, d)), quant.random_signs(d, seed=n + d), d & -d
        if d > 1:
            signs[0], signs[-1] = -1.0, 1.0
        flipped = x * signs
        expected = _by_blocks(flipped, width)
        got = rotate(x.copy(), signs.copy())
        mistakes = {} if n == 4 or d < 8 else {
            "a block is longer by the root of its width: divide by that": expected * np.sqrt(width),
            "divide by the root of a block's width, not of d": expected * np.sqrt(width / d),
            "divided by the width: its root is what makes H orthogonal": expected / np.sqrt(width),
            "the signs were left out": _by_blocks(x, width),
            "the signs come first, before the mixing": _by_blocks(x, width) * signs,
            "the signs of the first block for all: each column has its own":
                _by_blocks(x * np.resize(signs[:width], d), width),
            "a block is columns side by side, not every so many":
                quant.hadamard(flipped.reshape(n, width, -1).swapaxes(1, 2))
                .swapaxes(1, 2).reshape(n, d),
            f"blocks half as wide as they may be: {width} divides {d}": _by_blocks(flipped, width // 2),
            "the blocks are pairs: the distance doubles from round to round, up to half the width":
                _by_blocks(flipped, 2),
            "nothing was mixed: the signs alone spread no outlier": flipped,
            **_unequal(flipped, d, width)}
        expect_close(got, expected, f"rotated rows, d = {d}", mistakes=mistakes)
    return "at d = 96 an outlier spreads over 32 entries: 17 becomes 3.0, at d = 128 it becomes 1.5."


def _unequal(flipped, d, width):
    """Return two ways around a d that is no power of two, by what is wrong with them."""
    if d == width:
        return {}
    wide = 1 << d.bit_length() - 1                         # the widest below d; the next is above
    padded = np.pad(flipped, ((0, 0), (0, 2 * wide - d)))
    parts = [quant.hadamard(flipped[:, :wide]), _by_blocks(flipped[:, wide:], (d - wide) & (wide - d))]
    return {"filled up with zeros and cut off again: rows lose length, and QKᵀ changes":
                quant.hadamard(padded)[:, :d],
            f"the first block has {wide} columns, which do not divide {d}: blocks of equal width":
                np.hstack(parts),
            f"the first {wide} columns were turned, and the others left":
                np.hstack([parts[0], flipped[:, wide:]])}


@exercise("13.4", "Rotate what may be rotated", difficulty=2, minutes=8, solution="prepare",
          hints=("(QR)(KR)ᵀ = Q RRᵀ Kᵀ. When does R disappear?",
                 "O = PV is a weighted mean of V's rows. If each were rotated, what would O be?"))
def check_prepare(prepare):
    """Accept `prepare(Q, K, V, signs) -> (Q, K, V)`: attention of the result is unchanged."""
    rng = np.random.default_rng(134)
    Q, K, V = rng.normal(size=(3, 6, 16))
    Q[2, 5], K[4, 5], V[1, 3], Q[1] = 30.0, -25.0, 40.0, 7.0
    signs = quant.random_signs(16, seed=3)
    got = given(prepare(Q.copy(), K.copy(), V.copy(), signs.copy()))
    if not isinstance(got, tuple | list | np.ndarray) or list(map(np.shape, got)) != 3 * [(6, 16)]:
        raise Wrong("expected a tuple (Q, K, V), each of shape (6, 16)")
    q, k, v = (np.asarray(a) for a in got)
    product, near = q @ k.T, 1e-4 if np.float32 in (q.dtype, k.dtype) else 1e-9

    def turned(now, before):
        return np.allclose(now, quant.rotate(before, signs))

    if np.allclose(v, quant.rotate(V, signs)) or np.allclose(v, quant.unrotate(V, signs)):
        raise Wrong("V was rotated: O = PV comes out rotated, too, and someone has to turn it back")
    if np.allclose(q, Q) and np.allclose(k, K):
        raise Wrong("nothing was rotated: attention is right, and the outliers are where they were")
    if (turned(q, Q) and np.allclose(k, K)) or (turned(k, K) and np.allclose(q, Q)):
        raise Wrong("only one of Q and K was rotated: QKᵀ needs R and Rᵀ to meet")
    if turned(q, Q) and np.allclose(k, quant.unrotate(K, signs)):
        raise Wrong("K was turned the other way: (QR)(KR)ᵀ, the same R for both")
    if turned(q, K) and turned(k, Q):
        raise Wrong("Q and K changed places: return them in the order in which they came")
    if not np.allclose(product, Q @ K.T, atol=near) and all(
            np.allclose(np.linalg.norm(now, axis=1), np.linalg.norm(before, axis=1))
            for now, before in ((q, Q), (k, K))):
        raise Wrong("Q and K were turned by different rotations: in (QR)(KR)ᵀ it is the same R")
    expect_close(product, Q @ K.T, "QKᵀ of what you return", atol=near)
    expect_close(v, V, "V, which must stay as it is")
    if np.abs(q[1]).max() > 25:
        raise Wrong("the row of equal entries became an outlier: flip the signs before H, not after")
    if max(np.abs(q).max() / 30, np.abs(k).max() / 25) > 0.6:
        raise Wrong("QKᵀ is unchanged, but the outliers were not spread: use quant.rotate")
    return "V's outliers stay, and only their block's scale looks after them."
