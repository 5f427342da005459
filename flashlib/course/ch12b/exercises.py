"""Exercises of chapter 12b: bytes of a tile, who waits for somebody later, an order of sums."""

import numbers

from flashlib.course.ch12b import order as orders
from flashlib.course.exercises.core import Wrong, exercise, expect_close, given, hint, parts, solution

__all__ = ["check_hazards", "check_order", "check_shared_bytes", "hint", "solution"]


def _room(d, stages, *, kv=2, ring=2, ds=4, dq=2, dq_bytes=4, statistics=2, element=2, rows=64):
    """Return the bytes of a program's tiles; the defaults are right."""
    return (kv * 128 * d * element + stages * (ring * 64 * d * element + statistics * rows * 4)
            + ds * 64 * 64 * element + dq * 64 * d * dq_bytes)


@exercise("12b.1", "Count the bytes of a program's tiles", difficulty=1, minutes=8,
          solution="shared_bytes",
          hints=("Go through the list line by line: rows × columns × bytes of an element × how many.",
                 "`stages` multiplies Q, dO, lse and delta. dS is 64 × 64, four times. dQ is float32."))
def check_shared_bytes(shared_bytes):
    """Accept `shared_bytes(d, stages) -> bytes`."""
    for d, stages in ((32, 3), (64, 4), (128, 2), (256, 1)):
        got, what = given(shared_bytes(d, stages)), f"d={d}, stages={stages}"
        right = _room(d, stages)
        if isinstance(got, numbers.Real) and float(got) == right / 1024:
            raise Wrong(f"{what}: these are KiB; the question is for bytes")
        expect_close(got, right, what, mistakes={
            "256·d bytes are missing, those of V, or half of dQ, which has two tiles of float32":
                _room(d, stages, kv=1),
            "'1 each' are two tiles, one of K and one of V, of Q and dO, of lse and delta":
                _room(d, stages, kv=1, ring=1, statistics=1),
            "dO comes with Q, in as many stages": _room(d, stages, ring=1),
            "lse and delta are there `stages` times, as Q and dO are":
                _room(d, stages, statistics=2 / stages),
            "lse and delta come with Q and dO, 64 float32 each": _room(d, stages, statistics=0),
            "both lse and delta come with a query tile": _room(d, stages, statistics=1),
            "dS is there twice, in halves of 64 keys: four tiles of 64 × 64": _room(d, stages, ds=2),
            "dS has four tiles of 64 × 64, this counts one": _room(d, stages, ds=1),
            "dS has four tiles, whatever `stages` is": _room(d, stages, ds=4 * stages),
            "these are tiles in float32 throughout; only dQ, lse and delta are": _room(
                d, stages, element=4),
            "K and V are there once, and dQ has two tiles: `stages` is for Q, dO, lse and delta":
                _room(d, stages, kv=2 * stages),
            "Q and dO are there `stages` times": _room(d, 1)}, atol=0, rtol=0)
    return "the compiler asks for a few hundred bytes more, for barriers."


def _numbers(order, tiles):
    """Return, for each sum of a head, the numbers of its programs in the order of their turns."""
    found = {}
    for number, tile in enumerate(reversed(range(tiles))):
        for visit in order(tile, tiles, False):
            found.setdefault((visit.second, visit.m), []).append((visit.turn, number))
    return [[number for _, number in sorted(found[at])] for at in sorted(found)]


@exercise("12b.2", "Find who waits for somebody later", difficulty=2, minutes=10, solution="hazards",
          hints=("In a sum's list everybody waits for all who stand before. Programs take their numbers"
                 " when they start, so which of these waits can be for somebody who has not started?",
                 "For each list, look at every q that stands before p, not at the last one only: the"
                 " pair counts if q > p."))
def check_hazards(hazards):
    """Accept `hazards(adds) -> pairs (p, q)`: p waits for q, and q > p."""
    cases = {"[[0, 1, 2]]": [[0, 1, 2]], "[[0, 1], [2, 0]]": [[0, 1], [2, 0]],
             "[[3, 0, 1]]": [[3, 0, 1]], "[[0, 2, 1], [4, 5], []]": [[0, 2, 1], [4, 5], []]}
    cases |= {f"the order {name!r}": _numbers(orders.ORDERS[name], 4)
              for name in ("apart", "together", "one_ring", "first_key_first")}
    for what, adds in cases.items():
        got = given(hazards([list(row) for row in adds]))
        if isinstance(got, bool | numbers.Real):
            raise Wrong(f"{what}: expected pairs (p, q), got {got!r}: name who waits for whom")
        found = {tuple(map(int, parts(pair, "(p, q)"))) for pair in got}
        waits = {(p, q) for row in adds for place, p in enumerate(row) for q in row[:place]}
        bad = {(p, q) for p, q in waits if q > p}
        if found == bad:
            continue
        if found == {(q, p) for p, q in bad}:
            raise Wrong(f"{what}: p is who waits, q whom it waits for: (p, q), the other way round")
        for p, q in sorted(found - bad):
            if (p, q) in waits:
                raise Wrong(f"{what}: {p} waits for {q}, which has taken its number before: it has"
                            " started, and that is no hazard")
            if any(p in row and q in row for row in adds):
                raise Wrong(f"{what}: {p} stands before {q} in their list: it does not wait for it")
            raise Wrong(f"{what}: {p} and {q} add to no common sum; a sum's place in `adds` is not a"
                        " program's number")
        p, q = sorted(bad - found)[0]
        raise Wrong(f"{what}: program {p} waits for {q}, which takes its number later, and your answer"
                    " lacks this pair. Did you look into every sum, and at every pair in it?")
    return "none in the kernel's order; with one sum for each query tile there are some."


@exercise("12b.3", "Order the sums", difficulty=3, minutes=20, solution="order",
          hints=("Key tile j starts at query tile 2j. Of which key tiles has none come round when they"
                 " reach query tile m?",
                 "Programs take their numbers from the last key tile to the first, and must wait only"
                 " for lower numbers: larger key tiles add first, in both sums."))
def check_order(order):
    """Accept `order(m, tiles) -> (first, second)`: key tiles in the order in which they add."""
    for tiles in (4, 8):
        answers = {m: tuple(map(list, parts(order(m, tiles), "(first, second)")))
                   for m in range(2 * tiles)}
        for m, both in answers.items():
            _complete(m, tiles, both)

        def visits(tile, tiles, causal, answers=answers):
            for m, _ in orders.walk(tile, tiles):
                for second, keys in enumerate(answers[m]):
                    if tile in keys:
                        yield orders.Visit(m, keys.index(tile), bool(second))

        for sms in (tiles, tiles - 1, 1):
            found = orders.simulate(visits, tiles=tiles, heads=2, sms=sms, hand=1)
            if found.stuck:
                _, tile, m = found.stuck[0]
                many = f"{n} programs wait" if (n := len(found.stuck)) > 1 else "1 program waits"
                raise Wrong(f"{tiles} key tiles on {sms} SM{'s' * (sms > 1)}: {many} for ever, the one"
                            f" of key tile {tile} for its turn at query tile {m}:"
                            f" {_why(answers, m, tile)}")
        ours = orders.simulate("apart", tiles=tiles, sms=tiles, hand=1)
        found = orders.simulate(visits, tiles=tiles, sms=tiles, hand=1)
        if found.length > ours.length + 0.5:
            raise Wrong(f"{tiles} key tiles on as many SMs: nobody waits for ever, but it takes"
                        f" {found.length:.0f} steps, ours {ours.length:.0f}: at query tile 0 key tile 0"
                        " is there first, and others come two steps after one another. Who has to"
                        " wait for whom?")
    return "nobody waits for somebody later, and nobody waits long."


def _complete(m, tiles, both):
    """Raise `Wrong` unless each key tile adds once."""
    flat = [key for keys in both for key in keys]
    where = f"query tile {m} of {tiles} key tiles:"
    if missing := set(range(tiles)) - set(flat):
        raise Wrong(f"{where} key tile {min(missing)} never adds: without a mask every key tile does")
    if twice := {key for key in flat if flat.count(key) > 1}:
        raise Wrong(f"{where} key tile {min(twice)} adds twice: to one of the sums, once")
    if unknown := set(flat) - set(range(tiles)):
        raise Wrong(f"{where} there is no key tile {max(unknown)}")


def _why(answers, m, tile) -> str:
    keys = next(keys for keys in answers[m] if tile in keys)
    later = [key for key in keys[:keys.index(tile)] if key < tile]
    if not later:
        return "it waits for programs that wait themselves"
    advice = ("programs start with the last keys, so turns go down with the keys, in each sum"
              if any(all(both) for both in answers.values())
              else "with one sum the ring closes: what comes round needs a sum of its own")
    return f"before it adds key tile {later[0]}, whose program takes its number later: {advice}"
