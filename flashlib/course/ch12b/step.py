"""What one visit of the fused backward takes of an SM: bytes of shared memory, and clocks of its units.

A step is 64 queries and 128 keys, in 16 bits, without a mask. A test holds the counts against the
kernel in the interpreter.
"""

from flashlib.models.sm import programs

STAGES = {32: 3, 64: 4, 128: 2, 256: 1}                     # query tiles in flight; at 256 the fewest
ROWS, KEYS, HALF, FULL = 64, 128, 2, 4                      # of tiles; bytes of an element


def rooms(d):
    """Return the bytes of shared memory of a program's tiles, by tensor."""
    stages = STAGES[d]
    return {"K, V": 2 * KEYS * d * HALF, "Q, dO": 2 * stages * ROWS * d * HALF,
            "dS": 2 * ROWS * KEYS * HALF, "dQ": 2 * ROWS * d * FULL,
            "lse, delta": 2 * stages * ROWS * FULL}


def counts(d):
    """Return what a step computes and moves: FLOPs, exponentials, and bytes by way."""
    if d > 64:                                              # K and V come from shared memory
        operands = 12 * ROWS * d * HALF + 4 * ROWS * ROWS * HALF + KEYS * d * HALF
    else:                                                   # they wait in registers
        operands = 8 * ROWS * d * HALF + ROWS * KEYS * HALF + (KEYS * d * HALF if d == 32 else 0)
    return {"flops": 5 * 2 * ROWS * KEYS * d, "exponentials": ROWS * KEYS, "operand bytes": operands,
            "loaded": 2 * ROWS * d * HALF + 2 * ROWS * FULL, "added": ROWS * d * FULL}


def clocks(d, gpu="H200"):
    """Return how many clocks of an SM each unit works in a step, at its best rate."""
    r, c = programs.rates(gpu), counts(d)
    shared = c["operand bytes"] + ROWS * KEYS * HALF + 2 * c["added"] + c["loaded"]
    return {"tensor cores": c["flops"] / r.matmul_flops, "shared memory": shared / r.shared_bytes,
            "exponentials": c["exponentials"] / r.exps}
