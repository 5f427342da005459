"""What the Triton kernels must do with packed sequences, in the interpreter, and bugs planted in them.

Run as a module, with "true" or "planted", it prints JSON: check or mutant → what was said of it, "" if
nothing was.
"""

from __future__ import annotations

import os

if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"

import contextlib
import math
from unittest import mock

import torch

from flashlib.course.notebook.interpreter_trace import watch
from flashlib.kernels import flash_attention_varlen
from flashlib.kernels.backends import triton as backend
from flashlib.kernels.problem import Problem
from flashlib.models import traffic
from flashlib.models.packed import packed
from tests.kernels.behaviours import require
from tests.kernels.mutated import install, roomy, rows_loaded
from tests.kernels.packed_cases import Case, alone, answer, cumulative, inputs, judge
from tests.kernels.planted import report
from tests.kernels.problems import NAMES
from tests.mutants.edits import Mutant
from tests.quick_interpreter import quicken

FORWARD, BACKWARD = NAMES[:2], NAMES[2:]
# Both add up to 80, tiles have 32 rows; so many rows behind that a bug stays inside of the tensors.
CROSS = Case((33, 0, 40, 7), (20, 40, 3, 17), 4, 2, 16, behind=64)
EDGES = Case((31, 32, 0, 33, 1, 64), None, 2, 2, 16, causal=True, behind=5)

MUTANTS = [Mutant(*fields) for fields in (
    ("a tile is the last of the sequence before", "tiles", "<= tile:", "< tile:", "forward"),
    ("a sequence has no tile of its own", "tiles", "tl.load(CU + middle) // ROWS + middle <=",
     "tl.load(CU + middle) // ROWS <=", "edges"),
    ("tiles count from the first sequence", "tiles",
     "return (low, tl.maximum(tile - tl.load(CU + low) // ROWS - low, 0))", "return (low, tile)",
     "forward"),
    ("the last sequence has what lies behind it", "tiles", "tl.where(i == sequences, N, stop)",
     "tl.where(i >= sequences - 1, N, stop)", "forward"),
    ("what lies behind is not written", "tiles", "tl.where(i == sequences, N, stop)", "stop",
     "forward"),
    ("what lies behind has no gradient", "tiles", "tl.where(i == sequences, N, stop)", "stop",
     "backward"),
    ("a sequence takes the first row of the next", "tiles",
     "tl.load(CU + tl.minimum(i + 1, sequences))", "tl.load(CU + tl.minimum(i + 1, sequences)) + 1",
     "forward"),
    ("keys behind the tensor are read", "tiles",
     "tl.minimum(tl.load(CU + tl.minimum(i + 1, sequences)), N)",
     "tl.load(CU + tl.minimum(i + 1, sequences))", "wrong_starts"),
    ("a start below 0 is followed", "tiles", "tl.maximum(tl.load(CU + i), 0)", "tl.load(CU + i)",
     "wrong_starts"),
    ("the copy engine reads on into the next sequence", "tiles", "if not WHOLE:", "if False:",
     "copied"),
    ("the copy engine reads the first sequence", "tiles", "first + start, 0", "start, 0", "copied"),
    ("all sequences read the first", "tiles", "X += first.to(tl.int64) * stride[2]",
     "X += first.to(tl.int64) * 0", "forward"),
    ("a sequence begins as many columns behind", "tiles", "X += first.to(tl.int64) * stride[2]",
     "X += first.to(tl.int64) * stride[3]", "forward"),
    ("all sequences write over the first", "tiles", "first += first_row.to(tl.int64) * stride[2]",
     "first += first_row.to(tl.int64) * 0", "forward"),
    ("lse lies with the first sequence", "forward", "LSE += begin_q", "LSE += 0 * begin_q", "forward"),
    ("lse is as long as a sequence", "forward", "to(tl.int64) * rows_per_head", "to(tl.int64) * N_Q",
     "forward"),
    ("lse is transposed", "forward", "LSE + head + row, lse", "LSE + row * H + h, lse", "lse"),
    ("keys are where the queries are", "forward", "rows_of(i, CU_K, sequences, N_K, False)",
     "rows_of(i, CU_Q, sequences, N_K, False)", "forward"),
    ("a tile behind the end walks the keys", "forward", "if tile * BLOCK_M >= N_Q:",
     "if tile * BLOCK_M >= N_Q + BLOCK_M:", "visits"),
    ("the mask aligns to all rows", "forward", "sizes = (H, GROUP, N_Q, N_K, D)", "sizes = sizes",
     "edges"),
    ("V begins where Q does", "forward", "(V, stride_v, b, h // GROUP, begin_k)",
     "(V, stride_v, b, h // GROUP, begin_q)", "forward"),
    ("delta is of other rows", "backward", "DELTA += begin_q", "DELTA += begin_k", "backward"),
    ("lse is of other rows", "backward", "LSE += begin_q", "LSE += begin_k", "backward"),
    ("lse and delta of a head begin too early in dK", "backward", "(b.to(tl.int64) * H + h) *"
     " rows_per_head", "(b.to(tl.int64) * H + h) * N_Q", "backward"),
    ("lse and delta of a head begin too early in dQ", "backward", "bh.to(tl.int64) * rows_per_head",
     "bh.to(tl.int64) * N_Q", "backward"),
    ("key tiles are those of the queries", "backward", "in_sequence(tile, CU_K, sequences, BLOCK_N)",
     "in_sequence(tile, CU_Q, sequences, BLOCK_N)", "backward"),
    ("query tiles are those of the keys", "backward", "in_sequence(tile, CU_Q, sequences, BLOCK_M)",
     "in_sequence(tile, CU_K, sequences, BLOCK_M)", "backward"),
    ("dK is written where the queries are", "backward", "(DK, stride_dk, b, hk, begin_k)",
     "(DK, stride_dk, b, hk, begin_q)", "backward"),
    ("dQ is written where the keys are", "backward", "(DQ, stride_dq, b, h, begin_q)",
     "(DQ, stride_dq, b, h, begin_k)", "backward"),
    ("dO is read where the keys are", "backward", "(DO, stride_do, b, h, begin_q)",
     "(DO, stride_do, b, h, begin_k)", "backward"),
    ("the mask aligns to all rows in gradients", "backward", "sizes = (H, GROUP, N_Q, N_K, D)",
     "sizes = sizes", "edges_backward"),
)]


@contextlib.contextmanager
def poisoned():
    """Have torch fill what it allocates with NaN, which a kernel that leaves out a row leaves there."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def right(names, case, dtype=torch.float32):
    """Hold tensors against float64, and against one call a sequence; all around them is NaN."""
    given = inputs(case, dtype)
    inside = given._replace(**{name: roomy(getattr(given, name)) for name in ("q", "k", "v", "do")})
    with poisoned():
        got = answer(case, inside, impl="triton")
    scores = judge(case, given, got)
    for name, x, y in zip(NAMES, got, alone(case, given, "triton"), strict=True):
        if name in names:
            score = scores[name]
            require(score.ratio <= 1, f"{name} {case}: {score.error:.1e} > {score.allowed:.1e}")
            require(torch.equal(x, y), f"{name} {case}: not the bits of one call a sequence")


def check_forward():
    """O and lse, more queries than keys and more keys, sequences without any, and rows behind."""
    for causal, window in ((False, None), (True, None), (False, (5, 20))):
        right(FORWARD, CROSS._replace(causal=causal, window=window))


def check_backward():
    """All gradients of the same."""
    for causal, window in ((False, None), (True, None), (False, (5, 20))):
        right(BACKWARD, CROSS._replace(causal=causal, window=window))


def check_lse():
    """Lse (H, T) of several heads."""
    right(("lse",), CROSS)


def check_edges(names=FORWARD):
    """Lengths around a tile's, one long sequence beside many short ones, float16, a narrow head."""
    right(names, EDGES)
    right(names, Case((70, *[3] * 20), None, 1, 1, 16, causal=True))
    right(names, EDGES._replace(D=24, window=(40, 0)), torch.float16)
    right(names, EDGES._replace(D=3), torch.float16)


def check_copied():
    """The same through the copy engine's descriptors, which know no sequences."""
    def everywhere(self, p, direction):
        return True if direction == "forward" else (True, True)

    with mock.patch.object(backend.Triton, "copies", everywhere):
        for causal in (False, True):
            case = CROSS._replace(causal=causal)
            for given in (inputs(case), poisoned_last(case)):
                got = answer(case, given, impl="triton")
                for n, (x, y) in enumerate(zip(got, alone(case, given, "triton"), strict=True)):
                    require(torch.equal(before_last(n, x), before_last(n, y)),
                            f"{NAMES[n]} {case} through the copy engine")


def poisoned_last(case):
    """Return inputs of `CROSS` in which the last sequence is NaN."""
    given = inputs(case)
    given.q[73:80], given.do[73:80], given.k[63:80], given.v[63:80] = (math.nan,) * 4
    return given


def before_last(n, x):
    """Return the rows of a result, counted as in NAMES, that lie before the last sequence."""
    return x[:, :73] if n == 1 else x[:63 if n > 2 else 73]


def check_company():
    """NaN in one sequence reaches no row of another."""
    case = CROSS._replace(causal=True, behind=0)
    given = inputs(case)
    clean = answer(case, given, impl="triton")
    dirty = answer(case, poisoned_last(case), impl="triton")
    for n, (x, y) in enumerate(zip(clean, dirty, strict=True)):
        require(torch.equal(before_last(n, x), before_last(n, y)), f"{NAMES[n]}: NaN next door")


def check_blind():
    """A gradient that flows into a row that sees nothing goes nowhere."""
    case = CROSS._replace(causal=True)
    given = inputs(case)
    expected = answer(case, given, impl="triton")
    given.do[:13], given.dlse[:, :13] = math.nan, math.inf  # 33 queries, 20 keys
    for x, y in zip(expected, answer(case, given, impl="triton"), strict=True):
        require(torch.equal(x, y), "a gradient into a blind row")


def check_wrong_starts():
    """Starts of keys that are none, which a GPU does not look at, reach nothing outside of the keys."""
    q, k, v = (roomy(torch.ones(1, 1, 40, 16)) for _ in range(3))
    p = Problem.of(q, k, v, sequences=2)
    for starts in ([0, 30, 60], [0, 60, 30], [-20, 30, 40], [0, -20, 40]):
        cu = cumulative([20, 20]), torch.tensor(starts, dtype=torch.int32)
        o, _ = backend.BACKEND.forward(q, k, v, p, 0.25, cu=cu)
        require(not o.isnan().any(), f"{starts}: keys outside are read")


def check_one_sequence():
    """A single sequence has the bits of a call that is not packed; so has a transposed view."""
    case = Case((70,), (45,), 2, 1, 16, causal=True)
    right(NAMES, case)
    given = inputs(case)
    turned = given._replace(q=given.q.transpose(0, 1).contiguous().transpose(0, 1))
    for x, y in zip(answer(case, given, impl="triton"), answer(case, turned, impl="triton"),
                    strict=True):
        require(torch.equal(x, y) and x.is_contiguous(), "a transposed view")


def check_one_launch():
    """One launch forward and three backward, however many sequences there are."""
    from flashlib.kernels import plans

    case, count = Case((5,) * 30, None, 1, 1, 16), []
    run = plans.Launch._run
    with mock.patch.object(plans.Launch, "_run", lambda self, leading: (count.append(1),
                                                                        run(self, leading))):
        given = inputs(case)
        flash_attention_varlen(*given[:3], given.cu_q, impl="triton")
        require(len(count) == 1, f"{len(count)} launches forward")
        answer(case, given, impl="triton")
        require(len(count) == 1 + 1 + 3, f"{len(count) - 2} launches backward")


def check_visits():
    """The forward loads the rows of Q, K and V that the closed form counts, and no others."""
    for causal, window in ((False, None), (True, None), (False, (5, 20))):
        case = Case(CROSS.q_lengths, CROSS.k_lengths, 1, 1, 16, causal, window)
        given = inputs(case)
        with watch(**{name: getattr(given, name) for name in ("q", "k", "v", "cu_q", "cu_k")}) as seen:
            flash_attention_varlen(*given[:3], given.cu_q, given.cu_k, causal=causal, window=window,
                                   impl="triton")
        cost = packed(traffic.flash_v2, zip(case.q_lengths, case.k_lengths, strict=True), d=16, Br=32,
                      Bc=32, causal=causal, window=window, element_bytes=1)
        for name, moved in (("q", "Q"), ("k", "K"), ("v", "V")):
            found, counted = rows_loaded(seen, name, 16), cost.by_tensor[moved].read_bytes // 16
            require(found == counted, f"{found} rows of {moved}, expected {counted}")


CHECKS = {name.removeprefix("check_"): check for name, check in globals().copy().items()
          if name.startswith("check_")} | {"edges_backward": lambda: check_edges(BACKWARD)}


if __name__ == "__main__":
    quicken()
    report(CHECKS, MUTANTS, install)
