"""Planted bugs in the rings of one process: each is caught by the check that was named for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

import flashlib as fl
from flashlib.errors import Deadlock
from flashlib.masks import Window
from flashlib.models import ring as model
from flashlib.models.ring_timeline import Ghost, timeline
from flashlib.models.sm.simulator import ScheduleError
from tests.cases import normal
from tests.mutants.build import patcher, rebuilt
from tests.mutants.runner import examine

PATHS = {"ranks": "machine/ranks", "layouts": "algorithms/layouts", "ring": "algorithms/ring",
         "ring_rivals": "algorithms/ring_rivals"}
patched = patcher(PATHS)


def build(module=None, edits=()):
    """Return the modules made anew, which import one another, with the edits in one of them."""
    made = rebuilt(PATHS, patched, module, edits)
    for new in made.values():
        for other in made.values():
            for name, value in vars(other).items():
                if name in vars(new) and getattr(value, "__module__", None) == other.__name__:
                    setattr(new, name, value)
    return SimpleNamespace(**made)


def close(got, expected, atol=1e-10):
    assert all(a.shape == b.shape for a, b in zip(got, expected, strict=True))
    assert all(np.abs(a - b).max() < atol for a, b in zip(got, expected, strict=True))


def problem(N, d=3):
    return normal(1, *[(N, d)] * 4)


def run(call, *arguments, **options):
    """Return what a call returns; that it does not end, or is refused, is a failure."""
    try:
        return call(*arguments, **options)
    except (Deadlock, ScheduleError, ValueError) as error:
        raise AssertionError(str(error)) from error


SEEN = ({"causal": False}, {"causal": True}, {"window": (5, 2)})
ALL = [(P, layout, seen) for P in (2, 3, 4) for layout in ("contiguous", "zigzag", "stripe")
       for seen in SEEN]


def check_value(made):
    for P, layout, seen in ALL:
        Q, K, V, _ = problem(4 * P)
        got = run(made.ring.ring_attention, Q, K, V, P=P, layout=layout, **seen)
        close(got, fl.flash_v2(Q, K, V, Br=4, Bc=4, **seen))


def check_gradient(made):
    for P, layout, seen in ALL:
        Q, K, V, dO = problem(4 * P)
        O, lse = fl.flash_v2(Q, K, V, Br=4, Bc=4, **seen)
        got = run(made.ring.ring_attention_backward, Q, K, V, O, lse, dO, P=P, layout=layout, **seen)
        close(got, fl.flash_backward(Q, K, V, O, lse, dO, Br=4, Bc=4, **seen))


def check_cover(made):
    """Each visible pair of positions is computed once, by whoever holds its row."""
    for P, layout, seen in ALL:
        n, window = 4, Window(None, 0) if seen.get("causal") else Window(*seen.get("window", ()))
        at = [made.layouts.positions(layout, rank, P, P * n) for rank in range(P)]
        count = np.zeros((P * n, P * n), int)
        for rank in range(P):
            for source in range(P):
                for rows, keys, sees in run(made.layouts.blocks, layout, rank, source, P, n, window):
                    i, j = at[rank][rows], at[source][keys]
                    first, stop = sees.keys_of(np.arange(len(i)), len(i), len(j))
                    k = np.arange(len(j))
                    count[np.ix_(i, j)] += (first[:, None] <= k) & (k < stop[:, None])
        first, stop = window.keys_of(np.arange(P * n), P * n, P * n)
        k = np.arange(P * n)
        assert np.array_equal(count, (first[:, None] <= k) & (k < stop[:, None]))


def check_positions(made):
    for P, layout, _ in ALL:
        at = [made.layouts.positions(layout, rank, P, 4 * P) for rank in range(P)]
        assert all((np.diff(a) > 0).all() for a in at)
        assert np.array_equal(np.sort(np.concatenate(at)), np.arange(4 * P))
        x = np.arange(4 * P)
        assert np.array_equal(made.layouts.unshard([x[a] for a in at], layout), x)


def check_balance(made):
    """Zigzag: the same number of causal pairs on every rank."""
    for P in (2, 3, 4):
        work = [sum(position + 1 for position in made.layouts.positions("zigzag", rank, P, 4 * P))
                for rank in range(P)]
        assert len(set(work)) == 1


def check_bytes(made):
    for P in (2, 3, 4):
        Q, K, V, dO = problem(4 * P)
        there, back = made.ranks.Links(), made.ranks.Links()
        O, lse = run(made.ring.ring_attention, Q, K, V, P=P, links=there)
        run(made.ring.ring_attention_backward, Q, K, V, O, lse, dO, P=P, links=back)
        hop = 2 * 4 * 3 * 8
        assert there.bytes == {(r, (r + 1) % P): (P - 1) * hop for r in range(P)}
        assert back.bytes == {(r, (r + 1) % P): (2 * P - 1) * hop for r in range(P)}


def check_time(made):
    """Messages travel while GPUs work, in rooms that nobody uses."""
    s = model.Sharing(4, 65536)

    def program(rank):
        return made.ring.ring_forward(rank, 4, Ghost("KV", rank, s.kv_bytes), lambda *_: None)
    took = run(timeline, s, program=program)
    assert abs(took.cycles / 1e6 / model.seconds(s) - 1) < 1e-9


def check_rivals(made):
    q, k, v = normal(1, (4, 8, 3), (4, 8, 3), (4, 8, 3))
    for causal in (False, True):
        whole = [fl.flash_v2(q[h], k[h], v[h], Br=4, Bc=4, causal=causal) for h in range(4)]
        close([run(made.ring_rivals.ulysses_attention, q, k, v, P=2, causal=causal)],
              [np.stack([o for o, _ in whole])])
        for layout in ("contiguous", "zigzag"):
            close(run(made.ring_rivals.gather_attention, q[0], k[0], v[0], P=2, causal=causal,
                      layout=layout), whole[0])
    close(run(made.ring_rivals.tree_decode, q[0], k[0], v[0], P=4),
          fl.flash_v2(q[0], k[0], v[0], Br=4, Bc=4))


def check_deadlock(made):
    """All who send first and wait are named; a message that nobody gets is an error."""
    programs = [made.ring.ring_forward(rank, 3, np.zeros(2), lambda *_: None) for rank in range(3)]
    try:
        made.ranks.Links(rendezvous=True).run(programs)
    except Deadlock as error:
        assert "rank 0 waits to put KV to rank 1" in str(error)
    else:
        raise AssertionError("it ended")

    def forgotten(rank):
        if rank == 0:
            yield made.ranks.put(1, "KV", np.zeros(2))
    try:
        made.ranks.Links().run([forgotten(0), forgotten(1)])
    except Deadlock as error:
        assert "nobody got KV" in str(error)
    else:
        raise AssertionError("nobody noticed")


CHECKS = {name[6:]: check for name, check in list(globals().items()) if name.startswith("check_")}


class Mutant(NamedTuple):
    """One planted bug: what `old` becomes in `module`, and the check that must catch it."""

    name: str
    module: str
    old: str
    new: str
    caught_by: str
    survives: tuple[str, ...] = ()

    @property
    def edits(self):
        return ((self.old, self.new),)


SOURCE = 'source = (rank - step) % P\nif step + 1 < P:\n    yield put(after, "KV", kv, before)\n'
FOLD, GRADIENT = "yield compute(source, fold, source, kv)\n", "dkv = yield compute"
MUTANTS = [Mutant(*fields) for fields in (
    ("the source is rank + step", "ring", SOURCE + FOLD, SOURCE.replace("-", "+", 1) + FOLD, "value"),
    ("old keys in the forward pass", "ring",
     FOLD + 'if step + 1 < P:\n    kv = yield get(before, "KV")',
     FOLD + 'if step + 1 < P:\n    yield get(before, "KV")', "value", ("gradient", "bytes")),
    ("old keys in the backward pass", "ring",
     'waiting = home\nif step + 1 < P:\n    kv = yield get(before, "KV")',
     'waiting = home\nif step + 1 < P:\n    yield get(before, "KV")',
     "gradient", ("value", "bytes")),
    ("dK and dV are one hop from home", "ring",
     'if waiting:\n    waiting((yield get(before, "dKV")))',
     'if waiting:\n    yield get(before, "dKV")\n    waiting(dkv)', "gradient", ("value",)),
    ("dK and dV do not travel", "ring", 'dkv += yield get(before, "dKV")',
     'yield get(before, "dKV")', "gradient", ("value", "bytes")),
    ("dQ of the last keys alone", "ring", "target += part", "target[...] = part", "gradient"),
    ("the message leaves after the work", "ring", SOURCE + FOLD,
     SOURCE.split("\n", 1)[0] + "\n" + FOLD + SOURCE.split("\n", 1)[1], "time", ("value", "bytes")),
    ("keys go round once too often", "ring", SOURCE + FOLD + "if step + 1 < P:\n    kv = yield",
     SOURCE.replace("step + 1 < P", "True") + FOLD + "if True:\n    kv = yield", "bytes", ("value",)),
    ("a part is not weighed by its lse", "ring", "part = SoftmaxState(lse,",
     "part = SoftmaxState(0 * lse,", "value"),
    ("parts are averaged", "ring", "both = SoftmaxState(m[rows], l[rows], o[rows]).merge(part)",
     "both = SoftmaxState(part.m, part.l, (o[rows] + part.o) / 2)", "value"),
    ("rows are not put back where they were", "ring",
     "m[rows], l[rows], o[rows] = both.m, both.l, both.o",
     "m[:len(both.m)], l[:len(both.m)], o[:len(both.m)] = both.m, both.l, both.o", "value"),
    ("the exchange is out of order", "ring", "return [got[source] for source in range(P)]",
     "return list(got.values())", "rivals", ("value",)),
    ("parcels go to the wrong ranks", "ring",
     "yield put((rank + hop) % P, what, parcels[(rank + hop) % P],",
     "yield put((rank + hop) % P, what, parcels[(rank - hop + 1) % P],", "rivals", ("value",)),
    ("later sources are not skipped", "layouts",
     "return (whole, whole, False) if source < rank else None", "return whole, whole, False", "cover"),
    ("the halves of zigzag are swapped", "layouts", "return slice(half, n), whole, False",
     "return slice(0, half), whole, False", "cover", ("positions", "balance")),
    ("zigzag takes the later half of earlier keys", "layouts", "return whole, slice(0, half), False",
     "return whole, slice(half, n), False", "cover", ("positions",)),
    ("the diagonal block has no mask", "layouts", "if source == rank:\n    return whole, whole, True",
     "if source == rank:\n    return whole, whole, False", "cover"),
    ("stripes do not shift", "layouts",
     "return (slice(1, n), slice(0, n - 1), True) if n > 1 else None",
     "return whole, whole, True", "cover"),
    ("a window's left side is one short", "layouts", "-((start - first + window.left) // step)",
     "-((start - first + window.left - 1) // step)", "cover"),
    ("a window's right side is one too long", "layouts", "(first - start + window.right) // step",
     "(first - start + window.right + 1) // step", "cover"),
    ("bottom right is the shard's", "layouts", "on = keys.stop - rows.stop", "on = 0", "cover"),
    ("both chunks from one end", "layouts", "last = n // 2, 2 * P - 1 - rank",
     "last = n // 2, P + rank", "balance"),
    ("the last chunk is one from the end", "layouts", "last = n // 2, 2 * P - 1 - rank",
     "last = n // 2, 2 * P - 2 - rank", "positions"),
    ("unshard forgets the order", "layouts", "np.argsort(np.concatenate(at))",
     "np.concatenate(at)", "positions"),
    ("gathered keys end at the shard", "ring_rivals",
     "ends = [at[rank][run[-1]] + 1 if causal else len(k) for run in runs]",
     "ends = [(rank + 1) * n if causal else len(k) for run in runs]", "rivals"),
    ("heads read the first keys", "ring_rivals", "k[h * Hk // H]", "k[0]", "rivals"),
    ("the tree drops lse", "ring_rivals", "part[:, :d], part[:, d])", "part[:, :d], 0 * part[:, d])",
     "rivals"),
    ("a rendezvous does not wait", "ranks",
     "return other is not None and other.kind == 'get' and other.peer == rank"
     " and other.what == request.what", "return True", "deadlock", ("value",)),
    ("what nobody got is forgotten", "ranks", "if left:", "if False:", "deadlock", ("value",)),
)]

TestMutants = examine(MUTANTS, CHECKS, build, at_least=29, patched=patched)
