"""What packed sequences cost, in closed form: a sum, because no tile holds rows of two of them."""

from collections.abc import Callable, Iterable

from flashlib.machine.traffic import Traffic


def packed(closed_form: Callable[..., Traffic], lengths: Iterable[tuple[int, int]], **sizes) -> Traffic:
    """Return what a closed form of `models.traffic` says of packed sequences together.

    Args:
        closed_form: that of one sequence, such as `traffic.flash_v2`.
        lengths: (Nq, Nk) of each sequence.
        sizes: all else that the closed form asks for.

    The SRAM's peak is the largest of any. Where sequences begin is read, too, and not counted: a few
    numbers a tile.
    """
    return sum((closed_form(Nq=Nq, Nk=Nk, **sizes) for Nq, Nk in lengths), Traffic())
