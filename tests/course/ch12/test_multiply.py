"""The check of exercise 12.5 runs a reader's kernel: it accepts right forms, and names each bug."""

import inspect
import linecache

import pytest

pytest.importorskip("triton.experimental.gluon")

from triton.experimental import gluon

from flashlib.course.ch12 import exercises as ch12
from flashlib.course.ch12 import solutions as right
from flashlib.course.exercises.core import ExerciseFailed, hint, solution
from tests.course.exercises.examine import stub

SOURCE = inspect.getsource(right.multiply)
WAIT = "        mbarrier.wait(full, j % 2)\n"
BYTES = "x_desc.block_type.nbytes + w_desc.block_type.nbytes"
PRODUCT = "        acc = warpgroup_mma_wait(0, deps=[acc])\n"
SET_UP = "    full = barriers(1).index(0)\n    mbarrier.init(full, count=1)\n"
LEAVES = "    x.store(acc.to(x_desc.dtype))\n"
Y_TILE = "gl.allocate_shared_memory(y_desc.dtype, y_desc.block_type.shape, y_desc.layout)"


def variant(*edits):
    """Return the solution with pieces of its source replaced, defined as a cell defines it."""
    source = SOURCE
    for old, new in edits:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    name = f"<answer {hash(source)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    space = {**vars(right), "gluon": gluon}
    exec(compile(source, name, "exec"), space)
    return space["multiply"]


TWO_SLOTS = [
    ("x = gl.allocate_shared_memory(x_desc.dtype, x_desc.block_type.shape",
     "xs = gl.allocate_shared_memory(x_desc.dtype, [2, 64, 64]"),
    ("w = gl.allocate_shared_memory(w_desc.dtype, w_desc.block_type.shape",
     "ws = gl.allocate_shared_memory(w_desc.dtype, [2, 64, 64]"),
    (SET_UP, "    both = barriers(2)\n    mbarrier.init(both.index(0), count=1)\n"
             "    mbarrier.init(both.index(1), count=1)\n"),
    ("        mbarrier.expect",
     "        x, w, full = xs.index(j % 2), ws.index(j % 2), both.index(j % 2)\n"
     "        mbarrier.expect"),
    ("full, j % 2)", "full, j // 2 % 2)"), ("    x.store", "    x = xs.index(0)\n    x.store")]
TWO_BARRIERS = [
    (SET_UP, f"{SET_UP}    other = barriers(1).index(0)\n    mbarrier.init(other, count=1)\n"),
    (BYTES, "x_desc.block_type.nbytes)\n        mbarrier.expect(other, w_desc.block_type.nbytes"),
    ("full, w)", "other, w)"), (WAIT, f"{WAIT}        mbarrier.wait(other, j % 2)\n")]
RIGHT = {
    "as it is": [],
    "jitted": [("def multiply", "@gluon.jit\ndef multiply")],
    "a product that waits": [("acc, is_async=True)", "acc)"), (PRODUCT, "")],
    "memory of Y's own": [(LEAVES, f"    y = {Y_TILE}\n    y.store(acc.to(y_desc.dtype))\n"),
                          ("[0, 0], x)", "[0, 0], y)")],
    "the copy engine by its own name": [("load_tile(x_desc", "tma.async_copy_global_to_shared(x_desc")],
    "a parity that is kept": [("    acc = gl.zeros", "    parity = 0\n    acc = gl.zeros"),
                              (WAIT, "        mbarrier.wait(full, parity)\n        parity ^= 1\n")],
    "bytes as a number": [(BYTES, "2 * 64 * 64 * 2")],
    "an acc that is not read at first": [("acc, is_async", "acc, use_acc=j > 0, is_async")],
    "while": [("for j in range(count):", "j = 0\n    while j < count:"),
              (PRODUCT, f"{PRODUCT}        j += 1\n")],
    "a barrier that is given up": [("    tma.store_wait(0)\n",
                                    "    tma.store_wait(pendings=0)\n    mbarrier.invalidate(full)\n")],
    "two slots": TWO_SLOTS, "two barriers": TWO_BARRIERS,
}
WRONG = {
    "parity always 0": ([("full, j % 2)", "full, 0)")], "the parity flips with every phase"),
    "the producer's parity": ([("full, j % 2)", "full, 1 - j % 2)")], "before it has come"),
    "no wait": ([(WAIT, "")], "before it has come"),
    "no fence for the barrier": ([("    fence_async_shared()\n    acc", "    acc")], "before a fence"),
    "no fence for Y": ([("    fence_async_shared()\n    store", "    store")],
                       "the copy engine sees after a fence"),
    "no wait for the product": ([(PRODUCT, "")], "when it has been waited for"),
    "a wait whose result is dropped": ([(PRODUCT, PRODUCT.replace("acc = ", "", 1))],
                                       "when it has been waited for"),
    "no wait for the store": ([("    tma.store_wait(0)\n", "")], "must not end"),
    "X's bytes only": ([(BYTES, "x_desc.block_type.nbytes")], "counts the bytes of all copies"),
    "twice the bytes": ([(BYTES, "4 * x_desc.block_type.nbytes")], "16384 B to come"),
    "a quarter of the bytes": ([(BYTES, "x_desc.block_type.nbytes // 2")], "12288 B too many"),
    "elements, not bytes": ([(BYTES, "2 * 64 * 64")], "before it has come"),
    "one number's bytes": ([(BYTES, "2")], "no more and no fewer"),
    "nothing expected": ([(f"        mbarrier.expect(full, {BYTES})\n", "")], "never completes"),
    "W never asked for": ([("        load_tile(w_desc, [64 * j, 0], full, w)\n", "")],
                          "never completes"),
    "two arrivals": ([("count=1", "count=2")], "expects one arrival"),
    "no barrier": ([("    mbarrier.init(full, count=1)\n", "")], "mbarrier.init is missing"),
    "W transposed": ([("w, acc", "w.permute([1, 0]), acc")], "this is X·Wᵀ"),
    "W on the left": ([("warpgroup_mma(x, w, acc", "warpgroup_mma(w, x, acc")], "X stands on the left"),
    "a phase's number": ([("full, j % 2)", "full, j)")], "the parity of a phase, not its number"),
    "stored in the loop": ([(LEAVES, f"    {LEAVES}")], "sees after a fence"),
    "acc forgotten": ([("acc, is_async", "acc, use_acc=False, is_async")], "only the last tile"),
    "one tile": ([("range(count)", "range(1)")], "only the first tile"),
    "one too few": ([("range(count)", "range(count - 1)")], "all zeros"),
    "W's rows as columns": ([("[64 * j, 0]", "[0, 64 * j]")], "W's row is 64·j"),
    "X's tile 0": ([("[0, 64 * j]", "[0, 0]")], "X's first tile again"),
    "W's tile 0": ([("[64 * j, 0]", "[0, 0]")], "W's first tile again"),
    "columns, not tiles": ([("[0, 64 * j]", "[0, j]")], "Y for count = 2 at"),
    "Y stays": ([("    store_tile(y_desc, [0, 0], x)\n", "")], "nothing was stored"),
    "acc stays": ([(LEAVES, "")], "Y for count = 1 at"),
    "32 bits": ([("acc.to(x_desc.dtype)", "acc")], "x holds [64, 64] of fp16"),
    "a Triton product": ([("warpgroup_mma(x, w, acc, is_async=True)", "gl.dot(x, w, acc)")],
                         "does not know gl.dot"),
    "any layout": ([("mma_layout(64)", "gl.BlockedLayout([1, 1], [32, 1], [4, 1], [1, 0])")],
                   "NVMMADistributedLayout"),
}


@pytest.mark.parametrize("edits", RIGHT.values(), ids=RIGHT)
def test_right_forms_pass(edits):
    assert ch12.check_multiply(variant(*edits), strict=True)


@pytest.mark.parametrize(("edits", "diagnosis"), WRONG.values(), ids=WRONG)
def test_a_bug_is_named(edits, diagnosis):
    verdict = ch12.check_multiply(variant(*edits))
    assert not verdict
    assert diagnosis in verdict.message, verdict.message


@pytest.mark.parametrize(("answer", "told"), [
    (stub, "not answered yet"), (None, "not answered yet"), (..., "not answered yet"),
    (12, "expected a function"), (lambda x_desc, w_desc, y_desc, count: None, "nothing was stored")])
def test_what_is_no_kernel_is_told_so(answer, told):
    assert told in ch12.check_multiply(answer).message
    with pytest.raises(ExerciseFailed):
        ch12.check_multiply(answer, strict=True)


def test_hints_and_the_solution_are_shown(capsys):
    hint("12.5", 3)
    solution("12.5")
    assert "fence" in (shown := capsys.readouterr().out) and SOURCE in shown


def test_without_triton_it_says_so(monkeypatch):
    monkeypatch.setattr(ch12, "why_not", lambda: "no Triton.")
    assert "needs Triton: no Triton." in ch12.check_multiply(right.multiply).message
