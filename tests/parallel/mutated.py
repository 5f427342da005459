"""Bugs planted in flashlib.parallel, and the checks that must catch them, on the ranks of the pool."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from flashlib.machine.ranks import get, put
from tests.mutants.build import patcher, rebuilt
from tests.mutants.edits import Mutant

PATHS = {name: f"parallel/{name}" for name in ("groups", "layouts", "ring", "rivals")}
PUBLIC = {"ring_attention": "ring", "gather_attention": "rivals", "ulysses_attention": "rivals",
          "tree_decode": "rivals", "count_links": "groups"}
patched = patcher(PATHS)


FOLD = "into=(o[:, :, rows], lse[:, :, rows]), reserve=call.reserve)"
DELTA = "ops.delta_of(o[:, heads], mine[2], None if dlse is None else dlse[:, heads])"
GRADIENTS = "window, call.scale, call.impl, delta="
MUTANTS = {mutant[0]: Mutant(*mutant) for mutant in (
    ("O is rounded at every step", "ring", FOLD, FOLD + "\no.copy_(o.to(q.dtype))", "rounding"),
    ("gradients travel in 16 bits", "ring", "return dkv", "return dkv.to(kv.dtype)", "rounding"),
    ("dQ is rounded at every step", "ring", "return dkv", "dq.copy_(dq.to(q.dtype))\nreturn dkv",
     "rounding"),
    ("the gradient of lse is dropped", "ring", "None if dlse is None else dlse[:, heads]", "None",
     "lse"),
    ("delta is of nothing", "ring", DELTA, "0 * lse[:, heads]", "ring"),
    ("no window in the backward pass", "ring", GRADIENTS, GRADIENTS.replace("window", "Window()"),
     "ring"),
    ("another scale in the backward pass", "ring", GRADIENTS, GRADIENTS.replace("call.scale", "1.0"),
     "ring"),
    ("dK and dV change places", "ring", "return dq, dk, dv, None", "return dq, dv, dk, None", "ring"),
    ("the heads that go round later take the keys of the first", "ring",
     "torch.stack([k[:, shared], v[:, shared]])",
     "torch.stack([k[:, :shared.stop - shared.start], v[:, shared]])", "turns"),
    ("gradients that came home are another turn's", "ring", "dk[:, shared], dv[:, shared] = dkv",
     "dk[:, :dkv.shape[2]], dv[:, :dkv.shape[2]] = dkv", "turns"),
    ("the last heads do not go round", "ring", "range(0, shared, few)", "range(0, shared - few, few)",
     "turns"),
    ("values are taken for keys", "ring", "ops.forward(q[:, :, rows], kv[0][:, :, keys],",
     "ops.forward(q[:, :, rows], kv[1][:, :, keys],", "ring"),
    ("gathered keys stay in the order of ranks", "rivals",
     "torch.stack([k, v]), ranks).index_select(3, home(layout, ranks.P, n, q.device))",
     "torch.stack([k, v]), ranks)", "gather"),
    ("the second run ends a chunk early", "rivals", "2 * ranks.P - ranks.rank)",
     "2 * ranks.P - ranks.rank - 1)", "gather"),
    ("gradients of gathered keys are not added", "rivals", "first = first + other", "first = first",
     "gather"),
    ("the tree drops lse", "rivals", "part[..., :-1], part[..., -1])",
     "part[..., :-1], 0 * part[..., -1])", "tree"),
    ("each rank merges in an order of its own", "rivals",
     "for part in _drive_exchange(ranks, [mine] * ranks.P):",
     "for part in sorted(_drive_exchange(ranks, [mine] * ranks.P), key=lambda x: not x.equal(mine)):",
     "tree"),
    ("what differs is not compared", "groups", "if here != first:", "if False:", "agreement"),
    ("a refusal is not told to the others", "groups", "f'rank {rank}: {text}'",
     "f'rank {ranks.rank}: {text}'", "refusal"),
    ("arrivals are taken in reverse", "groups", "under_way[request.peer, request.what].popleft()",
     "under_way[request.peer, request.what].pop()", "order"),
)}


def outcome(group, name=None, check=None):
    """Return what a check said on this rank, "" for nothing; without a name, of the true modules."""
    from tests.parallel import jobs

    mutant = None if name is None else MUTANTS[name]
    made = rebuilt(PATHS, patched) if mutant is None else rebuilt(
        PATHS, patched, mutant.module, [(mutant.old, mutant.new)])
    for new in made.values():
        for other in made.values():
            for public, value in vars(other).items():
                if public in vars(new) and getattr(value, "__module__", None) == other.__name__:
                    setattr(new, public, value)
    put = {public: getattr(made[module], public) for public, module in PUBLIC.items()}
    put["OPERATIONS"] = {name: put[f"{name}_attention"] for name in ("ring", "gather", "ulysses")}
    with mock.patch.multiple(jobs, **put):
        try:
            CHECKS[mutant.check if mutant else check](jobs, group)
        except AssertionError as error:
            return str(error) or "assertion"
    return ""


def _ring(jobs, group):
    for options in ({"causal": True}, {"window": (7, 3), "scale": 0.3}):
        found = jobs.compare(group, "ring", 24, 4, 2, options)
        assert found["error"] < 1e-12, found


def _turns(jobs, group):
    same, *_ = jobs.heads_in_turn(group, 1, 1)
    assert same


def _gather(jobs, group):
    found = jobs.compare(group, "gather", 24, 4, 2, {"causal": True})
    errors: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(errors, found["error"], group=group)    # one rank may be right
    assert max(errors) < 1e-12, errors


def _rounding(jobs, group):
    got, alone = jobs.rounding(group, "ring", torch.bfloat16)
    assert all(a <= 1.02 * b for a, b in zip(got, alone, strict=True)), (got, alone)


def _lse(jobs, group):
    assert (error := jobs.lse_and_its_gradient(group, "zigzag")) < 1e-12, error


def _tree(jobs, group):
    o, lse, _, _, bits = jobs.decode(group, 2)
    all_bits: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(all_bits, bits, group=group)
    assert max(o, lse) < 1e-12 and len(set(all_bits)) == 1, (o, lse, len(set(all_bits)))


def _said(jobs, group, what):
    try:
        jobs.disagree(group, what)
    except (ValueError, TypeError) as error:
        said: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(said, str(error), group=group)
        assert len(set(said)) == 1, said
    else:
        raise AssertionError("it went on")


def _order(jobs, group):
    """Two messages of one kind from one rank are taken in the order in which they were sent."""
    here = jobs.ring_attention.__globals__
    _, rank, P = ranks = here["Ranks"].of(group)

    def program():
        for x in (1.0, 2.0):
            yield put((rank + 1) % P, "KV", torch.full((2,), x), (rank - 1) % P)
        first = yield get((rank - 1) % P, "KV")
        second = yield get((rank - 1) % P, "KV")
        return first[0].item(), second[0].item()

    found = here["drive"](program(), ranks)
    assert found == (1.0, 2.0), found


CHECKS = {"ring": _ring, "turns": _turns, "gather": _gather, "rounding": _rounding, "lse": _lse,
          "tree": _tree,
          "agreement": lambda jobs, group: _said(jobs, group, "causal"),
          "refusal": lambda jobs, group: _said(jobs, group, "odd"), "order": _order}
