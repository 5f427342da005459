"""Several arguments of a device function as one that has named fields, in Triton and in Gluon.

An aggregate is gone when a kernel has been compiled: its fields are the values that were put in.
"""

import triton
from triton.language.core import _aggregate as aggregate
from triton.language.core import base_value, constexpr


def fields(*names):
    """Make a class an aggregate with these fields, given in this order.

    What is no value of the kernel's own, such as a number or None, becomes a constexpr. Triton's cache
    does not see it if these names change places: then empty it.
    """
    names = " ".join(names).split()

    def made(cls):
        @triton.constexpr_function
        def __init__(self, *values):
            for name, value in zip(names, values, strict=True):
                setattr(self, name, value if isinstance(value, base_value) else constexpr(value))

        cls.__init__, cls.__annotations__ = __init__, dict.fromkeys(names, base_value)
        return aggregate(cls)
    return made
