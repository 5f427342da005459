"""Exercises of chapter 11: room for two programs, waves, the bytes behind L2, another GPU's tile."""

import itertools
import math
from fractions import Fraction

import numpy as np

from flashlib import hardware
from flashlib.course.exercises.core import Wrong, exercise, expect_close, given, hint, parts, solution
from flashlib.models import predict as model

TILES, WARPS, STAGES = (16, 32, 64, 128, 256), (1, 2, 4, 8), (1, 2, 3, 4)   # what 11.4 may choose from
FLASH_2 = model.Config(128, 64, 4, 1)       # FlashAttention-2 on an A100 at d = 128, without a mask

__all__ = ["check_most_stages", "check_my_tile", "check_time_in_waves",
           "check_where_bytes_come_from", "hint", "solution"]


def _expect_each(got, expected, cases, names, *, mistakes, rtol=1e-9, least=-np.inf):
    """Name the mistake that explains every answer, or else the first case with a wrong one.

    Answers below `least` count as `least` while mistakes are looked for.
    """
    got = [float(answer) if isinstance(answer, Fraction) else answer for answer in got]
    titles = [f"{names} = {', '.join(map(str, case))}" for case in cases]
    for title, answer in zip(titles, got, strict=True):
        if np.ndim(answer) or not np.issubdtype(np.asarray(answer).dtype, np.number):
            raise Wrong(f"{title}: expected a number, got {answer!r}")
    found = [mistake for mistake, wrong in mistakes.items()
             if np.allclose(np.maximum(got, least), np.maximum(wrong, least), rtol=rtol, atol=1e-12)]
    for title, answer, right in zip(titles, got, expected, strict=True):
        expect_close(answer, right, title, rtol=rtol, mistakes=dict.fromkeys(found, answer))


@exercise("11.1", "Leave room for a second program", difficulty=1, minutes=5, solution="most_stages",
          hints=("Half of an SM's shared memory, less what the system keeps, is what one of two"
                 " programs may have. How many rows of 2·d bytes is that?",
                 "Br of these rows are Q's; every stage takes 2·Bc of the others, one tile for K and"
                 " one for V."))
def check_most_stages(most_stages):
    """Accept `most_stages(Br, Bc, d) -> int`: stages with which two programs share an H200's SM."""
    room, kept = 228 * 1024, 1024
    cases = ((128, 64, 128), (64, 64, 64), (256, 128, 128), (16, 16, 16), (32, 16, 16), (256, 64, 256),
             (256, 16, 64))
    got = given([most_stages(*case) for case in cases])
    Br, Bc, d = (np.array(column) for column in zip(*cases, strict=True))
    half, row, pair = room // 2 - kept, 2 * d, 2 * Bc
    rows = half // row
    answers = np.maximum((rows - Br) // pair, 0)
    _expect_each(got, answers, cases, "Br, Bc, d", least=0, mistakes={
        "not even one stage fits: 0, not a negative number": answers,
        "a KiB is 1,024 B": ((228_000 // 2 - kept) // row - Br) // pair,
        "one program could have these alone: two share the SM": ((room - kept) // row - Br) // pair,
        "the system keeps 1,024 B with each of the two": ((room - kept) // 2 // row - Br) // pair,
        "the system keeps 1,024 B with every program": (room // 2 // row - Br) // pair,
        "two share the SM's 228 KiB, not 227": ((227 * 512 - kept) // row - Br) // pair,
        "Br and Bc changed places: Q has Br rows, every stage twice Bc": (rows - Bc) // (2 * Br),
        "every stage holds a tile of K and one of V": (rows - Br) // Bc,
        "these are elements, bf16 has 2 bytes": (half // d - Br) // pair,
        "this counts 4 bytes an element, bf16 has 2": (half // (4 * d) - Br) // pair,
        "the tile of Q needs room, too": rows // pair,
        "Q is loaded once and needs no stages": rows // (Br + pair),
        "two programs with one stage do not always fit: then it is 0": np.maximum(answers, 1),
        "rounded to the nearest, but the last stage has to fit whole: round down":
            np.maximum(np.rint((half / row - Br) / pair), 0),
        "only operands are kept in shared memory: O lives in registers": (rows - 2 * Br) // pair,
        "a part of a stage holds no tile: round down": (half / row - Br) / pair,
        "the last of these stages does not fit whole: round down": -((Br - rows) // pair)})
    return "so many copies can be under way while two programs take turns at the tensor cores."


@exercise("11.2", "Time in waves", difficulty=2, minutes=8, solution="time_in_waves",
          hints=("How many programs run at a time? How many rounds of that does it take?",
                 "⌈programs / (sms · per_sm)⌉ rounds of program_s each; -(-a // b) rounds up."))
def check_time_in_waves(time_in_waves):
    """Accept `time_in_waves(programs, sms, per_sm, program_s) -> (seconds, efficiency)`."""
    cases = ((2048, 132, 2, 1e-4), (133, 132, 1, 2e-3), (264, 132, 2, 1e-3), (300, 132, 2, 1e-3))
    got = [parts(time_in_waves(*case), "(seconds, efficiency)") for case in cases]
    programs, sms, per_sm, each = (np.array(column) for column in zip(*cases, strict=True))
    slots, rounds = sms * per_sm, -(-programs // (sms * per_sm))
    what = "programs, sms, per_sm, program_s"
    seconds, shares = zip(*got, strict=True)
    _expect_each(seconds, rounds * each, cases, f"seconds, {what}", rtol=1e-6, mistakes={
        "the last wave takes as long as a full one: round up": programs / slots * each,
        "this drops the last, unfinished wave: round up": programs // slots * each,
        "an SM holds more than one program": -(-programs // sms) * each,
        "program_s is the time of each, however many share an SM": -(-programs // sms) * each / per_sm,
        "programs of one SM run at the same time, not in turn": rounds * per_sm * each,
        "this is the number of waves: each takes program_s": rounds,
        "this is the efficiency: the seconds come first": programs / (rounds * slots),
        "one wave too many when the last one is full": (programs // slots + 1) * each})
    share = programs / (rounds * slots)
    _expect_each(shares, share, cases, f"efficiency, {what}", mistakes={
        "this is in per cent, asked is a share, at most 1": 100 * share,
        "a wave has room for sms · per_sm programs": programs / (-(-programs // sms) * sms),
        "this is the share of places without work": 1 - share,
        "this is the last wave's share; asked is that of all waves": programs / slots - rounds + 1,
        "the last wave's share, 0 where it is full; asked is all waves'": programs % slots / slots,
        "this is a number of waves: divide by the whole ones": programs / slots,
        "upside down: efficiency is work over room, at most 1": rounds * slots / programs})
    return "133 programs on 132 SMs: one straggler, half of the time."


@exercise("11.3", "Where do the bytes come from?", difficulty=2, minutes=8,
          solution="where_bytes_come_from",
          hints=("The SMs ask for K and V once per row tile; DRAM delivers each tensor once, if L2 can"
                 " keep what is in use.",
                 "From L2: heads · (N·d + 2·N·d·⌈N/Br⌉) · 2 B. From DRAM: heads · 3·N·d · 2 B."))
def check_where_bytes_come_from(where_bytes_come_from):
    """Accept `where_bytes_come_from(heads, N, d, Br) -> (l2_bytes, dram_bytes)`, reads in bf16."""
    for heads, N, d, Br in ((128, 4096, 64, 64), (64, 4096, 128, 128), (3, 1030, 32, 64)):
        got = parts(where_bytes_come_from(heads, N, d, Br), "(l2_bytes, dram_bytes)")
        Tr, tensor, lse = -(-N // Br), heads * N * d * 2, 4 * heads * N
        what = f"{heads} heads, {N=}, {d=}, {Br=}"
        if got == (3 * tensor, tensor * (1 + 2 * Tr)):
            raise Wrong(f"{what}: the two changed places: L2 answers every request, DRAM the first one")
        expect_close(got[0], tensor * (1 + 2 * Tr), f"{what}: from L2", mistakes={
            "lse is written, only reads are asked for": tensor * (1 + 2 * Tr) + lse,
            "these are elements, bf16 has 2 bytes": tensor * (1 + 2 * Tr) // 2,
            "this counts 4 bytes an element, bf16 has 2": 2 * tensor * (1 + 2 * Tr),
            "this is in GB, asked are bytes": tensor * (1 + 2 * Tr) / 1e9,
            "that is what DRAM delivers: the SMs ask for K and V once per row tile": 3 * tensor,
            "Q's last tile has only the rows that are left": 2 * heads * Tr * d * (Br + 2 * N),
            "K is there, V is missing": tensor * (1 + Tr),
            "Q is missing": tensor * 2 * Tr,
            "Q is loaded once, only K and V once per row tile": tensor * 3 * Tr,
            "that is one head": tensor * (1 + 2 * Tr) // heads,
            "the last row tile may be smaller, but it loads all keys, too": tensor * (1 + 2 * (N / Br)),
            "the last row tile is ragged, and counts, too: round up": tensor * (1 + 2 * (N // Br)),
            "only reads are asked for, O is written": tensor * (2 + 2 * Tr)})
        expect_close(got[1], 3 * tensor, f"{what}: from DRAM", mistakes={
            "lse is written, only reads are asked for": 3 * tensor + lse,
            "these are elements, bf16 has 2 bytes": 3 * tensor // 2,
            "DRAM does not see the row tiles: L2 does": tensor * (1 + 2 * Tr),
            "only reads are asked for, O is written": 4 * tensor,
            "three tensors are read: Q, K and V": 2 * tensor,
            "that is one head": 3 * tensor // heads})
    return "the recorded counters agree with both."


@exercise("11.4", "A tile for a GPU that you do not own", difficulty=3, minutes=20, solution="my_tile",
          hints=("Start from the budget: hardware.get('A100').sram_bytes. With d = 128, how many"
                 " rows of 256 B are that?",
                 "Two programs per SM first, then no spills; then compare Br = 64 and Br = 128 in the"
                 " map that lab.draw(gpu='A100') draws.",
                 "shared = 2·d·(Br + 2·stages·Bc); registers ≈ Br·(d + 1.5·Bc)/threads + 40, rounded up"
                 " to a multiple of 8."))
def check_my_tile(my_tile):
    """Accept `my_tile() -> dict`: Br, Bc, warps, stages, and your shared_bytes, registers, per_sm."""
    tile = given(my_tile())
    wanted = {"Br", "Bc", "warps", "stages", "shared_bytes", "registers", "per_sm"}
    if not isinstance(tile, dict) or set(tile) != wanted:
        raise Wrong(f"expected a dictionary with {', '.join(sorted(wanted))}, got {tile!r}")
    if any(value is ... or value is None for value in tile.values()):
        raise NotImplementedError
    gpu, d = hardware.get("A100"), 128
    Br, Bc, warps, stages = (tile[key] for key in ("Br", "Bc", "warps", "stages"))
    for name, value, allowed in (("Br", Br, TILES), ("Bc", Bc, TILES), ("warps", warps, WARPS),
                                 ("stages", stages, STAGES)):
        if value not in allowed:
            raise Wrong(f"{name}: expected one of {allowed}, got {value!r}")
    config = model.Config(*map(int, (Br, Bc, warps, stages)))
    shared, registers = model.shared_bytes(config, d), model.registers(config, d)
    expect_close(tile["shared_bytes"], shared, "shared_bytes", mistakes={
        "these are elements, bf16 has 2 bytes": shared // 2,
        "this is in KiB, asked are bytes": shared / 1024,
        "every stage has a tile of K and one of V of its own": 2 * d * (Br + 2 * Bc),
        "K has its stages, V has its own, too": 2 * d * (Br + stages * Bc),
        "Q stays in shared memory as well": 2 * d * 2 * stages * Bc,
        "Q is loaded once and needs no stages": 2 * d * stages * (Br + 2 * Bc)})
    if shared > gpu.sram_bytes:
        raise Wrong(f"{config} needs {shared:,} B of shared memory, one program may have"
                    f" {gpu.sram_bytes:,} B: fewer rows, fewer keys or fewer stages")
    plain, half_s = Br * (d + 1.5 * Bc) / config.threads, Br * Bc / 2 / config.threads
    expect_close(tile["registers"], registers, "registers", mistakes={
        "these are the tiles alone: addresses, counters, m and l take about 40":
            math.ceil(plain) if tile["registers"] % 8 else 8 * math.ceil(plain / 8),
        "P takes 16 bits, half a register": 8 * math.ceil((plain + half_s + model.OTHER_REGISTERS) / 8),
        "round up to a multiple of 8": plain + model.OTHER_REGISTERS,
        "P stands beside S, in 16 bits": 8 * math.ceil((plain - half_s + model.OTHER_REGISTERS) / 8),
        "this is the whole program's: divide by its threads": Br * (d + 1.5 * Bc),
        "a warp has 32 threads": 8 * math.ceil((Br * (d + 1.5 * Bc) / warps + 40) / 8),
        "a thread holds its share of O, S and half of S for P, and 40 more": tile["registers"]})
    if registers > model.MOST_REGISTERS:
        raise Wrong(f"{config} wants {registers} registers a thread and gets 255: the rest spills, for"
                    " every tile. More warps share the tile, or make it smaller")
    per_sm, limit = model.resident(gpu, config, d)
    expect_close(tile["per_sm"], per_sm, "per_sm", mistakes={
        "by shared memory alone": int(gpu.shared_memory_per_sm_bytes) // (shared + 1024),
        "the system keeps 1,024 B with every program": int(gpu.shared_memory_per_sm_bytes) // shared,
        "by registers alone": int(gpu.registers_per_sm_bytes) // (4 * registers * config.threads)})
    if per_sm < 2:
        raise Wrong(f"{config} fits once on an SM ({limit}): during its softmax the tensor cores wait")
    shape = {"batch": 4, "heads": 16, "N": 4096, "d": d}
    times = [model.predict(gpu, model.Config(*choice), **shape).time_s
             for choice in itertools.product(TILES, TILES, WARPS, STAGES)]
    mine, best = model.predict(gpu, config, **shape), min(times)
    if mine.time_s > 1.1 * best:
        raise Wrong(f"{config} fits and does not spill, but the model sees {1e3 * mine.time_s:.2f} ms"
                    f" where {1e3 * best:.2f} ms are possible; the longest part is {mine.bound}")
    same = np.isclose(times, mine.time_s, rtol=1e-9).sum() - 1
    return (f"{1e3 * mine.time_s:.2f} ms by the model, {per_sm} programs an SM, limited by {limit}."
            f" {same} other choices get the same time: the model cannot tell them apart."
            f"{_doubt(config)} FlashAttention-2 takes 128 × 64, 4 warps and one stage here, which by"
            f" our estimate wants {model.registers(FLASH_2, d)} registers. That GPU has the last word.")


def _doubt(config) -> str:
    """Return what the model does not see of a configuration that passes, "" if we know of nothing."""
    if 16 * config.warps > config.Br:                       # a warp's mma.sync has 16 rows
        return " But its warps must share rows and agree on every maximum: the model charges nothing."
    if config.stages == 1:
        return " But with one stage no copy runs ahead, and the model charges nothing for waiting."
    return ""
