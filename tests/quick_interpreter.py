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

    def patch_attr(obj, name, member, builder, scope):
        def given(*args, **options):
            options["_semantic"] = interpreter.interpreter_semantic
            return member(*args, **options)
        scope.set_attr(obj, name, given)

    def block_type(self, element_ty, shape):
        sizes = shape.values if type(shape) is core.tuple else shape
        key = element_ty.name, *[n.value if type(n) is core.constexpr else n for n in sizes]
        if key not in blocks or type(element_ty) is not core.dtype:     # no pointer
            describe(self, element_ty, shape)
            shape = core.tuple([core.constexpr(n) for n in self.shape])
            self.wrapped, blocks[key] = (shape, core.constexpr(self.numel)), vars(self)
        vars(self).update(blocks[key])

    def tensor(self, handle, type):
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = type.wrapped if type.is_block() else scalar

    interpreter._patch_lang, interpreter._get_np_dtype = patch_once, dtype_of
    interpreter._patch_attr = patch_attr
    core.block_type.__init__, core.tensor.__init__ = block_type, tensor
    _quicken_operators()


def _quicken_operators():
    """Pass over what two operands of one dtype, or of one shape, need no conversion for."""
    from triton.language import core, semantic

    Semantic = semantic.TritonSemantic
    sanitize, check = Semantic.binary_op_sanitize_overflow_impl, Semantic.binary_op_type_checking_impl
    broadcast, cast = Semantic.broadcast_impl_value, Semantic.cast
    equal, element = core.dtype.__eq__, core.block_type.with_element_ty
    whole, known, numbers = frozenset(core.dtype.SINT_TYPES + core.dtype.UINT_TYPES), {}, {}

    def overflow(self, lhs, rhs, binary_op):
        if self.builder.options.debug:
            sanitize(self, lhs, rhs, binary_op)

    def operands(self, lhs, rhs, *allow, **options):
        if options or len(allow) > 2:
            return check(self, lhs, rhs, *allow, **options)
        if type(lhs) is type(rhs) is core.tensor:
            one = lhs.type.scalar
            if type(one) is core.dtype and one.name == rhs.type.scalar.name:
                return together(self, lhs, rhs)
        elif type(rhs) in (int, float) and type(lhs) is core.tensor and type(lhs.dtype) is core.dtype:
            return beside(self, lhs, rhs)
        elif type(lhs) in (int, float) and type(rhs) is core.tensor and type(rhs.dtype) is core.dtype:
            return beside(self, rhs, lhs)[::-1]
        return check(self, lhs, rhs, *allow)

    def beside(self, x, number):
        shape = x.shape if x.type.is_block() else None
        key = x.dtype.name, id(shape), type(number), number, number == 0 and str(number)    # −0.0
        if key not in numbers:
            same, made = check(self, x, number)
            if same is not x:
                return same, made
            numbers[key] = made, shape                      # kept, as `patched` keeps what it names
        return x, numbers[key][0]

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
