"""Several arguments of a device function as one that has named fields, in Triton and in Gluon.

An aggregate is gone when a kernel has been compiled: its fields are the values that were put in.
"""

import triton
from triton.language.core import _aggregate as aggregate
from triton.language.core import constexpr


def record(cls):
    """Make a class of annotated names an aggregate, made of values in the order of the names.

    What is annotated as a constexpr becomes one, and so does None.
    """

    @triton.constexpr_function
    def __init__(self, *values):
        for (name, kind), value in zip(cls.__annotations__.items(), values, strict=True):
            setattr(self, name, constexpr(value) if kind is constexpr or value is None else value)

    cls.__init__ = __init__
    return aggregate(cls)
