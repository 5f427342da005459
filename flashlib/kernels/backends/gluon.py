"""Attention as Gluon kernels on a Hopper GPU: descriptors, a grid that fills it once, a table of tiles.

The arguments were checked by `flashlib.kernels.attention`; nothing here is public.
"""

import triton

if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 6):
    raise ImportError(f"the Hopper kernel needs Triton 3.6 or newer, got {triton.__version__}")

import functools
from dataclasses import replace
from typing import Any

import torch
from triton import knobs
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from flashlib.exp2 import LOG2E
from flashlib.kernels import configs, delta, plans, scheduling, sums
from flashlib.kernels.configs import WARPGROUP_ROWS, GluonBackwardConfig, GluonConfig
from flashlib.kernels.gluon.backward_dkdv import flash_bwd_dkdv_hopper_kernel
from flashlib.kernels.gluon.backward_dq import flash_bwd_dq_hopper_kernel
from flashlib.kernels.gluon.backward_fused import flash_bwd_fused_hopper_kernel
from flashlib.kernels.gluon.forward import flash_fwd_hopper_kernel
from flashlib.kernels.gluon.forward_fp8 import flash_fwd_fp8_kernel
from flashlib.kernels.gluon.forward_unspecialized import flash_fwd_pipelined_kernel
from flashlib.kernels.gluon.parts import layout_of
from flashlib.kernels.limits import DO, SUMS, WIDE, unfit
from flashlib.kernels.problem import CAUSAL, FULL, Device, Problem
from flashlib.kernels.scores import NONE, Scores, as_kernels_read, of_sink
from flashlib.kernels.tuning import store

ELEMENT = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16, torch.float32: gl.float32,
           torch.float8_e4m3fn: gl.float8e4nv}
TENSORS = ("q_desc", "k_desc", "v_desc", "o_desc", "LSE")
ORDER = ("TOGETHER", "IN_WAVES", "WAVE")                    # of the fused backward's programs
SCALES = ("Q_SCALE", "K_SCALE", "V_SCALE")
SMS = 4                                                     # of the GPU that the interpreter is
L2_SHARE_BYTES = 32 * 2**20                                 # of tiles that go by, at a time


@functools.lru_cache(64)
def _shared_layout(block: tuple[int, ...], dtype: torch.dtype) -> Any:
    return layout_of(list(block), ELEMENT[dtype])


def describe(x: torch.Tensor, block: list[int]) -> TensorDescriptor:
    """Return a descriptor; where an axis has a length of 1, its stride may be anything."""
    shape = list(x.shape)
    strides = [stride if size > 1 else 128 for size, stride in zip(shape, x.stride(), strict=True)]
    return TensorDescriptor(x, shape, [*strides[:-1], 1], block, _shared_layout(tuple(block), x.dtype))


def interpreted(p: Problem) -> bool:
    """Tell whether a problem is for the interpreter: CPU tensors, and the switch of Triton's own."""
    return p.device.type == "cpu" and bool(knobs.runtime.interpret)


def on_hopper(p: Problem) -> Problem:
    """Return the problem as a Hopper GPU would have it, where the interpreter stands in for one."""
    return replace(p, device=p.device._replace(capability=(9, 0), sms=SMS)) if interpreted(p) else p


def _kernel(p: Problem, kernel):
    """Return what a plan launches: the kernel, or its interpreter."""
    if p.device.type != "cpu":
        return kernel
    from flashlib.interpreter import Interpreted
    from flashlib.kernels.gluon.meanings import meaning_of

    return Interpreted(kernel, meaning_of)


def factor(scale: float) -> float:
    """Return the factor on the logits in powers of 2, at least one too small to be seen.

    Where the scale is 0, or float32 rounds it to 0, −∞ times it would be NaN.
    """
    return max(scale, 2.0**-100) * LOG2E


def head_dim_of(p: Problem) -> int:
    """Return the head dimension that the kernels work with."""
    return max(32, p.head_dim)


@functools.lru_cache(256)
def _placed(device: Device, *shape) -> torch.Tensor:
    """Return the table of tiles on a device."""
    if device.type == "cuda" and plans.capturing():
        raise RuntimeError("q: a CUDA graph cannot capture the first call of a shape: make one before")
    return torch.from_numpy(scheduling.order_table(*shape)).to(device.place)


def _order(p: Problem, c: GluonConfig) -> tuple:
    """Return what the table of tiles depends on."""
    key = _order, c
    if key not in p.made:
        p.made[key] = scheduling.shape_of_order(
            p.window, p.B, p.H, p.H // p.H_K, p.N_Q, p.N_K, p.D * p.dtype.itemsize, c.BLOCK_M,
            c.BLOCK_N, max(1, p.device.sms - p.reserve) if c.PERSISTENT else None)
    return p.made[key]


def _constants(p: Problem, c: GluonConfig) -> dict:
    return {"BLOCK_N": c.BLOCK_N, "IS_CAUSAL": p.causal, "STAGES": c.STAGES}


def _sizes(p: Problem, c: GluonConfig) -> dict:
    return {"H": p.H, "GROUP": p.H // p.H_K, "N_Q": p.N_Q, "N_K": p.N_K,
            "RAGGED": p.N_K % c.BLOCK_N != 0}


def specialized(p: Problem, c: GluonConfig, kernel, tensors, v_block, switches) -> plans.Plan:
    """Return the plan of a warp-specialised kernel; a state's O leaves in four parts."""
    head_dim, parts = head_dim_of(p), 4 if p.into else c.O_PARTS
    rows = [1, 1, WARPGROUP_ROWS]
    return plans.Plan(
        _kernel(p, kernel), tensors,
        _constants(p, c) | {"CONSUMERS": c.CONSUMERS, "Q_SLOTS": c.Q_SLOTS, "PING_PONG": c.PING_PONG,
                            **switches},
        lambda p: {"ENTRIES": scheduling.order_table(*_order(p, c)).shape[1],
                   **dict(zip(("LEFT", "RIGHT"), p.sides or (None, None), strict=True)),
                   **_sizes(p, c)},
        lambda p: scheduling.order_table(*_order(p, c)).shape[0],
        {"num_warps": 4, "maxnreg": configs.REGISTERS[c.CONSUMERS]},
        {"q_desc": [*rows, head_dim], "k_desc": [1, 1, c.BLOCK_N, head_dim], "v_desc": v_block,
         "o_desc": [*rows, head_dim // parts]},
        describe, {"ORDER": lambda p: _placed(p.device, *_order(p, c))})


def pipelined(p: Problem, c: GluonConfig) -> plans.Plan:
    """Return the plan of the kernel without warp specialisation."""
    head_dim = head_dim_of(p)
    blocks = {name: [1, 1, rows, head_dim] for name, rows in zip(
        TENSORS[:4], (c.BLOCK_M, c.BLOCK_N, c.BLOCK_N, c.BLOCK_M), strict=True)}
    return plans.Plan(
        _kernel(p, flash_fwd_pipelined_kernel), (*TENSORS, "scale_log2"),
        _constants(p, c) | {"TILE_M": c.BLOCK_M, "HEAD_DIM": head_dim, "OVERLAP": c.OVERLAP},
        lambda p: _sizes(p, c),
        lambda p: -(-p.N_Q // c.BLOCK_M) * p.B * p.H, {"num_warps": 4 * c.CONSUMERS}, blocks, describe)


def fused(p: Problem, c: GluonBackwardConfig) -> plans.Plan:
    """Return the plan of the kernel that makes all gradients of heads up to 128 columns."""
    head_dim = head_dim_of(p)
    tile, row = [1, 1, WARPGROUP_ROWS, head_dim], [1, WARPGROUP_ROWS]
    rows, columns = sums.shape(head_dim)
    return plans.Plan(
        _kernel(p, flash_bwd_fused_hopper_kernel),
        ("q_desc", "k_desc", "v_desc", "do_desc", "lse_desc", "delta_desc", "dk_desc", "dv_desc",
         "sum_desc", "LOCKS", "scale", "scale_log2"),
        {"IS_CAUSAL": p.causal,
         "TILES": (c.STAGES, configs.multiplied(p.D) if head_dim > 64 and not p.into else head_dim)},
        lambda p: {"H": p.H, "GROUP": p.H // p.H_K, "N_Q": p.N_Q, "N_K": p.N_K,
                   **dict(zip(("LEFT", "RIGHT"), p.sides or (None, None), strict=True)),
                   **dict(zip(ORDER, scheduling.beside(p, head_dim), strict=True)),
                   "RAGGED": p.N_K % configs.FUSED_KEYS != 0,
                   "INTO": (*p.layout[SUMS[1]].strides[:3], p.D) if p.into else None},
        lambda p: p.B * p.H_K * -(-p.N_K // configs.FUSED_KEYS),
        {"num_warps": 4, "maxnreg": configs.REGISTERS[2 if head_dim > 64 else 3]},
        dict.fromkeys(("q_desc", "k_desc", "v_desc", "do_desc",
                       *(() if p.into else ("dk_desc", "dv_desc"))), tile)
        | dict.fromkeys(("lse_desc", "delta_desc"), row)
        | {"sum_desc": [rows * columns // sums.LINE, sums.LINE]}, describe)


def gradients(p: Problem, c: GluonBackwardConfig) -> dict[str, plans.Plan]:
    """Return the plans of the kernels of wide heads beside the pass that makes delta."""
    tile = [1, 1, WARPGROUP_ROWS, head_dim_of(p)]
    tensors = ("q_desc", "k_desc", "v_desc", "do_desc", "LSE", "DELTA")
    kernels = {
        "dkdv": (flash_bwd_dkdv_hopper_kernel, ("dk_desc", "dv_desc"), 1,
                 {"BLOCK_M": WARPGROUP_ROWS, "STAGES": c.STAGES}),
        "dq": (flash_bwd_dq_hopper_kernel, ("dq_desc",), 2,
               {"BLOCK_N": WARPGROUP_ROWS, "STAGES": c.K_STAGES, "V_STAGES": c.V_STAGES})}

    def made(part, kernel, written, groups, constants):
        def of_grid(p):                                     # heads, their rows, rows that go by
            return (p.H_K, p.N_K, p.N_Q * p.H // p.H_K) if part == "dkdv" else (p.H, p.N_Q, p.N_K)

        def sizes(p):
            heads, _, by = of_grid(p)
            together = L2_SHARE_BYTES // (2 * by * p.D * p.dtype.itemsize) if p.causal else 1
            return {"H": p.H, "GROUP": p.H // p.H_K, "N_Q": p.N_Q, "N_K": p.N_K,
                    **dict(zip(("LEFT", "RIGHT"), p.sides or (None, None), strict=True)),
                    "TOGETHER": max(1, min(together, p.B * heads)),
                    **({} if part == "dkdv" else {"RAGGED": p.N_K % WARPGROUP_ROWS != 0})}

        def grid(p):
            heads, rows, _ = of_grid(p)
            return p.B * heads * -(-rows // (groups * WARPGROUP_ROWS))

        return plans.Plan(
            _kernel(p, kernel), (*tensors, *written, "scale", "scale_log2"),
            {"IS_CAUSAL": p.causal, "COLUMNS": configs.multiplied(p.D), **constants}, sizes, grid,
            {"num_warps": 4, "maxnreg": configs.REGISTERS[2]},
            dict.fromkeys((*tensors[:4], *written), tile), describe)

    return {part: made(part, *about) for part, about in kernels.items()}


class Gluon:
    """The backend as `flashlib.kernels.backends` knows it."""

    name = "gluon"

    def refusal(self, p: Problem, direction: str) -> str | None:
        """Return why the kernel cannot run, or None."""
        if p.device.type == "cpu" and not interpreted(p):
            return ("impl: 'gluon' on CPU tensors needs the interpreter: set TRITON_INTERPRET=1 before"
                    " Python starts, or use impl='reference'")
        if p.device.type not in ("cpu", "cuda"):
            return (f"impl: 'gluon' expected tensors on a Hopper GPU, got {p.device.type}: use"
                    " impl='reference'")
        if p.device.type == "cuda" and p.device.here and knobs.runtime.interpret:
            return ("impl: 'gluon' expected Triton's interpreter to be off, as its own takes CPU"
                    " tensors, and TRITON_INTERPRET is set: use impl='triton'")
        p = on_hopper(p)
        expected = unfit(p, direction)
        return f"impl: 'gluon' expected {expected}; use impl='auto'" if expected else None

    def table(self, p: Problem, direction: str) -> GluonConfig | GluonBackwardConfig:
        """Return the table's entry."""
        if direction == "backward":
            return configs.GLUON_BACKWARD[head_dim_of(p)]
        if p.into:
            return configs.gluon_config_into(head_dim_of(p), p.sides is not None, p.causal, p.N_K)
        if p.sides is not None:
            return configs.GLUON_WINDOW[head_dim_of(p)]
        return configs.gluon_config_for(p.D, p.causal, p.N_K, p.N_Q)

    def config(self, p: Problem, direction: str):
        """Return what tuning found, or the table's entry."""
        tuned = None if p.into else store.result_for(self, p, direction)    # it needs other tiles
        return tuned or self.table(p, direction)

    def copies(self, p: Problem, direction: str) -> bool:
        """Tell whether the copy engine reads the tensors; others are refused."""
        return True

    def plan(self, p: Problem, direction: str, config, has_dlse: bool = False) -> dict[str, plans.Plan]:
        """Return the plan of a forward, or those of the parts of a backward.

        `has_dlse` only tells plans apart: a kernel to which DLSE is None is compiled without it.
        """
        if direction == "backward":
            if p.D >= WIDE:
                return {"delta": delta.plan(p), **gradients(p, config)}
            return {"before": sums.before(p), "fused": fused(p, config),
                    "after": sums.after(p, head_dim_of(p))}
        if not config.SPECIALIZED:
            if p.sides is not None or p.scores.sink or p.into:
                raise NotImplementedError("window, sink, into: expected a SPECIALIZED config")
            return {"forward": pipelined(p, config)}
        return {"forward": specialized(
            p, config, flash_fwd_hopper_kernel, (*TENSORS, "scale_log2", "SINK"),
            [1, 1, config.BLOCK_N, head_dim_of(p)],
            {"PRODUCTS": (config.OVERLAP, config.UNDER_SOFTMAX,
                          head_dim_of(p) if p.into else configs.multiplied(p.D)),
             "EMULATED": config.EMULATED, "TAU": config.TAU})}

    def forward(self, q, k, v, p: Problem, scale: float, config=None, *, scores: Scores = NONE,
                into=None):
        """Return O, like q but contiguous, and lse (B, H, N_Q) float32; or `into`, with more keys."""
        launch = plans.launches_for(self, on_hopper(p), "forward", config)["forward"]
        o, lse = into or (torch.empty_like(q, memory_format=torch.contiguous_format),
                          torch.empty((p.B, p.H, p.N_Q), dtype=torch.float32, device=q.device))
        sink = as_kernels_read(scores)[2:] if "SINK" in launch.plan.tensors else ()
        launch(q, k, v, o, lse, factor(scale), *sink)
        return o, lse

    def backward(self, q, k, v, o, lse, do, dlse, p: Problem, scale: float, config=None, *,
                 scores: Scores = NONE, into=None):
        """Return dq, dk, dv, contiguous, in the dtype of their tensors; dlse may be None.

        Or add to `into`, and return that; then o is delta, (B, H, N_Q).
        """
        p = on_hopper(p)
        if not p.copyable(DO):                              # as that of a sum, which is one number
            do = do.contiguous()
            p = on_hopper(Problem.of(q, k, v, do if into else o, do, *(into or ()), window=p.window,
                                     scores=p.scores, into=p.into))
        o = delta.statistics(o) if into else o
        lse = delta.statistics(lse)
        dlse = None if dlse is None else delta.statistics(dlse)
        launches = plans.launches_for(self, p, "backward", config, dlse is not None)
        dq, dk, dv = into or (torch.empty_like(x, memory_format=torch.contiguous_format)
                              for x in (q, k, v))
        on_cpu = p.device.type == "cpu"                     # Triton's interpreter has no bfloat16
        if p.D < WIDE:
            made, divisor = sums.buffers(p, head_dim_of(p)), factor(scale) / LOG2E
            if on_cpu:
                sums.before_on_cpu(o, do, lse, dlse, made, divisor)
            else:
                launches["before"](o, do, lse, dlse, *made[:3], 1 / divisor)
            launches["fused"](q, k, v, do, *made[:2], dk, dv, made[3], made[2], scale, factor(scale))
            if on_cpu:
                sums.after_on_cpu(made[3], dq, p, head_dim_of(p), scale)
            else:
                launches["after"](made[3], dq, scale)
            if scores.sink is None:
                return dq, dk, dv
            return dq, dk, dv, *of_sink(scores, lse, made[1][:, :p.N_Q].view(lse.shape), -1)
        rows, factors = torch.empty_like(lse), (scale, scale * LOG2E)
        if on_cpu:
            rows = (o.float() * do.float()).sum(-1) - (0.0 if dlse is None else dlse)
        else:
            launches["delta"](o, do, dlse, rows)
        launches["dkdv"](q, k, v, do, lse, rows, dk, dv, *factors)
        launches["dq"](q, k, v, do, lse, rows, dq, *factors)
        return dq, dk, dv, *of_sink(scores, lse, rows)

    def candidates(self, p: Problem, direction: str) -> dict[str, list]:
        """Return what tuning tries beside the table's entry; of a backward nothing else fits."""
        if direction == "backward":
            return {"": []}
        table = self.table(p, direction)
        switched = [table._replace(PING_PONG=turns, UNDER_SOFTMAX=under, TAU=tau)
                    for turns, under, tau in configs.GLUON_SWITCHES]
        tiled = [table._replace(BLOCK_N=keys, CONSUMERS=consumers, STAGES=stages, Q_SLOTS=slots)
                 for keys, consumers, stages, slots in configs.GLUON_TILES[head_dim_of(p)]]
        return {"": [*switched, *tiled]}


class GluonFP8:
    """The forward in 8 bits, of operands that `fp8.prepare` made; `flash_attention_fp8` alone asks."""

    name = "gluon_fp8"

    def refusal(self, p: Problem, direction: str) -> str | None:
        """Return why the kernel cannot run, or None."""
        if p.device.capability is None or p.device.capability[0] != 9:
            return "arch: FP8 attention expected a Hopper GPU"
        if p.dtype != torch.float8_e4m3fn or (p.D, p.causal) not in configs.FP8:
            return ("dtype, head_dim: FP8 attention expected float8_e4m3 and 64, 128 or 256, got"
                    f" {p.dtype} and {p.D}")
        return None

    def table(self, p: Problem, direction: str) -> GluonConfig:
        """Return the table's entry."""
        return configs.FP8[p.D, p.causal]

    config = table

    def copies(self, p: Problem, direction: str) -> bool:
        """Tell that the copy engine reads what was prepared."""
        return True

    def plan(self, p: Problem, direction: str, config: GluonConfig,
             dtype=None) -> dict[str, plans.Plan]:
        """Return the plan of the forward; O comes in `dtype`."""
        return {"forward": specialized(
            p, config, flash_fwd_fp8_kernel, (*TENSORS, *SCALES, "scale_log2"),
            [1, 1, head_dim_of(p), config.BLOCK_N], {})}

    def forward(self, q, k, v, causal: bool, scale: float, dtype=torch.bfloat16, config=None):
        """Return O in `dtype` and lse (B, H, N_Q) float32; q, k, v as `fp8.prepare` returns them."""
        (q, q_scale), (k, k_scale), (v, v_scale) = q, k, v
        p = on_hopper(Problem.of(q, k, v, q_scale, k_scale, v_scale, window=CAUSAL if causal else FULL))
        launch = plans.launches_for(self, p, "forward", config, dtype)["forward"]
        o = torch.empty(q.shape, dtype=dtype, device=q.device)
        lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
        launch(q, k, v, o, lse, q_scale, k_scale, v_scale, factor(scale))
        return o, lse


BACKEND, FP8 = Gluon(), GluonFP8()
