"""Exercises of chapter 02: loads of a tiled matmul, what fits, the kernel itself, bank conflicts."""

import math

import numpy as np

from flashlib.course.exercises.core import Wrong, exercise, expect_close, given, hint, solution
from flashlib.errors import SRAMOverflow
from flashlib.machine import Machine
from flashlib.models import coalescing, traffic
from flashlib.models.matmul import largest_square_tile

__all__ = ["check_bank_passes", "check_largest_tile", "check_my_tiled_matmul", "check_tiled_loads",
           "hint", "solution"]


@exercise("02.1", "Count the loads", difficulty=1, minutes=3, solution="tiled_loads",
          hints=("How many tiles of C lie side by side in one row of tiles? Each of them needs the"
                 " same rows of A.",
                 "A is read ⌈N/Bn⌉ times and B ⌈M/Bm⌉ times; -(-a // b) is ⌈a/b⌉ in whole numbers."))
def check_tiled_loads(tiled_loads):
    """Accept `tiled_loads(M, N, K, Bm, Bn, element_bytes) -> int`, the bytes read."""
    for M, N, K, Bm, Bn, e in ((56, 40, 32, 14, 8, 2), (50, 70, 30, 16, 8, 4)):
        cost = traffic.tiled_matmul(M=M, N=N, K=K, Bm=Bm, Bn=Bn, Bk=K, element_bytes=e)
        right, what = cost.hbm_read_bytes, f"bytes read at {M=}, {N=}, {K=}, {Bm=}, {Bn=}"
        expect_close(tiled_loads(M, N, K, Bm, Bn, e), right, what, mistakes={
            "these are elements, not bytes": right // e,
            "a ragged tile has to be visited, too: round N/Bn and M/Bm up":
                (M * K * (N // Bn) + K * N * (M // Bm)) * e,
            "there is no such thing as a part of a tile: round N/Bn and M/Bm up":
                (M * K * N / Bn + K * N * M / Bm) * e,
            "first round N/Bn and M/Bm up, then multiply": (M * K * N // Bn + K * N * M // Bm) * e,
            "a ragged tile loads what it holds, not a full tile":
                -(-M // Bm) * -(-N // Bn) * (Bm + Bn) * K * e,
            "swapped: A is read once for every column of tiles, and there are N/Bn of them":
                (M * K * math.ceil(M / Bm) + K * N * math.ceil(N / Bn)) * e,
            "Bm cuts the rows of A and Bn the columns of B, not the other way round":
                (M * K * math.ceil(N / Bm) + K * N * math.ceil(M / Bn)) * e,
            "this is the naive matmul: a tile shares what it loads": 2 * M * N * K * e,
            "each matrix once is the ideal, for a tile as large as C": (M * K + K * N) * e,
            "only reads are asked for: C is written": right + M * N * e,
            "A is there, B is missing": M * K * math.ceil(N / Bn) * e,
            "B is there, A is missing": K * N * math.ceil(M / Bm) * e})
    return "and Bk does not appear in it."


@exercise("02.2", "The largest square tile", difficulty=2, minutes=8, solution="largest_tile",
          hints=("Write down the bytes of the three tiles for an edge b. Which of them grows with b²?",
                 "accumulator_bytes·b² + 2·element_bytes·Bk·b ≤ sram_bytes. Count b up while it holds,"
                 " or solve the quadratic and round down."))
def check_largest_tile(largest_tile):
    """Accept `largest_tile(sram_bytes, Bk, element_bytes, accumulator_bytes) -> int`."""
    def fitting(sram, square, strip):
        b = 0
        while square * (b + 1) ** 2 + strip * (b + 1) <= sram:
            b += 1
        return b

    for sram, Bk, e, a in ((166_912, 32, 2, 4), (65_536, 64, 2, 4), (232_448, 16, 1, 4),
                            (2_048, 16, 2, 4)):                       # 16 fits to the last byte
        right = largest_square_tile(sram, Bk=Bk, element_bytes=e, accumulator_bytes=a)
        expect_close(largest_tile(sram, Bk, e, a), right, f"b at sram_bytes={sram:,}, {Bk=}", mistakes={
            "one too many: this tile does not fit any more, round down": right + 1,
            "one more would still fit: it may fill the SRAM to the last byte": right - 1,
            "the tile of C holds sums at accumulator_bytes": fitting(sram, e, 2 * e * Bk),
            "capacity is in bytes, and you counted elements": fitting(sram, 1, 2 * Bk),
            "there are two strips, one of A and one of B": fitting(sram, a, e * Bk),
            "the tiles of A and B need room, too": math.isqrt(sram // a),
            "A and B come in pieces of Bk, they are not b × b": fitting(sram, a + 2 * e, 0),
            "A and B move at element_bytes": fitting(sram, a, 2 * a * Bk)})
    return "four times the SRAM gives about twice the edge, and half the traffic."


@exercise("02.3", "Write the kernel", difficulty=2, minutes=15, solution="my_tiled_matmul",
          hints=("Three loops: over rows of tiles, over columns of tiles, over steps along K. Which"
                 " tiles live how long?",
                 'Make the tile of C before the loop over K, with kind="accumulator" and fill=0.0;'
                 " add Aik @ Bkj to it in every step; store it once, after the loop.",
                 "with sram.scope(): frees what was made inside it. One scope around a tile of C,"
                 " another around each step."))
def check_my_tiled_matmul(my_tiled_matmul):
    """Accept `my_tiled_matmul(machine, A, B, Bm, Bn, Bk) -> C`, a kernel on the machine."""
    rng = np.random.default_rng(23)
    for (M, N, K), (Bm, Bn, Bk) in (((8, 12, 6), (4, 4, 2)), ((7, 5, 9), (3, 2, 4))):
        A, B = rng.normal(size=(M, K)), rng.normal(size=(K, N))
        need = traffic.tiled_matmul(M=M, N=N, K=K, Bm=Bm, Bn=Bn, Bk=Bk)
        machine = Machine(sram_bytes=need.sram_peak_bytes)
        what = f"({M}, {K}) times ({K}, {N}) in tiles of {Bm} × {Bn}, {Bk=}"
        try:
            C = my_tiled_matmul(machine, A.copy(), B.copy(), Bm, Bn, Bk)
        except SRAMOverflow as error:
            raise Wrong(f"{what}: {_overflow(error, K, Bk)}") from None
        C = np.asarray(C.to_host() if hasattr(given(C), "to_host") else C)
        last = slice((K - 1) // Bk * Bk, K)
        first = slice(0, Bk)
        if np.isnan(C).any():
            raise Wrong(f"{what}: C holds NaN: a tile was read before it was filled (fill=0.0), or"
                        " part of C was never stored")
        expect_close(C, A @ B, what, mistakes={
            "only the last step along K is in C: add to the tile, do not overwrite it":
                A[:, last] @ B[last],
            "only the first step along K is in C: walk all of K": A[:, first] @ B[first],
            "C is transposed": (A @ B).T if M == N else np.inf})
        _judge_traffic(machine, need, what)
    return "the count is that of the library, to the byte."


def _overflow(error, K, Bk) -> str:
    names = [name for name, *_ in error.tiles]
    if Bk < K and any(K in shape for _, shape, _ in error.tiles):
        return "a tile spans all of K: load A[rows, steps] and B[steps, cols], Bk at a time"
    if any(names.count(name) > 1 for name in names):
        return ("tiles of earlier steps are still in SRAM: free them, or open a `with sram.scope():`"
                " for every step")
    return f"the three tiles fit exactly, yours do not. {error}"


def _judge_traffic(machine, need, what) -> None:
    got = machine.traffic
    if not got.hbm_bytes:
        raise Wrong(f"{what}: the values are right, and nothing moved: compute on the machine, with"
                    " sram.load, @ and sram.store")
    written = {name: moved for name, moved in got.by_tensor.items() if moved.write_bytes}
    if loaded := sum(moved.read_bytes for moved in written.values()):
        raise Wrong(f"{what}: {' and '.join(written)} was loaded, {loaded:,} B: keep its tile in SRAM"
                    " for the whole walk along K")
    if got.hbm_write_bytes > need.hbm_write_bytes:
        raise Wrong(f"{what}: C was stored more than once, {got.hbm_write_bytes:,} B in place of"
                    f" {need.hbm_write_bytes:,}: store a tile when it is finished")
    if got.hbm_write_bytes < need.hbm_write_bytes:
        raise Wrong(f"{what}: {got.hbm_write_bytes:,} B were stored in place of"
                    f" {need.hbm_write_bytes:,}: every tile of C goes to HBM, once")
    if got.hbm_read_bytes != need.hbm_read_bytes:
        raise Wrong(f"{what}: {' and '.join(sorted(set(got.by_tensor) - set(written)))} were read,"
                    f" {got.hbm_read_bytes:,} B, expected {need.hbm_read_bytes:,}: load one piece of"
                    " each in a step")
    room = [e.bytes / np.diff(e.rows)[0] / np.diff(e.cols)[0] for e in machine.trace if e.op == "tile"]
    if max(room, default=0) < 4:
        raise Wrong(f"{what}: the sums have 2 bytes each, and a long sum rounds in every step: keep"
                    ' them in 4, kind="accumulator"')
    if got.sram_peak_bytes < need.sram_peak_bytes:
        raise Wrong(f"{what}: your pieces are smaller than asked for: walk along K in steps of Bk")


@exercise("02.4", "Count bank conflicts", difficulty=2, minutes=8, solution="bank_passes",
          hints=("Which word does an address belong to, and which bank does that word lie in?",
                 "word = address // 4, bank = word % 32. Threads that ask for the same word share"
                 " it: count *different* words.",
                 "The load takes as many passes as the busiest bank has different words."))
def check_bank_passes(bank_passes):
    """Accept `bank_passes(addresses) -> int`, for the 32 byte addresses of a warp."""
    warp = range(32)
    patterns = {"every sixth word": [24 * t for t in warp],
                "32 neighbors": [4 * t for t in warp],
                "a column of a 32-wide tile": [128 * t for t in warp],
                "a column of a 33-wide tile": [132 * t for t in warp],
                "one word for all": [64] * 32,
                "two words of one bank": [128 * (t % 2) for t in warp],
                "16-bit neighbors": [2 * t for t in warp],
                "12 of a column, 20 of two rows": [128 * t if t < 12 else 128 * (t % 2) + 4 * (t // 2)
                                                   for t in warp],
                "three rows of one bank, and one word for 29": [0, 128, 256] + [4] * 29}
    for what, addresses in patterns.items():
        words = [a // 4 for a in addresses]
        busiest = max(words.count(w) for w in words)
        by_bank = [w % 32 for w in words]
        by_byte = [b % 32 for b in set(addresses)]
        shares = [[w % 32 for w in set(words)].count(bank) for bank in set(by_bank)]
        right = coalescing.bank_passes(addresses)
        mean = sum(shares) / len(shares)
        expect_close(bank_passes(list(addresses)), right, f"passes for {what}", mistakes={
            "threads that ask for the same word share it: count different words":
                max(by_bank.count(b) for b in by_bank),
            "a bank serves words of 4 bytes: divide the address by 4 first":
                max(by_byte.count(b) for b in by_byte),
            "this is how many banks work: you want the busiest one's share": len(set(by_bank)),
            "a load without conflicts takes one pass, not none": right - 1,
            "this is how many different words were asked for: banks work side by side":
                len(set(words)),
            "this is how many threads share a word": busiest,
            "this is the least busy bank's share: the load waits for the busiest": min(shares),
            "this is the banks' average share: the load waits for the busiest": mean,
            "this is the banks' average share, rounded up: the load waits for the busiest":
                math.ceil(mean)})
    return "one pad word per row and the column is free."
