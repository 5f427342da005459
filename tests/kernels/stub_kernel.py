"""A kernel that only notes how it is launched, and plans of it."""

import types

import torch

from flashlib.kernels import plans
from flashlib.kernels.problem import Problem

META = {"elem_size": 2}


class Kernel:
    """What Triton makes of a kernel: it notes what is launched, and how."""

    function, packed_metadata = "function", "packed"

    def __init__(self, metas, *names, odd=False):
        self.arg_names = names
        self.metadata = types.SimpleNamespace(tensordesc_meta=metas)
        self.seen, self.bound = [], []
        from triton.backends.nvidia.driver import wrap_handle_tensordesc

        def launcher(*args):
            self.seen.append(args)

        signature = {i: "tensordesc<fp16[1, 1]>" for i in range(len(metas or ()))}
        wrapped = wrap_handle_tensordesc(launcher, signature, metas)
        self.run = Run(len if odd else wrapped)             # a built-in function holds nothing

    def __getitem__(self, grid):
        def again(*args):
            self.bound.append((grid, args))

        def first(*args, **options):
            self.bound.append((grid, args, options))
            return Again()

        kernel = self

        class Again:
            run, metadata, name = kernel.run, kernel.metadata, "kernel"
            function, packed_metadata = kernel.function, kernel.packed_metadata

            def __getitem__(self, grid):
                return again

        return first


class Run:
    """The launcher of a compiled kernel, as Triton's: a call hands on to `launch`."""

    def __init__(self, launch):
        self.launch = launch

    def __call__(self, *args):
        self.launch(*args)


def describe(x, block):
    return [x.data_ptr(), *x.shape]


def some_problem(N_K=16):
    q, k = torch.zeros(1, 1, 4, 16), torch.zeros(1, 1, N_K, 16)
    return Problem.of(q, k, k)


def plan_of(kernel, tensors=(), constants=None, described=(), **more):
    """Return a plan whose grid is the number of keys."""
    return plans.Plan(kernel, tensors, constants or {}, more.pop("sizes", lambda p: {}),
                      lambda p: p.N_K, more.pop("options", {}), {name: [1] for name in described},
                      describe, **more)
