"""Attention as Triton kernels on any NVIDIA GPU, or in Triton's interpreter: plans and launches.

The arguments were checked by `flashlib.kernels.attention`; nothing here is public.
"""

from typing import Any

import triton

if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 5):     # no `disable_licm`
    raise ImportError(f"the kernels need Triton 3.5 or newer, got {triton.__version__}")

import torch
from triton import knobs
from triton.tools.tensor_descriptor import TensorDescriptor

from flashlib.exp2 import LOG2E
from flashlib.kernels import configs, plans
from flashlib.kernels.delta import plan as delta_plan
from flashlib.kernels.delta import statistics
from flashlib.kernels.problem import Problem
from flashlib.kernels.scores import NONE, Scores, as_kernels_read, of_sink
from flashlib.kernels.triton.backward import flash_bwd_dkdv_kernel, flash_bwd_dq_kernel
from flashlib.kernels.triton.forward import flash_fwd_kernel
from flashlib.kernels.tuning import store

Q, K, V, O, DO, DQ, DK, DV = range(8)                  # places in a problem's layout
UNPACKED = (None, None)                                     # no sequence begins anywhere but at 0
FACTORS = "CU_Q", "CU_K", "scale", "scale_log2", "softcap_log2", "ALIBI"   # of the backward's kernels
# What a kernel takes as one constexpr, if it has one of that name.
GROUPS = {"BLOCKS": ("BLOCK_M", "BLOCK_N", "HEAD_DIM"),
          "FLAGS": ("IS_CAUSAL", "EVEN_D", "RAGGED", "USE_TMA", "ALIBI_DIMS", "INTO"),
          "DIMS": ("ALIBI_DIMS", "SINK_DIMS")}
# What tuning tries. In float32, and before Ampere, operands wait in registers.
ROWS, KEYS, WARPS, STAGES, MOST_ACCUMULATORS = (16, 32, 64, 128), (32, 64, 128), (4, 8), (2, 3, 4), 256
SMALL_SIZES, SMALL_STAGES, SMALL_ACCUMULATORS = (16, 32, 64), (1, 2), 64


def interpreted() -> bool:
    """Tell whether Triton runs in its interpreter, which works on CPU tensors."""
    return bool(knobs.runtime.interpret)


def describe(x: torch.Tensor, block: list[int]) -> TensorDescriptor:
    """Return a descriptor; where an axis has a length of 1, its stride may be anything."""
    shape = list(x.shape)
    strides = [stride if size > 1 else 16 for size, stride in zip(shape, x.stride(), strict=True)]
    return TensorDescriptor(x, shape, [*strides[:3], 1], block)


def _tiles(p: Problem, N: int, rows: int) -> int:
    """Return how many tiles a head has: the kernels' `tiles_of`."""
    return -(-N // rows) if p.sequences is None else N // rows + p.sequences + 1


class Triton:
    """The backend as `flashlib.kernels.backends` knows it."""

    name = "triton"

    def refusal(self, p: Problem, direction: str) -> str | None:
        """Return why the kernels cannot run, or None."""
        if p.device.type not in ("cpu", "cuda"):
            return f"impl: 'triton' expected CUDA tensors, got {p.device.type}: use impl='reference'"
        if p.device.type == "cuda":
            return None
        if not interpreted():
            return ("impl: 'triton' on CPU tensors needs Triton's interpreter: set TRITON_INTERPRET=1"
                    " before Python starts, or use impl='reference'")
        if p.dtype not in (torch.float32, torch.float16):
            return (f"impl: Triton's interpreter is wrong for {p.dtype}: expected float32 or float16,"
                    " or use impl='reference'")
        return None

    def table(self, p: Problem, direction: str) -> Any:
        """Return the table's entry: a `TritonConfig`, for a backward `TritonConfigs`."""
        itemsize = 4 if p.narrow else p.dtype.itemsize
        cut = p.causal or p.sequences is not None           # whether masks cut tiles
        # Softcap and slopes take registers; the smaller tiles of a mask have them to spare.
        smaller = cut or p.scores.softcap or p.scores.alibi > 0
        found = configs.configs_for(p.device.capability, itemsize, p.D, smaller)
        return found.forward if direction == "forward" else found

    def config(self, p: Problem, direction: str):
        """Return what tuning found, or the table's entry."""
        return store.result_for(self, p, direction) or self.table(p, direction)

    def copies(self, p: Problem, direction: str) -> Any:
        """Tell whether the copy engine reads what the kernels walk."""
        if direction == "forward":
            return p.copyable(Q, K, V)
        # ptxas 12.8 crashes on dK and dV where descriptors meet a length of 1, which Triton folds in.
        return min(p.N_Q, p.N_K) > 1 and p.copyable(Q, DO), p.copyable(K, V)

    def plan(self, p: Problem, direction: str, config, has_dlse: bool = False) -> dict[str, plans.Plan]:
        """Return the plan of a forward, or those of the parts of a backward.

        `has_dlse` only tells plans apart: a kernel to which DLSE is None is compiled without it. So are
        the kernel of dK alone, to which DV is None, and that of dV alone.
        """
        if p.narrow:
            p = p.widened()
        if direction == "forward":
            return {"forward": self._forward(p, config)}
        parts = {"dkdv": config.dkdv} if config.dkdv else {"dk": config.dk, "dv": config.dv}
        return {"delta": delta_plan(p), **{part: self._by_key(p, c) for part, c in parts.items()},
                "dq": self._by_query(p, config.dq)}

    def _plan(self, kernel, tensors, p, c, tma, walked, strides, ragged, programs):
        """Return a plan; `walked` tensors come as descriptors where the copy engine reads them."""
        dims = {f"{name}_DIMS": getattr(p.scores, name.lower()) for name in ("ALIBI", "SINK")
                if name in tensors}
        return plans.Plan(
            kernel, tensors,
            {"BLOCK_M": c.BLOCK_M, "BLOCK_N": c.BLOCK_N, "HEAD_DIM": p.head_dim, "IS_CAUSAL": p.causal,
             "EVEN_D": p.head_dim == p.D, "USE_TMA": tma, "INTO": p.into, **dims},
            lambda p: {**strides(p), "sizes": (p.H, p.H // p.H_K, p.N_Q, p.N_K, p.D),
                       "window": p.sides, "sequences": p.sequences,
                       "RAGGED": p.sequences is not None or ragged(p)},
            programs, {"num_warps": c.num_warps, "num_stages": c.num_stages},
            {name: [1, 1, rows, p.head_dim] for name, rows in walked.items() if tma}, describe,
            grouped={group: GROUPS[group] for group in kernel.arg_names if group in GROUPS})

    def _forward(self, p: Problem, c) -> plans.Plan:
        return self._plan(
            flash_fwd_kernel,
            ("Q", "K", "V", "O", "LSE", "CU_Q", "CU_K", "scale_log2", "softcap_log2", "ALIBI", "SINK"),
            p, c,
            self.copies(p, "forward"), {"Q": c.BLOCK_M, "K": c.BLOCK_N, "V": c.BLOCK_N},
            lambda p: _strides(p, Q=Q, K=K, V=V) | {"stride_o": p.written_strides(O, Q)},
            lambda p: p.N_K % c.BLOCK_N != 0, lambda p: _tiles(p, p.N_Q, c.BLOCK_M) * p.B * p.H)

    def _by_key(self, p: Problem, c) -> plans.Plan:
        return self._plan(
            flash_bwd_dkdv_kernel,
            ("Q", "K", "V", "DO", "LSE", "DELTA", "DK", "DV", *FACTORS), p, c,
            self.copies(p, "backward")[0], {"Q": c.BLOCK_M, "DO": c.BLOCK_M},
            lambda p: _strides(p, Q=Q, K=K, V=V, DO=DO) | {
                "stride_dk": p.written_strides(DK, K), "stride_dv": p.written_strides(DV, V)},
            lambda p: p.N_Q % c.BLOCK_M != 0 or p.N_K % c.BLOCK_N != 0,
            lambda p: _tiles(p, p.N_K, c.BLOCK_N) * p.B * p.H_K)

    def _by_query(self, p: Problem, c) -> plans.Plan:
        return self._plan(
            flash_bwd_dq_kernel, ("Q", "K", "V", "DO", "LSE", "DELTA", "DQ", *FACTORS), p, c,
            self.copies(p, "backward")[1], {"K": c.BLOCK_N, "V": c.BLOCK_N},
            lambda p: _strides(p, Q=Q, K=K, V=V, DO=DO) | {"stride_dq": p.written_strides(DQ, Q)},
            lambda p: p.N_K % c.BLOCK_N != 0, lambda p: _tiles(p, p.N_Q, c.BLOCK_M) * p.B * p.H)

    def forward(self, q, k, v, p: Problem, scale: float, config=None, *, scores: Scores = NONE,
                cu=UNPACKED, into=None):
        """Return O, like q but contiguous, and lse (B, H, N_Q) float32; or `into`, with more keys.

        `cu` are where packed sequences begin in q, and in k and v; see `flash_fwd_kernel`.
        """
        if p.narrow:
            dtype, q, k, v = q.dtype, q.float(), k.float(), v.float()
            wide = _wide(p, q, k, v, *((into or ())[:1]))
            o, lse = self.forward(q, k, v, wide, scale, config, scores=scores, cu=cu, into=into)
            return into or (o.to(dtype), lse)
        launch = plans.launches_for(self, p, "forward", config)["forward"]
        o, lse = into or (_new(p, q), torch.empty((p.B, p.H, p.N_Q), dtype=torch.float32,
                                                  device=q.device))
        launch(q, k, v, o, lse, *cu, scale * LOG2E, *as_kernels_read(scores))
        return o, lse

    def backward(self, q, k, v, o, lse, do, dlse, p: Problem, scale: float, config=None, *,
                 scores: Scores = NONE, cu=UNPACKED, into=None):
        """Return dq, dk, dv, contiguous, in the dtype of their tensors; dlse may be None.

        Or add to `into`, and return that; then o is delta, (B, H, N_Q).
        """
        if p.narrow:
            q, k, v, o, do = (x.float() for x in (q, k, v, o, do))
            wide = _wide(p, q, k, v, do if into else o, do, *(into or ()))
            *found, = self.backward(q, k, v, o, lse, do, dlse, wide, scale, config, scores=scores,
                                    cu=cu, into=into)
            return into or (*(x.to(p.dtype) for x in found[:3]), *found[3:])
        lse = statistics(lse)
        dlse = None if dlse is None else statistics(dlse)
        launches = plans.launches_for(self, p, "backward", config, dlse is not None)
        dq, dk, dv = into or (_new(p, x) for x in (q, k, v))
        sums = statistics(o) if into else torch.empty_like(lse)
        if not into:
            launches["delta"](o, do, dlse, sums)
        factors = *cu, scale, scale * LOG2E, *as_kernels_read(scores)[:2]
        for part, written in (("dkdv", (dk, dv)), ("dk", (dk, None)), ("dv", (None, dv))):
            if part in launches:
                launches[part](q, k, v, do, lse, sums, *written, *factors)
        launches["dq"](q, k, v, do, lse, sums, dq, *factors)
        return dq, dk, dv, *of_sink(scores, lse, sums)

    def candidates(self, p: Problem, direction: str) -> dict[str, list]:
        """Return what tuning tries beside the table's entry, by the part of `TritonConfigs`."""
        small = p.dtype.itemsize == 4 or (p.device.capability or (8, 0)) < (8, 0)
        table = configs.configs_for(p.device.capability, p.dtype.itemsize, p.D, p.causal)
        if direction == "forward":
            sizes = ((_fitting(SMALL_SIZES, p.N_Q), _fitting(SMALL_SIZES, p.N_K), WARPS, SMALL_STAGES,
                      SMALL_ACCUMULATORS) if small else
                     (_fitting(ROWS, p.N_Q)[-2:], _fitting(KEYS, p.N_K), WARPS, STAGES,
                      MOST_ACCUMULATORS))
            return {"": configs.candidates(p.head_dim, *sizes)}
        stages, most = (SMALL_STAGES, SMALL_ACCUMULATORS) if small else (STAGES[:2], MOST_ACCUMULATORS)
        rows, keys = (SMALL_SIZES, SMALL_SIZES) if small else ((32, 64), (64, 128))
        found = {}
        for part in ("dkdv",) if table.dkdv else ("dk", "dv"):       # keys stay and queries go by
            width = 2 * p.head_dim if table.dkdv else p.head_dim
            found[part] = [c._replace(BLOCK_M=c.BLOCK_N, BLOCK_N=c.BLOCK_M) for c in configs.candidates(
                width, _fitting(keys, p.N_K), _fitting(rows, p.N_Q), WARPS, stages, most)]
        rows, keys = (SMALL_SIZES, SMALL_SIZES) if small else ((64, 128), (32, 64))
        found["dq"] = configs.candidates(p.head_dim, _fitting(rows, p.N_Q), _fitting(keys, p.N_K),
                                         WARPS, stages, most)
        return found


def _new(p: Problem, x: torch.Tensor) -> torch.Tensor:
    """Return a new tensor like one of the problem's, contiguous as `Problem.new_strides` says."""
    if p.sequences is None:
        return torch.empty_like(x, memory_format=torch.contiguous_format)
    return x.new_empty((*x.shape[2:0:-1], x.shape[3])).transpose(0, 1)[None]


def _wide(p: Problem, *tensors) -> Problem:
    """Return the problem of the same tensors in float32."""
    return Problem.of(*tensors, window=p.window, scores=p.scores, sequences=p.sequences, into=p.into)


def _strides(p: Problem, **places: int) -> dict[str, tuple[int, ...]]:
    """Return the strides of a problem's tensors by the names of the kernels' signatures."""
    return {f"stride_{name.lower()}": p.layout[at].strides for name, at in places.items()}


def _fitting(sizes, N):
    """Return the tile heights that N rows fill by more than half, or the smallest."""
    return [size for size in sizes if size < 2 * N] or sizes[:1]


BACKEND = Triton()
