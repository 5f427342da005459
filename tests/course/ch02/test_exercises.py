"""The checks of chapter 02 accept the solution and name each seeded mistake."""

from collections import Counter
from math import ceil, isqrt

from flashlib.course.ch02 import exercises as ch02
from flashlib.course.ch02 import solutions as right
from flashlib.masks import tiles
from tests.course.exercises.examine import examine


def kernel(*, add=True, reload=False, store_every=False, whole_rows=False, hoard=False, fill=0.0,
           steps_used=None, twice=False, names=("A", "B", "C"), kind="accumulator"):
    """Return a tiled matmul with seeded mistakes; other names of the arrays are none."""
    def matmul(machine, A, B, Bm, Bn, Bk):
        (M, K), N = A.shape, B.shape[1]
        A, B = machine.hbm(**{names[0]: A, names[1]: B})
        C = machine.hbm_empty(names[2], (M, N))
        with machine.kernel("seeded") as sram:
            for rows in tiles(M, Bm):
                for cols in tiles(N, Bn):
                    with sram.scope():
                        Cij = sram.tile(names[2], rows, cols, kind=kind, fill=fill)
                        for n, steps in enumerate(tiles(K, Bk)[:steps_used]):
                            if whole_rows:
                                steps = slice(0, K)
                            if reload and n:
                                sram.free(Cij)
                                Cij = sram.load(C[rows, cols], kind="accumulator")
                            if hoard:
                                sram.load(A[rows, steps])
                            if twice:
                                with sram.scope():
                                    sram.load(A[rows, steps])
                            with sram.scope():
                                Aik, Bkj = sram.load(A[rows, steps]), sram.load(B[steps, cols])
                                Cij[...] = Cij + Aik @ Bkj if add else Aik @ Bkj
                            if reload or store_every:
                                sram.store(Cij, C[rows, cols])
                        sram.store(Cij, C[rows, cols])
        return C.to_host()
    return matmul


def loads_only(machine, A, B, Bm, Bn, Bk):
    """Load A and B, and multiply them elsewhere."""
    A, B, product = *machine.hbm(A=A, B=B), A @ B
    with machine.kernel("loads only") as sram:
        sram.free(sram.load(A[0:1, 0:1]))
    return product


def edge(square, strip):
    """Return a search for the largest edge with mistaken sizes of its tiles."""
    def search(sram, Bk, e, a):
        b = 1
        while square(e, a) * (b + 1) ** 2 + strip(e, a) * Bk * (b + 1) <= sram:
            b += 1
        return b
    return search


def _shares(addresses):
    return Counter(word % 32 for word in {address // 4 for address in addresses}).values()


WRONG = [
    (ch02.check_tiled_loads, lambda M, N, K, m, n, e: right.tiled_loads(M, N, K, n, m, e),
     "Bm cuts the rows of A"),
    (ch02.check_tiled_loads, lambda M, N, K, m, n, e: right.tiled_loads(M, N, K, m, n, 1),
     "elements, not bytes"),
    (ch02.check_tiled_loads, lambda M, N, K, m, n, e: (M * K * (N // n) + K * N * (M // m)) * e,
     "ragged tile has to be visited"),
    (ch02.check_tiled_loads, lambda M, N, K, m, n, e: (M * K * N // n + K * N * M // m) * e,
     "then multiply"),
    (ch02.check_tiled_loads, lambda M, N, K, m, n, e: M * N * K * (1 / n + 1 / m) * e,
     "no such thing as a part"),
    (ch02.check_tiled_loads,
     lambda M, N, K, m, n, e: (M * K * ceil(M / m) + K * N * ceil(N / n)) * e, "swapped"),
    (ch02.check_tiled_loads, lambda M, N, K, m, n, e: 2 * M * N * K * e, "naive matmul"),
    (ch02.check_tiled_loads, lambda M, N, K, m, n, e: (M * K + K * N) * e, "the ideal"),
    (ch02.check_tiled_loads,
     lambda M, N, K, m, n, e: right.tiled_loads(M, N, K, m, n, e) + M * N * e, "C is written"),
    (ch02.check_tiled_loads, lambda M, N, K, m, n, e: M * K * ceil(N / n) * e, "B is missing"),
    (ch02.check_tiled_loads,
     lambda M, N, K, m, n, e: ceil(M / m) * ceil(N / n) * (m + n) * K * e, "loads what it holds"),
    (ch02.check_largest_tile, lambda *a: right.largest_tile(*a) + 1, "one too many"),
    (ch02.check_largest_tile, lambda *a: right.largest_tile(*a) - 1, "one more would still fit"),
    (ch02.check_largest_tile,
     lambda sram, Bk, e, a: right.largest_tile(sram - 1, Bk, e, a), "to the last byte"),
    (ch02.check_largest_tile, edge(lambda e, a: e, lambda e, a: 2 * e), "at accumulator_bytes"),
    (ch02.check_largest_tile, edge(lambda e, a: 1, lambda e, a: 2), "counted elements"),
    (ch02.check_largest_tile, edge(lambda e, a: a, lambda e, a: e), "two strips"),
    (ch02.check_largest_tile, lambda sram, Bk, e, a: isqrt(sram // a), "need room, too"),
    (ch02.check_largest_tile, edge(lambda e, a: a + 2 * e, lambda e, a: 0), "they are not b × b"),
    (ch02.check_largest_tile, edge(lambda e, a: a, lambda e, a: 2 * a), "move at element_bytes"),
    (ch02.check_my_tiled_matmul, kernel(add=False), "only the last step"),
    (ch02.check_my_tiled_matmul, kernel(steps_used=1), "only the first step"),
    (ch02.check_my_tiled_matmul, kernel(reload=True), "C was loaded"),
    (ch02.check_my_tiled_matmul, kernel(store_every=True), "stored more than once"),
    (ch02.check_my_tiled_matmul, kernel(whole_rows=True), "spans all of K"),
    (ch02.check_my_tiled_matmul, kernel(hoard=True), "earlier steps are still in SRAM"),
    (ch02.check_my_tiled_matmul, kernel(twice=True), "A and B were read"),
    (ch02.check_my_tiled_matmul, kernel(twice=True, names=("x", "y", "out")), "x and y were read"),
    (ch02.check_my_tiled_matmul, kernel(whole_rows=True, names=("x", "y", "out")), "spans all of K"),
    (ch02.check_my_tiled_matmul, kernel(kind="element"), "2 bytes each"),
    (ch02.check_my_tiled_matmul, lambda machine, A, B, Bm, Bn, Bk: kernel()(machine, A, B, Bm, Bn, 1),
     "in steps of Bk"),
    (ch02.check_my_tiled_matmul, loads_only, "every tile of C goes to HBM"),
    (ch02.check_my_tiled_matmul, kernel(fill=float("nan")), "fill=0.0"),
    (ch02.check_my_tiled_matmul, lambda machine, A, B, *tile: A @ B, "nothing moved"),
    (ch02.check_my_tiled_matmul, lambda machine, A, B, *tile: (A @ B).T, "expected shape"),
    (ch02.check_bank_passes, lambda a: max(Counter(x // 4 % 32 for x in a).values()),
     "share it"),
    (ch02.check_bank_passes, lambda a: max(Counter(x % 32 for x in set(a)).values()),
     "divide the address by 4"),
    (ch02.check_bank_passes, lambda a: min(_shares(a)), "the least busy bank"),
    (ch02.check_bank_passes, lambda a: sum(_shares(a)) / len(_shares(a)), "average share"),
    (ch02.check_bank_passes, lambda a: ceil(sum(_shares(a)) / len(_shares(a))), "rounded up"),
    (ch02.check_bank_passes, lambda a: len({x // 4 % 32 for x in a}), "how many banks work"),
    (ch02.check_bank_passes, lambda a: right.bank_passes(a) - 1, "one pass, not none"),
    (ch02.check_bank_passes, lambda a: len({x // 4 for x in a}), "work side by side"),
]
PAIRS = [(ch02.check_tiled_loads, right.tiled_loads), (ch02.check_largest_tile, right.largest_tile),
         (ch02.check_my_tiled_matmul, right.my_tiled_matmul),
         (ch02.check_bank_passes, right.bank_passes)]

TestAnswers = examine(right=PAIRS, wrong=WRONG)


def test_a_kernel_may_name_its_arrays_as_it_likes():
    assert ch02.check_my_tiled_matmul(kernel(names=("left", "right", "out")))
