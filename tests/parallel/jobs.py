"""What the ranks of the pool do: each function is called on every rank of a group."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from flashlib.kernels import flash_attention
from flashlib.parallel import (
    count_links,
    gather_attention,
    ring_attention,
    shard,
    tree_decode,
    ulysses_attention,
    unshard,
)

GROUPS: dict[Any, Any] = {}     # all that this process is in, or not
OPERATIONS = {"ring": ring_attention, "gather": gather_attention, "ulysses": ulysses_attention}


def tensors(N, H, Hk, D=8, dtype=torch.float64, B=2, seed=0):
    """Return whole q, k, v and the gradient of O, the same on every rank."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(B, heads, N, D, generator=generator, dtype=torch.float64).to(dtype)
            for heads in (H, Hk, Hk, H)]


def shards(group, whole, layout, strided=False):
    """Return this rank's parts, with strides of another layout if asked."""
    parts = [shard(x, group=group, layout=layout) for x in whole]
    if strided:                                             # (B, N, H, D) in memory, as models have it
        parts = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in parts]
    return parts


def both_passes(operation, mine, do, **options):
    """Return O, lse or None, dQ, dK and dV of a call on shards."""
    mine = [x.detach().requires_grad_() for x in mine]
    o = OPERATIONS[operation](*mine, **options)
    return [o.detach(), *torch.autograd.grad(o, mine, do)]


def compare(group, operation, N, H, Hk, options, strided=False):
    """Return the largest error of O, dQ, dK and dV against one device, and whether bits repeat."""
    whole = tensors(N, H, Hk)
    layout = options.get("layout", "contiguous" if operation == "ulysses" else "zigzag")
    *mine, do = shards(group, whole, layout, strided)
    with count_links() as links:
        got = both_passes(operation, mine, do, group=group, **options)
    again = both_passes(operation, mine, do, group=group, **options)
    one = [x.requires_grad_() for x in whole[:3]]
    O = flash_attention(*one, **{k: x for k, x in options.items() if k != "layout"})
    expected = shards(group, [O.detach(), *torch.autograd.grad(O, one, whole[3])], layout)
    return {"error": max((a - b).abs().max().item() for a, b in zip(got, expected, strict=True)),
            "same bits": all(torch.equal(a, b) for a, b in zip(got, again, strict=True)),
            "bytes": sum(links.bytes.values()), "to": sorted({to for _, to in links.bytes})}


def heads_in_turn(group, B, keys_at_once):
    """Return whether few heads at a time make the same bits of the same bytes, and the messages."""
    *mine, do = shards(group, tensors(24, 6, 3, B=B), "zigzag")
    here, found = ring_attention.__globals__, []
    before = here["KEYS"]
    for keys in (before, keys_at_once):
        try:
            here["KEYS"] = keys
            with count_links() as links:
                found.append(both_passes("ring", mine, do, group=group, causal=True))
            found[-1].append((sum(links.bytes.values()), len(links.messages)))
        finally:
            here["KEYS"] = before
    (*one, (bytes_at_once, _)), (*few, (bytes_in_turn, messages)) = found
    same = all(torch.equal(a, b) for a, b in zip(one, few, strict=True))
    return same, bytes_at_once == bytes_in_turn, messages


def rounding(group, operation, dtype, N=240):
    """Return each tensor's root mean square error of all ranks, and that of one device, in 16 bits."""
    whole, layout = tensors(N, 4, 2, 32, dtype, B=1), "zigzag"
    exact = [x.double().requires_grad_() for x in whole[:3]]
    O = flash_attention(*exact, causal=True)
    truth = [O.detach(), *torch.autograd.grad(O, exact, whole[3].double())]
    one = [x.detach().requires_grad_() for x in whole[:3]]
    o = flash_attention(*one, causal=True)
    alone = [o.detach(), *torch.autograd.grad(o, one, whole[3])]
    *mine, do = shards(group, whole, layout)
    got = [unshard(x, group=group, layout=layout) for x in both_passes(
        operation, mine, do, group=group, causal=True)]
    return [[(x.double() - t).square().mean().sqrt().item() for x, t in zip(found, truth, strict=True)]
            for found in (got, alone)]


def lse_and_its_gradient(group, layout):
    """Return the largest errors of lse, and of the gradients of a loss of O and lse."""
    whole = tensors(24, 2, 1)
    weight = torch.linspace(-1, 1, 24, dtype=torch.float64)
    one = [x.requires_grad_() for x in whole[:3]]
    O, lse = flash_attention(*one, causal=True, return_lse=True)
    truth = torch.autograd.grad((O * whole[3]).sum() + (lse * weight).sum(), one)
    mine = [x.detach().requires_grad_() for x in shards(group, whole[:3], layout)]
    o, l = ring_attention(*mine, group=group, causal=True, layout=layout, return_lse=True)
    do = shard(whole[3], group=group, layout=layout)
    w = shard(weight, group=group, layout=layout, dim=0)
    got = torch.autograd.grad((o * do).sum() + (l * w).sum(), mine)
    only_lse = torch.autograd.grad(ring_attention(*mine, group=group, return_lse=True,
                                                  layout=layout)[1].sum(), mine)
    assert all(x.isfinite().all() for x in only_lse)
    pairs = [(l.detach(), shard(lse.detach(), group=group, layout=layout)),
             *zip(got, (shard(x, group=group, layout=layout) for x in truth), strict=True)]
    return max((a - b).abs().max().item() for a, b in pairs)


def decode(group, Hk):
    """Return the largest error of a tree's decoding, whether it has lse, and the bytes sent."""
    q, k, v, _ = tensors(24, 4, Hk, dtype=torch.float64)
    q = q[:, :, :2]
    O, LSE = flash_attention(q, k, v, return_lse=True)
    k, v = (shard(x, group=group, layout="contiguous") for x in (k, v))
    with count_links() as links:
        o, lse = tree_decode(q, k, v, group=group, return_lse=True)
    o32 = tree_decode(q.float(), k.float(), v.float(), group=group)
    return ((o - O).abs().max().item(), (lse - LSE).abs().max().item(),
            (o32 - O).abs().max().item(), sum(links.bytes.values()), o32.numpy().tobytes())


def one_tensor_thrice(group):
    """Q is k is v: one gradient, the sum of three."""
    x = tensors(24, 2, 2)[0]
    one = x.clone().requires_grad_()
    truth, = torch.autograd.grad(flash_attention(one, one, one, causal=True).sum(), one)
    mine = shard(x, group=group).requires_grad_()
    got, = torch.autograd.grad(ring_attention(mine, mine, mine, group=group, causal=True).sum(), mine)
    return (got - shard(truth, group=group)).abs().max().item()


def without_gradients(group):
    """Return whether O needs no gradient under no_grad, and is the same."""
    q, k, v, _ = shards(group, tensors(24, 2, 2), "zigzag")
    with torch.no_grad():
        bare = ring_attention(q.requires_grad_(), k, v, group=group)
    return not bare.requires_grad and torch.equal(bare, ring_attention(q, k, v, group=group).detach())


def two_groups_at_once(group):
    """Forward on two groups, then backward the other way round."""
    other = GROUPS["2 again"]
    *mine, do = shards(group, tensors(24, 2, 2), "zigzag")
    a, b = ([x.detach().requires_grad_() for x in mine] for _ in range(2))
    first = ring_attention(*a, group=group, causal=True)
    second = ring_attention(*b, group=other, causal=True)
    of_second = torch.autograd.grad(second, b, do)
    of_first = torch.autograd.grad(first, a, do)
    return all(torch.equal(x, y) for x, y in zip(of_first, of_second, strict=True))


def over_a_mesh(group):
    """A DeviceMesh of one dimension means its group."""
    q, k, v, _ = shards(group, tensors(24, 2, 2), "zigzag")
    mesh = DeviceMesh.from_group(group, "cpu")
    return torch.equal(ring_attention(q, k, v, group=mesh), ring_attention(q, k, v, group=group))


def round_trip(group, layout):
    """Unshard undoes shard, along every dimension."""
    x = torch.arange(2 * 24 * 3).view(2, 24, 3)
    back = unshard(shard(x, group=group, layout=layout, dim=1), group=group, layout=layout, dim=1)
    return torch.equal(back, x)


def disagree(group, what):
    """Call with arguments of which rank 1 has others, or wrong ones."""
    q, k, v, _ = shards(group, tensors(24, 4, 4, dtype=torch.float32), "zigzag")
    operation, options = ring_attention, {}
    odd = dist.get_rank(group) == 1
    changes: dict[str, Any] = {"causal": {"causal": odd}, "scale": {"scale": 0.5 if odd else 0.25},
                               "layout": {"layout": "stripe" if odd else "zigzag"},
                               "window": {"window": (3 if odd else None, 0)},
                               "impl": {"impl": "reference" if odd else "auto"}}
    if what in changes:
        options = changes[what]
    elif what == "rows" and odd:
        q, k, v = (x[:, :, 2:] for x in (q, k, v))
    elif what == "keys" and odd:
        k, v = k[:, :, 1:], v[:, :, 1:]
    elif what == "heads" and odd:
        k, v = k[:, :2], v[:, :2]
    elif what == "dtype" and odd:
        q, k, v = (x.double() for x in (q, k, v))
    elif what == "no tensor" and odd:
        k = k.numpy()
    elif what == "operation" and odd:
        operation = gather_attention
    elif what == "requires_grad":
        q = q.requires_grad_(odd)
    elif what == "odd":
        q, k, v = (x[:, :, 1:] for x in (q, k, v))
    elif what == "ulysses heads":
        operation, k, v = ulysses_attention, k[:, :1], v[:, :1]
    elif what == "gather stripe":
        operation, options = gather_attention, {"layout": "stripe"}
    operation(q, k, v, group=group, **options)


def silent(group, seconds):
    """Rank 1 does not call: the others do not wait for ever, and say so."""
    q, k, v, _ = shards(group, tensors(24, 2, 2), "zigzag")
    began = time.monotonic()
    if dist.get_rank(group) != 1:
        try:
            ring_attention(q, k, v, group=group)
        except RuntimeError as error:
            return str(error), time.monotonic() - began
        return "it ended", 0.0
    time.sleep(seconds + 1)
    return "", 0.0


def backward_on_some(group, seconds):
    """Rank 1 runs no backward: the others say which message is missing."""
    *mine, do = shards(group, tensors(24, 2, 2), "zigzag")
    mine = [x.requires_grad_() for x in mine]
    o = ring_attention(*mine, group=group)
    if dist.get_rank(group) != 1:
        try:
            torch.autograd.grad(o, mine, do)
        except RuntimeError as error:
            return str(error)
        return "it ended"
    time.sleep(seconds + 1)
    return ""


def saved(group):
    """Return the shapes of what is kept for the backward pass."""
    *mine, _ = shards(group, tensors(24, 4, 2), "zigzag")
    shapes: list[tuple[int, ...]] = []

    def keep(x):
        shapes.append(tuple(x.shape))
        return x
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        ring_attention(*(x.requires_grad_() for x in mine), group=group, causal=True)
    return sorted(shapes)


def stranger(group):
    """Call with a group that this process is not in."""
    q, k, v, _ = shards(group, tensors(24, 4, 2), "zigzag")
    ring_attention(q, k, v, group=GROUPS[2])


def twice_differentiated(group):
    """Ask for a graph of the backward pass."""
    *mine, do = shards(group, tensors(24, 2, 2), "zigzag")
    mine = [x.requires_grad_() for x in mine]
    torch.autograd.grad(ring_attention(*mine, group=group), mine, do, create_graph=True)


def planted(group, name, check=None):
    """Plant a bug and say what its check noticed."""
    from tests.parallel import mutated

    return mutated.outcome(group, name, check)


def fail_on_rank_1(how):
    """Be a rank of `flashlib.parallel.run` of which one ends early."""
    q, k, v, _ = shards(None, tensors(24, 2, 2), "zigzag")
    if dist.get_rank() == 1:
        if how == "sleep":
            time.sleep(60)
        raise KeyError("rank 1 has had enough")
    ring_attention(q, k, v)
