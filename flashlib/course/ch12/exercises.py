"""Exercises of chapter 12: break-even dimension, parities, registers, a ping-pong plan, a kernel."""

import inspect
import itertools
import numbers
from collections import Counter
from fractions import Fraction

import numpy as np

from flashlib.course.exercises.core import Wrong, exercise, expect_close, given, hint, parts, solution
from flashlib.course.exercises.interpreted import refuse_stub
from flashlib.course.notebook.without_triton import why_not
from flashlib.models.sm import programs
from flashlib.models.sm import simulator as sim

__all__ = ["check_break_even", "check_multiply", "check_my_pingpong", "check_place",
           "check_split_registers", "hint", "solution"]


def _plain(number):
    """Return a `Fraction` as an integer or a float, and everything else as it is."""
    if not isinstance(number, Fraction):
        return number
    return number.numerator if number.denominator == 1 else float(number)


@exercise("12.1", "When exponentials take as long as matmuls", difficulty=1, minutes=5,
          solution="break_even",
          hints=("Per logit there is one exponential. How many matmul FLOPs are there per logit, in"
                 " Q·Kᵀ and P·V together?",
                 "4·d FLOPs a logit take 4·d / matmul_flops clocks, its exponential 1 / exps clocks."
                 " Set them equal."))
def check_break_even(break_even):
    """Accept `break_even(matmul_flops, exps) -> d`; both rates per clock and SM."""
    for flops, exps in ((8192, 24), (4096, 16), (2048, 32)):
        got, what = _plain(break_even(flops, exps)), f"matmul_flops={flops}, exps={exps}"
        expect_close(got, flops / (4 * exps), what, mistakes={
            "there are two matmuls, Q·Kᵀ and P·V, with 2·d FLOPs a logit each": flops / (2 * exps),
            "a multiply-add counts as two FLOPs, and there are two matmuls": flops / exps,
            "upside down: a larger d gives the matmuls more to do per exponential":
                4 * exps / flops,
            "upside down, and without the 4·d FLOPs that a logit takes": exps / flops,
            "two matmuls of 2·d FLOPs are 4·d, not 8·d": flops / (8 * exps),
            "this is the H200's answer in 16 bits; compute it from the arguments": 64,
            "the dimension at which both are equal need not be a whole number: do not round":
                flops // (4 * exps),
            "equally long is not the first d at which matmuls are longer: do not round up":
                -(-flops // (4 * exps)),
            "more exponentials a clock are done sooner: that takes a smaller d, so divide by them":
                flops * exps / 4})
    return "below that dimension the exponentials are the longer part, in 8 bits already below 128."


@exercise("12.2", "Slot and parity", difficulty=2, minutes=8, solution="place",
          hints=("Count on from K₀, number 0: which number has V₀, which V₁?",
                 "V of tile j has number 2·j + 2. The slots are used in turn, and a barrier's phase"
                 " flips each time its slot is used again."))
def check_place(place):
    """Accept `place(j, slots) -> (slot, parity)` of V of tile j, if K and V share a ring by turns."""
    tiles = range(12)
    for slots in (5, 4, 3, 2, 1):
        got = [parts(place(j, slots), "(slot, parity)") for j in tiles]
        for pair in got:
            if not all(isinstance(number, numbers.Integral) for number in pair):
                raise Wrong(f"expected two whole numbers, got {pair!r}: // divides and rounds down, and"
                            " a parity is 0 or 1")
        number = [2 * j + 2 for j in tiles]

        def at(order, slots=slots):
            return [(n % slots, n // slots % 2) for n in order]

        right = at(number)
        expect_close(got, right, f"V of tiles 0 to 11, {slots} slots", mistakes={
            "this is a ring of V alone; here K and V share one": at(tiles),
            "in the kernel's loop number 2·j holds V of tile j − 1": at([2 * j for j in tiles]),
            "two tiles of K come before V₀, which is number 2: K₀ is number 0":
                at([2 * j + 1 for j in tiles]),
            "tiles are counted from 0: K₀ is number 0": at([n + 1 for n in number]),
            "this is K's place, number 2·j − 1": at([2 * j - 1 for j in tiles]),
            "this takes two tiles for one: K and V have a slot each": at([j + 2 for j in tiles]),
            "the slot is right, but the laps of the ring count K's tiles, too":
                [(n % slots, j // slots % 2) for j, n in enumerate(number)],
            "the parity is always 0 here, so the second lap takes the first one's tile for its own":
                [(n % slots, 0) for n in number],
            "the parity does not flip with every tile; it flips when a slot is used again":
                [(n % slots, j % 2) for j, n in enumerate(number)],
            "this counts the laps; a barrier knows only whether their number is odd":
                [(n % slots, n // slots) for n in number],
            "(slot, parity), in this order": [pair[::-1] for pair in right],
            "this is the producer's parity, which begins with 1: its first wait must pass":
                [(slot, parity ^ 1) for slot, parity in right],
            "the second number is the slot again; what counts is how often the ring has been filled":
                [(n % slots, n % slots) for n in number],
            "the parity flips with every lap, not with every second one":
                [(n % slots, n // (2 * slots) % 2) for n in number],
            "a slot is a place in the ring, 0 to slots − 1, not the tile's number":
                [(n, n // slots % 2) for n in number],
            "divmod gives (lap, slot): the slot comes first here, and of the lap the parity is wanted":
                [divmod(n, slots) for n in number]}, atol=0)
    return "a ring of four keeps V in slots 0 and 2, and K, but for the first, in 1 and 3."


@exercise("12.3", "Split the register file", difficulty=2, minutes=10, solution="split_registers",
          hints=("65,536 registers are 512 for each of 128 threads. The producer's warpgroup gets 24 of"
                 " them; who shares the rest?",
                 "(512 − 24) / consumers, rounded down to a multiple of 8."))
def check_split_registers(split_registers):
    """Accept `split_registers(consumers) -> (producer, consumer)` registers of a thread."""
    for consumers in (2, 3, 4, 7):
        few, many = map(_plain, parts(split_registers(consumers), "(producer, consumer)"))
        best = (512 - 24) // consumers // 8 * 8
        what = f"{consumers} consumers: "
        if (few, many) == (best, 24):
            raise Wrong(f"{what}(producer, consumer), in this order")
        if few % 128 == many % 128 == 0 and few:
            raise Wrong(f"{what}{few:g} and {many:g} are a warpgroup's registers, or more; setmaxnreg"
                        " wants those of one thread, so divide by 128")
        if few < 24:
            raise Wrong(f"{what}{few:g} for the producer is less than the 24 that setmaxnreg asks for")
        if many not in (best, best + 8) and many in ((512 - 24) / consumers, (512 - 24) // consumers):
            raise Wrong(f"{what}setmaxnreg takes multiples of 8, {many:g} is none: round down")
        if few == many:
            raise Wrong(f"{what}{few} each is the equal share that all threads get without setmaxnreg;"
                        " the producer needs next to nothing")
        if many * consumers == 512:
            raise Wrong(f"{what}{many} a thread leaves nothing for the producer")
        if many == (2048 - 24) // consumers // 8 * 8 or many > 256:
            raise Wrong(f"{what}{many} is more than the 256 that setmaxnreg knows. Did you divide"
                        " bytes? A register has 4 of them")
        if many == best + 8:
            raise Wrong(f"{what}128·({few} + {consumers}·{many}) is more than the 65,536 of an SM:"
                        " round down to a multiple of 8, and count the producer's registers for a whole"
                        " warpgroup, though one warp does its work")
        total = 128 * (few + consumers * many)
        if total > 65_536:
            raise Wrong(f"{what}128·({few} + {consumers}·{many}) = {total:,} registers, an SM has"
                        " 65,536")
        expect_close(few, 24, f"{what}producer (the least that setmaxnreg knows)")
        expect_close(many, best, f"{what}consumer (the most that fit)")
    return ("FlashAttention-3 gives its producer 24 beside two consumers of 240, and 32, more than it"
            " must, beside three of 160; ours have 40 beside two of 232, and 32 beside three of 160.")


@exercise("12.4", "Write the ping-pong", difficulty=3, minutes=25, solution="my_pingpong",
          hints=("Start from `specialized` and put a turn around the matmuls. P·V of tile j and Q·Kᵀ"
                 " of tile j + 1 belong into one turn, so that only softmax lies between two turns.",
                 '`sync(f"turn[{w}]")` waits for two arrivals, yours and that of the other, which'
                 ' says `then=("turn[…]",)` on the last matmul of its turn. Who arrives before'
                 " anybody had a turn?",
                 "The last warpgroup arrives at turn[0] once, before its loop."))
def check_my_pingpong(my_pingpong):
    """Accept `my_pingpong(sm, w)`, a consumer's plan for the simulator."""
    if not inspect.isgenerator(given(my_pingpong(programs.sm_of(), 0))):     # a stub says so itself
        raise Wrong("expected a function with `yield` in it, as `specialized` is")
    waited = Counter()

    def watched(sm, w):
        for request in my_pingpong(sm, w):
            if getattr(request, "kind", "") == "wait":
                waited[w, str(request.target).split("[")[0]] += 1
            yield request

    options = {"d": 128, "keys": 128, "tiles": 10}
    try:
        mine = programs.schedule_of(watched, **options)
        programs.schedule_of(my_pingpong, **options | {"d": 64, "keys": 64})
    except sim.Deadlock as error:
        why = ("a turn takes two arrivals, `sync` of whoever takes it and one of whoever hands it on."
               " Here nobody has handed over the first turn, or somebody keeps it, hands it on twice or"
               " takes it without arriving" if "'turn" in str(error)
               else "there is a slot that is not released, or a tile that is waited for twice")
        raise Wrong(f"{why}: {error}") from None
    except sim.ScheduleError as error:
        raise Wrong(f"{type(error).__name__}: {error}") from None
    for what in ("QK", "PV"):
        done = sorted((e.role, e.tile) for e in mine.of(what=what))
        if done != [(f"warpgroup {w}", j) for w in (0, 1) for j in range(10)]:
            raise Wrong(f"expected {what} of tiles 0 to 9 once in each warpgroup, got {len(done)} of"
                        " 20")
    if len(mine.of(what="O")) != 2:
        raise Wrong("nobody has stored O: `yield run(sm.store(w))` comes last")
    if not all(waited[w, "Q full"] for w in (0, 1)):
        raise Wrong("it runs, by luck: Q happens to come before the first K. Both warpgroups have to"
                    ' wait for it, `yield wait("Q full", 0)`')
    for w, ring in itertools.product((0, 1), "KV"):
        if waited[w, f"{ring} full"] < options["tiles"]:
            raise Wrong(f"it runs, by luck: warpgroup {w} waited for {waited[w, f'{ring} full']} of the"
                        f" {options['tiles']} tiles of {ring}, and the others happened to be there."
                        f" `yield sm.{ring.lower()}.full(j)` comes before every matmul with tile j")
    one, two = ([e for e in mine.of(role=f"warpgroup {w}") if e.unit == "tensor"] for w in (0, 1))
    clash = sum(a.start < b.end - 1e-6 and b.start < a.end - 1e-6
                for a, b in itertools.product(one, two))
    if clash:
        raise Wrong(f"both warpgroups multiply at once ({clash}×): a matmul stands outside of its"
                    " turn (the first Q·Kᵀ and the last P·V need one, too), or the turn is handed on"
                    " before it is over")
    best = programs.schedule_of("pingpong", **options).cycles
    if mine.cycles > 1.1 * best:
        raise Wrong(f"the order is right, and it takes {mine.cycles:,.0f} cycles, ours {best:,.0f}:"
                    " is softmax inside the turn, or are there two turns for a tile?")
    return (f"{mine.cycles:,.0f} cycles; {100 * mine.utilization['tensor']:.0f} % of them with matmuls,"
            " start and end included.")


_NEVER = ("a barrier's phase never completes: it expects one arrival, and the bytes of all copies that"
          " arrive at it, no more and no fewer")
# What a hazard's words say about the reader's kernel: the first that fits.
LIKELY = {
    "set up without fence": "the copy engine does not see the barrier before a fence",
    "no task can go on": _NEVER, "waits for ever": _NEVER,
    "between the two": "what threads write to shared memory, the copy engine sees after a fence",
    "is used before it is there": "an asynchronous product is there when it has been waited for",
    "may still read": "memory is written again while a product or a copy reads it: wait for that first",
    "may still write": "a tile is used, or its memory asked for again, before it has come: `expect`"
                       " counts the bytes of all copies that arrive there, each phase has one wait, and"
                       " the parity flips with every phase",
    "a phase is 0 or 1": "a wait takes the parity of a phase, not its number",
    "ends before": "the program must not end while something of its own is under way",
}


def _multiplied(multiply, x, w, order):
    """Return Y of a reader's kernel for these matrices, by the interpreter; `Wrong` names a hazard."""
    import torch

    from flashlib.course.ch12.kernels import described
    from flashlib.interpreter import Hazard, run

    y = torch.full((64, 64), float("nan"), dtype=torch.float16)
    tensors = {"x_desc": torch.from_numpy(x), "w_desc": torch.from_numpy(w), "y_desc": y}
    count = x.shape[1] // 64
    try:
        run(multiply, 1, {name: described(tensor, 64, 64) for name, tensor in tensors.items()}
            | {"count": count}, order=order)
    except Hazard as hazard:
        why = next((words for sign, words in LIKELY.items() if sign in str(hazard)), "neither Gluon"
                   " nor the hardware does this")
        raise Wrong(f"count = {count}: {why}. At `{hazard.source}` the interpreter says: {hazard}"
                    ) from None
    return y.numpy().astype(np.float64)


@exercise("12.5", "Write a kernel: copy, wait, multiply", difficulty=3, minutes=25, solution="multiply",
          hints=("`matmul_kernel` has nearly all for count = 1. W needs no `permute`: its rows are what"
                 " is summed over. Y leaves as O does in `consumer`.",
                 "In the loop: expect the bytes of both tiles, load both, wait for parity j % 2,"
                 " multiply into acc, wait for the product. Then the memory may be written again.",
                 "After the loop: `x.store(acc.to(x_desc.dtype))`, a fence, `store_tile`, and a wait."))
def check_multiply(multiply):
    """Accept `multiply(x_desc, w_desc, y_desc, count)`, a Gluon kernel: Y = X·W, in any order."""
    if why_not():
        raise Wrong(f"this check runs your kernel in the interpreter, which needs Triton: {why_not()}")
    refuse_stub(multiply)
    rng = np.random.default_rng(12)
    for count in (1, 2, 5):
        x, w = rng.normal(size=(2, 64, 64 * count)).astype(np.float16)
        w = w.reshape(64 * count, 64)
        tiles = [(x[:, at:at + 64].astype(float), w[at:at + 64].astype(float))
                 for at in range(0, 64 * count, 64)]
        each = [a @ b for a, b in tiles]
        for order in ("late", "early", 0, 1):
            y = _multiplied(multiply, x, w, order)
            if np.isnan(y).all():
                raise Wrong(f"count = {count}: nothing was stored, or what was never loaded")
            expect_close(y, sum(each), f"Y for count = {count}", rtol=2e-3, atol=2e-2, mistakes={
                "all zeros: the products do not reach what is stored": 0 * each[0],
                "this is X·Wᵀ, tile by tile: W lies as it is needed, without `permute`":
                    sum(a @ b.T for a, b in tiles),
                "this is W·X, tile by tile: X stands on the left": sum(b @ a for a, b in tiles),
                "only the last tile's product: with `use_acc=True`, acc is added to": each[-1],
                "only the first tile's product: X's column is 64·j, W's row is 64·j": each[0],
                "the first tile again and again: X's column and W's row are 64·j": count * each[0],
                "the last tile is left out": sum(each[:-1]),
                "the first tile is left out": sum(each[1:]),
                "W's first tile again and again: its row is 64·j":
                    sum(a @ tiles[0][1] for a, _ in tiles),
                "X's first tile again and again: its column is 64·j":
                    sum(tiles[0][0] @ b for _, b in tiles),
                "Y is written transposed": sum(each).T})
    return "right for 1, 2 and 5 tiles, with copies that land late, early and in two drawn orders."
