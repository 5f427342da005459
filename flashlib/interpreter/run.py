"""Run a kernel's own Python source with other meanings of its names, one program after another."""

import functools
import types
from dataclasses import dataclass, field

import torch
from triton.experimental.gluon import language as gl
from triton.runtime.jit import JITFunction

from flashlib.interpreter.language import Language
from flashlib.interpreter.memory import Barrier, View
from flashlib.interpreter.tasks import Hazard, Program
from flashlib.interpreter.values import argument

GLUON = "triton.experimental.gluon.language"                # and its `mbarrier`, `tma`


@dataclass
class Run:
    """What a run did: the events of each program, and totals over all.

    `counts`: "loaded x", "stored x" in bytes that the copy engine moved for each descriptor; "flops" of
    products; "operand bytes" that they read from shared memory; "exponentials".
    """

    order: str | int
    events: list = field(default_factory=list)
    counts: dict = field(default_factory=dict)


class Translator:
    """Kernels' names as one program means them; what is translated is kept."""

    def __init__(self, program, meanings):
        self.language, self.kept = Language(program, meanings), {}

    def __call__(self, value):
        """Return what a global of a kernel's module is here."""
        if id(value) not in self.kept:
            self.kept[id(value)] = value, self._made(value)
        return self.kept[id(value)][1]

    def _made(self, value):
        if isinstance(value, gl.constexpr):
            return value.value
        if isinstance(value, types.ModuleType):
            return self.language if value.__name__.startswith(GLUON) else value
        if isinstance(value, JITFunction):
            theirs = value.fn.__module__.startswith("triton.")          # as gl.cdiv
            return getattr(self.language, value.fn.__name__) if theirs else self.function(value.fn)
        if hasattr(value, "hash_attrs"):
            init = value.hash_attrs[0]                      # of an aggregate's fields
            return functools.partial(Fields, getattr(init, "fn", init))
        if type(value).__name__ == "ConstexprFunction":
            return value.fn
        if isinstance(value, types.FunctionType) and getattr(value, "__triton_builtin__", False):
            return getattr(self.language, value.__name__)
        return value

    def function(self, fn):
        """Return a Python function with the same code and our meanings of its names."""
        known = {name: self(fn.__globals__[name]) for name in _names(fn.__code__)
                 if name in fn.__globals__}
        made = types.FunctionType(fn.__code__, known, fn.__name__, fn.__defaults__, fn.__closure__)
        made.__kwdefaults__ = fn.__kwdefaults__
        return made


class Fields:
    """An aggregate's fields; memory that is put in is called by the field's name."""

    def __init__(self, init, *values):
        init(self, *values)

    def __setattr__(self, name, value):
        value = value.value if isinstance(value, gl.constexpr) else value
        if isinstance(value, View | Barrier):
            value.buffer.name = name
        object.__setattr__(self, name, value)


def _names(code) -> set:
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return {*code.co_names}.union(*map(_names, inner))


def run(kernel, grid: int, arguments: dict, *, order: str | int = "late", num_warps: int = 4,
        meanings=lambda asm: None) -> Run:
    """Run a Gluon kernel on CPU tensors, which it writes in place.

    Args:
        kernel: a function under `@gluon.jit`, or one that could be.
        grid: how many programs.
        arguments: name → tensor, Gluon `TensorDescriptor` of a tensor, number, or constexpr's value.
        order: "late", "early", or an integer from which the order is drawn.
        num_warps: of the program, or of the first partition.
        meanings: a function from the text of inline assembly to a function of (program, arrays) that
            returns an array, or several; or to None.

    Raises:
        Hazard: the kernel would be wrong, or never end; or it uses what the interpreter does not know.
    """
    found = Run(order)
    seen = {name: argument(name, x) for name, x in arguments.items()}
    for pid in range(grid):
        program = Program(order, (pid, grid), found.counts, num_warps)
        here = Translator(program, meanings).function(getattr(kernel, "fn", kernel))
        program.run(functools.partial(here, **seen))
        found.events.append(program.events)
    return found


def orders(kernel, grid: int, arguments: dict, written: tuple, seeds=(0, 1, 2), **options) -> list[Run]:
    """Run a kernel late, early and in drawn orders: Hazard unless all give `written` the same bits."""
    runs, first = [], {}
    for order in ("late", "early", *seeds):
        runs.append(run(kernel, grid, arguments, order=order, **options))
        for name in written:
            bits = getattr(arguments[name], "base", arguments[name]).detach().clone()
            if not torch.equal(first.setdefault(name, bits).view(torch.uint8), bits.view(torch.uint8)):
                raise Hazard(f"{name} has other bits in order {order!r} than in order 'late'")
    return runs


class Interpreted:
    """A kernel that runs here when it is launched as Triton launches: kernel[grid](…)."""

    def __init__(self, kernel, meanings, order: str | int = "late"):
        self.kernel, self.meanings, self.order = kernel, meanings, order
        self.arg_names, self.fn, self.last = kernel.arg_names, kernel.fn, None

    def __getitem__(self, grid):
        def launch(*values, num_warps=4, **_options):
            arguments = dict(zip(self.arg_names, values, strict=True))
            self.last = run(self.kernel, grid[0], arguments, order=self.order, num_warps=num_warps,
                            meanings=self.meanings)
        return launch
