"""Attention over gloo processes equals one device, sends what the closed form says, and never hangs."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("torch")

import torch

from flashlib import parallel
from flashlib.models import ring as model
from flashlib.parallel import groups, ring_attention
from tests.parallel import mutated

P_S = [2, 3, 4]
LAYOUTS = ["contiguous", "zigzag", "stripe"]
MASKS = [{}, {"causal": True}, {"window": (7, 3)}, {"causal": True, "window": (9, None), "scale": -0.4}]
MASK_IDS = ["full", "causal", "window", "causal-window"]


def largest(found):
    assert all(rank["same bits"] for rank in found)
    return max(rank["error"] for rank in found)


@pytest.mark.parametrize("options", MASKS, ids=MASK_IDS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("P", [1, *P_S])
def test_a_ring_equals_one_device(pool, P, layout, options):
    """float64, grouped heads, forward and backward; and only H_k heads travel, to the next rank."""
    found = pool.results(P, "compare", "ring", 24, 4, 2, {"layout": layout, **options})
    assert largest(found) < 1e-12
    s = model.Sharing(P, 24, H=4, Hk=2, d=8, layout=layout, element_bytes=8)
    gradients = 2 * P * s.kv_bytes if P > 1 else 0          # of 8 bytes, as all of float64
    for rank, of in enumerate(found):
        assert of["bytes"] == 2 * (2 * model.traffic(s) + gradients // 2)     # a batch of two
        assert of["to"] == ([(rank + 1) % P] if P > 1 else [])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS[:2])
@pytest.mark.parametrize("P", [1, *P_S])
def test_gathered_keys_equal_one_device(pool, P, layout, causal):
    found = pool.results(P, "compare", "gather", 24, 4, 2, {"layout": layout, "causal": causal})
    assert largest(found) < 1e-12
    s = model.Sharing(P, 24, H=4, Hk=2, d=8, layout=layout, element_bytes=8)
    assert {of["bytes"] for of in found} == {2 * 2 * model.traffic(s, "gather")}


@pytest.mark.parametrize("options", MASKS, ids=MASK_IDS)
@pytest.mark.parametrize("P", [1, *P_S])
def test_exchanged_heads_equal_one_device(pool, P, options):
    found = pool.results(P, "compare", "ulysses", 24, 12, 12 if P == 3 else 4, options)
    assert largest(found) < 1e-12
    s = model.Sharing(P, 24, H=12, Hk=12 if P == 3 else 4, d=8, element_bytes=8)
    assert {of["bytes"] for of in found} == {2 * 2 * model.traffic(s, "ulysses")}


@pytest.mark.parametrize("Hk", [4, 1])
@pytest.mark.parametrize("P", [1, *P_S])
def test_a_tree_decodes_like_one_device(pool, P, Hk):
    found = pool.results(P, "decode", Hk)
    for o, lse, o32, sent, _ in found:
        assert o < 1e-12 and lse < 1e-12 and o32 < 1e-6
        assert sent == 2 * 2 * 2 * model.tree_bytes(P, 4, 8)  # a batch of two, two rows, float64
    assert len({bits for *_, bits in found}) == 1, "all ranks have the same bits"


@pytest.mark.parametrize("B, keys, turns", [(1, 1, 3), (2, 32, 2), (1, 36, 1)])
def test_backward_few_heads_go_round_at_a_time(pool, B, keys, turns):
    """As few as hold so many keys: the same bits of the same bytes, in as many messages more."""
    P = 2
    for same, bytes_too, messages in pool.results(P, "heads_in_turn", B, keys):
        assert same and bytes_too
        assert messages == P - 1 + turns * (P - 1 + P)


@pytest.mark.parametrize("operation", ["ring", "gather", "ulysses"])
def test_strides_of_a_model_change_nothing(pool, operation):
    found = pool.results(2, "compare", operation, 24, 4, 2, {"causal": True}, True)
    assert largest(found) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("P", P_S[::2])
def test_a_ring_rounds_no_more_than_one_device(pool, P, dtype):
    """O, dQ, dK and dV: sums are kept in float32 and rounded once."""
    got, alone = pool.results(P, "rounding", "ring", dtype)[0]
    assert all(a <= 1.02 * b for a, b in zip(got, alone, strict=True)), (got, alone)


def test_float32_stays_within_rounding(pool):
    got, _ = pool.results(4, "rounding", "ring", torch.float32)[0]
    assert max(got) < 1e-6


@pytest.mark.parametrize("layout", LAYOUTS)
def test_lse_and_its_gradient(pool, layout):
    assert max(pool.results(3, "lse_and_its_gradient", layout)) < 1e-12


@pytest.mark.parametrize("job", ["without_gradients", "two_groups_at_once", "over_a_mesh"])
def test_what_a_user_does_with_it(pool, job):
    assert all(pool.results(2, job))


def test_one_tensor_may_be_all_three(pool):
    assert max(pool.results(3, "one_tensor_thrice")) < 1e-12


@pytest.mark.parametrize("layout", LAYOUTS)
def test_unshard_undoes_shard(pool, layout):
    assert all(pool.results(3, "round_trip", layout))


@pytest.mark.parametrize("what, kind, message", [
    ("rows", "ValueError", "q's shape: rank 1 has (2, 4, 10, 8) where rank 0 has (2, 4, 12, 8)"),
    ("keys", "ValueError", "rank 1: k: expected 12 tokens as in q, got 11"),
    ("heads", "ValueError", "k's shape: rank 1 has (2, 2, 12, 8) where rank 0 has (2, 4, 12, 8)"),
    ("dtype", "ValueError", "dtype: rank 1 has torch.float64 where rank 0 has torch.float32"),
    ("no tensor", "TypeError", "rank 1: k: expected a torch.Tensor, got ndarray"),
    ("causal", "ValueError", "causal: rank 1 has True where rank 0 has False"),
    ("scale", "ValueError", "scale: rank 1 has 0.5 where rank 0 has 0.25"),
    ("layout", "ValueError", "layout: rank 1 has 'stripe' where rank 0 has 'zigzag'"),
    ("window", "ValueError", "window: rank 1 has (3, 0) where rank 0 has (None, 0)"),
    ("impl", "ValueError", "impl: rank 1 has 'referen' where rank 0 has 'auto'"),
    ("operation", "ValueError", "operation: rank 1 has gather_attention where rank 0 has"
     " ring_attention"),
    ("requires_grad", "ValueError", "requires_grad: rank 1 has True where rank 0 has False"),
    ("odd", "ValueError", "rank 0: N: expected a multiple of 2·P = 4 for layout 'zigzag', got 22"),
    ("ulysses heads", "ValueError", "rank 0: k: expected a number of heads that the 2 ranks divide,"
     " got 1"),
    ("gather stripe", "ValueError", "whose rows are runs, got 'stripe'"),
])
def test_every_rank_refuses_what_one_refuses_or_has_alone(pool, what, kind, message):
    """Before anything is sent: gloo would leave numbers that nobody sent, or end the process."""
    errors = pool.errors(2, "disagree", what)
    assert errors[0] == errors[1], "each rank says the same"
    assert errors[0][0] == kind and message in errors[0][1]
    assert all(pool.results(2, "without_gradients")), "the group still works"


def test_only_what_a_rank_was_given_and_returns_is_kept(pool):
    """q, k, v, O and lse: O(N/P), whatever the number of ranks."""
    for shapes in pool.results(4, "saved"):
        assert shapes == sorted([(2, 4, 6, 8), (2, 2, 6, 8), (2, 2, 6, 8), (2, 4, 6, 8), (2, 4, 6)])


def test_a_group_without_this_process_is_refused(pool):
    (kind, message), = pool.errors(1, "stranger")
    assert kind == "ValueError" and "expected a ProcessGroup that this process belongs to" in message


def test_a_second_derivative_is_refused(pool):
    for kind, message in pool.errors(2, "twice_differentiated"):
        assert kind == "NotImplementedError" and "double backward" in message


def test_a_silent_rank_ends_in_an_error_and_not_in_a_hang(pool):
    for rank, (message, took) in enumerate(pool.results("forward", "silent", 3.0)):
        if rank != 1:
            assert "the ranks could not be compared" in message and "is late, has ended" in message
            assert took < 15


def test_a_rank_without_a_backward_pass_is_named(pool):
    first, _, last = pool.results("backward", "backward_on_some", 5.0)
    assert "KV from rank 1 is missing" in last or "could not send" in last
    assert "is missing" in first or "could not send" in first


@pytest.mark.parametrize("check", mutated.CHECKS)
def test_without_a_bug_a_check_says_nothing(pool, check):
    assert pool.results(3, "planted", None, check) == ["", "", ""]


@pytest.mark.parametrize("name", mutated.MUTANTS)
def test_a_planted_bug_is_noticed(pool, name):
    """By its named check, on one rank at least."""
    assert any(pool.results(3, "planted", name))


def test_the_list_of_bugs_is_long_and_uses_every_check():
    assert len(mutated.MUTANTS) == 20
    assert {mutant.check for mutant in mutated.MUTANTS.values()} == mutated.CHECKS.keys()


def test_what_takes_too_long_is_ended_and_named():
    with pytest.raises(TimeoutError, match="no end within the time limit on rank 0 of 1"):
        parallel.run(1, "time:sleep", 60, timeout_s=1)


def test_a_rank_that_raises_is_named_with_its_traceback():
    began = time.monotonic()
    with pytest.raises(RuntimeError, match=r"rank 1 of 2 failed, with exit status 1:(.|\n)*in"
                       r" fail_on_rank_1(.|\n)*KeyError: 'rank 1 has had enough'"):
        parallel.run(2, "tests.parallel.jobs:fail_on_rank_1", "raise", timeout_s=100)
    assert time.monotonic() - began < 90


def test_the_demonstration_prints_its_error(capsys):
    found = parallel.run(2, "flashlib.parallel.demo:compare", 64)
    assert "ring, 2 ranks, 64 tokens, largest error of rank 0" in capsys.readouterr().out
    for of in found:
        assert max(of["error of O"], of["error of dQ, dK, dV"]) < 1e-12
        assert of["bytes sent forward"] == 2 * 32 * 4 * 16 * 8


def test_without_a_process_group_one_is_asked_for():
    x = torch.zeros(1, 1, 4, 8)
    with pytest.raises(ValueError, match="group: expected an initialised process group: torchrun"):
        ring_attention(x, x, x)


@pytest.mark.parametrize("what", ["flashlib.parallel.demo", ":compare", "module:"])
def test_what_is_run_has_a_module_and_a_name(what):
    with pytest.raises(ValueError, match="what: expected 'module:function', got"):
        parallel.run(2, what)


def test_a_ring_on_nccl_has_a_group_of_few_SMs_made_once(monkeypatch):
    """A stand-in for NCCL: a new group for each group, also if the next one has its name."""
    from types import SimpleNamespace

    made, waits = [], SimpleNamespace(options=SimpleNamespace(_timeout=5))

    def options(**given):
        return SimpleNamespace(config=SimpleNamespace(max_ctas=None), _timeout=None, **given)

    def new_group(members, timeout, backend, given, **more):
        made.append((members, timeout, backend, given.config.max_ctas, more))
        return f"few {len(made)}"

    monkeypatch.setattr(groups, "_beside", {})
    monkeypatch.setattr(groups.dist, "get_process_group_ranks", lambda group: group.members)
    monkeypatch.setattr(groups.dist, "get_backend", lambda group: "nccl")
    monkeypatch.setattr(groups.dist, "new_group", new_group)
    nccl = SimpleNamespace(Options=options)
    monkeypatch.setattr(groups.dist, "ProcessGroupNCCL", nccl, raising=False)
    group, again = (SimpleNamespace(group_name="0", members=[0, 1], _get_backend=lambda device: waits)
                    for _ in range(2))
    ranks = groups.Ranks(group, 0, 2)
    assert ranks.beside() == ranks.beside() == ranks._replace(group="few 1")
    assert made == [([0, 1], 5, "nccl", groups.SMS, {"use_local_synchronization": True})]
    assert groups.Ranks(again, 0, 2).beside().group == "few 2"
    group.members = [1, 0]                                  # torch would sort them: so no other group
    assert ranks.beside() is ranks and groups.Ranks(group, 0, 1).beside().group is group
