"""The kernels of chapter 12 with one line left out: what can be left out, and the module without it."""

import linecache
import types
from pathlib import Path

_PV = "acc = warpgroup_mma_wait(0, deps=[acc])\n"
_STORE = "store_tile(o_desc, [q_row + c * ROWS, 0], q)\n"
# What is left out of `attention_kernel`: its source, and what stands there instead.
LEFT_OUT = {
    "nothing": ("", ""),
    "the wait for a tile": ("    mbarrier.wait(full.index(i % SLOTS), i // SLOTS % 2)\n", ""),
    "the wait for a free slot": ("mbarrier.wait(empty.index(slot), parity ^ 1) ", "pass"),
    "giving slots back": ("mbarrier.arrive(ring[2].index(i % SLOTS))\n", "pass\n"),
    "half of the expected bytes": ("index(slot), desc.block_type.nbytes)",
                          "index(slot), desc.block_type.nbytes // 2)"),
    "the wait for P·V": (f"{_PV}        give_back(ring, 2 * j)\n",
                         f"{_PV.replace('(0', '(1')}        give_back(ring, 2 * j)\n"),
    "the fence before O leaves": (f"fence_async_shared()\n    {_STORE}", _STORE),
    "the wait for O": (f"{_STORE}    tma.store_wait(0)\n", _STORE),
}


def edited(old: str = "", new: str = "", *, slots: int = 4):
    """Return `kernels` anew as a module: one piece of its source replaced, and a ring of `slots`.

    Raises:
        ValueError: `old` does not stand there exactly once, or `slots` is not from 1 to 16.
    """
    source = Path(__file__).with_name("kernels.py").read_text(encoding="utf-8")
    if old and source.count(old) != 1:
        raise ValueError(f"old: expected a piece that stands once in the kernels, got {old!r}, which"
                         f" stands there {source.count(old)} times")
    if type(slots) is not int or not 1 <= slots <= 16:
        raise ValueError(f"slots: expected an integer from 1 to 16, got {slots!r}")
    source = source.replace("SLOTS = gl.constexpr(4)", f"SLOTS = gl.constexpr({slots})")
    source = source.replace(old, new) if old else source
    name = "edited/kernels.py"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)     # for Gluon to read
    module = types.ModuleType("flashlib.course.ch12.edited")
    exec(compile(source, name, "exec"), vars(module))
    return module
