"""Tiles that are not square, which the interpreter's own table has none of."""

from __future__ import annotations

import math
from unittest import mock

import torch

from flashlib.kernels import configs, flash_attention
from tests.kernels.behaviours import close
from tests.kernels.problems import Problem, Shape, dense, problem, solve

OBLONG = ((16, 32), (32, 16))                               # rows of Q, rows of K
# Lengths that one side of such a tile divides and the other does not; no other check has them.
LENGTHS = ((48, 48), (64, 48), (48, 64))


def check_oblong(M, N):
    """O, lse and all gradients, with the table's entry replaced by tiles of M query and N key rows."""
    table = configs.FLOAT32[32]
    tile, D = {"BLOCK_M": M, "BLOCK_N": N}, 16 + M // 4
    oblong = table._replace(forward=table.forward._replace(**tile), dkdv=table.dkdv._replace(**tile),
                            dq=table.dq._replace(**tile))
    with mock.patch.dict(configs.FLOAT32, {32: oblong}):
        for Nq, Nk in LENGTHS:
            for causal in (False, True):                    # a D of its own: what is kept is not shared
                given = problem(Shape(1, 1, 1, Nq, Nk, D, causal))
                inside = (torch.cat((x.flatten(), x.new_full((8192,), math.nan)))[:x.numel()]
                          .view(x.shape) for x in given[:4])            # NaN behind the end
                close(solve(Problem(*inside, *given[4:]), flash_attention, impl="triton"), dense(given),
                      torch.float32, f"{Nq}×{Nk}")
