"""Which kernels the lens knows, and how each would be called: arguments by example, without tensors.

A *builder* is a function with keyword arguments that returns a `Call`. It receives `arch` (see
`flashlib.lens.targets`) and `dtype`, and names whatever else a caller may choose. New kernels join with
`register(name, module, builder)`; nothing else in the lens needs to know them.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, field

from flashlib.kernels.configs import Config, configs_for, padded
from flashlib.lens.targets import Arch, arch_of

# What Triton calls the dtypes that kernels take, and their size in bytes.
DTYPES = {"float16": ("fp16", 2), "bfloat16": ("bf16", 2), "float32": ("fp32", 4),
          "float8_e4m3": ("fp8e4nv", 1), "float8_e5m2": ("fp8e5", 1)}
LOG2E = 1.4426950408889634
NARROW = 16             # a 16-bit head narrower than this is computed in float32: kernels/launch.py


@dataclass(frozen=True)
class Call:
    """One call of a kernel: an example of every argument, and Triton's launch options.

    Arguments: "*bf16" for a pointer that is aligned to 16 bytes, "tensordesc<bf16[1, 1, 64, 128]>" for
    a descriptor with its block, numbers as they are, tuples of numbers, None for an absent tensor,
    values of constexprs.
    `label` says the choices in words.
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
                "options": {"num_warps": call.num_warps, "num_stages": call.num_stages,
                            **call.options}}

    @property
    def key(self) -> str:
        return json.dumps(self.job, sort_keys=True)

    def __str__(self) -> str:
        return " ".join(filter(None, (self.kernel, self.arch.name, self.call.label)))


def _tensor(dtype: str, rows: int, head_dim: int, tma: bool) -> str:
    kind = DTYPES[dtype][0]
    return f"tensordesc<{kind}[1, 1, {rows}, {head_dim}]>" if tma else f"*{kind}"


class _Attention:
    """What the builders of the attention kernels share: sizes, the configuration, descriptors."""

    def __init__(self, arch, dtype, head_dim, causal, Nq, Nk, heads, kv_heads, USE_TMA, window=None):
        if dtype not in ("float16", "bfloat16", "float32"):
            raise ValueError(f"dtype: expected 'float16', 'bfloat16' or 'float32', got {dtype!r}")
        if dtype == "bfloat16" and arch.number < 80:
            raise ValueError(f"dtype: expected 'float16' or 'float32', because {arch.name} has no"
                             " bfloat16, got 'bfloat16'")
        sizes = {"head_dim": head_dim, "Nq": Nq, "Nk": Nk, "heads": heads}
        for name, size in (sizes | ({} if kv_heads is None else {"kv_heads": kv_heads})).items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(f"{name}: expected an integer of at least 1, got {size!r}")
        kv_heads = heads if kv_heads is None else kv_heads
        if heads % kv_heads or head_dim > 256:
            raise ValueError("kv_heads, head_dim: expected a divisor of heads and at most 256, got"
                             f" {kv_heads} of {heads} and {head_dim}")
        if causal and window is not None:
            raise ValueError("causal, window: expected one of them: causal is window=(None, 0)")
        self.window = None if window is None else tuple(   # no bound is a far one, as the launch says
            Nq + Nk if side is None else min(side, Nq + Nk) for side in window)
        self.asked, narrow = dtype, head_dim < NARROW and DTYPES[dtype][1] == 2
        self.dtype = "float32" if narrow else dtype
        self.arch, self.D, self.causal = arch, head_dim, bool(causal)
        self.heads, self.kv_heads, self.Nq, self.Nk = heads, kv_heads, Nq, Nk
        self.head_dim, (self.kind, size) = padded(head_dim), DTYPES[self.dtype]
        able = arch.number >= 90 and size == 2 and head_dim * size % 16 == 0
        self.tma = able if USE_TMA is None else bool(USE_TMA)
        if self.tma and not able:
            raise ValueError("USE_TMA: expected False: descriptors need sm_90 or newer, a 16-bit dtype"
                             f" and rows of whole 16 bytes, got {arch.name}, {self.what}, {head_dim}")
        self.table = configs_for(arch.capability, size, head_dim, self.causal)

    @property
    def what(self) -> str:
        """Return the dtype that is launched, and beside it the one that was asked for."""
        return self.dtype if self.dtype == self.asked else f"{self.dtype} (for {self.asked})"

    def config(self, default, config, **chosen) -> Config:
        """Return the table's configuration, or `config`, with single values changed."""
        chosen = {k: v for k, v in chosen.items() if v is not None}
        base = default if config is None else Config(*config)
        if base is None:
            raise ValueError("config: the table has no configuration that writes dK and dV at once at"
                             f" head_dim={self.D}: pass want_dk=False or want_dv=False, or a config")
        for name, value in (base._asdict() | chosen).items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}: expected an integer of at least 1, got {value!r}")
            if name != "num_stages" and value & (value - 1):
                raise ValueError(f"{name}: expected a power of 2, got {value}")
        return base._replace(**chosen)

    def strides(self, *names: str) -> dict:
        """Return the strides of contiguous tensors by their name in the kernel's signature."""
        sizes = {name: (self.heads, self.Nq) if name in ("q", "o", "do", "dq") else
                 (self.kv_heads, self.Nk) for name in names}
        return {f"stride_{name}": (heads * N * self.D, N * self.D, self.D, 1)
                for name, (heads, N) in sizes.items()}

    def common(self, c: Config, ragged: bool) -> dict:
        return dict(sizes=(self.heads, self.heads // self.kv_heads, self.Nq, self.Nk, self.D),
                    window=self.window,
                    BLOCK_M=c.BLOCK_M, BLOCK_N=c.BLOCK_N, HEAD_DIM=self.head_dim,
                    IS_CAUSAL=self.causal, EVEN_D=self.head_dim == self.D, RAGGED=ragged,
                    USE_TMA=self.tma)

    def label(self, c: Config, *more: str) -> str:
        """Return the choices in words."""
        causal = "causal" if self.causal else "window" if self.window else ""
        tiles = f"{c.BLOCK_M}×{c.BLOCK_N}, {c.num_warps} warps, {c.num_stages} stages"
        return " ".join(filter(None, (self.what, f"d={self.D}", causal, *more, tiles)))

    def tensor(self, rows: int) -> str:
        """Return how a tensor is passed that the kernel walks: a descriptor where TMA can read it."""
        return _tensor(self.dtype, rows, self.head_dim, self.tma)


def forward_call(*, arch, dtype="bfloat16", head_dim=128, causal=False, config=None, BLOCK_M=None,
                 BLOCK_N=None, num_warps=None, num_stages=None, Nq=4096, Nk=4096, heads=16,
                 kv_heads=None, USE_TMA=None, window=None) -> Call:
    """Call `flash_fwd_kernel` as `flash_attention` does on contiguous tensors."""
    a = _Attention(arch, dtype, head_dim, causal, Nq, Nk, heads, kv_heads, USE_TMA, window)
    c = a.config(a.table.forward, config, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=num_warps,
                 num_stages=num_stages)
    keys = a.tensor(c.BLOCK_N)
    return Call({"Q": a.tensor(c.BLOCK_M), "K": keys, "V": keys, "O": f"*{a.kind}", "LSE": "*fp32",
                 "scale_log2": LOG2E, **a.strides("q", "k", "v", "o"),
                 **a.common(c, Nk % c.BLOCK_N != 0)}, c.num_warps, c.num_stages, label=a.label(c))


def dkdv_call(*, arch, dtype="bfloat16", head_dim=128, causal=False, config=None, BLOCK_M=None,
              BLOCK_N=None, num_warps=None, num_stages=None, Nq=4096, Nk=4096, heads=16,
              kv_heads=None, USE_TMA=None, want_dk=True, want_dv=True, window=None) -> Call:
    """Call `flash_bwd_dkdv_kernel`; it writes dK, dV, or both."""
    a = _Attention(arch, dtype, head_dim, causal, Nq, Nk, heads, kv_heads, USE_TMA, window)
    if not (want_dk or want_dv):
        raise ValueError("want_dk, want_dv: expected at least one True, got neither")
    both, table = want_dk and want_dv, a.table
    default = table.dkdv if both else (table.dk if want_dk else table.dv) or table.dkdv
    c = a.config(default, config, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=num_warps,
                 num_stages=num_stages)
    a.tma = a.tma and min(Nq, Nk) > 1                       # as the launch does
    rows, pointer = a.tensor(c.BLOCK_M), f"*{a.kind}"
    return Call({"Q": rows, "K": pointer, "V": pointer, "DO": rows, "LSE": "*fp32", "DELTA": "*fp32",
                 "DK": pointer if want_dk else None, "DV": pointer if want_dv else None,
                 "scale": 1.0, "scale_log2": LOG2E,
                 **a.strides("q", "k", "v", "do", "dk", "dv"),
                 **a.common(c, Nq % c.BLOCK_M != 0 or Nk % c.BLOCK_N != 0)}, c.num_warps, c.num_stages,
                label=a.label(c, "" if both else "dK alone" if want_dk else "dV alone"))


def dq_call(*, arch, dtype="bfloat16", head_dim=128, causal=False, config=None, BLOCK_M=None,
            BLOCK_N=None, num_warps=None, num_stages=None, Nq=4096, Nk=4096, heads=16, kv_heads=None,
            USE_TMA=None, window=None) -> Call:
    """Call `flash_bwd_dq_kernel`."""
    a = _Attention(arch, dtype, head_dim, causal, Nq, Nk, heads, kv_heads, USE_TMA, window)
    c = a.config(a.table.dq, config, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=num_warps,
                 num_stages=num_stages)
    keys, pointer = a.tensor(c.BLOCK_N), f"*{a.kind}"
    return Call({"Q": pointer, "K": keys, "V": keys, "DO": pointer, "LSE": "*fp32", "DELTA": "*fp32",
                 "DQ": pointer, "scale": 1.0, "scale_log2": LOG2E,
                 **a.strides("q", "k", "v", "do", "dq"),
                 **a.common(c, Nk % c.BLOCK_N != 0)}, c.num_warps, c.num_stages, label=a.label(c))


def delta_call(*, arch, dtype="bfloat16", head_dim=128, Nq=4096, heads=16, BLOCK_M=64, num_warps=4,
               has_dlse=False) -> Call:
    """Call `flash_bwd_delta_kernel`, with or without a gradient of the lse."""
    a = _Attention(arch, dtype, head_dim, False, Nq, Nq, heads, None, False)
    c = a.config(Config(64, 64, 4, 3), None, BLOCK_M=BLOCK_M, num_warps=num_warps)
    return Call({"O": f"*{a.kind}", "DO": f"*{a.kind}", "DLSE": "*fp32" if has_dlse else None,
                 "DELTA": "*fp32", **a.strides("o", "do"), "H": heads, "N_Q": Nq, "D": a.D,
                 "BLOCK_M": c.BLOCK_M, "HEAD_DIM": a.head_dim},
                c.num_warps, c.num_stages,
                label=f"{a.what} d={head_dim} {c.BLOCK_M} rows, {c.num_warps} warps")


def _hopper_config(table, config, chosen: dict):
    """Return an entry of `launch_hopper`'s table, or `config`, with single values changed."""
    from flashlib.kernels.launch_hopper import REGISTERS, HopperConfig

    base = table if config is None else HopperConfig(*config)
    c = base._replace(**{name: value for name, value in chosen.items() if value is not None})
    for name, value in c._asdict().items():
        kind = type(HopperConfig._field_defaults.get(name, 1))
        least = 0 if name in ("EMULATED", "TAU") else 1
        right = isinstance(value, bool) if kind is bool else (
            not isinstance(value, bool) and isinstance(value, int if kind is int else int | float)
            and value >= least)
        if not right:
            raise ValueError(f"{name}: expected {'True or False' if kind is bool else 'a number'}"
                             f"{'' if kind is bool else f' of at least {least}'}, got {value!r}")
    if c.SPECIALIZED and (c.CONSUMERS not in REGISTERS or c.EMULATED > 2 or c.O_PARTS > 2):
        raise ValueError("CONSUMERS, EMULATED, O_PARTS: expected 2 or 3, at most 2, and 1 or 2, got"
                         f" {c.CONSUMERS}, {c.EMULATED} and {c.O_PARTS}")
    return c


def _hopper(arch, dtype, head_dim, causal, Nq, Nk, heads, kv_heads, dtypes, window=None):
    """Return the sizes of an attention on Hopper, as `launch_hopper.refusal` takes them."""
    if arch.number != 90:
        raise ValueError(f"arch: expected sm_90 (Hopper), got {arch.name}")
    if dtype not in dtypes:
        raise ValueError(f"dtype: expected one of {', '.join(dtypes)}, got {dtype!r}")
    fp8 = DTYPES[dtype][1] == 1
    a = _Attention(arch, "bfloat16" if fp8 else dtype, head_dim, causal, Nq, Nk, heads, kv_heads, None,
                   window)
    if not a.tma or (fp8 and head_dim not in (64, 128, 256)):
        able = "64, 128 or 256" if fp8 else "a multiple of 8, at least 16"
        raise ValueError(f"head_dim: expected {able}, got {head_dim}")
    a.head_dim = max(32, a.head_dim)
    return a


def hopper_call(*, arch, dtype="bfloat16", head_dim=128, causal=False, config=None, BLOCK_N=None,
                CONSUMERS=None, STAGES=None, Q_SLOTS=None, O_PARTS=None, PING_PONG=None, OVERLAP=None,
                UNDER_SOFTMAX=None, EMULATED=None, TAU=None, Nq=4096, Nk=4096, heads=16,
                kv_heads=None, window=None) -> Call:
    """Call `flash_fwd_hopper_kernel` as impl="gluon" does."""
    from flashlib.kernels.launch_hopper import WINDOW_CONFIGS, config_for

    a = _hopper(arch, dtype, head_dim, causal, Nq, Nk, heads, kv_heads, ("float16", "bfloat16"),
                window)
    table = config_for(head_dim, a.causal, Nk, Nq) if window is None else WINDOW_CONFIGS[a.head_dim]
    c = _hopper_config(table, config, dict(
        BLOCK_N=BLOCK_N, CONSUMERS=CONSUMERS, STAGES=STAGES, Q_SLOTS=Q_SLOTS, O_PARTS=O_PARTS,
        PING_PONG=PING_PONG, OVERLAP=OVERLAP, UNDER_SOFTMAX=UNDER_SOFTMAX, EMULATED=EMULATED, TAU=TAU,
        SPECIALIZED=True))
    return _specialized(a, dtype, c, Nq, Nk, heads, head_dim, {}, {
        "OVERLAP": c.OVERLAP, "UNDER_SOFTMAX": c.UNDER_SOFTMAX, "EMULATED": c.EMULATED, "TAU": c.TAU})


def fp8_call(*, arch, dtype="float8_e4m3", head_dim=128, causal=False, config=None, BLOCK_N=None,
             CONSUMERS=None, STAGES=None, Q_SLOTS=None, O_PARTS=None, PING_PONG=None, Nq=4096, Nk=4096,
             heads=16, kv_heads=None, window=None) -> Call:
    """Call `flash_fwd_fp8_kernel` as `flash_attention_fp8` does; it writes bfloat16."""
    from flashlib.kernels.launch_hopper import FP8_CONFIGS

    a = _hopper(arch, dtype, head_dim, causal, Nq, Nk, heads, kv_heads, ("float8_e4m3",), window)
    c = _hopper_config(FP8_CONFIGS[head_dim, a.causal or window is not None], config, dict(
        BLOCK_N=BLOCK_N, CONSUMERS=CONSUMERS, STAGES=STAGES, Q_SLOTS=Q_SLOTS, O_PARTS=O_PARTS,
        PING_PONG=PING_PONG, SPECIALIZED=True))
    scales = dict.fromkeys(("Q_SCALE", "K_SCALE", "V_SCALE"), "*fp32")
    return _specialized(a, dtype, c, Nq, Nk, heads, head_dim, scales, {})


def _specialized(a, dtype, c, Nq, Nk, heads, head_dim, scales, switches):
    """Return the call of a warp-specialised kernel; `scales` and `switches` are what only one has."""
    from flashlib.kernels.launch_hopper import ROWS, registers_of

    rows, (registers, cap) = ROWS.value, registers_of(c, a.head_dim)
    tiles = -(-(-(-Nq // c.BLOCK_M) * heads) // 132) if c.PERSISTENT else 1     # of 132 SMs
    keys = _tensor(dtype, c.BLOCK_N, a.head_dim, True)
    values = _tensor(dtype, a.head_dim, c.BLOCK_N, True) if scales else keys
    said = [f"{name}={switches[name]}" for name in ("EMULATED", "TAU") if switches.get(name)]
    return Call({
        "q_desc": _tensor(dtype, rows, a.head_dim, True), "k_desc": keys, "v_desc": values,
        "o_desc": _tensor(a.dtype, rows, a.head_dim // c.O_PARTS, True), "LSE": "*fp32", **scales,
        "scale_log2": LOG2E, "ORDER": "*i32", "ENTRIES": tiles + 2,
        "sizes": (heads, heads // a.kv_heads, Nq, Nk), "window": a.window, "BLOCK_N": c.BLOCK_N,
        "HEAD_DIM": a.head_dim, "IS_CAUSAL": a.causal, "RAGGED": Nk % c.BLOCK_N != 0,
        "CONSUMERS": c.CONSUMERS, "STAGES": c.STAGES, "Q_SLOTS": c.Q_SLOTS, "O_PARTS": c.O_PARTS,
        "PING_PONG": c.PING_PONG, **switches, "REGISTERS": registers},
        options={"maxnreg": cap}, label=" ".join(filter(None, (
            dtype, f"d={head_dim}", "causal" if a.causal else "window" if a.window else "",
            f"{c.BLOCK_M}×{c.BLOCK_N},", f"{c.CONSUMERS} consumers, {c.STAGES} stages", *said))))


def pipelined_call(*, arch, dtype="bfloat16", head_dim=128, causal=False, config=None, BLOCK_N=None,
                   CONSUMERS=None, STAGES=None, OVERLAP=None, Nq=4096, Nk=4096, heads=16,
                   kv_heads=None) -> Call:
    """Call `flash_fwd_pipelined_kernel`, the one without warp specialisation: with two warpgroups."""
    from flashlib.kernels.launch_hopper import config_for

    a = _hopper(arch, dtype, head_dim, causal, Nq, Nk, heads, kv_heads, ("float16", "bfloat16"))
    c = _hopper_config(config_for(head_dim, a.causal, Nk, Nq)._replace(CONSUMERS=2), config, dict(
        BLOCK_N=BLOCK_N, CONSUMERS=CONSUMERS, STAGES=STAGES, OVERLAP=OVERLAP, SPECIALIZED=False))
    if c.CONSUMERS & (c.CONSUMERS - 1):
        raise ValueError(f"CONSUMERS: expected a power of 2 without a producer, got {c.CONSUMERS}")
    rows, keys = (_tensor(dtype, n, a.head_dim, True) for n in (c.BLOCK_M, c.BLOCK_N))
    return Call({
        "q_desc": rows, "k_desc": keys, "v_desc": keys, "o_desc": rows, "LSE": "*fp32",
        "scale_log2": LOG2E, "sizes": (heads, heads // a.kv_heads, Nq, Nk),
        "TILE_M": c.BLOCK_M, "BLOCK_N": c.BLOCK_N, "HEAD_DIM": a.head_dim, "IS_CAUSAL": a.causal,
        "RAGGED": Nk % c.BLOCK_N != 0, "STAGES": c.STAGES, "OVERLAP": c.OVERLAP},
        num_warps=4 * c.CONSUMERS, label=" ".join(filter(None, (
            dtype, f"d={head_dim}", "causal" if a.causal else "", f"{c.BLOCK_M}×{c.BLOCK_N},",
            f"{4 * c.CONSUMERS} warps, {c.STAGES} stages"))))


def softmax_call(*, arch, dtype="bfloat16", impl="fused", M=4096, N=4096, BLOCK_M=None, BLOCK_N=None,
                 num_warps=None, STAGES=None) -> Call:
    """Call a softmax kernel on M contiguous rows of N columns, in the configuration of its table."""
    from flashlib.kernels import softmax

    if dtype not in ("float16", "bfloat16", "float32"):
        raise ValueError(f"dtype: expected 'float16', 'bfloat16' or 'float32', got {dtype!r}")
    kind, size = DTYPES[dtype]
    arguments = {"X": f"*{kind}", "Y": f"*{kind}", "stride_xm": N, "stride_xn": 1, "stride_ym": N,
                 "stride_yn": 1}
    if impl == "fused":
        rows, warps, _, stages = softmax.fused_config(N, size)
        arguments |= {"M": M, "N": N, "BLOCK_M": BLOCK_M or rows,
                      "BLOCK_N": BLOCK_N or 1 << (N - 1).bit_length(), "STAGES": STAGES or stages}
    else:
        block, warps = softmax.streaming_config(N)
        arguments |= {"N": N, "BLOCK_N": BLOCK_N or block}
    return Call(arguments, num_warps or warps, label=f"{dtype} rows of {N}, {num_warps or warps} warps")


# name → (module, builder)
_KERNELS: dict[str, tuple[str, Callable[..., Call]]] = {}


def register(name: str, module: str, builder: Callable[..., Call]) -> None:
    """Make a kernel known: `module` holds it under `name`, `builder(arch=, dtype=, …)` is its call."""
    _KERNELS[name] = (module, builder)


register("flash_fwd_kernel", "flashlib.kernels.triton.forward", forward_call)
register("flash_bwd_delta_kernel", "flashlib.kernels.triton.backward", delta_call)
register("flash_bwd_dkdv_kernel", "flashlib.kernels.triton.backward", dkdv_call)
register("flash_bwd_dq_kernel", "flashlib.kernels.triton.backward", dq_call)
register("flash_fwd_hopper_kernel", "flashlib.kernels.gluon.forward", hopper_call)
register("flash_fwd_fp8_kernel", "flashlib.kernels.gluon.forward_fp8", fp8_call)
register("flash_fwd_pipelined_kernel", "flashlib.kernels.gluon.forward_unspecialized", pipelined_call)


for _impl in ("3pass", "online", "fused"):
    register(f"softmax_{_impl}_fwd_kernel", "flashlib.kernels.softmax",
             functools.partial(softmax_call, impl=_impl))


def kernels() -> list[str]:
    """Return the names of the kernels that the lens knows."""
    return list(_KERNELS)


def known(name: str, arch: Arch, choices: dict) -> Case:
    """Return the case of a registered kernel; ValueError names what it does not know."""
    if name not in _KERNELS:
        raise ValueError(f"kernel: expected one of {', '.join(_KERNELS)}, or a kernel with arguments=,"
                         f" got {name!r}")
    module, builder = _KERNELS[name]
    accepted = [p for p in inspect.signature(builder).parameters if p not in ("arch", "impl")]
    for keyword in choices:
        if keyword not in accepted:
            raise ValueError(f"{keyword}: {name} has no such choice; expected one of"
                             f" {', '.join(accepted)}")
    return Case(name, arch, {"module": module, "attribute": name}, builder(arch=arch, **choices),
                dict(choices))


def defaults(arch, dtype: str = "bfloat16", *, head_dims=(16, 32, 64, 128, 256)) -> list[Case]:
    """Return every configuration that `flash_attention` takes by itself on a generation, as cases."""
    arch, cases = arch_of(arch), []
    for head_dim in head_dims:
        cases.append(known("flash_bwd_delta_kernel", arch, {"dtype": dtype, "head_dim": head_dim}))
        for causal in (False, True):
            choices = {"dtype": dtype, "head_dim": head_dim, "causal": causal}
            size = 4 if head_dim < NARROW else DTYPES[dtype][1]
            table = configs_for(arch.capability, size, head_dim, causal)
            parts = [{}] if table.dkdv else [{"want_dv": False}, {"want_dk": False}]
            cases.append(known("flash_fwd_kernel", arch, choices))
            cases += [known("flash_bwd_dkdv_kernel", arch, choices | part) for part in parts]
            cases.append(known("flash_bwd_dq_kernel", arch, choices))
    return cases
