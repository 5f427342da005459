"""Decoding problems with lengths, their answer in float64, and the same caches in pages. Torch only."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from tests.kernels.budget import Score, score


class Case(NamedTuple):
    """Sizes, the mask, and whether the sequences have lengths of their own."""

    B: int
    H: int
    Hk: int
    Nq: int
    room: int
    D: int
    causal: bool = False
    window: tuple | None = None
    lengths: bool = False
    scale: float | None = None

    def __str__(self):
        mask = "-causal" if self.causal else ""
        mask += "" if self.window is None else f"-window{self.window[0]}:{self.window[1]}"
        return (f"B{self.B}-H{self.H}:{self.Hk}-N{self.Nq}x{self.room}-D{self.D}{mask}"
                + ("-lengths" if self.lengths else ""))


class Given(NamedTuple):
    """What is handed over; lengths may be None."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    lengths: torch.Tensor | None


def inputs(case, dtype=torch.float32, device="cpu", seed=0):
    """Return independent N(0, 1) numbers; of the lengths one is the room and, of many, one is 0."""
    rng = torch.Generator(device=device).manual_seed(seed)
    make = {"generator": rng, "device": device}
    q = torch.randn(case.B, case.H, case.Nq, case.D, **make).to(dtype)
    k, v = (torch.randn(case.B, case.Hk, case.room, case.D, **make).to(dtype) for _ in range(2))
    lengths = None
    if case.lengths:
        lengths = torch.randint(1, case.room + 1, (case.B,), dtype=torch.int32, **make)
        lengths[0] = case.room
        if case.B > 2:
            lengths[2] = 0
    return Given(q, k, v, lengths)


def scores_of(case, device="cpu", seed=3):
    """Return a softcap, slopes of heads and of batch entries, and sinks, around the lse of rows."""
    rng = torch.Generator().manual_seed(seed)
    return {"softcap": 4.0, "alibi": (0.3 * torch.rand(case.B, case.H, generator=rng)).to(device),
            "sink": (4 + 2 * torch.randn(case.H, generator=rng)).to(device)}


def expected(case, q, k, v, lengths, *, softcap=None, alibi=None, sink=None):
    """Return O and lse by whole matrices in the dtype of q.

    Every sequence is computed alone from the keys that count.
    """
    outputs = []
    for b in range(len(q)):
        n = k.shape[2] if lengths is None else int(lengths[b])
        K, V = (x[b, :, :n].repeat_interleave(case.H // case.Hk, 0) for x in (k, v))
        S = q[b] @ K.transpose(-1, -2) * (case.D ** -0.5 if case.scale is None else case.scale)
        ahead = torch.arange(n, device=q.device) - n - (torch.arange(case.Nq, device=q.device)[:, None]
                                                        - case.Nq)
        if softcap is not None:
            S = softcap * torch.tanh(S / softcap)
        if alibi is not None:
            S = S - (alibi.expand(len(q), case.H)[b, :, None, None] * ahead.abs()).to(S.dtype)
        left, right = case.window or (None, None)
        seen = torch.ones_like(ahead, dtype=torch.bool)
        if case.causal:
            seen &= ahead <= 0
        elif right is not None:
            seen &= ahead <= right
        if left is not None:
            seen &= ahead >= -left
        if sink is not None:                                # one more key, whose value is 0
            beside = sink.to(S.dtype)[:, None, None].expand(*S.shape[:2], 1)
            S, V = torch.cat([S, beside], -1), torch.nn.functional.pad(V, (0, 0, 0, 1))
            seen = torch.nn.functional.pad(seen, (0, 1), value=True)
        sees = seen.any(-1)
        S = S.masked_fill(~seen & sees[:, None], -math.inf)
        if n == 0 and sink is None:
            outputs.append((torch.zeros_like(q[b]), q.new_full(q[b].shape[:2], -math.inf)))
            continue
        wide = S.to(torch.promote_types(S.dtype, torch.float32))
        O = torch.softmax(S, -1) @ V
        lse = torch.logsumexp(wide, -1)
        outputs.append((torch.where(sees[:, None], O, 0.0), torch.where(sees, lse, -math.inf)))
    return tuple(torch.stack([x[i] for x in outputs]) for i in range(2))


def judge(case, given, got, **scores):
    """Return name → Score of O and lse by the accuracy rule."""
    q, k, v, lengths = given
    O, LSE = expected(case, q.detach().double(), k.detach().double(), v.detach().double(), lengths,
                      **{name: x.double() if torch.is_tensor(x) else x for name, x in scores.items()})
    plain = None
    if q.dtype.itemsize == 2:
        plain = expected(case, q.detach(), k.detach(), v.detach(), lengths, **scores)[0]
    o, lse = got
    finite = torch.isfinite(LSE)
    same = torch.equal(lse[~finite].double(), LSE[~finite])
    error = (lse.double() - LSE)[finite].abs().max().item() if finite.any() else 0.0
    allowed = 1e-5 * max(1.0, LSE[finite].abs().max().item() if finite.any() else 0.0)
    return {"O": score(o, O, plain), "lse": Score(error if same else math.inf, allowed)}


def paged(given, page, *, garbage=False, seed=1):
    """Return k and v in pages, in a random order, and the table; unused room holds NaN.

    `garbage`: what the table holds behind a length points nowhere.
    """
    _, k, v, lengths = given
    B, Hk, room, D = k.shape
    count = -(-room // page)
    order = torch.randperm(B * count, generator=torch.Generator().manual_seed(seed)).to(k.device)
    table = order.view(B, count).to(torch.int32)
    padded = [torch.nn.functional.pad(x, (0, 0, 0, count * page - room), value=math.nan)
              for x in (k, v)]
    pages = []
    for x in padded:
        cut = x.view(B, Hk, count, page, D).transpose(1, 2).flatten(0, 1)
        held = torch.empty_like(cut)
        held[order] = cut
        pages.append(held)
    if lengths is not None:
        for b, length in enumerate(lengths.tolist()):
            used = -(-length // page)
            if garbage:
                table[b, used:] = 2**30
    return *pages, table
