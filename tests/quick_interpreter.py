"""Triton's interpreter without what it does over and over: the same operations on the same numbers.

At every call of a device function it looks through its whole language for what to replace; at every
operation it builds a table of dtypes, describes a block's type and shape anew, and asks which type two
operands of one type have in common. `quicken` has it do each once. Of every sum and product of whole
numbers it computes whether it overflows, and looks at the answer in its debug mode only: `quicken` has
it compute that there only. For processes that do nothing but interpret: the language stays replaced.
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
    _quicken_operators()


def _quicken_operators():
    """Pass over what two operands of one dtype, or of one shape, need no conversion for."""
    from triton.language import core, semantic

    Semantic = semantic.TritonSemantic
    sanitize, check = Semantic.binary_op_sanitize_overflow_impl, Semantic.binary_op_type_checking_impl
    broadcast, cast = Semantic.broadcast_impl_value, Semantic.cast
    equal, element = core.dtype.__eq__, core.block_type.with_element_ty
    whole, known = frozenset(core.dtype.SINT_TYPES + core.dtype.UINT_TYPES), {}

    def overflow(self, lhs, rhs, binary_op):
        if self.builder.options.debug:
            sanitize(self, lhs, rhs, binary_op)

    def operands(self, lhs, rhs, *allow, **options):
        if type(lhs) is type(rhs) is core.tensor and not options and len(allow) < 3:
            one = lhs.type.scalar
            if type(one) is core.dtype and one.name == rhs.type.scalar.name:
                return together(self, lhs, rhs)
        return check(self, lhs, rhs, *allow, **options)

    def together(self, lhs, rhs):
        a, b = lhs.type, rhs.type
        if a.is_block() and b.is_block():
            if a.shape is b.shape:
                return lhs, rhs
        elif not a.is_block() and not b.is_block():
            return lhs, rhs
        return broadcast(self, lhs, rhs)

    def converted(self, input, dst_ty, *rounding, **options):
        if input.type.scalar is dst_ty.scalar:
            return input
        return cast(self, input, dst_ty, *rounding, **options)

    def of_element(self, scalar_ty):
        if type(scalar_ty) is not core.dtype:               # a pointer
            return element(self, scalar_ty)
        key = scalar_ty.name, id(self.shape)
        if key not in known:
            known[key] = element(self, scalar_ty), self.shape   # kept, as `patched` keeps what it names
        return known[key][0]

    Semantic.binary_op_sanitize_overflow_impl = overflow
    Semantic.binary_op_type_checking_impl, Semantic.broadcast_impl_value = operands, together
    Semantic.cast, core.block_type.with_element_ty = converted, of_element
    core.dtype.__eq__ = lambda self, other: self is other or equal(self, other)
    core.dtype.is_int = lambda self: self.name in whole
