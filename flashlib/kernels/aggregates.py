"""Several arguments of a device function as one that has named fields, in Triton and in Gluon.

An aggregate is gone when a kernel has been compiled: its fields are the values that were put in.
"""

import triton
from triton.language.core import _aggregate as aggregate
from triton.language.core import constexpr


def constants(cls):
    """Make a class of annotated names an aggregate of constexprs, given in the order of the names."""

    @triton.constexpr_function
    def __init__(self, *values):
        for name, value in zip(cls.__annotations__, values, strict=True):
            setattr(self, name, constexpr(value))

    cls.__init__ = __init__
    return aggregate(cls)
