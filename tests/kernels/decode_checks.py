"""What decoding must do, one function a check, in Triton's interpreter: a failure is an assertion.

Every check runs on the true kernels and on kernels with a planted bug: `tests.kernels.decode_mutated`.
"""

from __future__ import annotations

import contextlib
import math
from unittest import mock

import torch

from flashlib.course.notebook.interpreter_trace import watch
from flashlib.kernels import flash_attention, flash_decode, plans
from flashlib.kernels.backends import decode as backend
from flashlib.kernels.configs import DecodeConfig
from flashlib.kernels.problem import Problem
from flashlib.kernels.scores import Scores, kind_of
from flashlib.masks import window_of
from flashlib.models import traffic
from tests.kernels.behaviours import require
from tests.kernels.decode_cases import Case, inputs, judge, paged, scores_of
from tests.kernels.mutated import roomy, rows_loaded

KEYS = 32                                                   # of a split, and of a tile
MASKS = ((False, None), (True, None), (False, (5, 2)), (True, (20, 0)), (False, (None, 3)))


def decode(given, case, keys=KEYS, **options):
    """Return O and lse from the kernels."""
    return flash_decode(given.q, given.k, given.v, lengths=given.lengths, causal=case.causal,
                        window=case.window, scale=case.scale, keys_per_split=keys, return_lse=True,
                        impl="decode", **options)


def right(case, dtype=torch.float32, keys=KEYS, edit=lambda given: given):
    """Hold O and lse against float64; what lies beside the tensors is NaN."""
    given = edit(inputs(case, dtype))
    inside = given._replace(**{name: roomy(getattr(given, name)) for name in "qkv"})
    got = decode(inside, case, keys)
    for name, score in judge(case, given, got).items():
        require(score.ratio <= 1, f"{name} {case}: {score.error:.1e} > {score.allowed:.1e}")


def identical(got, expected, what):
    """Hold tensors to the same bits."""
    require(all(map(torch.equal, got, expected)), what)


def check_value():
    """Several splits and one, ragged ends, wide and odd heads, both dtypes."""
    right(Case(2, 2, 2, 1, 100, 16))
    right(Case(1, 2, 1, 1, 96, 40), keys=None)
    right(Case(1, 2, 1, 1, 96, 16), keys=128)
    right(Case(1, 1, 1, 2, 70, 80), torch.float16)


def check_lengths():
    """Every sequence its own length; 0 gives O = 0 and lse = −∞; beyond the room counts as the room."""
    right(Case(4, 2, 1, 1, 100, 16, lengths=True))
    case = Case(3, 2, 2, 2, 70, 16, causal=True, lengths=True)
    given = inputs(case)
    given.lengths.copy_(torch.tensor([70, 33, 0], dtype=torch.int32))
    expected = decode(given, case)
    given.lengths.copy_(torch.tensor([2**31 - 1, 33, -5], dtype=torch.int32))
    identical(decode(given, case), expected, "a length beyond the room, or below 0")


def check_group():
    """Heads that share keys are rows of one tile, with several queries each."""
    right(Case(2, 6, 2, 3, 70, 16))
    right(Case(1, 10, 2, 9, 70, 16, causal=True))           # 45 rows: a tile of 32 and one more


def check_mask():
    """Causal, the last query on the last key that counts; the first queries may see nothing."""
    for room in (33, 64, 70):
        right(Case(2, 4, 2, 5, room, 16, causal=True, lengths=True))

    def short(given):
        given.lengths.fill_(3)
        return given
    for keys in (32, 64):
        right(Case(2, 4, 2, 5, 64, 16, causal=True, lengths=True), keys=keys, edit=short)


def check_window():
    """Windows of one key and of many, on both sides, with lengths."""
    for window in ((0, 0), (7, 2), (None, 1), (40, None), (31, 0)):
        right(Case(3, 2, 1, 4, 130, 16, window=window, lengths=True))


def check_overflow():
    """A logit that is much larger than those before it, in a later tile and in a later split."""
    def grow(given):
        given.k[:, :, 40:] *= 60
        return given
    for keys in (32, 64, 128):
        right(Case(1, 1, 1, 2, 128, 16), keys=keys, edit=grow)


def check_largest():
    """V = 65,504 in float16, from one split and from several."""
    def edit(given):
        given.q.zero_(), given.k.zero_()
        given.q[..., 0], given.k[:, :, 1:, 0] = 1.0, -1.0
        return given._replace(v=torch.full_like(given.v, 65504.0))
    for keys in (32, 64):
        right(Case(1, 1, 1, 8, 64, 16, scale=0.6926473), torch.float16, keys, edit)


def check_many():
    """More splits than the merge takes at a time, the last of them ragged; the largest comes last."""
    def grow(given):
        given.k[:, :, 300:] *= 3
        return given
    right(Case(1, 2, 1, 1, 16 * 40 + 5, 16), keys=16, edit=grow)


def check_runs():
    """What a program takes, a unit of keys or a run of units, changes no bit."""
    config = DecodeConfig(16, 32, 4, 1, 64, 2)
    for causal, window in MASKS:
        for room in (100, 340):                             # one run, and three
            case = Case(2, 2, 1, 3, room, 16, causal, window, lengths=True)
            given = inputs(case)
            p = Problem.of(*given[:3], window=window_of(causal, window))
            found = [backend.BACKEND.forward(*given[:3], p, 0.25, config, given.lengths, None, units)
                     for units in (1, 2)]
            for name, score in judge(case, given, found[1]).items():
                require(score.ratio <= 1, f"{name} {case}: {score.error:.1e} > {score.allowed:.1e}")
            identical(*found, f"runs and units differ: {case}")


def check_merges():
    """How many columns a program merges, and how many parts it reads at a time, change no bit."""
    case = Case(2, 2, 1, 2, 19 * 16 + 5, 40, causal=True, lengths=True)
    given, kinds, found = inputs(case), backend.MERGES, []
    try:
        for kind in ((128, 1, 2), (32, 2, 16), (16, 4, 1)):
            backend.MERGES = ((*kind, math.inf),)
            plans.forget()
            found.append(decode(given, case, 16))
    finally:
        backend.MERGES = kinds
        plans.forget()
    for name, score in judge(case, given, found[0]).items():
        require(score.ratio <= 1, f"{name}: {score.error:.1e} > {score.allowed:.1e}")
    for other in found[1:]:
        identical(other, found[0], "another shape of the merge changes bits")


def check_poison():
    """NaN behind a length reaches nothing."""
    case = Case(3, 4, 2, 2, 100, 16, causal=True, lengths=True)
    given = inputs(case)
    clean = decode(given, case)
    for b, length in enumerate(given.lengths.tolist()):
        given.k[b, :, length:], given.v[b, :, length:] = math.nan, math.nan
    identical(decode(given, case), clean, "NaN behind a length is used")


def check_pages():
    """Pages give the bits of a contiguous cache, whatever their order, and garbage is not followed."""
    for page, (causal, window) in zip((16, 1, 24, 64, 16), MASKS, strict=True):
        case = Case(3, 2, 1, 2, 70, 16, causal, window, lengths=True)
        given = inputs(case)
        k, v, table = paged(given, page, garbage=True)
        for keys in (KEYS, 4 * KEYS):                       # parts of one tile, and of several
            expected, found = (decode(x, case, keys, table=y) for x, y in (
                (given, None), (given._replace(k=k, v=v), table)))
            identical(found, expected, f"pages of {page}")


def check_look_ups():
    """What a table holds behind a length is not read, and of what counts, each entry once a tile."""
    for page in (16, 64):
        case = Case(3, 2, 1, 1, 150, 16, lengths=True)
        given = inputs(case)
        k, v, table = paged(given, page)
        tensors = {"q": given.q, "k": k, "v": v, "lengths": given.lengths, "table": table}
        with watch(**tensors) as seen, no_merge():
            decode(given._replace(k=k, v=v), case, table=table)
        read = sorted(int(lane) for x in seen.of("table", "load") for lane in set(x.lanes[x.mask]))
        expected = sorted(b * table.shape[1] + n for b, length in enumerate(given.lengths.tolist())
                          for start in range(0, length, KEYS)
                          for n in range(start // page, -(-min(start + KEYS, length) // page)))
        require(read == expected, f"pages of {page}: entries {read} are read, not {expected}")


def check_company():
    """A sequence gets the same bits alone, in a batch, and with more of it at its side."""
    for causal, window in MASKS[1:4]:
        case = Case(3, 2, 1, 2, 70, 16, causal, window, lengths=True)
        given = inputs(case)
        whole = decode(given, case)
        for b in range(case.B):
            alone = decode(type(given)(*(x[b:b + 1] for x in given)), case)
            identical([x[0] for x in alone], [x[b] for x in whole], f"sequence {b} differs alone")


def check_layout():
    """Any strides, as of a cache that lies (B, N, H, D)."""
    case = Case(2, 4, 2, 3, 70, 16, causal=True, lengths=True)
    given = inputs(case)
    turned = given._replace(**{name: getattr(given, name).transpose(1, 2).contiguous().transpose(1, 2)
                               for name in "qkv"})
    identical(decode(turned, case), decode(given, case), "strides change bits")


def check_signs():
    """A negative scale, and what only reads as negative: the kernels read other memory than given."""
    case = Case(2, 4, 2, 2, 70, 16, causal=True, lengths=True, scale=-0.3)
    given = inputs(case)
    sliced = given.q.repeat_interleave(2, -1)[..., ::2]
    negative = {name: torch.complex(torch.zeros_like(x), -x).conj().imag for name, x in zip(
        "qkv", given[:3], strict=True)}
    k, v, table = paged(given, 32)
    pages = {"k": torch.complex(torch.zeros_like(k), -k).conj().imag, "v": v}
    for scale in (-0.3, 0.3):
        one = case._replace(scale=scale)
        expected = decode(given, one)
        for changed in ({"q": sliced}, {"q": negative["q"]}, {"k": negative["k"]}, negative):
            identical(decode(given._replace(**changed), one), expected, f"{[*changed]} at {scale}")
        found = decode(given._replace(q=sliced, **pages), one, table=table)
        identical(found, expected, f"pages at {scale}")


def check_one_query():
    """One query sees all keys, so that its kernel has no mask; that of several has one."""
    for queries in (1, 3, 1):
        case = Case(2, 4, 2, queries, 70, 16, causal=True)
        given = inputs(case)
        right(case, keys=None)
        decode(given, case, keys=None)
        p = Problem.of(*given[:3], window=window_of(True))
        launches = p.made[None, None, 0, True][1]           # as `forward` keeps them
        masked = launches["decode"].arguments["FLAGS"][0]
        require(masked == (queries > 1), f"{queries} queries, masked: {masked}")


@contextlib.contextmanager
def no_merge():
    """Leave out the merge, which reads none of q, k and v."""
    from triton.runtime import interpreter

    run = interpreter.InterpretedFunction.run

    def split(self, *args, **options):
        if self.__name__ != "flash_decode_merge_kernel":
            run(self, *args, **options)

    with mock.patch.object(interpreter.InterpretedFunction, "run", split):
        yield


def check_visits():
    """K and V are loaded from the first tile that a tile of rows sees to the last key, Q once a split.

    The paper machine loads the last tile whole: so its closed form is this, rounded up to a tile.
    """
    B, H, Hk, Nq, room, D, rows = 1, 10, 2, 9, 130, 16, 32  # 45 rows: of queries 0 … 6, and of 6 … 8
    for causal, window in MASKS:
        case = Case(B, H, Hk, Nq, room, D, causal, window)
        given = inputs(case)
        with watch(q=given.q, k=given.k, v=given.v) as seen, no_merge():
            decode(given, case)
        keys, whole, queries = 0, 0, 0
        for first, last, height in ((0, 6, 32), (6, 8, 13)):
            sees = _seen_keys(case)[first:last + 1].any(0).nonzero()
            start, stop = int(sees.min()) // KEYS * KEYS, int(sees.max()) + 1
            keys, whole = keys + stop - start, whole + min(-(-stop // KEYS) * KEYS, room) - start
            queries += height * (-(-stop // KEYS) - start // KEYS)
        for name, expected in (("q", queries), ("k", keys), ("v", keys)):
            found = rows_loaded(seen, name, D)
            require(found == Hk * expected, f"{name}: {found} rows loaded, not {Hk * expected}, {case}")
        form = traffic.flash_decode(Nq=Nq, Nk=room, d=D, Br=rows, Bc=KEYS, keys=KEYS, group=H // Hk,
                                    causal=causal, window=window, element_bytes=1).by_tensor
        read = {name: form[name].read_bytes // D for name in "QKV"}
        require(read == {"Q": queries, "K": whole, "V": whole}, f"the closed form says {read}, {case}")


def _seen_keys(case):
    """Return which keys each query of a case sees."""
    ahead = torch.arange(case.room) - case.room - (torch.arange(case.Nq)[:, None] - case.Nq)
    left, right = case.window or (None, None)
    right = 0 if case.causal else right
    seen = torch.ones_like(ahead, dtype=torch.bool)
    seen = seen if left is None else seen & (ahead >= -left)
    return seen if right is None else seen & (ahead <= right)


def check_attention():
    """`flash_attention(impl="decode")` is the same kernels, with Triton's backward behind them."""
    case = Case(2, 4, 2, 2, 40, 16, causal=True)
    given = inputs(case)
    q, k, v = (x.requires_grad_() for x in given[:3])
    o, lse = flash_attention(q, k, v, causal=True, return_lse=True, impl="decode")
    for name, score in judge(case, given, (o.detach(), lse.detach())).items():
        require(score.ratio <= 1, f"{name}: {score.error:.1e} > {score.allowed:.1e}")
    got = torch.autograd.grad(o.sum() + lse.sum(), (q, k, v))
    o, lse = flash_attention(q, k, v, causal=True, return_lse=True, impl="reference")
    for x, y in zip(got, torch.autograd.grad(o.sum() + lse.sum(), (q, k, v)), strict=True):
        require(torch.allclose(x, y, atol=1e-5), "a gradient is off")


def scored(case, keys=KEYS, only=("softcap", "alibi", "sink")):
    """Hold O and lse with scores against float64."""
    given, scores = inputs(case), {name: x for name, x in scores_of(case).items() if name in only}
    for name, score in judge(case, given, decode(given, case, keys, **scores), **scores).items():
        require(score.ratio <= 1, f"{name} {case} {only}: {score.error:.1e} > {score.allowed:.1e}")


def check_alibi():
    """Softcap and slopes of heads and batch entries, counted from the last key that counts."""
    for causal, window in MASKS[:4]:
        scored(Case(3, 4, 2, 3, 100, 16, causal, window, lengths=True), only=("alibi",))
    scored(Case(3, 4, 2, 3, 100, 16, True, lengths=True), only=("softcap",))


def check_sink():
    """The sink counts once, in a program that has all keys and in the merge, with the same bits."""
    for causal, window in MASKS[:4]:
        for keys in (32, 128):                              # parts, and one
            scored(Case(3, 4, 2, 3, 100, 16, causal, window, lengths=True), keys)
    config = DecodeConfig(16, 32, 4, 1, 64, 2)
    case = Case(3, 4, 2, 3, 100, 16, True, lengths=True)
    given, scores = inputs(case), Scores(**scores_of(case))
    p = Problem.of(*given[:3], window=window_of(True), scores=kind_of(*scores))
    identical(*[backend.BACKEND.forward(*given[:3], p, 0.25, config, given.lengths, None, units,
                                        scores=scores) for units in (1, 2)], "runs and units differ")


CHECKS = {name.removeprefix("check_"): check for name, check in globals().copy().items()
          if name.startswith("check_")}
