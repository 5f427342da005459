"""Answers to chapter 09's kernel exercises, right and wrong, checked under the interpreter in one run.

A wrong one is the solution with a piece of its text replaced.
"""

import inspect
import itertools
import json
import linecache
import os

os.environ["TRITON_INTERPRET"] = "1"

import triton.language as tl

from flashlib.course.ch09 import exercises as ch09
from flashlib.course.ch09 import solutions as right
from tests.quick_interpreter import quicken

numbers = itertools.count()


def mutant(solution, *changes):
    """Return the solution with texts replaced; (old, new, which) replaces one occurrence, from 0."""
    text = inspect.getsource(solution)
    for old, new, *which in changes:
        parts = text.split(old)
        assert len(parts) > 1, f"{old!r} is not in {solution.__name__}"
        for k in (which or range(len(parts) - 1))[::-1]:
            parts[k:k + 2] = [parts[k] + new + parts[k + 1]]
        text = old.join(parts)
    file = f"<mutant {next(numbers)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    space = {"tl": tl}
    exec(compile(text, file, "exec"), space)
    return space[solution.__name__]


def stub(X, Y, xm, ym, N, BLOCK: tl.constexpr):
    """Do nothing yet."""
    raise NotImplementedError


OLD_X, OLD_Y = "row * stride_xm + col * stride_xn", "row * stride_ym + col * stride_yn"
MASK, PAD = ", mask=col < N", 'other=float("-inf")'
RESCALE = "l * tl.exp(m - m_new) +"
A_AT = "m[:, None] * stride_am + k[None, :] * stride_ak"
C_AT = "m[:, None] * stride_cm + n[None, :] * stride_cn"
DOT = 'tl.dot(a, b, acc, input_precision="ieee")'
CASES = [
    (ch09.check_transposed, right.double_kernel, [(OLD_X, "row * N + col")], "follow each other"),
    (ch09.check_transposed, right.double_kernel, [(OLD_X, "row * stride_xn + col * stride_xm")],
     "changed places"),
    (ch09.check_transposed, right.double_kernel, [(OLD_Y, "row * N + col")], "both of Y's strides"),
    (ch09.check_transposed, right.double_kernel, [(OLD_Y, OLD_X)], "each tensor has its own"),
    (ch09.check_transposed, right.double_kernel, [(OLD_X, "row * stride_xm + col"),
     (OLD_Y, "row * stride_ym + col")], "column's stride is missing"),
    (ch09.check_transposed, right.double_kernel, [(OLD_X, "col * stride_xn")], "row 0 of X"),
    (ch09.check_transposed, right.double_kernel, [(MASK, "", 1)], "which is outside"),
    (ch09.check_transposed, right.double_kernel, [("2 * x", "x")], "copied, not doubled"),
    (ch09.check_transposed, right.double_kernel, [(OLD_Y, "col * stride_yn")], "row 0 of Y"),
    (ch09.check_transposed, right.double_kernel, [(MASK, "", 0)], "which is outside"),
    (ch09.check_transposed, right.double_kernel, [("    tl.store", "    # tl.store")],
     "nothing was stored"),
    (ch09.check_transposed, right.double_kernel, [("col = tl.arange", "col = row * BLOCK + tl.arange")],
     "columns begin at 0"),
    (ch09.check_row_max, right.row_max_kernel, [("mask=col < N, " + PAD, "mask=col < 99")],
     "is in row"),
    (ch09.check_row_max, right.row_max_kernel, [("col < N", "col <= N")], "the mask must end at N"),
    (ch09.check_row_max, right.row_max_kernel, [(PAD, "other=0.0")], "count as −∞"),
    (ch09.check_row_max, right.row_max_kernel, [(PAD, "other=-1e9")], "got -1e+09: masked lanes must"),
    (ch09.check_row_max, right.row_max_kernel, [("col < N", "col < N - 1")], "last element is missing"),
    (ch09.check_row_max, right.row_max_kernel, [("stride_xm + col", "N + col")], "row · stride_xm"),
    (ch09.check_row_max, right.row_max_kernel, [("Y + row", "Y")], "Y + row"),
    (ch09.check_row_max, right.row_max_kernel, [("Y + row", "Y + row * stride_xm")], "is outside"),
    (ch09.check_online, right.online_kernel, [(RESCALE, "l +")], "old l was not rescaled"),
    (ch09.check_online, right.online_kernel, [(RESCALE, "l * tl.exp(m_new - m) +"), ("-3e38", "-9.0")],
     "wrong sign"),
    (ch09.check_online, right.online_kernel, [(RESCALE, "")], "earlier blocks is lost"),
    (ch09.check_online, right.online_kernel, [(RESCALE + " tl.sum(tl.exp(x - m_new), 0)",
     "(l + tl.sum(tl.exp(x - m_new), 0)) * tl.exp(m - m_new)")], "and not the new sum"),
    (ch09.check_online, right.online_kernel, [(" / l", "")], "division by l is missing"),
    (ch09.check_online, right.online_kernel, [(PAD, "other=0.0", 0)], "logits of 0"),
    (ch09.check_online, right.online_kernel, [(MASK, ", mask=col < 99", 0)], "outside"),
    (ch09.check_online, right.online_kernel, [("        m = m_new\n", ""), ("m_new = tl.maximum(m, "
     "tl.max(x, 0))", "m_new = 0.0"), ("-3e38", "0.0")], "exponent was positive"),
    (ch09.check_online, right.online_kernel, [("tl.maximum(m, tl.max(x, 0))", "tl.max(x, 0)")],
     "all blocks so far"),
    (ch09.check_online, right.online_kernel, [("        x = tl.load(", "        tl.load(X + row * "
     "stride_xm + col, mask=col < N)\n        x = tl.load(", 0)], "read three times"),
    (ch09.check_online, right.online_kernel, [("tl.exp(x - m_new)", "tl.exp(x - m)")], "needs m_new"),
    (ch09.check_online, right.online_kernel, [("row * stride_xm", "row * N")], "row · stride_xm"),
    (ch09.check_online, right.online_kernel, [("-3e38", "0.0")], "m must start below every logit"),
    (ch09.check_online, right.online_kernel, [("-3e38", "-1e9")], "m must start below every logit"),
    (ch09.check_online, right.online_kernel, [("-3e38", "0.0"), (" / l", " / tl.where(l == 0, 1, l)")],
     "a row far below 0"),
    (ch09.check_online, right.online_kernel, [(PAD, "other=-1e9")], "masked lanes count as −∞"),
    (ch09.check_online, right.online_kernel, [("        tl.store", "        # tl.store")],
     "nothing was stored"),
    (ch09.check_online, right.online_kernel, [("range(0, N, BLOCK)", "range(0, BLOCK, BLOCK)")],
     "loop over all blocks"),
    (ch09.check_online, right.online_kernel, [("        m = m_new\n", "        m = m_new\n        "
     "tl.store(Y + row * stride_ym + col, tl.exp(x - m) / l, mask=col < N)\n"),
     ("    for start in range(0, N, BLOCK):", "    for start in range(0, 0, BLOCK):", 1)],
     "while l was still growing"),
    (ch09.check_online, right.online_kernel, [("tl.exp(x - m) / l", "unknown")], "raised NameError"),
    (ch09.check_online, right.online_kernel, [("tl.exp(x - m) / l", "tl.exp(x - (m + tl.log(l)))")],
     "keep m and l apart"),
    (ch09.check_row_max, right.row_max_kernel, [(PAD, "other=-3.4e38")],
     "a low number is not low enough"),
    (ch09.check_matmul, right.matmul_kernel, [("range(0, K, BLOCK)", "range(0, BLOCK, BLOCK)")],
     "loop over K"),
    (ch09.check_matmul, right.matmul_kernel, [("tl.dot(a, b, acc,", "tl.dot(a, b,")], "add to acc"),
    (ch09.check_matmul, right.matmul_kernel, [("k[:, None] * stride_bk", "k[:, None] * N"),
     ("n[None, :] * stride_bn", "n[None, :]")], "both of its strides"),
    (ch09.check_matmul, right.matmul_kernel, [("mask=(m < M)[:, None] & (k < K)[None, :]",
     "mask=(m < M)[:, None] & (k < 99)[None, :]")], "outside"),
    (ch09.check_matmul, right.matmul_kernel, [("mask=(k < K)[:, None] & (n < N)[None, :]",
     "mask=(k < 99)[:, None] & (n < N)[None, :]")], "outside"),
    (ch09.check_matmul, right.matmul_kernel, [(", other=0.0", ", other=1.0")], "with other=0.0"),
    (ch09.check_matmul, right.matmul_kernel, [("program_id(0)", "program_id(7)"), ("program_id(1)",
     "program_id(0)"), ("program_id(7)", "program_id(1)")], "counts rows of tiles"),
    (ch09.check_matmul, right.matmul_kernel, [("stride_cn, acc", "stride_cn, 0 * acc")],
     "every element"),
    (ch09.check_row_max, right.row_max_kernel, [("stride_xm + col", "BLOCK + col")], "at 3 · BLOCK"),
    (ch09.check_row_max, right.row_max_kernel, [("tl.max(", "tl.argmax(")], "place of the maximum"),
    (ch09.check_row_max, right.row_max_kernel, [("tl.max(x, 0)", "max(x)")], "tl.max or tl.sum"),
    (ch09.check_row_max, right.row_max_kernel, [(PAD, 'other=float("inf")')], "+∞ won"),
    (ch09.check_row_max, right.row_max_kernel, [(PAD, 'other=float("inf")'), ("tl.max(", "tl.min(")],
     "smallest number"),
    (ch09.check_online, right.online_kernel, [(RESCALE, "l * tl.exp(m_new - m) +")],
     "every weight is NaN"),
    (ch09.check_online, right.online_kernel, [("        m = m_new\n", "")], "every weight is ∞"),
    (ch09.check_online, right.online_kernel, [("range(0, N, BLOCK)",
     "range(0, N // BLOCK * BLOCK, BLOCK)")], "has to reach N"),
    (ch09.check_online, right.online_kernel, [("start + tl.arange", "tl.arange")], "add start"),
    (ch09.check_online, right.online_kernel, [("tl.exp(", "tl.exp2(")], "powers of 2"),
    (ch09.check_matmul, right.matmul_kernel, [(A_AT, "m[:, None] * K + k[None, :]")],
     "A's rows need not"),
    (ch09.check_matmul, right.matmul_kernel, [("k[None, :] * stride_ak", "k[None, :]")],
     "A's rows need not"),
    (ch09.check_matmul, right.matmul_kernel, [(C_AT, "m[:, None] * N + n[None, :]")],
     "C's rows need not"),
    (ch09.check_matmul, right.matmul_kernel, [(C_AT, "m[:, None] * stride_cm + n[None, :]")],
     "C's rows need not"),
    (ch09.check_matmul, right.matmul_kernel, [(C_AT,
     "m[:, None] * stride_bk + n[None, :] * stride_bn")], "for B alone"),
    (ch09.check_matmul, right.matmul_kernel, [(A_AT,
     "m[:, None] * stride_ak + k[None, :] * stride_am")], "row of A was taken"),
    (ch09.check_matmul, right.matmul_kernel, [("dot(a, b,", "dot(a, b.T,")], "row of B was taken"),
    (ch09.check_matmul, right.matmul_kernel, [(C_AT,
     "m[:, None] * stride_cn + n[None, :] * stride_cm")], "row of C was taken"),
    (ch09.check_matmul, right.matmul_kernel, [("dot(a, b,", "dot(b, a,")], "changed places"),
    (ch09.check_matmul, right.matmul_kernel, [(DOT, "acc + a * b")], "place by place"),
    (ch09.check_matmul, right.matmul_kernel, [("tl.store(C", "tl.atomic_add(C")], "nothing was stored"),
    (ch09.check_matmul, right.matmul_kernel, [("tl.zeros([BLOCK, BLOCK], tl.float32)",
     "tl.load(C + " + C_AT + ", mask=(m < M)[:, None] & (n < N)[None, :])")], "C is read"),
    (ch09.check_matmul, right.matmul_kernel, [("start + tl.arange", "tl.arange")], "add start to k"),
    (ch09.check_matmul, right.matmul_kernel, [("range(0, K, BLOCK)",
     "range(0, K // BLOCK * BLOCK, BLOCK)")], "has to reach K"),
    (ch09.check_matmul, right.matmul_kernel, [("    tl.store(C", "        tl.store(C")],
     "after the loop"),
    (ch09.check_row_max, right.row_max_kernel, [("tl.max(x, 0)", "tl.max(tl.abs(x), 0)")], "expected"),
    (ch09.check_matmul, right.matmul_kernel, [("program_id(0) * BLOCK", "program_id(0)")],
     "some elements were not written"),
]
LOOP = "for start in range(0, N, BLOCK):"
FORMS = [                                                    # other texts that are right
    (ch09.check_transposed, right.double_kernel, [("2 * x", "x + x"),
     ("tl.program_id(0)", "tl.program_id(0).to(tl.int64)")]),
    (ch09.check_row_max, right.row_max_kernel, [("mask=col < N, " + PAD, "mask=col < N"), (
     "tl.max(x, 0)", 'tl.max(tl.where(col < N, x, float("-inf")))')]),
    (ch09.check_row_max, right.row_max_kernel, [("+ col, mask=col < N, " + PAD,
     "+ tl.minimum(col, N - 1)")]),
    (ch09.check_row_max, right.row_max_kernel, [(PAD, "other=tl.load(X + row * stride_xm)")]),
    (ch09.check_online, right.online_kernel, [("tl.full([], -3e38, tl.float32)", 'float("-inf")'),
     ("tl.full([], 0.0, tl.float32)", "0.0")]),
    (ch09.check_online, right.online_kernel, [(LOOP, "for j in tl.range(tl.cdiv(N, BLOCK)):\n"
     "        start = j * BLOCK")]),
    (ch09.check_online, right.online_kernel, [("tl.exp(x - m) / l",
     "tl.exp2((x - m) * 1.4426950408889634) / l")]),
    (ch09.check_matmul, right.matmul_kernel, [(DOT, "acc + tl.dot(a, b)")]),
    (ch09.check_matmul, right.matmul_kernel, [(DOT,
     "acc + tl.sum(a[:, :, None] * b[None, :, :], 1)")]),
    (ch09.check_matmul, right.matmul_kernel, [(DOT, "acc + tl.trans(tl.dot(b.T, a.T))")]),
    (ch09.check_matmul, right.matmul_kernel, [("for start in range(0, K, BLOCK):", "for step in range("
     "tl.cdiv(K, BLOCK)):\n        start = (tl.cdiv(K, BLOCK) - 1 - step) * BLOCK")]),
]

if __name__ == "__main__":
    quicken()
    wrong = []
    for check, solution, changes, expected in CASES:
        verdict = check(mutant(solution, *changes))
        wrong.append([check.__name__, expected, verdict.passed, verdict.message])
    for check, answer, expected in ((ch09.check_online, stub, "not answered yet"),
                                    (ch09.check_online, 7, "expected a function")):
        verdict = check(answer)
        wrong.append([check.__name__, expected, verdict.passed, verdict.message])
    good = {check.__name__: check(answer).passed for check, answer in (
        (ch09.check_transposed, right.double_kernel), (ch09.check_row_max, right.row_max_kernel),
        (ch09.check_online, right.online_kernel), (ch09.check_matmul, right.matmul_kernel))}
    forms = [str(check(mutant(solution, *changes))) for check, solution, changes in FORMS]
    print(json.dumps({"wrong": wrong, "right": good, "forms": forms}))
