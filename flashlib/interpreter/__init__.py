"""Run Gluon kernels for Hopper on any CPU: the same source that the GPU compiles, step by step.

    found = run(kernel, grid, arguments, order="late")
    found.events, found.counts

Tensors are torch's, on the CPU, and are written in place. A kernel that would be wrong at some time on
some GPU raises `Hazard`, whose message names the line, the task and the memory: a read of what nobody
has waited for, a slot given back too early, a missing fence, a barrier that can never complete.
Asynchronous work takes effect as late as it may, as early, or when it is drawn; `orders` runs a kernel
in several of these and compares the bits.
"""

from flashlib.interpreter.run import Interpreted, Run, orders, run
from flashlib.interpreter.tasks import Event, Hazard

__all__ = ["Event", "Hazard", "Interpreted", "Run", "orders", "run"]
