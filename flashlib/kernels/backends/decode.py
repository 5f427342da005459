"""Few queries and many keys on any NVIDIA GPU, or in Triton's interpreter: the keys are shared out.

Keys are cut alike in any batch and on any number of SMs. What a program takes, one unit of keys or a
run of them, follows the number of programs that there would be, and changes no bit. The arguments were
checked; nothing here is public.
"""

from dataclasses import replace
from typing import Any

import torch

from flashlib.exp2 import LOG2E
from flashlib.kernels import configs, plans
from flashlib.kernels.backends import named
from flashlib.kernels.problem import Problem
from flashlib.kernels.scores import NONE, Scores, as_kernels_read
from flashlib.kernels.triton.decode import flash_decode_fwd_kernel, flash_decode_merge_kernel
from flashlib.kernels.tuning import store

Q, K, V = range(3)                                          # places in a problem's layout
MERGE_LANES = 8                                             # it decides bits
# Columns and warps of a program that merges, how many tiles of partial results it reads at a time, and
# how many programs per SM there may be of it.
MERGES = ((32, 2, 8, 2), (128, 1, 2, float("inf")))
FULL = 0.75                                                 # programs per SM from which runs are taken
DEEP, SHALLOW = 2, 3                                        # programs per SM: to here loads run ahead
# What tuning tries; units and runs stay, because the bits of the result depend on them.
KEYS, WARPS, STAGES = (32, 64, 128), (2, 4, 8), (2, 3, 4, 5)
# What the kernel takes as one constexpr.
GROUPS = {"BLOCKS": ("BLOCK_M", "BLOCK_N", "HEAD_DIM"),
          "FLAGS": ("IS_CAUSAL", "EVEN_D", "ALIBI_DIMS", "SINK_DIMS")}
# Without pages, and on Hopper with: rows, warps, stages, columns → registers, so that an SM fills up.
REGISTERS = ({(16, 4, 2, 128): 128}, {(16, 4, 2, 64): 128, (16, 4, 2, 128): 128, (32, 4, 3, 64): 128,
                                      (16, 4, 3, 64): 168, (16, 4, 3, 128): 168})
PDL_CAPABILITY = (9, 0)                                     # of the first GPUs that launch dependents


class Decode:
    """The backend as `flashlib.kernels.backends` knows it."""

    name = "decode"

    def refusal(self, p: Problem, direction: str) -> str | None:
        """Return why the kernels cannot run, or None."""
        if direction == "backward":
            return "impl: 'decode' has no backward: use impl='triton'"
        if p.sequences is not None:
            return "impl: 'decode' has no packed sequences: use impl='triton'"
        if p.into:
            return "impl: 'decode' folds keys into no state that is there: use impl='triton'"
        reason = named("triton").refusal(p, direction)
        return reason and reason.replace("'triton'", "'decode'")

    def table(self, p: Problem, direction: str) -> configs.DecodeConfig:
        """Return the table's entry."""
        itemsize = 4 if p.narrow else p.dtype.itemsize
        rows = p.N_Q * p.H // p.H_K
        return configs.decode_config_for(p.device.capability, itemsize, p.D, rows)

    def config(self, p: Problem, direction: str) -> configs.DecodeConfig:
        """Return what tuning found, or the table's entry."""
        return store.result_for(self, p, direction) or self.table(p, direction)

    def copies(self, p: Problem, direction: str) -> bool:
        """Return False: pages and lengths are not what the copy engine's descriptors describe."""
        return False

    def candidates(self, p: Problem, direction: str) -> dict[str, list]:
        """Return what tuning tries beside the table's entry."""
        table = self.table(p, direction)
        sizes = ((table.BLOCK_M,), KEYS, WARPS, STAGES)
        return {"": [configs.DecodeConfig(*c, *table[4:]) for c in
                     configs.candidates(p.head_dim, *sizes, most_registers=256)]}

    def plan(self, p: Problem, direction: str, config, units: int = 1, stages: int | None = None,
             page: int = 0, apart: tuple = (),
             merges: tuple[int, int, int] = MERGES[0][:3]) -> dict[str, plans.Plan]:
        """Return the plans of both kernels; the second is launched where there are several parts.

        `units` are those of a part; `stages`, those of the pipeline, are the configuration's unless
        given. `merges` is what `merges_of` returns. `apart` only tells plans apart: a kernel without
        LENGTHS is compiled without them, and one for a single query, which sees all, without a mask.
        """
        p, c = p.widened() if p.narrow else p, config
        sm = p.device.capability
        pdl = sm is not None and sm >= PDL_CAPABILITY
        common = {"IS_CAUSAL": p.causal and p.N_Q > 1, "PDL": pdl, "SINK_DIMS": p.scores.sink}
        options = {"launch_pdl": True} if pdl else {}
        stages = c.num_stages if stages is None else stages
        kind = c.BLOCK_M, c.num_warps, stages, p.head_dim
        most = REGISTERS[page > 0].get(kind) if (sm == (9, 0) if page else pdl) else None
        packed = {"maxnreg": most} if most else {}
        # Where a tile's keys lie on several pages, their look-up takes half of the pipeline's stages.
        stages = 2 * stages - 1 if page and page % c.BLOCK_N else stages

        def sizes(p):
            return {"sizes": (p.H_K, p.H // p.H_K, p.N_Q, p.N_K, p.D), "window": p.sides,
                    "PARTS": parts(p, c, units), "KEYS": c.KEYS}

        return {
            "decode": plans.Plan(
                flash_decode_fwd_kernel,
                ("Q", "K", "V", "O", "LSE", "LENGTHS", "TABLE", "scale_log2", "softcap_log2", "ALIBI",
                 "SINK"),
                {**common, "ALIBI_DIMS": p.scores.alibi, "UNITS": units, "BLOCK_M": c.BLOCK_M,
                 "BLOCK_N": c.BLOCK_N,
                 "HEAD_DIM": p.head_dim, "PAGE": page, "EVEN_D": p.head_dim == p.D},
                lambda p: {**sizes(p), "WHOLE": parts(p, c, units) == 1,
                           **{f"stride_{name}": p.layout[at].strides
                              for name, at in (("q", Q), ("k", K), ("v", V))}},
                lambda p: row_tiles(p, c) * parts(p, c, units) * p.B * p.H_K,
                {"num_warps": c.num_warps, "num_stages": stages, **options, **packed}, grouped=GROUPS),
            "merge": plans.Plan(
                flash_decode_merge_kernel, ("ACC", "STATISTICS", "O", "LSE", "LENGTHS", "SINK"),
                {**common, "UNITS": c.UNITS, "FOLDED": units, "LANES": MERGE_LANES,
                 "AHEAD": max(1, merges[2] * units // c.UNITS), "BLOCK_D": merges[0]},
                sizes, lambda p: p.B * p.H * p.N_Q * -(-p.D // merges[0]),
                {"num_warps": merges[1], **options})}

    def forward(self, q, k, v, p: Problem, scale: float, config=None, lengths=None, table=None,
                units=None, *, scores: Scores = NONE):
        """Return O, like q but contiguous, and lse (B, H, N_Q) float32.

        With a table, (B, N_K / page) int32, k and v are pages; lengths, (B,) int32, say how many keys
        count. Both are contiguous. `units` of a part: None is what fills the GPU.
        """
        if p.narrow:
            dtype, q, k, v = q.dtype, q.float(), k.float(), v.float()
            wide = problem_of(Problem.of(q, k, v, window=p.window, scores=p.scores), k, table)
            o, lse = self.forward(q, k, v, wide, scale, config, lengths, table, units, scores=scores)
            return o.to(dtype), lse
        page = 0 if table is None else k.shape[2]
        found = p.made.get(key := (config, units, page, lengths is None))
        if found is None:
            c: Any = config or self.config(p, "forward")
            units = units_of(p, c) if units is None else units
            stages = stages_of(p, c, units) if config is None else c.num_stages
            found = p.made[key] = parts(p, c, units), plans.launches_for(
                self, p, "forward", config, units, stages, page, (lengths is None, p.N_Q == 1),
                merges_of(p))
        many, launches = found
        o = torch.empty_like(q, memory_format=torch.contiguous_format)
        lse = torch.empty((p.B, p.H, p.N_Q), dtype=torch.float32, device=q.device)
        factor, of_heads = scale * LOG2E, as_kernels_read(scores)
        if many == 1:
            launches["decode"](q, k, v, o, lse, lengths, table, factor, *of_heads)
            return o, lse
        rows = p.B * many * p.H * p.N_Q
        acc = torch.empty((rows, p.D), dtype=torch.float32, device=q.device)
        statistics = torch.empty((rows, 2), dtype=torch.float32, device=q.device)
        launches["decode"](q, k, v, acc, statistics, lengths, table, factor, *of_heads[:2], None)
        launches["merge"](acc, statistics, o, lse, lengths, of_heads[2])
        return o, lse

    def backward(self, q, k, v, o, lse, do, dlse, p: Problem, scale: float, config=None, *,
                 scores: Scores = NONE) -> tuple:
        """Refuse: who asks for a gradient is given another backend."""
        raise NotImplementedError(self.refusal(p, "backward"))


def parts(p: Problem, c: configs.DecodeConfig, units: int) -> int:
    """Return into how many parts the keys are cut: by how many there is room for."""
    return -(-p.N_K // (c.KEYS * units))


def units_of(p: Problem, c: configs.DecodeConfig) -> int:
    """Return the units of a part: a run if there are programs enough, else one."""
    programs = row_tiles(p, c) * p.B * p.H_K * parts(p, c, c.UNITS)
    return c.UNITS if programs >= FULL * p.device.sms else 1


def stages_of(p: Problem, c: configs.DecodeConfig, units: int) -> int:
    """Return the stages of the pipeline: of few programs each has more memory; no bit changes."""
    programs = row_tiles(p, c) * p.B * p.H_K * parts(p, c, units)
    if p.dtype.itemsize > 2 or programs <= DEEP * p.device.sms:
        return c.num_stages
    least = min(c.num_stages, 3 if min(configs.DECODE_CUTS) < c.BLOCK_M else 2)
    return max(least, c.num_stages - (1 if programs <= SHALLOW * p.device.sms else 2))


def merges_of(p: Problem) -> tuple[int, int, int]:
    """Return columns, warps and tiles of a program that merges: few columns while programs are few."""
    columns, warps, tiles = next(
        kind for *kind, most in MERGES
        if p.B * p.H * p.N_Q * -(-p.D // kind[0]) <= most * p.device.sms)
    return min(p.head_dim, columns), warps, tiles


def row_tiles(p: Problem, c: configs.DecodeConfig) -> int:
    """Return how many tiles the packed rows of a key head fill."""
    return -(-p.N_Q * p.H // p.H_K // c.BLOCK_M)


def problem_of(p: Problem, k, table) -> Problem:
    """Return the problem with the room of a table, if there is one, for N_K; k are its pages."""
    if table is None:
        return p
    if (found := p.made.get(key := ("paged", table.shape[1]))) is None:
        found = p.made[key] = replace(p, N_K=table.shape[1] * k.shape[2])
    return found


BACKEND = Decode()
