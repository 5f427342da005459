"""The checks of chapter 13 accept the solution and name each seeded mistake."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

pytest.importorskip("ml_dtypes")

from flashlib import quant
from flashlib.course.ch13 import exercises as ch13
from flashlib.course.ch13 import solutions as right
from tests.course.exercises.examine import examine


def _hand(place, value):
    def by_hand():
        answer = list(right.by_hand())
        answer[place] = value
        return answer
    return by_hand


def _endless():
    """Round as if there were no subnormals: an eighth of the power of two below, however small."""
    clipped = np.minimum(ch13.NUMBERS, 448)
    steps = 2.0 ** (np.floor(np.log2(clipped)) - 3)
    return np.rint(clipped / steps) * steps


def _amax(x, rows, measure=lambda b: np.abs(b).max()):
    return np.array([measure(x[n:n + rows]) for n in range(0, len(x), rows)])


def _width(x):
    return x.shape[1] & -x.shape[1]


def _blocks(x, width):
    return quant.hadamard(x.reshape(-1, width)).reshape(x.shape)


def _strided(x, signs):
    blocks = (x * signs).reshape(len(x), _width(x), -1).swapaxes(1, 2)
    return quant.hadamard(blocks).swapaxes(1, 2).reshape(x.shape)


def _padded(x, signs):
    d, wide = x.shape[1], 1 << (x.shape[1] - 1).bit_length()
    return quant.hadamard(np.pad(x * signs, ((0, 0), (0, wide - d))))[:, :d]


def _greedy(x, signs):
    y, start, d = x * signs, 0, x.shape[1]
    while start < d:
        wide = 1 << (d - start).bit_length() - 1
        y[:, start:start + wide] = quant.hadamard(y[:, start:start + wide])
        start += wide
    return y


def _rest_left(x, signs):
    y, wide = x * signs, 1 << x.shape[1].bit_length() - 1
    y[:, :wide] = quant.hadamard(y[:, :wide])
    return y


WRONG = [
    (ch13.check_by_hand, _hand(0, 18), "even mantissa"),
    (ch13.check_by_hand, _hand(0, 19), "does not round to whole numbers"),
    (ch13.check_by_hand, _hand(1, 0.0625), "two bits of mantissa"),
    (ch13.check_by_hand, _hand(1, 10 / 128), "one too far"),
    (ch13.check_by_hand, lambda: quant.round_to(np.array(ch13.NUMBERS), "e5m2"), "as e5m2 does"),
    (ch13.check_by_hand, _hand(3, np.nan), "NumPy's cast"),
    (ch13.check_by_hand, _hand(1, 0.07), "a step is 1/128"),
    (ch13.check_by_hand, _hand(2, 0.0), "subnormals reach down"),
    (ch13.check_by_hand, _hand(2, 0.005), "a step is 2⁻⁹"),
    (ch13.check_by_hand, _hand(2, 2 / 512), "three steps"),
    (ch13.check_by_hand, _endless, "steps stop shrinking"),
    (ch13.check_by_hand, _hand(3, 512), "saturates"),
    (ch13.check_by_hand, _hand(3, 480), "that code is NaN"),
    (ch13.check_by_hand, _hand(3, np.inf), "makes no infinity"),
    (ch13.check_by_hand, _hand(3, 500), "no value of e4m3"),
    (ch13.check_by_hand, _hand(1, 0.0703), "give it exactly"),
    (ch13.check_by_hand, _hand(2, 0.005859), "give it exactly"),
    (ch13.check_by_hand, lambda: (20, 0.07), "expected four numbers"),
    (ch13.check_block_scales, lambda x, r: 448 / _amax(x, r), "its inverse"),
    (ch13.check_block_scales, lambda x, r: _amax(x, r), "divide by 448"),
    (ch13.check_block_scales, lambda x, r: np.full(-(-len(x) // r), np.abs(x).max() / 448),
     "one scale for the whole tensor"),
    (ch13.check_block_scales, lambda x, r: np.abs(x).max() / 448, "one scale for all"),
    (ch13.check_block_scales, lambda x, r: _amax(x, r, np.max) / 448, "negative values count"),
    (ch13.check_block_scales, lambda x, r: _amax(x, r) / 127, "as for int8"),
    (ch13.check_block_scales, lambda x, r: _amax(x, r) / 57344, "as for e5m2"),
    (ch13.check_block_scales,
     lambda x, r: np.array([np.abs(b).max() for b in np.array_split(x, r)]) / 448,
     "not how many blocks"),
    (ch13.check_block_scales, lambda x, r: np.abs(x).max(axis=1) / 448, "one scale per row"),
    (ch13.check_block_scales, lambda x, r: np.abs(x).max(axis=0) / 448, "one scale per column"),
    (ch13.check_block_scales, lambda x, r: _amax(x[:len(x) // r * r], r) / 448,
     "the last block was dropped"),
    (ch13.check_block_scales, lambda x, r: _amax(x, r) / 448, "a block of zeros"),
    (ch13.check_block_scales,
     lambda x, r: np.where(_amax(x, r) > 1, _amax(x, r) / 448, 1.0), "a block of small numbers"),
    (ch13.check_block_scales,
     lambda x, r: np.where(_amax(x, r) > 0, _amax(x, r) / 448, np.inf), "the scale inf"),
    (ch13.check_block_scales,
     lambda x, r: _amax(x, r) / 448 if _amax(x, r).all() else np.ones(len(_amax(x, r))),
     "a block of ones after one of zeros"),
    (ch13.check_block_scales, lambda x, r: np.maximum(_amax(x, r), 1) / 448, "expected"),
    (ch13.check_block_scales, lambda x, r: np.maximum(_amax(x, r) / 448, 1e-3), "expected"),
    (ch13.check_rotate, lambda x, s: right.rotate(x, s) * np.sqrt(_width(x)), "divide by that"),
    (ch13.check_rotate, lambda x, s: right.rotate(x, s) * np.sqrt(_width(x) / len(s)), "not of d"),
    (ch13.check_rotate, lambda x, s: right.rotate(x, s) / np.sqrt(_width(x)), "divided by the width"),
    (ch13.check_rotate, lambda x, s: _blocks(x, _width(x)), "signs were left out"),
    (ch13.check_rotate, lambda x, s: _blocks(x, _width(x)) * s, "signs come first"),
    (ch13.check_rotate, lambda x, s: _blocks(x * np.resize(s[:_width(x)], len(s)), _width(x)),
     "each column has its own"),
    (ch13.check_rotate, _strided, "columns side by side"),
    (ch13.check_rotate, lambda x, s: _blocks(x * s, max(_width(x) // 2, 1)), "half as wide"),
    (ch13.check_rotate, lambda x, s: _blocks(x * s, min(_width(x), 2)), "the blocks are pairs"),
    (ch13.check_rotate, lambda x, s: x * s, "nothing was mixed"),
    (ch13.check_rotate, _padded, "rows lose length"),
    (ch13.check_rotate, _greedy, "blocks of equal width"),
    (ch13.check_rotate, _rest_left, "and the others left"),
    (ch13.check_rotate, quant.rotate, "power of two"),
    (ch13.check_prepare, lambda Q, K, V, s: [quant.rotate(a, s) for a in (Q, K, V)], "V was rotated"),
    (ch13.check_prepare, lambda Q, K, V, s: (Q, K, V), "nothing was rotated"),
    (ch13.check_prepare, lambda Q, K, V, s: (quant.rotate(Q, s), K, V), "only one of Q and K"),
    (ch13.check_prepare, lambda Q, K, V, s: (Q, quant.rotate(K, s), V), "only one of Q and K"),
    (ch13.check_prepare, lambda Q, K, V, s: (quant.rotate(Q, s), quant.unrotate(K, s), V),
     "the other way"),
    (ch13.check_prepare, lambda Q, K, V, s: (quant.rotate(Q, s), quant.rotate(K, s),
                                             quant.unrotate(V, s)), "V was rotated"),
    (ch13.check_prepare, lambda Q, K, V, s: (quant.rotate(K, s), quant.rotate(Q, s), V),
     "changed places"),
    (ch13.check_prepare, lambda Q, K, V, s: (quant.rotate(Q, s), quant.rotate(K, -s), V),
     "different rotations"),
    (ch13.check_prepare, lambda Q, K, V, s: (quant.hadamard(Q), quant.rotate(K, s), V),
     "different rotations"),
    (ch13.check_prepare, lambda Q, K, V, s: (Q * s, K * s, V), "not spread"),
    (ch13.check_prepare, lambda Q, K, V, s: (quant.rotate(Q, s), quant.rotate(K, s), -V),
     "V, which must stay"),
    (ch13.check_prepare, lambda Q, K, V, s: (Q, K), "expected a tuple"),
    (ch13.check_prepare, lambda Q, K, V, s: (quant.hadamard(Q), quant.hadamard(K), V), "before H"),
    (ch13.check_prepare, lambda Q, K, V, s: (quant.unrotate(Q, s), quant.unrotate(K, s), V),
     "flip the signs before H"),
]
PAIRS = [(ch13.check_by_hand, right.by_hand), (ch13.check_block_scales, right.block_scales),
         (ch13.check_rotate, right.rotate), (ch13.check_prepare, right.prepare)]

TestAnswers = examine(right=PAIRS, wrong=WRONG)


def test_the_number_by_hand_are_what_rounding_says():
    np.testing.assert_array_equal(right.by_hand(), quant.round_to(np.array(ch13.NUMBERS)))


def test_fractions_decimals_and_eight_bit_floats_are_welcome():
    import ml_dtypes

    assert ch13.check_by_hand(lambda: (20, Fraction(9, 128), Fraction(3, 512), 448))
    assert ch13.check_by_hand(lambda: [Decimal(str(x)) for x in right.by_hand()])
    assert ch13.check_by_hand(lambda: np.array(right.by_hand()).astype(ml_dtypes.float8_e4m3fn))
    assert ch13.check_block_scales(lambda x, rows: [Fraction(float(a)) / 448 or 1
                                                    for a in _amax(x, rows)])


def test_eight_bit_tensors_of_torch_are_welcome():
    torch = pytest.importorskip("torch")
    assert ch13.check_by_hand(lambda: torch.tensor(right.by_hand()).to(torch.float8_e4m3fn))
    assert ch13.check_by_hand(lambda: torch.tensor(right.by_hand(), dtype=torch.float64))


@pytest.mark.parametrize("single", ["QK", "QKV"])
def test_float32_is_welcome_where_tensors_are_handed_on(single, capsys):
    def prepare(Q, K, V, signs):
        ready = dict(zip("QKV", right.prepare(Q, K, V, signs), strict=True))
        return tuple(x.astype(np.float32) if name in single else x for name, x in ready.items())

    assert ch13.check_prepare(prepare)
    assert "float32" in capsys.readouterr().out


def test_three_tensors_in_one_array_are_welcome():
    assert ch13.check_prepare(lambda Q, K, V, signs: np.stack(right.prepare(Q, K, V, signs)))


def test_eight_bit_tensors_are_not_taken_for_float32():
    def prepare(Q, K, V, signs):
        Q, K, V = right.prepare(Q, K, V, signs)
        return *(quant.quantise(x).dequantise().astype(np.float32) for x in (Q, K)), V

    assert not ch13.check_prepare(prepare)


def test_a_random_orthogonal_matrix_is_welcome_where_any_rotation_will_do():
    R = quant.random_orthogonal(16)
    assert ch13.check_prepare(lambda Q, K, V, signs: (Q @ R, K @ R, V))


def _block_after_block(x, signs):
    """The page's rounds of sums and differences, for one block of columns after another."""
    y, width = x * signs, _width(x)
    for start in range(0, x.shape[1], width):
        block, h = y[:, start:start + width], 1
        while h < width:
            pairs = block.reshape(len(x), -1, 2, h)
            a, b = pairs[:, :, 0], pairs[:, :, 1]
            block, h = np.stack([a + b, a - b], axis=2).reshape(len(x), width), 2 * h
        y[:, start:start + width] = block / np.sqrt(width)
    return y


@pytest.mark.parametrize("turn", [
    _block_after_block, lambda x, s: _block_after_block(x, s).tolist(),
    lambda x, s: x * s @ np.kron(np.eye(len(s) // _width(x)), quant.hadamard(np.eye(_width(x)))),
    lambda x, s: np.hstack([quant.rotate(x[:, n:n + _width(x)], s[n:n + _width(x)])
                            for n in range(0, len(s), _width(x))])])
def test_blocks_may_be_turned_in_any_way(turn):
    assert ch13.check_rotate(turn)
