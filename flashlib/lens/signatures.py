"""Which kernels the lens knows, and the call of each that a backend would launch, by example.

The lens compiles what a backend's plan launches for a problem, on a GPU that need not be there. A
*builder* is a function with keyword arguments that returns a `Call`. It receives `arch` (see
`flashlib.lens.targets`) and whatever a caller may choose; `KERNELS` lists all builders.
"""

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from flashlib import hardware
from flashlib.arguments import check_block
from flashlib.lens.targets import Arch, arch_of

# What Triton calls the dtypes that kernels take.
DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float8_e4m3": "fp8e4nv"}
SIZES = ("dtype", "head_dim", "causal", "window", "Nq", "Nk", "heads", "kv_heads", "softcap", "alibi",
         "sink")
SCORES = "softcap_log2", "ALIBI", "SINK"                    # in the order of a problem's `scores`
STATISTICS = ("LSE", "DELTA", "DLSE", "Q_SCALE", "K_SCALE", "V_SCALE", "NEGATIVE_LSE", "NEGATIVE_DELTA",
              "SUMS", "ACC", "STATISTICS", "ALIBI", "SINK")
# float32 where they hold a state or sums
WRITTEN = ("O", "DQ", "DK", "DV", "o_desc", "dk_desc", "dv_desc")
INTEGERS = ("LOCKS", "LENGTHS", "TABLE", "CU_Q", "CU_K")
FLOATS = ("lse_desc", "delta_desc", "sum_desc")             # descriptors of float32


@dataclass(frozen=True)
class Call:
    """One call of a kernel: an example of every argument, and Triton's launch options.

    Arguments: "*bf16" for a pointer that is aligned to 16 bytes, "tensordesc<bf16[1, 1, 64, 128]>" for
    a descriptor with its block, numbers as they are, tuples of numbers, None for an absent tensor,
    values of constexprs. `label` says the choices in words.
    """

    arguments: dict
    num_warps: int = 4
    num_stages: int = 3
    options: dict = field(default_factory=dict)
    label: str = ""


@dataclass(frozen=True)
class Case:
    """A kernel to compile: where it is, for which generation, called how. Made by `lens.request`."""

    kernel: str
    arch: Arch
    where: dict = field(compare=False, repr=False)
    call: Call = field(compare=False, repr=False)
    given: dict = field(compare=False)

    @property
    def job(self) -> dict:
        """Return what the compiling process is told."""
        call = self.call
        return {"kernel": self.where, "arch": self.arch.number, "arguments": call.arguments,
                "options": {"num_warps": call.num_warps, "num_stages": call.num_stages, **call.options}}

    @property
    def key(self) -> str:
        return json.dumps(self.job, sort_keys=True)

    def __str__(self) -> str:
        return " ".join(filter(None, (self.kernel, self.arch.name, self.call.label)))


def example(arch: Arch, *, dtype="bfloat16", head_dim=128, causal=False, window=None, Nq=4096, Nk=4096,
            heads=16, kv_heads=None, softcap=False, alibi=False, sink=False, sequences=None,
            into=False):
    """Return the problem of new tensors of these sizes on a GPU of a generation, or refuse by name.

    `softcap`, `alibi` and `sink` tell which scores there are; `sequences`, how many are packed
    in Nq and Nk rows, None if none are; `into`, whether keys are folded into a state.
    """
    import torch

    from flashlib.kernels.problem import Device, Problem
    from flashlib.kernels.scores import Kind
    from flashlib.masks import window_of

    if dtype not in DTYPES:
        raise ValueError(f"dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}")
    if dtype == "bfloat16" and arch.number < 80:
        raise ValueError(f"dtype: expected 'float16' or 'float32', because {arch.name} has no bfloat16,"
                         " got 'bfloat16'")
    kv_heads = heads if kv_heads is None else kv_heads
    for name, size in (("head_dim", head_dim), ("Nq", Nq), ("Nk", Nk), ("heads", heads),
                       ("kv_heads", kv_heads)):
        check_block(name, size)
    if heads % kv_heads or head_dim > 256:
        raise ValueError("kv_heads, head_dim: expected a divisor of heads and at most 256, got"
                         f" {kv_heads} of {heads} and {head_dim}")
    sms = int(hardware.H100.fact("sms"))
    return Problem.example(
        H=heads, H_K=kv_heads, N_Q=Nq, N_K=Nk, D=head_dim, window=window_of(bool(causal), window),
        scores=Kind(bool(softcap), int(bool(alibi)), int(bool(sink))), sequences=sequences,
        into=bool(into), dtype=getattr(torch, dtype.replace("e4m3", "e4m3fn")),
        device=Device("cuda", None, arch.capability, sms, ""))


def _what(p) -> str:
    """Return the dtype that is launched, and beside it the one that was asked for."""
    asked = str(p.dtype).removeprefix("torch.").removesuffix("fn")
    return f"float32 (for {asked})" if p.narrow else asked


def call_of(plan, p, absent=(), label="") -> Call:
    """Return the call of a plan at a problem, by example; `absent` tensors are None."""
    kind = DTYPES[_what(p).partition(" ")[0]]
    wide = (*STATISTICS, *FLOATS, *(WRITTEN if p.into else ()))
    given: dict = {name: "*fp32" if name in wide else f"*{kind}" for name in plan.tensors}
    given |= dict.fromkeys([name for name in given if name.islower() and (
        "scale" in name or name in SCORES)], 1.0)
    absent = (*absent, *(name for name, there in zip(SCORES, p.scores, strict=True)
                         if name in given and not there))
    given |= dict.fromkeys([name for name in INTEGERS if name in given], "*i32")
    for name, block in plan.blocks.items():                 # the 8-bit kernel writes bfloat16
        held = "fp32" if name in wide else "bf16" if (name, kind) == ("o_desc", "fp8e4nv") else kind
        given[name] = f"tensordesc<{held}{block}>"
    given |= dict.fromkeys(absent) | plan.at(p) | dict.fromkeys(plan.tables, "*i32")
    options = {"num_warps": 4, "num_stages": 3} | plan.options
    warps, stages = options.pop("num_warps"), options.pop("num_stages")
    label += ", into a state" * p.into
    mask = "causal" if p.causal else "window" if p.sides else ""
    scores = [name for name, there in zip(p.scores._fields, p.scores, strict=True) if there]
    words = [_what(p), f"d={p.D}", mask if "IS_CAUSAL" in plan.constants else "", *scores, label]
    return Call(given, warps, stages, options, " ".join(filter(None, words)))


def triton_call(*, arch, part="forward", config=None, want_dk=True, want_dv=True, has_dlse=False,
                **choices) -> Call:
    """Call a Triton kernel as its backend does: with its table's entry, or another configuration."""
    from flashlib.kernels.backends.triton import BACKEND
    from flashlib.kernels.configs import TritonConfig, TritonConfigs

    sizes = {name: choices.pop(name) for name in (*SIZES, "sequences", "into") if name in choices}
    p = example(arch, **sizes)
    if p.dtype.itemsize == 1:
        raise ValueError("dtype: expected 'float16', 'bfloat16' or 'float32', got 'float8_e4m3'")
    if not (want_dk or want_dv):
        raise ValueError("want_dk, want_dv: expected at least one True, got neither")
    if part == "dkdv":
        part = "dkdv" if want_dk and want_dv else "dk" if want_dk else "dv"
    table = BACKEND.table(p, "backward")                    # it holds the forward's entry, too
    entry = config or (table.dq if part == "delta" else getattr(table, part) or table.dkdv)
    if entry is None:
        raise ValueError("config: the table has no configuration that writes dK and dV at once at"
                         f" head_dim={p.D}: pass want_dk=False or want_dv=False, or a config")
    c = TritonConfig(*entry)._replace(**choices)
    if part == "forward":
        plan = BACKEND.plan(p, "forward", c)[part]
    else:
        both = (None, c, c) if part in ("dk", "dv") else (c, None, None)
        plan = BACKEND.plan(p, "backward", TritonConfigs(c, *both, c))[part]
    if part == "delta":
        return call_of(plan, p, () if has_dlse else ("DLSE",),
                       f"{plan.constants['BLOCK_M']} rows, {plan.options['num_warps']} warps")
    absent, alone = {"dk": (("DV",), "dK alone "), "dv": (("DK",), "dV alone ")}.get(part, ((), ""))
    absent = (*absent, *(() if p.sequences else ("CU_Q", "CU_K")))
    return call_of(plan, p, absent, f"{alone}{c.BLOCK_M}×{c.BLOCK_N}, {c.num_warps} warps,"
                                    f" {c.num_stages} stages")


def gluon_call(*, arch, fp8=False, SPECIALIZED=True, config=None, **choices) -> Call:
    """Call a Gluon kernel as its backend does: with its table's entry, or another configuration."""
    from flashlib.kernels.backends.gluon import BACKEND, FP8
    from flashlib.kernels.configs import GluonConfig

    sizes = {name: choices.pop(name) for name in (*SIZES, "into") if name in choices}
    p = example(arch, **{"dtype": "float8_e4m3" if fp8 else "bfloat16", **sizes})
    backend = FP8 if fp8 else BACKEND
    if (reason := backend.refusal(p, "forward")) is not None:
        raise ValueError(reason)
    table = backend.table(p, "forward")
    if not SPECIALIZED:
        table = table._replace(CONSUMERS=2, SPECIALIZED=False)
    c = GluonConfig(*(config or table))._replace(SPECIALIZED=SPECIALIZED, **choices)
    workers = f"{c.CONSUMERS} consumers" if SPECIALIZED else f"{4 * c.CONSUMERS} warps"
    said = [f"{name}={value}" for name in ("EMULATED", "TAU") if SPECIALIZED and not fp8
            and (value := getattr(c, name))]
    return call_of(backend.plan(p, "forward", c)["forward"], p,
                   label=" ".join((f"{c.BLOCK_M}×{c.BLOCK_N}, {workers}, {c.STAGES} stages", *said)))


def gradient_call(*, arch, part, config=None, has_dlse=False, **choices) -> Call:
    """Call a kernel of the Gluon backend's backward as the backend does."""
    from flashlib.kernels.backends.gluon import BACKEND
    from flashlib.kernels.configs import GluonBackwardConfig

    sizes = (*SIZES, "into")
    p = example(arch, **{name: choices.pop(name) for name in sizes if name in choices})
    if (reason := BACKEND.refusal(p, "backward")) is not None:
        raise ValueError(reason)
    c = GluonBackwardConfig(*(config or BACKEND.table(p, "backward")))._replace(**choices)
    plans = BACKEND.plan(p, "backward", c)
    if part not in plans:
        raise ValueError(f"head_dim: the kernels at {p.D} are of {', '.join(plans)}, got one of {part}")
    label = {"dq": f"{c.K_STAGES} and {c.V_STAGES} stages", "dkdv": f"{c.STAGES} stages",
             "fused": f"{c.STAGES} stages"}.get(part, "")
    return call_of(plans[part], p, () if has_dlse else ("DLSE",) if part == "before" else (), label)


def decode_call(*, arch, part="decode", config=None, units=None, page=0, lengths=False, Nq=1,
                kv_heads=None, **choices) -> Call:
    """Call a kernel of the decoding backend as it does; `page`: rows of a page, 0 without pages."""
    from flashlib.kernels.backends.decode import BACKEND, parts, units_of
    from flashlib.kernels.configs import DecodeConfig

    p = example(arch, Nq=Nq, kv_heads=kv_heads,
                **{name: choices.pop(name) for name in SIZES if name in choices})
    c = DecodeConfig(*(config or BACKEND.table(p, "forward")))._replace(**choices)
    units = units_of(p, c) if units is None else units
    plan = BACKEND.plan(p, "forward", c, units, None, page)[part]
    absent = [name for name, given in (("LENGTHS", lengths), ("TABLE", page)) if not given]
    call = call_of(plan, p, [name for name in absent if name in plan.tensors],
                   f"{c.BLOCK_M}×{c.BLOCK_N} of {units}·{c.KEYS} keys, {c.num_warps} warps,"
                   f" {c.num_stages} stages")
    if part == "decode" and parts(p, c, units) > 1:
        call.arguments["O"] = "*fp32"
    return call


def softmax_call(*, arch, dtype="bfloat16", impl="fused", M=4096, N=4096) -> Call:
    """Call a softmax kernel on M contiguous rows of N columns, in the configuration of its table."""
    from flashlib.kernels import softmax

    if dtype not in ("float16", "bfloat16", "float32"):
        raise ValueError(f"dtype: expected 'float16', 'bfloat16' or 'float32', got {dtype!r}")
    kind, size = DTYPES[dtype], 4 if dtype == "float32" else 2
    arguments = {"X": f"*{kind}", "Y": f"*{kind}", "stride_xm": N, "stride_xn": 1, "stride_ym": N,
                 "stride_yn": 1}
    if impl == "fused":
        rows, warps, _, stages = softmax.fused_config(N, size)
        arguments |= {"M": M, "N": N, "BLOCK_M": rows, "BLOCK_N": 1 << (N - 1).bit_length(),
                      "STAGES": stages}
    else:
        block, warps = softmax.streaming_config(N)
        arguments |= {"N": N, "BLOCK_N": block}
    return Call(arguments, warps, label=f"{dtype} rows of {N}, {warps} warps")


_HOME, _TUNED = "flashlib.kernels", ("config", "BLOCK_M", "BLOCK_N", "num_warps", "num_stages")
_WALK = (*SIZES, *_TUNED, "sequences", "into")
_GLUON = (*SIZES, "config", "BLOCK_N", "CONSUMERS", "STAGES")
_RING = ("Q_SLOTS", "O_PARTS", "PING_PONG")
# name: (the module that holds it, its builder, what a caller may choose)
KERNELS: dict[str, tuple[str, Callable[..., Call], tuple[str, ...]]] = {
    "flash_fwd_kernel": (f"{_HOME}.triton.forward", triton_call, _WALK),
    "flash_bwd_delta_kernel": (f"{_HOME}.triton.backward", partial(triton_call, part="delta"),
                               (*SIZES, "has_dlse")),
    "flash_bwd_dkdv_kernel": (f"{_HOME}.triton.backward", partial(triton_call, part="dkdv"),
                              (*_WALK, "want_dk", "want_dv")),
    "flash_bwd_dq_kernel": (f"{_HOME}.triton.backward", partial(triton_call, part="dq"), _WALK),
    "flash_fwd_hopper_kernel": (f"{_HOME}.gluon.forward", gluon_call,
                                (*_GLUON, *_RING, "OVERLAP", "UNDER_SOFTMAX", "EMULATED", "TAU",
                                 "into")),
    "flash_fwd_fp8_kernel": (f"{_HOME}.gluon.forward_fp8", partial(gluon_call, fp8=True),
                             (*_GLUON, *_RING)),
    "flash_fwd_pipelined_kernel": (f"{_HOME}.gluon.forward_unspecialized",
                                   partial(gluon_call, SPECIALIZED=False), (*_GLUON, "OVERLAP")),
    **{f"flash_bwd_{part}_hopper_kernel": (
        f"{_HOME}.gluon.backward_{part}", partial(gradient_call, part=part),
        (*SIZES, "config", "into", *stages))
       for part, stages in (("dkdv", ("STAGES",)), ("dq", ("K_STAGES", "V_STAGES")),
                            ("fused", ("STAGES",)))},
    "flash_bwd_statistics_kernel": (f"{_HOME}.triton.sums", partial(gradient_call, part="before"),
                                    (*SIZES, "has_dlse", "into")),
    "flash_bwd_sum_kernel": (f"{_HOME}.triton.sums", partial(gradient_call, part="after"),
                             (*SIZES, "into")),
    **{f"flash_decode_{name}_kernel": (
        f"{_HOME}.triton.decode", partial(decode_call, part=part),
        (*SIZES, *_TUNED, "KEYS", "UNITS", "units", "page", "lengths"))
       for name, part in (("fwd", "decode"), ("merge", "merge"))},
    **{f"softmax_{impl}_fwd_kernel": (f"{_HOME}.triton.softmax", partial(softmax_call, impl=impl),
                                      ("dtype", "M", "N")) for impl in ("3pass", "online", "fused")},
}


def kernels() -> list[str]:
    """Return the names of the kernels that the lens knows."""
    return list(KERNELS)


def known(name: str, arch: Arch, choices: dict) -> Case:
    """Return the case of one of `KERNELS`; ValueError names what it does not know."""
    if name not in KERNELS:
        raise ValueError(f"kernel: expected one of {', '.join(KERNELS)}, or a kernel with arguments=,"
                         f" got {name!r}")
    module, builder, accepted = KERNELS[name]
    for keyword in choices:
        if keyword not in accepted:
            raise ValueError(f"{keyword}: {name} has no such choice; expected one of"
                             f" {', '.join(accepted)}")
    return Case(name, arch, {"module": module, "attribute": name}, builder(arch=arch, **choices),
                dict(choices))


def defaults(arch, dtype: str = "bfloat16", *, head_dims=(16, 32, 64, 128, 256)) -> list[Case]:
    """Return every configuration that `flash_attention` takes by itself on a generation, as cases.

    The lengths are the lens's own, 4,096; a table may have others for few rows.
    """
    from flashlib.kernels.backends import DIRECTIONS, choose

    arch, cases = arch_of(arch), {}
    for head_dim, causal, direction in itertools.product(head_dims, (False, True), DIRECTIONS):
        choices = {"dtype": dtype, "head_dim": head_dim, "causal": causal}
        p = example(arch, **choices)
        backend: Any = choose(p, "auto", str(direction))    # a Planner: the reference is for CPUs
        for part, plan in backend.plan(p, direction, backend.table(p, direction)).items():
            name = plan.kernel.fn.__name__
            given = choices | {"dk": {"want_dv": False}, "dv": {"want_dk": False}}.get(part, {})
            if part == "delta":                             # the same with and without a mask
                del given["causal"]
            case = known(name, arch, given)
            cases.setdefault((name, case.key), case)
    return list(cases.values())
