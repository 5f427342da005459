"""What one load of a warp costs: lines of HBM that it touches, passes that shared memory makes.

A warp is 32 threads that run one instruction together; a pattern is the 32 byte addresses that
they ask for. The rules are those of the CUDA C++ Programming Guide and its Best Practices Guide:
HBM comes in aligned lines of 128 bytes (in 32-byte sectors since compute capability 6.0), and
shared memory has 32 banks that deliver one 4-byte word a clock each. Taught in notebook 02.
"""

from collections import Counter
from collections.abc import Iterable

from flashlib.arguments import check_block

WARP, BANKS, WORD_BYTES = 32, 32, 4
LINE_BYTES, SECTOR_BYTES = 128, 32


def transactions(addresses: Iterable[int], line_bytes: int = LINE_BYTES) -> int:
    """Return how many aligned lines of `line_bytes` a load from HBM touches."""
    line_bytes = check_block("line_bytes", line_bytes)
    return len({address // line_bytes for address in _checked(addresses)})


def bank_passes(addresses: Iterable[int]) -> int:
    """Return how many passes a load from shared memory takes: the most words asked of one bank.

    Threads that ask for the same word share it, at no cost. 1 is free of conflicts, 32 the worst.
    """
    return max(words_by_bank(addresses).values(), default=0)


def words_by_bank(addresses: Iterable[int]) -> dict[int, int]:
    """Return how many different words a load asks of each bank, without banks that idle."""
    words = {address // WORD_BYTES for address in _checked(addresses)}
    return dict(Counter(word % BANKS for word in sorted(words)))


def _checked(addresses):
    return [check_block("addresses", address, least=0) for address in addresses]
