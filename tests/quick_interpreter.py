"""Triton's interpreter without what it does over and over: the same operations on the same numbers.

At every call of a device function it looks through its whole language for what to replace; at every
operation it builds a table of dtypes, and describes a block's type and shape anew. `quicken` has it do
each once. For processes that do nothing but interpret: the language stays replaced.
"""

from __future__ import annotations

import types


def quicken():
    """Have the interpreter of this process keep what it finds out."""
    from triton.language import core
    from triton.runtime import interpreter

    patch, np_dtype = interpreter._patch_lang, interpreter._get_np_dtype
    describe = core.block_type.__init__
    patched, dtypes, blocks = {}, {}, {}
    nothing = types.SimpleNamespace(restore=lambda: None)
    scalar = core.tuple([]), core.constexpr(1)              # a tensor's shape and how many elements

    def patch_once(fn):
        if id(fn.__globals__) not in patched:
            patched[id(fn.__globals__)] = fn.__globals__    # kept, so that no other gets its number
            patch(fn)
        return nothing

    def dtype_of(dtype):
        if dtype.name not in dtypes:
            dtypes[dtype.name] = np_dtype(dtype)
        return dtypes[dtype.name]

    def block_type(self, element_ty, shape):
        key = element_ty.name, *(n.value if isinstance(n, core.constexpr) else n for n in shape)
        if key not in blocks or type(element_ty) is not core.dtype:     # no pointer
            describe(self, element_ty, shape)
            shape = core.tuple([core.constexpr(n) for n in self.shape])
            self.wrapped, blocks[key] = (shape, core.constexpr(self.numel)), vars(self)
        vars(self).update(blocks[key])

    def tensor(self, handle, type):
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = type.wrapped if type.is_block() else scalar

    interpreter._patch_lang, interpreter._get_np_dtype = patch_once, dtype_of
    core.block_type.__init__, core.tensor.__init__ = block_type, tensor
