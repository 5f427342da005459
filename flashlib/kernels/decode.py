"""Decoding as a public op: `flash_decode(q, k, v, lengths=…)`, few queries on long caches."""

from typing import Literal, overload

import torch

from flashlib.arguments import check_choice, check_scale
from flashlib.kernels import ops
from flashlib.kernels.attention import Sides, check_arguments, check_dense, check_factor, check_tensor
from flashlib.kernels.backends import named
from flashlib.kernels.problem import CAUSAL, FULL, Problem, known
from flashlib.kernels.scores import NONE, PLAIN, Kind, Scores, kind_of, scores_of
from flashlib.masks import Window, window_of

DecodeImpl = Literal["auto", "decode", "reference"]
IMPLS = ("auto", "decode", "reference")
LEAST_KEYS = 16                                             # of a split


@overload
def flash_decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *,
                 lengths: torch.Tensor | None = None, table: torch.Tensor | None = None,
                 causal: bool = False, window: Sides = None, scale: float | None = None,
                 softcap: float | None = None, alibi: torch.Tensor | None = None,
                 sink: torch.Tensor | None = None, keys_per_split: int | None = None,
                 return_lse: Literal[False] = False, impl: DecodeImpl = "auto") -> torch.Tensor: ...
@overload
def flash_decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *,
                 lengths: torch.Tensor | None = None, table: torch.Tensor | None = None,
                 causal: bool = False, window: Sides = None, scale: float | None = None,
                 softcap: float | None = None, alibi: torch.Tensor | None = None,
                 sink: torch.Tensor | None = None, keys_per_split: int | None = None,
                 return_lse: Literal[True],
                 impl: DecodeImpl = "auto") -> tuple[torch.Tensor, torch.Tensor]: ...
def flash_decode(q, k, v, *, lengths=None, table=None, causal=False, window=None, scale=None,
                 softcap=None, alibi=None, sink=None, keys_per_split=None, return_lse=False,
                 impl="auto"):
    """Attention of a few queries to caches of unlike lengths: the keys are shared out, then merged.

    Flash-Decoding (Dao et al. 2023, crfm.stanford.edu/2023/10/12/flashdecoding.html), the heads that
    share a key head packed as rows of one tile. For inference: it has no gradient.

    Where the keys of a sequence are cut, and in which order the parts are merged, depends on N_q, heads
    and D alone. So its bits are the same in every run, on any number of SMs, and whatever else is in
    the batch; the same in pages as without, and with more room behind its length. No length is read on
    the host: a CUDA graph captures the call, and replays it at other lengths, up to the room.

    Args:
        q: queries, (B, H, N_q, D).  k, v: (B, H_k, room, D); with a table, (pages, H_k, page, D).
            dtypes, strides, D and heads as in `flash_attention`.
        lengths: (B,) int32, on the device of q: how many keys of each sequence count; None for all.
            What stands behind is never used, NaN or not. The last query lies on the last key that
            counts.
        table: (B, n) int32: entry j of a row is the page of the keys j · page …; room is n · page. An
            entry behind the length is never followed.
        causal, window, scale, softcap, alibi, sink, return_lse: as in `flash_attention`; distances are
            those to the keys that count, and the sink counts once, however many parts there are.
        keys_per_split: keys of a program, a power of 2 from 16; None for the table's choice, which
            follows the number of programs and changes no bit. Another number rounds otherwise.
        impl: "auto" (the kernels on a GPU, else "reference"), "decode" (the kernels; on CPU tensors in
            Triton's interpreter, under its switch) or "reference" (plain torch; reads lengths on the
            host).
    Returns:
        O (B, H, N_q, D) in the dtype of q, or (O, lse), lse (B, H, N_q) float32, natural log. A query
        that sees no key gets O = 0 and lse = −∞, or the sink.
    Raises:
        ValueError, TypeError, NotImplementedError: before any launch, naming the argument, what was
            expected and what came. A length above the room counts as the room, one below 0 as 0; what
            the table holds is not looked at.
    """
    if ops.transformed():
        raise NotImplementedError("q, k, v: flash_decode is for inference, and not for torch.func")
    seen = CAUSAL if causal is True else FULL if window is None and causal is False else None
    seen = window_of(causal, window) if seen is None or window is not None else seen
    plain = softcap is None and alibi is None and sink is None
    kind = PLAIN if plain else kind_of(softcap, alibi, sink)
    p = _accepted(q, k, v, seen, kind, table is not None, return_lse, impl)
    if p is None:
        check_choice("impl", impl, IMPLS)
        q, k, v, factor = _check_tensors(q, k, v, table, causal, scale, return_lse)
        p = Problem.of(q, k, v, window=seen, scores=kind)
        p.made["decoded", table is not None] = factor if scale is None else check_scale(None, p.D)
    else:
        factor = p.made["decoded", table is not None] if scale is None else check_factor(scale, p.D)
    scores = NONE if plain else scores_of(q, softcap, alibi, sink)
    if lengths is not None:
        lengths = _as_kernels_read("lengths", lengths, (q.shape[0],), q.device)
    if table is not None:
        table = _as_kernels_read("table", table, (q.shape[0], "any"), q.device)
    if keys_per_split is not None:
        _check_keys(keys_per_split)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, sink)):
        raise NotImplementedError("q, k, v: flash_decode is for inference and has no derivative: use"
                                  " torch.no_grad(), or flash_attention")
    if q.is_neg() or k.is_neg() or v.is_neg() or factor < 0:        # a kernel reads what lies there
        (q, factor), k, v = ops.positive(q.resolve_neg(), factor), k.resolve_neg(), v.resolve_neg()
        p = Problem.of(q, k, v, window=seen, scores=kind)
    if not (p.B and p.N_Q and p.N_K and k.shape[0]) or (table is not None and not table.shape[1]):
        o = torch.zeros_like(q, memory_format=torch.contiguous_format)
        lse = ops.lse_of_none(q, scores.sink)
    elif impl == "reference" or (impl == "auto" and not q.is_cuda):
        o, lse = _reference(q, k, v, lengths, table, seen, factor, scores)
    else:
        o, lse = _kernels(q, k, v, lengths, table, p, factor, keys_per_split, scores)
    return (o, lse) if return_lse else o


def _accepted(q, k, v, seen: Window, kind: Kind, paged: bool, return_lse, impl) -> Problem | None:
    """Return the problem of tensors like which some were accepted before, else None."""
    if type(return_lse) is not bool or impl not in IMPLS:
        return None
    try:
        p = known(q, k, v, seen, kind)
    except (AttributeError, RuntimeError, TypeError):       # no dense tensors: told by the checks
        return None
    return p if p is not None and ("decoded", paged) in p.made else None


def _kernels(q, k, v, lengths, table, p: Problem, scale, keys_per_split, scores: Scores):
    """Return O and lse from the kernels, or why they cannot run here."""
    from flashlib.kernels.backends import decode

    p = decode.problem_of(p, k, table)
    if (reason := decode.BACKEND.refusal(p, "forward")) is not None:
        raise NotImplementedError(reason)
    config = None
    if keys_per_split is not None:
        config = decode.BACKEND.table(p, "forward")
        config = config._replace(KEYS=keys_per_split, BLOCK_N=min(config.BLOCK_N, keys_per_split),
                                 UNITS=1)
    return decode.BACKEND.forward(q, k, v, p, scale, config, lengths, table, scores=scores)


def _reference(q, k, v, lengths, table, seen: Window, scale, scores: Scores):
    """Return O and lse by plain torch, one sequence after the other."""
    o = torch.zeros_like(q, memory_format=torch.contiguous_format)
    lse = ops.lse_of_none(q, scores.sink)
    slopes, sink = (None if x is None else x.expand(q.shape[:2]) for x in scores[1:])
    page = k.shape[2]
    room = page if table is None else table.shape[1] * page
    for b in range(q.shape[0]):
        count = room if lengths is None else min(max(int(lengths[b]), 0), room)
        if not count:
            continue
        if table is None:
            K, V = k[b], v[b]
        else:
            pages = table[b, :-(-count // page)].long()
            K, V = (x[pages].transpose(0, 1).flatten(1, 2) for x in (k, v))
        one = q[b:b + 1], K[None, :, :count], V[None, :, :count]
        p = Problem.of(*one, window=seen)
        own = Scores(scores.softcap, *(x if x is None else x[b:b + 1] for x in (slopes, sink)))
        o[b:b + 1], lse[b:b + 1] = named("reference").forward(*one, p, scale, scores=own)
    return o, lse


def _check_tensors(q, k, v, table, causal, scale, return_lse):
    """Return q, k and v in one dtype, and the scale, or refuse by name; pages have any number."""
    if table is None:
        return check_arguments(q, k, v, causal, scale, return_lse, "auto")
    q, k, v = check_dense("(B, H, N, D)", q, k, v)
    one = k.new_empty((1, *k.shape[1:])).expand(q.shape[0], -1, -1, -1)
    return q, k, v, check_arguments(q, one, one.to(v.device), causal, scale, return_lse, "auto")[3]


def _as_kernels_read(name, x, shape, device):
    """Return a tensor of int32 as kernels read it, or refuse it by name."""
    check_tensor(name, x, torch.int32, shape, device, " as q")
    x = x.contiguous()
    return x if x.data_ptr() % 16 == 0 else x.clone()


def _check_keys(keys) -> None:
    """Refuse a number of keys that no split can have."""
    if isinstance(keys, bool) or not isinstance(keys, int):
        raise TypeError(f"keys_per_split: expected None or a power of 2 from {LEAST_KEYS},"
                        f" got {keys!r}")
    if keys < LEAST_KEYS or keys & (keys - 1) or keys > 2**20:
        raise ValueError(f"keys_per_split: expected None or a power of 2 from {LEAST_KEYS} to 2**20,"
                         f" got {keys}")
