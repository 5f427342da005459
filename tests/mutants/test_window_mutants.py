"""Planted bugs in windows: in the masks, in each algorithm that reads them, forward and backward."""

import numpy as np

from flashlib import Machine, flash_v2
from flashlib.models import traffic
from tests import oracle
from tests.cases import normal, qkv
from tests.mutants.build import MODULES, build
from tests.mutants.catalogue import SKIPS, Mutant
from tests.mutants.checks import attentions, check_mask, check_value, close
from tests.mutants.runner import examine

PROBLEMS = [(11, 11, (3, 1)), (7, 12, (2, 0)), (12, 7, (0, 2)), (9, 9, (0, 0)), (8, 14, (4, None)),
            (11, 11, (None, 2))]
TILES = [(5, 3), (2, 4), (1, 1)]


def windowed(module=None, edits=()):
    """Return every algorithm and the masks, made anew from their sources."""
    return build(module, edits, names=tuple(MODULES))


def check_forward(built):
    """O and lse of every algorithm, for windows with two bounds and with one."""
    for Nq, Nk, window in PROBLEMS:
        Q, K, V = qkv(1, Nq, Nk, 3)
        expected = oracle.attention(Q, K, V, window=window)
        for name, algorithm, blocks in attentions(built):
            for part, a, b in zip(("O", "lse"), algorithm(Q, K, V, window=window, **blocks), expected,
                                  strict=True):
                close(a, b, f"{part} of {name}, {window}")


def check_causal_window(built):
    """A window beside causal=True: its left bound stays, its right one is 0."""
    Q, K, V = qkv(2, 11, 11, 3)
    for window in ((2, 3), (2, None)):
        expected = oracle.attention(Q, K, V, window=(2, 0))
        for name, algorithm, blocks in attentions(built):
            close(algorithm(Q, K, V, causal=True, window=window, **blocks)[0], expected[0], name)


def check_gradients(built):
    """dQ, dK and dV in both orders."""
    for Nq, Nk, window in PROBLEMS:
        Q, K, V = qkv(3, Nq, Nk, 3)
        dO, dlse = normal(4, (Nq, 3), (Nq,))
        O, lse = flash_v2(Q, K, V, Br=4, Bc=4, window=window)
        expected = oracle.gradients(Q, K, V, dO, dlse=dlse, window=window)
        for order in ("kv", "q"):
            for Br, Bc in TILES[:2]:
                got = built.flash_backward(Q, K, V, O, lse, dO, dlse=dlse, Br=Br, Bc=Bc, order=order,
                                           window=window)
                for name, a, b in zip(("dQ", "dK", "dV"), got, expected, strict=True):
                    close(a, b, f"{name}, order {order}, {window}")


def check_cost(built):
    """Bytes, FLOPs and exponentials against the closed forms: no tile is visited for nothing."""
    for Nq, Nk, window in PROBLEMS:
        size = {"Nq": Nq, "Nk": Nk, "d": 3, "window": window}
        Q, K, V = qkv(5, Nq, Nk, 3)
        for name, algorithm, blocks in attentions(built):
            machine = Machine(record=False)
            algorithm(Q, K, V, window=window, machine=machine, **blocks)
            assert machine.traffic == getattr(traffic, name)(**size, **blocks), name
        for order in ("kv", "q"):
            machine = Machine(record=False)
            built.flash_backward(Q, K, V, Q, Q[:, 0], Q, Br=2, Bc=4, order=order, window=window,
                                 machine=machine)
            assert machine.traffic == traffic.flash_backward(**size, Br=2, Bc=4, order=order), order


def check_leak(built):
    """NaN in the keys and values before a window, inside of the tiles that it cuts."""
    Q, K, V = qkv(6, 11, 11, 3)
    expected, _ = oracle.attention(Q, K, V, window=(2, 0))
    K[:4], V[:4] = np.nan, np.nan
    for name, algorithm, blocks in attentions(built):
        close(algorithm(Q, K, V, window=(2, 0), **blocks)[0][6:], expected[6:], f"O of {name}")


def check_ranges(built):
    """The tiles that rows visit, the tiles that visit keys, and how many, tile by tile."""
    for Nq, Nk, window in PROBLEMS:
        mask, sees = built.mask_of(False, Nq, Nk, window), oracle.sees(Nq, Nk, window=window)
        for Br, Bc in TILES:
            rows, keys = built.tiles(Nq, Br), built.tiles(Nk, Bc)
            for r in rows:
                assert mask.key_tiles(r, Bc) == [k for k in keys if sees[r, k].any()]
            for k in keys:
                assert mask.row_tiles(k, Br) == [r for r in rows if sees[r, k].any()]
                _, whole_lo, whole_hi, _ = mask.row_range(k)
                whole = np.flatnonzero(sees[:, k].all(axis=1)).tolist()
                assert list(range(whole_lo, whole_hi)) == whole
            counts = built.visits(built.window_of(False, window), Nq, Nk, Br, Bc).tolist()
            assert counts == [sum(sees[r, k].any() for k in keys) for r in rows]


def check_refusals(built):
    """A bound below 0, and a flag for a bound, are no windows."""
    for wrong, error in (((-1, 0), ValueError), ((0, -1), ValueError), ((True, 0), TypeError)):
        try:
            built.window_of(False, wrong)
        except error:
            continue
        raise AssertionError(f"{wrong} was taken")


CHECKS = {f.__name__: f for f in (check_forward, check_causal_window, check_gradients, check_cost,
                                  check_leak, check_ranges, check_refusals)}
BLIND = {"check_value": check_value, "check_mask": check_mask}    # without a window all of it is right
NO_RESULT = ("check_forward", "check_causal_window", "check_gradients", "check_leak")


def _bug(name, module, old, new, caught_by, survives=("check_value", "check_mask")):
    return Mutant(name, module, ((old, new),), caught_by, tuple(survives))


LEFT = "np.clip(on - left, 0, Nk)"
VISIBLE = "_, whole_lo, whole_hi, _ = self.key_range(rows)"
MASK = "mask_of(causal, Nq, Nk, window)"
MUTANTS = [
    _bug("the left bound hides one key too many", "masks", LEFT, "np.clip(on - left + 1, 0, Nk)",
         "check_forward"),
    _bug("the left bound shows one key too many", "masks", LEFT, "np.clip(on - left - 1, 0, Nk)",
         "check_forward"),
    _bug("left and right are swapped", "masks", "for bound in (self.left, self.right)",
         "for bound in (self.right, self.left)", "check_forward", ["check_value"]),
    _bug("the left bound aligns top left", "masks", LEFT, "np.clip(np.asarray(rows) - left, 0, Nk)",
         "check_forward"),
    _bug("a left bound of 0 counts as none", "masks", "for bound in (self.left, self.right)",
         "for bound in (self.left or None, self.right)", "check_forward",
         ["check_causal_window", "check_value", "check_mask"]),
    _bug("a right bound of 0 counts as none", "masks", "for bound in (self.left, self.right)",
         "for bound in (self.left, self.right or None)", "check_forward", ["check_value"]),
    _bug("causal forgets the window", "masks", "return Window(window.left, 0) if causal else window",
         "return Window(None, 0) if causal else window", "check_causal_window",
         ["check_forward", "check_gradients", "check_value", "check_mask"]),
    _bug("causal keeps the window's right bound", "masks",
         "return Window(window.left, 0) if causal else window",
         "return Window(window.left, window.right or 0) if causal else window", "check_causal_window",
         ["check_forward", "check_value", "check_mask"]),
    _bug("tiles left of the window are visited", "masks", SKIPS,
         SKIPS.replace(" or keys.stop <= lo", ""), "check_cost", [*NO_RESULT, "check_mask"]),
    _bug("a tile that ends where the window begins is visited", "masks", "keys.stop <= lo",
         "keys.stop < lo", "check_cost", [*NO_RESULT, "check_mask"]),
    _bug("a tile of which a row sees the last key is skipped", "masks", "keys.stop <= lo",
         "keys.stop <= lo + (lo > 0)", "check_forward"),
    _bug("the skip test asks the last row for the left bound", "masks", SKIPS,
         SKIPS.replace("lo, _, _, hi", "_, lo, _, hi"), "check_forward"),
    _bug("a tile that the left bound cuts passes for full", "masks",
         "whole_lo <= keys.start and keys.stop <= whole_hi", "keys.stop <= whole_hi", "check_forward"),
    _bug("the test for a full tile asks the first row for the left bound", "masks", VISIBLE,
         "whole_lo, _, whole_hi, _ = self.key_range(rows)", "check_forward"),
    _bug("the test for a full tile is off by one on the left", "masks", "whole_lo <= keys.start",
         "whole_lo <= keys.start + 1", "check_forward"),
    _bug("a full tile is masked for nothing", "masks", "whole_lo <= keys.start",
         "whole_lo < keys.start", "check_cost", [*NO_RESULT, "check_ranges"]),
    _bug("inside of a tile the left bound is ignored", "masks",
         "(first[:, None] <= j) & (j < stop[:, None])", "j < stop[:, None]", "check_forward"),
    _bug("inside of a tile the first key of a window is hidden", "masks", "first[:, None] <= j",
         "(first[:, None] < j) | (first[:, None] == 0)", "check_forward"),
    _bug("the rows of a key begin one too late", "masks",
         '(np.searchsorted(x, keys.start, side="right") for x in (self.stop, self.first))',
         '(np.searchsorted(x, keys.start + 1, side="right") for x in (self.stop, self.first))',
         "check_ranges", ["check_forward", "check_cost"]),
    _bug("the rows that see a key whole end one too late", "masks",
         '(np.searchsorted(x, keys.stop, side="left") for x in (self.stop, self.first))',
         '(np.searchsorted(x, keys.stop, side="right") for x in (self.stop, self.first))',
         "check_ranges", ["check_forward", "check_cost"]),
    _bug("the first tile of a window is rounded up", "masks", "[lo // Bc:-(-hi // Bc)]",
         "[-(-lo // Bc):-(-hi // Bc)]", "check_ranges", ["check_forward", "check_cost"]),
    _bug("the last tile of rows is rounded down", "masks", "[lo // Br:-(-hi // Br)]",
         "[lo // Br:hi // Br]", "check_ranges", ["check_forward", "check_cost"]),
    _bug("the number of visits forgets the left bound", "masks", "return -(-hi // Bc) - lo // Bc",
         "return -(-hi // Bc)", "check_ranges", ["check_forward", "check_cost"]),
    _bug("the number of visits asks the row after the tile", "masks",
         "np.minimum(start + Br, Nq) - 1", "np.minimum(start + Br, Nq)", "check_ranges",
         ["check_forward", "check_cost"]),
    _bug("a negative bound is a window", "masks", "wrong or bound < 0:", "wrong or bound < -9:",
         "check_refusals", ["check_forward"]),
    _bug("True is a bound", "masks", "isinstance(bound, bool) or ", "", "check_refusals",
         ["check_forward"]),
    _bug("multi-pass sums the keys left of the window into l", "multi_pass",
         "for j in range(first, stop):\n    with sram.scope():\n        kj = sram.load(K[j:j + 1])",
         "for j in range(stop):\n    with sram.scope():\n        kj = sram.load(K[j:j + 1])",
         "check_forward"),
    _bug("multi-pass weighs the keys left of the window", "multi_pass",
         "for j in range(first, stop):\n    with sram.scope():\n        kj, vj",
         "for j in range(stop):\n    with sram.scope():\n        kj, vj", "check_forward"),
    _bug("one-pass begins at the first key of all", "one_pass", "for j in range(first, stop):",
         "for j in range(stop):", "check_forward"),
    _bug("v1 forgets its window", "flash_v1", MASK, "mask_of(causal, Nq, Nk)", "check_forward"),
    _bug("v2 forgets its window", "flash_v2", MASK, "mask_of(causal, Nq, Nk)", "check_forward"),
    _bug("standard attention forgets its window", "standard", MASK, "mask_of(causal, Nq, Nk)",
         "check_forward"),
    _bug("the backward pass forgets its window", "flash_backward", MASK, "mask_of(causal, Nq, Nk)",
         "check_gradients", ["check_forward", "check_value", "check_mask"]),
    _bug("v1 lets 0 × NaN leak from before the window", "flash_v1", "Pij.dot(Vj, where=visible)",
         "Pij @ Vj", "check_leak", ["check_forward", "check_cost"]),
]

TestMutants = examine(MUTANTS, CHECKS, windowed, at_least=10, blind=BLIND)
