"""The PTX that stands in for an exponential, run line by line by a model of its arithmetic."""

import re
import struct

import numpy as np
import pytest

pytest.importorskip("triton.experimental.gluon")

from flashlib.kernels.gluon import softmax


def add_down(x, y):
    """Return the float32 sum rounded towards −∞; |y| ≥ |x|."""
    x, y = x.astype(np.float64), np.float64(y)
    near = x + y
    left = x - (near - y)                                   # what rounding to float64 lost, exactly
    sum32 = near.astype(np.float32)
    above = (sum32 > near) | ((sum32 == near) & (left < 0))
    return np.where(above, np.nextafter(sum32, np.float32(-np.inf)), sum32)


def run(ptx, inputs):
    """Execute the lines that `exp2_asm` emits on float32 arrays $4 … $7 and return $0 … $3."""
    registers = {f"${4 + i}": np.asarray(x, np.float32) for i, x in enumerate(inputs)}

    def read(word):
        if constant := re.fullmatch(r"0f([0-9A-F]{8})", word):
            return np.float32(struct.unpack(">f", bytes.fromhex(constant[1]))[0])
        return registers[word] if word in registers else int(word)

    body = re.fullmatch(r"\{(.*)\}", ptx.strip())[1]
    for line in filter(None, map(str.strip, body.split(";"))):
        opcode, rest = line.split(maxsplit=1)
        if opcode == ".reg":
            continue
        target, *words = (word.strip() for word in rest.split(","))
        x = [read(word) for word in words]
        if opcode == "max.f32":
            result = np.maximum(x[0], x[1])
        elif opcode == "add.rm.f32":
            result = add_down(x[0], x[1])
        elif opcode == "sub.f32":
            result = (x[0] - x[1]).astype(np.float32)
        elif opcode == "fma.rn.f32":                        # a product of two float32 fits a float64
            result = (x[0].astype(np.float64) * x[1] + x[2]).astype(np.float32)
        elif opcode == "mov.b32":
            result = x[0]
        elif opcode == "shl.b32":
            result = (x[0].view(np.uint32) << np.uint32(x[1])).view(np.float32)
        elif opcode == "add.s32":
            result = (x[0].view(np.uint32) + x[1].view(np.uint32)).view(np.float32)
        elif opcode == "ex2.approx.ftz.f32":
            result = np.exp2(x[0].astype(np.float64)).astype(np.float32)
        else:
            raise LookupError(f"no model of {opcode}")
        registers[target] = result
    return [registers[f"${i}"] for i in range(4)]


def relative_error(y, x):
    return np.abs(y.astype(np.float64) / np.exp2(x.astype(np.float64)) - 1)


WHOLE = -np.arange(127, dtype=np.float32)
GRID = np.concatenate([np.linspace(-126, 0, 200_001), -np.logspace(-45, 2, 5_000), WHOLE,
                       np.nextafter(WHOLE, np.float32(-200)),
                       np.nextafter(WHOLE[1:], np.float32(0))]).astype(np.float32)
GRID = GRID[GRID >= -126]


@pytest.mark.parametrize("emulated", [0, 1, 2])
def test_each_of_four_registers_is_an_exponential(emulated):
    ptx = softmax.exp2_asm(emulated)
    inputs = [np.roll(GRID, 17 * i) for i in range(4)]
    assert ptx.count("ex2.approx") == 4 - emulated
    for i, (x, y) in enumerate(zip(inputs, run(ptx, inputs), strict=True)):
        worst = relative_error(y, x).max()
        assert worst < (1.2e-4 if i < emulated else 1e-7), i
        assert worst > 5e-5 or i >= emulated                # and it is the cubic that was run


def test_whole_numbers_are_exact_and_nothing_is_above_one():
    assert (run(softmax.exp2_asm(1), [WHOLE] * 4)[0] == np.exp2(WHOLE)).all()
    assert run(softmax.exp2_asm(1), [GRID] * 4)[0].max() == 1


def test_below_the_smallest_exponent_it_is_as_good_as_zero():
    x = np.array([-127, -128, -150, -1e4, -3e38, -np.inf], np.float32)
    y = run(softmax.exp2_asm(1), [x] * 4)[0]
    assert ((y >= 0) & (y < 1.2e-38)).all()


def test_the_cubic_is_one_at_zero_and_errs_as_documented():
    f = np.linspace(0, 1, 100_001)
    cubic = np.polynomial.polynomial.polyval(f, softmax.CUBIC)
    assert softmax.CUBIC[0] == 1
    assert 8.4e-5 < np.abs(cubic / np.exp2(f) - 1).max() < 8.65e-5


@pytest.mark.parametrize("value", [0.0, 1.0, -127.0, 1.5 * 2**23, float("-inf")])
def test_constants_are_written_as_ptx_reads_them(value):
    text = softmax.hex32(value)
    assert re.fullmatch(r"0f[0-9A-F]{8}", text)
    assert struct.unpack(">f", bytes.fromhex(text[2:]))[0] == value
    assert softmax.hex32(-127.0) == "0fC2FE0000" and softmax.hex32(1.5 * 2**23) == "0f4B400000"


def grow(ptx, registers):
    """Execute the lines of `grow_asm` for a warp: arrays of 32 lanes in $0, $1 and $4, $5; $0 … $3."""
    lanes, predicates = np.arange(32), {}
    registers = {f"${i}": np.asarray(x, np.float32) for i, x in registers.items()}
    body, skipped = re.fullmatch(r"\{(.*)\}", ptx.strip())[1], False
    for line in filter(None, map(str.strip, body.split(";"))):
        line, where = line.removeprefix("DONE:").strip(), np.ones(32, bool)
        if guard := re.match(r"@(!?)(\w+) ", line):
            where = predicates[guard[2]] ^ bool(guard[1])
            line = line[guard.end():]
        if skipped or not line or line.startswith(".reg"):
            continue
        opcode, rest = line.split(maxsplit=1)
        target, *words = (word.strip() for word in rest.split(","))
        known = registers | predicates | {"0f3F800000": np.float32(1)}
        x = [known.get(word, word) for word in words]
        if opcode == "bra.uni":
            assert len(set(where)) == 1                     # all lanes go the same way
            skipped = where[0]
        elif opcode in ("setp.gt.f32", "setp.gt.or.f32"):
            predicates[target] = (x[0] > np.float32(x[1])) | (x[2] if ".or." in opcode else False)
        elif opcode == "vote.sync.any.pred":
            predicates[target] = np.full(32, x[0].any())
        else:
            if opcode == "shfl.sync.bfly.b32":
                result = x[0][lanes ^ int(x[1])]
            elif opcode == "max.f32":
                result = np.fmax(*x)
            elif opcode == "sub.f32":
                result = x[0] - x[1]
            elif opcode == "ex2.approx.ftz.f32":
                result = np.exp2(x[0])
            elif opcode == "mov.f32":
                result = x[0]
            else:
                raise LookupError(f"no model of {opcode}")
            registers[target] = np.where(where, result, registers.get(target, np.float32(np.nan)))
    return [registers[f"${i}"] for i in range(4)], skipped


TAU = 8.0


def rows_of(generator, grows):
    """Return maxima (equal in the four threads of a row) and what each thread sees, for two rows."""
    m = np.repeat(generator.normal(size=(2, 8)), 4, axis=1)
    above = np.full((2, 32), 7.5)
    for row, lane in grows:
        above[row, lane] = 9.0
    top = m + above - np.where(generator.random((2, 32)) < 0.5, 20, 0) * (above < 9)
    return m.astype(np.float32), top.astype(np.float32)


@pytest.mark.parametrize("grows", [[], [(0, 5)], [(1, 31)], [(0, 0), (0, 2), (1, 2), (1, 17)]], ids=str)
def test_a_maximum_grows_in_all_threads_of_its_row_or_in_none(grows):
    m, top = rows_of(np.random.default_rng(0), grows)
    results, skipped = grow(softmax.grow_asm(TAU), {0: m[0], 1: m[1], 4: top[0], 5: top[1]})
    assert skipped == (not grows)                           # no thread meets another
    exact = np.repeat(top.reshape(2, 8, 4).max(axis=2), 4, axis=1)
    new = np.where(exact - m > TAU, exact, m)
    assert (new != m).sum() == 4 * len({(row, lane // 4) for row, lane in grows})
    np.testing.assert_array_equal(results[:2], new)
    np.testing.assert_allclose(results[2:], np.exp2(m - new), rtol=1e-6)


@pytest.mark.parametrize("m, top, new, factor", [
    (-np.inf, 3.0, 3.0, 0.0), (-np.inf, -np.inf, -np.inf, 1.0), (2.0, -np.inf, 2.0, 1.0),
    (2.0, np.nan, 2.0, 1.0), (2.0, np.inf, np.inf, 0.0), (2.0, 10.0, 2.0, 1.0),
    (2.0, 10.5, 10.5, 2**-8.5)])
@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_maximum_begins_at_minus_infinity_and_survives_it(m, top, new, factor):
    results, _ = grow(softmax.grow_asm(TAU), {i: np.full(32, x) for i, x in
                                                  {0: m, 1: m, 4: top, 5: top}.items()})
    for found, expected in zip(results, (new, new, factor, factor), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
