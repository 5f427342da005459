"""Exercises of chapter 00: the size of S, a first kernel on the machine, and a first floor."""

from __future__ import annotations

import numpy as np

from flashlib.course.exercises.core import Wrong, exercise, expect_close, given, hint, solution
from flashlib.machine import HBMArray, HBMReadError, Machine, SRAMOverflow

__all__ = ["check_break_even_length", "check_bytes_of_S", "check_scaled_copy",
           "check_seconds_at_least", "hint", "solution"]


@exercise("00.1", "The size of the logits", difficulty=1, minutes=2, solution="bytes_of_S",
          hints=("Every query meets every key: how many logits are that?",
                 "N·N elements, each of element_bytes."))
def check_bytes_of_S(bytes_of_S):
    """Accept `bytes_of_S(N, element_bytes) -> int`, the bytes of the N × N logits of one head."""
    for N, e in ((6, 3), (4096, 2), (100, 4)):
        expect_close(bytes_of_S(N, e), N * N * e, f"bytes of S for {N=}, element_bytes={e}", mistakes={
            "these are elements: multiply by element_bytes": N * N,
            "S has N rows of N logits, not N logits": N * e,
            "these are bits": N * N * e * 8,
            "element_bytes is an argument: 2 is only the most common": N * N * 2,
            "the matrix is square, not a triangle": N * (N + 1) // 2 * e})
    return f"at N = 4,096 that is {4096 * 4096 * 2:,} B for every head of every sequence."


@exercise("00.2", "Where S outgrows the rest", difficulty=1, minutes=4, solution="break_even_length",
          hints=("Q, K, V and O have N·d elements each, S has N². Write the inequality.",
                 "N² > 4·N·d means N > 4·d; the smallest whole N is one more."))
def check_break_even_length(break_even_length):
    """Accept `break_even_length(d) -> int`, the smallest N with N² > 4·N·d."""
    for d in (10, 32, 64, 128):
        expect_close(break_even_length(d), 4 * d + 1, f"smallest N for {d=}", mistakes={
            "at N = 4d the two are equal: 'more' starts one later": 4 * d,
            "O counts, too: four matrices of N·d": 3 * d + 1,
            "one matrix of N·d is not all: there are Q, K, V and O": d + 1,
            "S alone is asked for, without P": 2 * d + 1})
    return "from there on the logits are the largest thing in the room."


@exercise("00.3", "Your first kernel on the machine", difficulty=2, minutes=10, solution="scaled_copy",
          hints=("Put x into HBM with machine.hbm(x=x), make room with machine.hbm_empty('y', x.shape),"
                 " and open `with machine.kernel('copy') as sram:`.",
                 "In a loop over slices of rows: tile = sram.load(x_hbm[rows]); tile[...] = tile *"
                 " factor; sram.store(tile, y_hbm[rows]); sram.free(tile).",
                 "If the SRAM overflows, the tile of the previous round is still there: free it, or put"
                 " the round into `with sram.scope():`."))
def check_scaled_copy(scaled_copy):
    """Accept `scaled_copy(machine, x, factor, rows_per_tile) -> y` that moves each element twice."""
    x = np.random.default_rng(3).normal(size=(10, 4))
    machine = Machine(sram_bytes=3 * 4 * 2)
    try:
        y = scaled_copy(machine, x.copy(), 2.5, 3)
    except SRAMOverflow as overflow:
        raise Wrong(f"the SRAM holds one tile of 3 rows ({machine.sram_bytes} B), and you asked for"
                    f" {overflow.needed_bytes} B: free every tile before you load the next, and scale"
                    " in place, tile[...] = tile * factor") from None
    except HBMReadError as error:
        raise Wrong(f"{error}") from None
    except ValueError as error:
        if "Value" not in str(error) or "freed already" not in str(error):
            raise
        raise Wrong("`tile = tile * factor` makes a new value beside the tile, and only a tile can be"
                    " freed: write into it, tile[...] = tile * factor") from None
    if isinstance(y, HBMArray):
        raise Wrong("you returned the array in HBM: the host gets a copy with y.to_host()")
    if np.shape(y) == x.shape and np.isnan(np.asarray(y)[-1]).all():
        raise Wrong("the last rows were never stored: 10 rows do not divide into tiles of 3, and the"
                    " last tile holds one row")
    expect_close(y, 2.5 * x, "y", mistakes={"the copy is not scaled": x})
    traffic, size = machine.traffic, x.size * 2
    if traffic.hbm_bytes == 0:
        raise Wrong("right numbers, and nothing moved: use the machine (sram.load and sram.store)")
    for done, moved in (("read", traffic.hbm_read_bytes), ("written", traffic.hbm_write_bytes)):
        if moved != size:
            raise Wrong(f"expected {size} B {done}, each element once, got {moved} B")
    if traffic.vector_flops == 0:
        raise Wrong("the kernel only copied: scale each tile while it is in SRAM")
    if traffic.vector_flops != x.size:
        raise Wrong(f"expected {x.size} vector FLOPs, one per element, got {traffic.vector_flops}")
    if traffic.sram_peak_bytes != machine.sram_bytes:
        raise Wrong(f"a tile of rows_per_tile = 3 rows takes {machine.sram_bytes} B of SRAM, and yours"
                    f" took {traffic.sram_peak_bytes} B at most: load rows_per_tile rows at a time")
    return f"{size} B in, {size} B out, and never more than {traffic.sram_peak_bytes} B on chip."


@exercise("00.4", "A floor under the time", difficulty=2, minutes=5, solution="seconds_at_least",
          hints=("How long do the FLOPs take alone? How long do the bytes take alone?",
                 "A GPU computes and moves at the same time. What is the least that both together can"
                 " take?"))
def check_seconds_at_least(seconds_at_least):
    """Accept `seconds_at_least(flops, hbm_bytes, flops_per_s, bytes_per_s) -> float`."""
    cases = {"1e12 FLOP and 1e9 B": (1e12, 1e9), "1e9 FLOP and 1e10 B": (1e9, 1e10)}
    flops, moved = np.array(list(cases.values())).T
    compute, memory = flops / 1e14, moved / 1e12
    answers = [np.ravel(given(seconds_at_least(*case, 1e14, 1e12))) for case in cases.values()]
    if any(answer.size != 1 or answer.dtype.kind not in "iufO" for answer in answers):
        raise Wrong(f"expected one number, the seconds of one algorithm, got {answers[0].tolist()}")
    wrong = {"the two overlap: they do not add": compute + memory,
             "you left the bytes out: they may take longer than the FLOPs": compute,
             "you left the FLOPs out: they may take longer than the bytes": memory,
             "that is the faster of the two: the slower one sets the floor":
                 np.minimum(compute, memory),
             "a rate divides: FLOP over FLOP/s gives seconds": flops * 1e14}
    made = {mistake: guess for mistake, guess in wrong.items()
            if np.allclose(np.array(answers, float)[:, 0], guess)}
    for n, what in enumerate(cases):
        expect_close(answers[n][0], max(compute[n], memory[n]), f"seconds for {what}",
                     mistakes={mistake: guess[n] for mistake, guess in made.items()})
    return "chapter 01 draws it, and puts FlashAttention on it."
