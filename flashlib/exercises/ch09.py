"""Exercises of chapter 09: pointers, ragged ends, the online-softmax kernel, programs per SM."""

from __future__ import annotations

import re

import numpy as np

from flashlib.exercises import interpreted
from flashlib.exercises.core import (
    Wrong,
    exercise,
    expect_close,
    hint,
    show_source,
    solution,
    table,
)
from flashlib.lens.occupancy import occupancy
from flashlib.lens.targets import arch_of

__all__ = ["check_online", "check_programs_per_sm", "check_row_max", "check_transposed", "hint",
           "show_ir", "show_source", "solution", "table"]


def show_ir(text: str, only: str = "", *, limit: int = 24) -> None:
    """Print the operations of a TTIR, TTGIR, PTX or SASS text without where they come from.

    `only`: a regular expression; lines that do not match are left out.
    """
    lines = [re.sub(r"\s*loc\(.*$", "", line.rstrip()) for line in text.splitlines()
             if not line.lstrip().startswith(("#loc", ".loc", "//", ".file", "}"))]
    lines = [re.sub(r"\s*/\*[0-9a-f]+\*/\s*", "  ", line) for line in lines]
    kept = [line for line in lines if line.strip() and re.search(only, line)]
    for line in kept[:limit]:
        print(line if len(line) <= 100 else line[:99] + "…")
    if len(kept) > limit:
        print(f"… and {len(kept) - limit} more")


def _examined_here(check: str, kernel) -> str | None:
    """Return None where the interpreter is on; else the other process's answer."""
    interpreted.refuse_stub(kernel)
    if interpreted.is_on():
        return None
    return interpreted.elsewhere(__name__, check, kernel)


@exercise("09.1", "Fix a pointer bug", difficulty=1, minutes=5, solution="double_kernel",
          hints=("A row of a transposed matrix is a column in memory: its elements are not neighbors.",
                 "The address of element (row, col) is X + row · stride_xm + col · stride_xn, and Y has"
                 " strides of its own."))
def check_transposed(double_kernel):
    """Accept `double_kernel(X, Y, stride_xm, stride_xn, stride_ym, stride_yn, N, BLOCK)`: Y = 2 X."""
    praise = _examined_here("check_transposed", double_kernel)
    if praise is not None:
        return praise
    M, N = 3, 5
    x = np.arange(M * N, dtype=np.float32).reshape(M, N) + 1
    for what, held, strides in (("a contiguous matrix", x, (N, 1)),
                                ("a transposed matrix", x.T, (1, M))):
        memory = np.ascontiguousarray(held)
        out, seen = interpreted.launch(
            double_kernel, (M,), [("X", memory), ("Y", np.zeros((M, N), np.float32))],
            *strides, N, 1, N, BLOCK=8)
        y = out["Y"]
        if np.allclose(y, 2 * x):
            if seen.outside:
                raise Wrong(f"{what}: the numbers are right, but {seen.complaint()}")
            continue
        swapped = [t for t in seen.of("X", "load") if np.array_equal(
            t.lanes, t.program[0] * strides[1] + np.arange(t.lanes.size) * strides[0])]
        if len(swapped) == M:
            raise Wrong(f"{what}: row and column changed places: stride_xm belongs to the row")
        if seen.outside:
            raise Wrong(f"{what}: {seen.complaint()}")
        wrong = {"the addresses assume that rows follow each other: use both of X's strides": memory,
                 "X is copied, not doubled": x / 2,
                 "nothing was stored": x * 0}
        expect_close(y, 2 * x, what, rtol=1e-6, mistakes={
            text: 2 * value.ravel().reshape(M, N) for text, value in wrong.items()} | {
                "only row 0 is right: the row does not enter the address":
                    np.where(np.arange(M)[:, None] == 0, 2 * x, 0),
                "every program stored to row 0 of Y: the row does not enter its address":
                    np.where(np.arange(M)[:, None] == 0, 2 * x[-1], 0)})
    return "the kernel takes any strides, 0 and negative ones, too."


@exercise("09.2", "Mask a ragged end", difficulty=2, minutes=8, solution="row_max_kernel",
          hints=("Lanes beyond the row must neither be read nor count: what number never wins a"
                 " maximum?",
                 "tl.load(pointers, mask=col < N, other=float('-inf')). The result is one number:"
                 " tl.store(Y + row, m)."))
def check_row_max(row_max_kernel):
    """Accept `row_max_kernel(X, Y, stride_xm, N, BLOCK)`: Y[row] = the maximum of row `row` of X."""
    praise = _examined_here("check_row_max", row_max_kernel)
    if praise is not None:
        return praise
    for M, N, BLOCK in ((4, 8, 8), (4, 5, 8), (3, 11, 16)):
        x = np.random.default_rng(92).normal(size=(M, N)).astype(np.float32)
        x[1] = -np.abs(x[1]) - 1
        x[:, -1] = np.where(np.arange(M) == 2, 9, x[:, -1])
        y = np.full(M, 77, np.float32)
        out, seen = interpreted.launch(row_max_kernel, (M,), [("X", x), ("Y", y)], N, N, BLOCK=BLOCK)
        what, y = f"{M} rows of {N}, BLOCK = {BLOCK}", out["Y"]
        crossed = [t for t in seen.of("X", "load")
                   if (t.lanes[t.mask] // N != t.program[0]).any()]
        if crossed:
            lane = int(crossed[0].lanes[crossed[0].mask].max())
            raise Wrong(f"{what}: program {crossed[0].program[0]} reads element {lane}, which is in row"
                        f" {lane // N}: the mask must end at N")
        if seen.outside:
            raise Wrong(f"{what}: {seen.complaint()}")
        top = x.max(axis=1)
        expect_close(y, top, what, rtol=1e-6, mistakes={
            "a row of negative numbers got 0: masked lanes must count as −∞, not as 0":
                np.maximum(top, 0) if N < BLOCK else top + 1,
            "the last element is missing: the mask is col < N": x[:, :-1].max(axis=1),
            "nothing was stored for some rows: Y + row is where the result goes":
                np.where(np.arange(M) == 0, y[0], 77)})
    return "no lane left its row, and −∞ never wins."


@exercise("09.3", "Write the online-softmax kernel", difficulty=3, minutes=25,
          solution="online_kernel",
          hints=("Two loops over blocks of columns. The first keeps m and l, numbers of the row; the"
                 " second loads x again, divides and stores.",
                 "m_new = tl.maximum(m, tl.max(x, 0)); l = l · exp(m − m_new) + tl.sum(tl.exp(x −"
                 " m_new), 0); m = m_new.",
                 "Start with m = tl.full([], -3e38, tl.float32) and l = tl.full([], 0.0, tl.float32),"
                 " and load with other=float('-inf')."))
def check_online(online_kernel):
    """Accept `online_kernel(X, Y, stride_xm, stride_ym, N, BLOCK)`: softmax of row program_id(0)."""
    praise = _examined_here("check_online", online_kernel)
    if praise is not None:
        return praise
    rng = np.random.default_rng(93)
    for M, N, BLOCK, scale in ((2, 8, 8, 1), (3, 24, 8, 2), (3, 21, 8, 2), (2, 24, 8, 80)):
        x = (rng.normal(size=(M, N)) * scale).astype(np.float32)
        x[:, -3] += 3 * scale                                # the last block raises the maximum
        x[0, 1] += 9 * scale                                 # and in row 0 the first one holds it
        out, seen = interpreted.launch(online_kernel, (M,), [("X", x), ("Y", np.zeros_like(x))],
                                       N, N, N, BLOCK=BLOCK)
        what = f"softmax of {M} rows of {N} in blocks of {BLOCK}" + ", large logits" * (scale > 9)
        if seen.outside:
            raise Wrong(f"{what}: {seen.complaint()}")
        if scale > 9 and not np.isfinite(out["Y"]).all():
            raise Wrong(f"{what}: NaN or ∞, because an exponent was positive: m must be the maximum of"
                        " all blocks so far")
        exact = x.astype(np.float64)
        e = np.exp(exact - exact.max(axis=1, keepdims=True))
        expect_close(out["Y"], e / e.sum(axis=1, keepdims=True), what, rtol=1e-4, atol=1e-6,
                     mistakes=_wrong_softmaxes(exact, BLOCK))
        read, least = seen.nbytes("X", "load"), x.nbytes
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

    e = np.exp(x - x.max(axis=1, keepdims=True))
    with np.errstate(all="ignore"):
        wrong = {
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
    arch = arch_of("H100")
    cases = ((16, 0, 4), (251, 98_304, 4), (168, 16_384, 4), (64, 65_536, 4), (128, 114_688, 8),
             (32, 1_024, 1), (32, 38_912, 4), (40, 0, 16), (255, 0, 1))
    got = [programs_per_sm(*case) for case in cases]
    if any(count is None for count in got):
        raise NotImplementedError
    right = [occupancy(arch, "H100", registers=r, shared_bytes=s, num_warps=w).programs
             for r, s, w in cases]
    if got == right:
        return "the scarcest resource decides, and the lens says which it is."

    def alone(r, s, w, *, kept=1024):
        return {"registers": 65536 // (32 * w * r), "warps": 64 // w, "slots": 32,
                "shared": 233472 // (s + kept) if s + kept else 32}

    def without(name):
        return lambda *case: min(v for k, v in alone(*case).items() if k != name)

    mistakes = {
        "the largest count decides nothing: the scarcest resource does":
            lambda *case: max(alone(*case).values()),
        "registers can run out: a program has 32 · num_warps threads, each with registers of its own":
            without("registers"),
        "shared memory can run out, too": without("shared"),
        "an SM holds 64 warps at most": without("warps"),
        "an SM holds 32 programs at most": without("slots"),
        "each program takes 1,024 bytes of shared memory for the system":
            lambda *case: min(alone(*case, kept=0).values())}
    for text, mistaken in mistakes.items():
        if got == [mistaken(*case) for case in cases]:
            raise Wrong(text)
    (r, s, w), expected, count = next(
        x for x in zip(cases, right, got, strict=True) if x[1] != x[2])
    raise Wrong(f"{r} registers, {s:,} bytes, {w} warps: expected {expected}, got {count}")
