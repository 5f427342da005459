"""Exercises of chapter 09: pointers, ragged ends, online softmax, programs per SM, a tiled matmul."""

import inspect
import itertools
import math

import numpy as np

from flashlib import hardware
from flashlib.course.exercises import interpreted
from flashlib.course.exercises.core import Wrong, exercise, expect_close, given, hint, solution
from flashlib.models.occupancy import occupancy

__all__ = ["check_matmul", "check_online", "check_programs_per_sm", "check_row_max",
           "check_transposed", "hint", "solution"]


@exercise("09.1", "Fix a pointer bug", difficulty=1, minutes=5, solution="double_kernel",
          hints=("A row of a transposed matrix is a column in memory: its elements are not neighbors.",
                 "The address of element (row, col) is X + row · stride_xm + col · stride_xn, and Y has"
                 " strides of its own."))
@interpreted.in_interpreter
def check_transposed(double_kernel):
    """Accept `double_kernel(X, Y, stride_xm, stride_xn, stride_ym, stride_yn, N, BLOCK)`: Y = 2 X."""
    M, N = 3, 5
    x = np.arange(M * N, dtype=np.float32).reshape(M, N) + 1
    rows, columns = (N, 1), (1, M)                           # strides: contiguous, transposed
    for what, xs, ys in (("a contiguous matrix", rows, rows), ("a transposed matrix X", columns, rows),
                         ("a transposed matrix Y", rows, columns)):
        memory = np.ascontiguousarray(x if xs == rows else x.T)
        room = np.zeros((M, N) if ys == rows else (N, M), np.float32)
        out, seen = interpreted.launch(double_kernel, (M,), [("X", memory), ("Y", room)],
                                       *xs, *ys, N, BLOCK=8)
        y = out["Y"] if ys == rows else out["Y"].T
        if np.allclose(y, 2 * x):
            if seen.outside:
                raise Wrong(f"{what}: the numbers are right, but {seen.complaint()}")
            continue

        def with_strides(load, store, memory=memory, ys=ys):
            """Return Y where X is loaded by strides `load` and Y stored by strides `store`."""
            flat = np.zeros(M * N)
            for row, col in np.ndindex(M, N):
                source, target = (row * s[0] + col * s[1] for s in (load, store))
                if target < flat.size:
                    flat[target] = 2 * memory.flat[source] if source < flat.size else np.nan
            return flat.reshape(M, N) if ys == rows else flat.reshape(N, M).T

        likely = {"the addresses assume that rows follow each other: use both of X's strides":
                      with_strides(rows, ys),
                  "the addresses assume that rows of Y follow each other: use both of Y's strides":
                      with_strides(xs, rows),
                  "X's strides were used for Y: each tensor has its own": with_strides(xs, xs),
                  "row and column changed places: stride_xm and stride_ym belong to the row":
                      with_strides(xs[::-1], ys),
                  "row and column changed places in Y: stride_ym belongs to the row":
                      with_strides(xs, ys[::-1]),
                  "row and column changed places in both tensors: stride_xm belongs to the row":
                      with_strides(xs[::-1], ys[::-1]),
                  "the column's stride is missing: columns need not be neighbors":
                      with_strides((xs[0], 1), (ys[0], 1)),
                  "every program begins at column row · BLOCK: a row's columns begin at 0":
                      np.where(np.arange(M)[:, None] == 0, 2 * x, 0),
                  "X is copied, not doubled": x, "nothing was stored": 0 * x,
                  "every program stored to row 0 of Y: the row does not enter its address":
                      np.where(np.arange(M)[:, None] == 0, 2 * x[-1], 0),
                  "every program loads row 0 of X: the row does not enter its address":
                      np.broadcast_to(2 * x[0], x.shape)}
        right = np.arange(8) * xs[1]
        if all(np.array_equal(t.lanes, t.program[0] * xs[0] + right) for t in seen.of("X", "load")):
            del likely["the addresses assume that rows follow each other: use both of X's strides"]
        for mistake, value in likely.items():
            if np.allclose(y, value, equal_nan=True):
                raise Wrong(f"{what}: {mistake}")
        if seen.outside:
            raise Wrong(f"{what}: {seen.complaint()}")
        expect_close(y, 2 * x, what, rtol=1e-6)
    return "the kernel takes any strides."


@exercise("09.2", "Mask a ragged end", difficulty=2, minutes=8, solution="row_max_kernel",
          hints=("Lanes beyond the row must neither be read nor count: what number never wins a"
                 " maximum?",
                 "tl.load(pointers, mask=col < N, other=float('-inf')). The result is one number:"
                 " tl.store(Y + row, m)."))
@interpreted.in_interpreter
def check_row_max(row_max_kernel):
    """Accept `row_max_kernel(X, Y, stride_xm, N, BLOCK)`: Y[row] = the maximum of row `row` of X."""
    for M, N, BLOCK, stride in ((4, 8, 8, 8), (4, 5, 8, 5), (3, 11, 16, 11), (3, 5, 8, 9)):
        wide = np.random.default_rng(92).normal(size=(M, stride)).astype(np.float32)
        x = wide[:, :N]
        x[0] = np.finfo(np.float32).min
        x[1] = -np.abs(x[1]) - 1
        x[:, -1] = np.where(np.arange(M) == 2, 9, x[:, -1])
        y = np.full(M, 77, np.float32)
        out, seen = interpreted.launch(row_max_kernel, (M,), [("X", wide), ("Y", y)], stride, N,
                                       BLOCK=BLOCK)
        what, y = f"{M} rows of {N}" + f" in rows of {stride}" * (stride > N), out["Y"]
        what += f", BLOCK = {BLOCK}"
        loads = seen.of("X", "load")
        for step, size in (("N", N), ("BLOCK", BLOCK)):
            if size != stride and all(t.lanes.flat[0] == t.program[0] * size for t in loads):
                raise Wrong(f"{what}: row {M - 1} was looked for at {M - 1} · {step}: a row's address"
                            " is X + row · stride_xm")
        for touch in loads:
            beyond = touch.mask & ((touch.lanes // stride != touch.program[0])
                                   | (touch.lanes % stride >= N))
            if beyond.any():
                lane = int(touch.lanes[beyond].max())
                raise Wrong(f"{what}: program {touch.program[0]} reads element {lane}, which is in row"
                            f" {lane // stride}, column {lane % stride}: the mask must end at N")
        if seen.outside:
            raise Wrong(f"{what}: {seen.complaint()}")
        y, top = y.astype(np.float64), x.max(axis=1).astype(np.float64)
        expect_close(y, top, what, rtol=1e-6, mistakes={
            "a row of negative numbers got 0: masked lanes must count as −∞, not as 0":
                np.maximum(top, 0) if N < BLOCK else top + 1,
            f"a row of the lowest float32 got {y[0]:.3g}: masked lanes must count as −∞, a low number"
            " is not low enough": np.where(np.arange(M) == 0, np.maximum(top, y[0]), top)
                if y[0] > x[0].max() else top + 1,
            "the last element is missing: the mask is col < N": x[:, :-1].max(axis=1),
            "+∞ won: masked lanes must count as −∞": np.full(M, np.inf),
            "this is the smallest number of the row": x.min(axis=1),
            "tl.argmax gives the place of the maximum: its number is tl.max": x.argmax(axis=1),
            "nothing was stored for some rows: Y + row is where the result goes":
                np.where(np.arange(M) == 0, y[0], 77)})
    return "no lane left its row, and −∞ never wins."


@exercise("09.3", "Write the online-softmax kernel", difficulty=3, minutes=25, solution="online_kernel",
          hints=("Two loops over blocks of columns. The first keeps m and l, numbers of the row; the"
                 " second loads x again, divides and stores.",
                 "m_new = tl.maximum(m, tl.max(x, 0)); l = l · exp(m − m_new) + tl.sum(tl.exp(x −"
                 " m_new), 0); m = m_new.",
                 "Start with m = tl.full([], -3e38, tl.float32) and l = tl.full([], 0.0, tl.float32),"
                 " and load with other=float('-inf')."))
@interpreted.in_interpreter
def check_online(online_kernel):
    """Accept `online_kernel(X, Y, stride_xm, stride_ym, N, BLOCK)`: softmax of row program_id(0)."""
    rng = np.random.default_rng(93)
    for M, N, BLOCK, scale, pad, far in (
            (2, 8, 8, 1, 0, False), (3, 24, 8, 2, 0, False), (3, 21, 8, 2, 0, False),
            (2, 24, 8, 80, 0, False), (3, 24, 8, 2, 3, False), (2, 21, 8, 2, 0, True)):
        wide = (rng.normal(size=(M, N + pad)) * scale).astype(np.float32)
        x = wide[:, :N]
        x[:, -3] += 3 * scale                                # the last block raises the maximum
        x[0, 1] += 9 * scale                                 # and in row 0 the first one holds it
        if far:
            x[0] -= 1e4
            x[1] = -1e30
        out, seen = interpreted.launch(
            online_kernel, (M,), [("X", wide), ("Y", np.zeros((M, N + 2 * pad), np.float32))],
            N + pad, N + 2 * pad, N, BLOCK=BLOCK)
        y = out["Y"][:, :N].astype(np.float64)
        what = f"softmax of {M} rows of {N} in blocks of {BLOCK}" + ", large logits" * (scale > 9)
        what += f", in rows of {N + pad} of X and {N + 2 * pad} of Y" * (pad > 0)
        if not seen.of("Y", "store"):
            raise Wrong(f"{what}: nothing was stored in Y")
        if scale < 9 and not far and np.isnan(y).all():
            raise Wrong(f"{what}: every weight is NaN. Is it 0 · ∞ or ∞ / ∞? The old l is multiplied by"
                        " exp(m − m_new), not by exp(m_new − m)")
        if np.isposinf(y).all():
            raise Wrong(f"{what}: every weight is ∞. Does a step end with m = m_new? Is the old l alone"
                        " multiplied by exp(m − m_new), and not the new sum?")
        lost = ~(np.nan_to_num(y) > 0).any(axis=1)
        if far and lost.any():
            k = int(np.argmax(lost))
            raise Wrong(f"{what}: a row far below 0, at {float(x[k].max()):.3g}, lost every weight: m"
                        " must start below every logit, not at 0, and masked lanes count as −∞")
        if (y == 0).all():
            raise Wrong(f"{what}: every weight is 0, so l became infinite: an exponential took the old"
                        " m, and needs m_new")
        if seen.outside:
            raise Wrong(f"{what}: {seen.complaint()}")
        if scale > 9 and not np.isfinite(y).all():
            raise Wrong(f"{what}: NaN or ∞, because an exponent was positive: m must be the maximum of"
                        " all blocks so far")
        exact = x.astype(np.float64)
        e = np.exp(exact - exact.max(axis=1, keepdims=True))
        mistakes = _wrong_softmaxes(exact, BLOCK)
        if far:
            mistakes["at −1e30 m + log(l) is m again in float32, and the division is lost: keep m and l"
                     " apart"] = mistakes.pop("the division by l is missing")
        if pad:
            mistakes["a row's address is row · stride_xm in X and row · stride_ym in Y: rows need not"
                     " follow each other"] = y
        expect_close(y, e / e.sum(axis=1, keepdims=True), what, rtol=1e-4, atol=1e-6, mistakes=mistakes)
        read, least = seen.nbytes("X", "load"), M * N * x.itemsize
        if read == 3 * least:
            raise Wrong(f"{what}: right, but X was read three times: find m and l in the same pass")
        if read != 2 * least and N > BLOCK:
            raise Wrong(f"{what}: expected {2 * least} bytes read from X, got {read}")
        if seen.nbytes("Y", "load") or seen.nbytes("Y", "store") != least:
            raise Wrong(f"{what}: Y has to be written once and never read")
    return "two loads and one store per element, counted."


def _wrong_softmaxes(x: np.ndarray, BLOCK: int) -> dict[str, np.ndarray]:
    """Return what the likely mistakes would give, by their diagnosis."""
    M, N = x.shape
    blocks = [x[:, k:k + BLOCK] for k in range(0, N, BLOCK)]

    def run(rescale, per_block=False, pad=0):
        m, l = np.full((M, 1), -np.inf), np.zeros((M, 1))
        for block in blocks:
            new = block.max(axis=1, keepdims=True)
            new = new if per_block else np.maximum(m, new)
            if pad:
                new = np.maximum(new, 0) if block.shape[1] < BLOCK else new
            with np.errstate(all="ignore"):
                p = np.exp(block - new).sum(axis=1, keepdims=True)
                p = p + pad * (BLOCK - block.shape[1]) * np.exp(-new)
                l = np.nan_to_num(l * rescale(m, new)) + p
            m = new
        with np.errstate(all="ignore"):
            return np.exp(x - m) / l

    def so_far():
        """Return every block divided by the sum of the blocks up to it."""
        m, l, parts = np.full((M, 1), -np.inf), np.zeros((M, 1)), []
        for block in blocks:
            new = np.maximum(m, block.max(axis=1, keepdims=True))
            l = l * np.exp(m - new) + np.exp(block - new).sum(axis=1, keepdims=True)
            m = new
            parts.append(np.exp(block - m) / l)
        return np.concatenate(parts, axis=1)

    e = np.exp(x - x.max(axis=1, keepdims=True))
    whole = e * (np.arange(N) < N // BLOCK * BLOCK)
    base2 = np.exp2(x - x.max(axis=1, keepdims=True))
    first = np.exp(blocks[0] - blocks[0].max(axis=1, keepdims=True))
    with np.errstate(all="ignore"):
        wrong = {
            "divided while l was still growing: a second loop has to come after the first": so_far(),
            "only the first BLOCK columns were worked on: loop over all blocks of the row":
                np.pad(first / first.sum(axis=1, keepdims=True), ((0, 0), (0, N - first.shape[1]))),
            "every step took the first BLOCK columns: add start to the column": np.pad(
                first / first.sum(axis=1, keepdims=True) / len(blocks),
                ((0, 0), (0, N - first.shape[1]))),
            "the last, shorter block was left out: the loop has to reach N":
                whole / whole.sum(axis=1, keepdims=True),
            "these are powers of 2, not of e: exp2(x) is exp(x · ln 2)":
                base2 / base2.sum(axis=1, keepdims=True),
            "the old l was not rescaled: multiply it by exp(m − m_new)": run(lambda m, new: 1.0),
            "l was rescaled with the wrong sign: the factor is exp(m − m_new)":
                run(lambda m, new: np.exp(new - m)),
            "l of earlier blocks is lost: add to it": np.exp(x - x.max(axis=1, keepdims=True)) / np.exp(
                blocks[-1] - x.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True),
            "masked lanes counted as logits of 0: load them as −∞": run(
                lambda m, new: np.exp(m - new), pad=1),
            "the division by l is missing": e,
            "each block has a softmax of its own: m and l belong to the whole row": np.concatenate(
                [np.exp(b - b.max(axis=1, keepdims=True)) / np.exp(b - b.max(
                    axis=1, keepdims=True)).sum(axis=1, keepdims=True) for b in blocks], axis=1)}
    right = e / e.sum(axis=1, keepdims=True)
    return {text: value for text, value in wrong.items()
            if not np.allclose(value, right, rtol=1e-4, atol=1e-6)}


@exercise("09.4", "Read how many programs share an SM", difficulty=2, minutes=10,
          solution="programs_per_sm",
          hints=("Each resource alone allows so many programs; the scarcest one decides.",
                 "A program has 32 · num_warps threads, and every thread its own registers. 65,536"
                 " registers, 64 warps, 32 programs.",
                 "A program takes its shared memory and 1,024 bytes besides, of 233,472."))
def check_programs_per_sm(programs_per_sm):
    """Accept `programs_per_sm(registers, shared_bytes, num_warps) -> int` for an H100."""
    sm = hardware.get("H100").sm

    def alone(r, s, w, *, kept=1024, room=233472):
        return {"registers": 65536 // (32 * w * r), "warps": 64 // w, "slots": 32,
                "shared": room // (s + kept) if s + kept else 32}

    cases = ((16, 0, 4), (251, 98_304, 4), (168, 16_384, 4), (64, 65_536, 4), (128, 114_688, 8),
             (32, 1_024, 1), (32, 38_912, 4), (40, 0, 16), (255, 0, 1), (16, 10_576, 2),
             (32, 77_312, 4), (43, 0, 2), (32, 115_712, 4))
    got = given([programs_per_sm(*case) for case in cases])
    right = [min(alone(*case).values()) for case in cases]
    if got == right:
        return "the scarcest resource decides; the lens names it, and counts registers in their steps."

    def without(*names):
        return lambda *case: min(v for k, v in alone(*case).items() if k not in names)

    def exactly(r, s, w):
        return min(65536 / (32 * w * r), 64 / w, 32, 233472 / (s + 1024))

    mistakes = {
        "the largest count decides nothing: the scarcest resource does":
            lambda *case: max(alone(*case).values()),
        "registers can run out: a program has 32 · num_warps threads, each with registers of its own":
            without("registers"),
        "a warp has 32 threads: a program has num_warps times as many":
            lambda r, s, w: min(65536 // (32 * r), 64 // w, 32, 233472 // (s + 1024)),
        "an SM holds 64 warps at most": without("warps"),
        "an SM holds 32 programs at most": without("slots"),
        "each program takes 1,024 bytes of shared memory for the system":
            lambda *case: min(alone(*case, kept=0).values()),
        "each program takes 1,024 bytes, and nothing is kept besides: an SM has 233,472":
            lambda *case: min(alone(*case, room=233472 - 1024).values()),
        "each program takes 1,024 bytes of its own: add them to what it asked for":
            lambda r, s, w: min(without("shared")(r, s, w), (233472 - 1024) // s if s else 32),
        "right for registers in steps, as the lens counts: here 43 are 43":
            lambda r, s, w: occupancy(sm, threads=32 * w, registers=r, shared_bytes=s).programs,
        "right for registers in steps of 8, but they are counted one by one here: 43 are 43":
            lambda r, s, w: min(alone(-(-r // 8) * 8, s, w).values()),
        "rounded up, but a part of a program does not run: round down, with //":
            lambda *case: math.ceil(exactly(*case)),
        "rounded to the nearest, but a part of a program does not run: round down, with //":
            lambda *case: round(exactly(*case)),
        "a part of a program does not run: round down, with //": exactly}
    runs_out = {"registers": "registers", "shared": "shared memory", "warps": "warps",
                "slots": "room for programs (32)"}
    for missing in (pair for n in (1, 2, 3) for pair in itertools.combinations(runs_out, n)):
        mistakes[", ".join(map(runs_out.get, missing)) + " can run out, too"] = without(*missing)
    for text, mistaken in mistakes.items():
        if got == [mistaken(*case) for case in cases]:
            raise Wrong(text)
    (r, s, w), expected, count = next(x for x in zip(cases, right, got, strict=True) if x[1] != x[2])
    raise Wrong(f"{r} registers, {s:,} bytes, {w} warps: expected {expected}, got {count}")


@exercise("09.5", "Write a matmul with tl.dot", difficulty=3, minutes=20, solution="matmul_kernel",
          hints=("Program (i, j) owns a tile of C: rows from i · BLOCK on, columns from j · BLOCK."
                 " It walks along K, one tile of A and one of B at a time.",
                 "m, n and k are ranges of BLOCK; a tile of A is tl.load(A + m[:, None] * stride_am +"
                 " k[None, :] * stride_ak, mask=(m < M)[:, None] & (k < K)[None, :], other=0.0).",
                 "acc = tl.dot(a, b, acc, input_precision='ieee') starts from tl.zeros([BLOCK, BLOCK],"
                 " tl.float32)."))
@interpreted.in_interpreter
def check_matmul(matmul_kernel):
    """Accept `matmul_kernel(A, B, C, …, M, N, K, BLOCK)`: C = A B, program (i, j) owns one tile."""
    BLOCK = 16
    for M, N, K, turned in ((16, 16, 16, ""), (16, 16, 32, ""), (32, 48, 32, ""), (32, 16, 32, "B"),
                            (32, 16, 48, "A"), (32, 16, 16, "C"), (20, 24, 40, "")):
        rng = np.random.default_rng(95)
        a, b = (rng.normal(size=n).astype(np.float32) for n in ((M, K), (K, N)))
        memory = {"A": a, "B": b, "C": np.full((M, N), np.nan, np.float32)}
        strides = {name: (x.shape[1], 1) for name, x in memory.items()}
        if turned:
            strides[turned] = (1, memory[turned].shape[0])
            memory[turned] = np.ascontiguousarray(memory[turned].T)
        grid = -(-M // BLOCK), -(-N // BLOCK)
        out, seen = interpreted.launch(matmul_kernel, grid, memory.items(), *strides["A"],
                                       *strides["B"], *strides["C"], M, N, K, BLOCK=BLOCK)
        what = f"{M} × {K} times {K} × {N}" + f", {turned} transposed" * bool(turned)
        c = out["C"].T if turned == "C" else out["C"]
        if seen.outside:
            raise Wrong(f"{what}: {seen.complaint()}")
        if seen.of("C", "load"):
            raise Wrong(f"{what}: C is read, and nobody knows what lies there: start from tl.zeros")
        if not seen.of("C", "store"):
            raise Wrong(f"{what}: nothing was stored in C with tl.store")
        mistakes = _wrong_products(a, b, BLOCK)
        corners = itertools.product(range(0, M, BLOCK), range(0, N, BLOCK))
        mistakes |= {text: c for text, seems in (
            (f"{turned}'s rows need not follow each other: use both of its strides, and for {turned}"
             " alone", turned),
            ("some tiles were not written: program_id(0) counts rows of tiles, program_id(1) columns",
             any(np.isnan(c[i:i + BLOCK, j:j + BLOCK]).all() for i, j in corners)),
            ("some elements were not written: program (i, j) starts at row i · BLOCK and column"
             " j · BLOCK", np.isnan(c).any()),
            ("a tile that sticks out of K has to be masked in A and in B, with other=0.0", K % BLOCK),
        ) if seems}
        expect_close(c, a @ b, what, rtol=1e-3, atol=1e-4, mistakes=mistakes)
        times = seen.nbytes("C", "store") / c.nbytes
        if times > 1:
            raise Wrong(f"{what}: right, but C is stored {times:g} times: store it after the loop")
    text = inspect.getsource(getattr(matmul_kernel, "fn", matmul_kernel))
    return "rows, columns and a walk along K, as every attention kernel adds up P V." + (
        " But without tl.dot a GPU's matrix units stay idle." if "dot(" not in text else
        ' But without input_precision="ieee" a GPU rounds A and B to TF32; the interpreter does not.'
        if "ieee" not in text and "allow_tf32" not in text else "")


def _wrong_products(a: np.ndarray, b: np.ndarray, BLOCK: int) -> dict[str, np.ndarray]:
    """Return what the likely mistakes would give, by their diagnosis."""
    (M, K), N = a.shape, b.shape[1]
    last, whole, first = (K - 1) // BLOCK * BLOCK, K // BLOCK * BLOCK, a[:, :BLOCK] @ b[:BLOCK]
    wrong = {"only the first BLOCK columns of A were used: loop over K in steps of BLOCK": first,
             "every step took the first BLOCK columns of A: add start to k": -(-K // BLOCK) * first,
             "the tiles before the last are lost: add to acc": a[:, last:] @ b[last:],
             "the last, shorter tile along K was left out: the loop has to reach K":
                 a[:, :whole] @ b[:whole],
             "every element is 0: no product reached what was stored": np.zeros((M, N))}
    if M == N == K:
        wrong |= {"a row of A was taken for a column: stride_am belongs to the row": a.T @ b,
                  "a row of B was taken for a column: stride_bk belongs to the row": a @ b.T,
                  "a row of C was taken for a column: stride_cm belongs to the row": (a @ b).T,
                  "A and B changed places: C = A B is tl.dot(a, b)": b @ a,
                  "a * b multiplies place by place: a product of matrices is tl.dot(a, b)": a * b}
    return {text: value for text, value in wrong.items() if not np.allclose(value, a @ b, atol=1e-3)}
