"""What several GPUs move to share one attention, how long it takes, and when links hide behind it.

Closed forms; `ring_timeline` has the same in simulated time. Rates are inputs: the defaults are round
figures of ours and no measurements of several GPUs. Taught in notebook 16.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashlib.algorithms.layouts import block, check_layout
from flashlib.arguments import check_block, check_choice, check_flag, check_number

GRADIENT_BYTES = 4                 # of an element of dK and dV on their way, and of sums
BACKWARD_PASSES = 2.5              # five products of two matrices in place of two
FUSED_BYTES, EAGER_BYTES = 10, 38  # a merge moves for an element of O: one kernel, or torch's several
METHODS = ("ring", "gather", "ulysses")


@dataclass(frozen=True)
class Sharing:
    """A sequence of N tokens on P ranks: H query heads, Hk heads of keys and values, of d elements.

    layout, causal: as in `ring_attention`.  backward: the gradients, not the forward pass.
    """

    P: int
    N: int
    H: int = 32
    Hk: int = 8
    d: int = 128
    causal: bool = True
    layout: str = "zigzag"
    backward: bool = False
    element_bytes: int = 2

    def __post_init__(self):
        for name in ("P", "N", "H", "Hk", "d", "element_bytes"):
            check_block(name, getattr(self, name))
        check_flag("causal", self.causal)
        check_flag("backward", self.backward)
        check_layout(self.layout, self.P, self.N)
        if self.H % self.Hk:
            raise ValueError(f"H: expected a multiple of Hk, {self.Hk}, got {self.H}")

    @property
    def n(self) -> int:
        """Tokens of a rank."""
        return self.N // self.P

    @property
    def kv_bytes(self) -> int:
        """Bytes of one rank's keys and values, which one hop carries."""
        return 2 * self.n * self.Hk * self.d * self.element_bytes

    @property
    def dkv_bytes(self) -> int:
        """Bytes of the gradients of one rank's keys and values, in float32."""
        return 2 * self.n * self.Hk * self.d * GRADIENT_BYTES

    def pairs(self, rank: int, source: int) -> int:
        """Count the (query, key) pairs that a rank computes on the keys of another."""
        found = block(self.layout, rank, source, self.n, self.causal)
        if found is None:
            return 0
        rows, keys, masked = found
        rows, keys = rows.stop - rows.start, keys.stop - keys.start
        return rows * (rows + 1) // 2 if masked else rows * keys

    def work(self, rank: int, source: int) -> float:
        """Return the FLOPs that a rank computes on the keys of another, all heads."""
        return (BACKWARD_PASSES if self.backward else 1.0) * 4 * self.H * self.d * self.pairs(
            rank, source)


@dataclass(frozen=True)
class Rates:
    """What one GPU and one link do in a second, and what a merge and a call cost.

    Args:
        flops_per_s: of the attention of one GPU.  link_bytes_per_s: of one link, in one direction.
        memory_bytes_per_s: at which O is merged.  merge_bytes: moved for an element of it.
        call_s: of one call of attention.  hidden: whether links work while GPUs compute.
    """

    flops_per_s: float = 690e12
    link_bytes_per_s: float = 370e9
    memory_bytes_per_s: float = 4e12
    merge_bytes: float = FUSED_BYTES
    call_s: float = 40e-6
    hidden: bool = True

    def __post_init__(self):
        for name in ("flops_per_s", "link_bytes_per_s", "memory_bytes_per_s"):
            if check_number(name, getattr(self, name)) <= 0:
                raise ValueError(f"{name}: expected a number above 0, got {getattr(self, name)}")
        for name in ("merge_bytes", "call_s"):
            check_number(name, getattr(self, name), least=0)
        check_flag("hidden", self.hidden)


def hides_from(flops_per_s: float, link_bytes_per_s: float, H: int, Hk: int, *, zigzag: bool = True,
               backward: bool = False, element_bytes: int = 2) -> float:
    """Return from how many tokens a GPU on, N/P, a step of the ring hides its link.

    n = (Hk/H)·F/W for 16-bit elements and whole steps; a causal zigzag step has half the work and
    needs twice that. Free of d, of the batch and of P: the roofline with the link in place of HBM.
    """
    a_hop = element_bytes + (GRADIENT_BYTES if backward else 0)
    passes = BACKWARD_PASSES if backward else 1.0
    share = 0.5 if zigzag else 1.0
    return Hk * a_hop * flops_per_s / (2 * passes * share * H * link_bytes_per_s)


def traffic(s: Sharing, method: str = "ring") -> int:
    """Return the bytes that each rank sends, and as many as it receives.

    ring: (P − 1)·2·n·Hk·d elements; the backward pass that and P·2·n·Hk·d gradients in float32.
    gather: the same keys; backward (P − 1)·2·n·Hk·d gradients.  ulysses: (P − 1)/P of Q, K, V and O,
    backward twice that (they return, or their gradients do).
    """
    check_choice("method", method, METHODS)
    if method == "ulysses":
        once = (s.P - 1) * s.n * s.d * s.element_bytes * 2 * (s.H + s.Hk) // s.P
        return 2 * once if s.backward else once
    hops = s.P if method == "ring" and s.P > 1 else s.P - 1
    return (s.P - 1) * s.kv_bytes + (hops * s.dkv_bytes if s.backward else 0)


def tree_bytes(P: int, H: int, d: int) -> int:
    """Return the bytes that a rank sends to decode one token: O and lse of H heads in float32."""
    return (P - 1) * H * (d + 1) * 4


def memory(s: Sharing, method: str = "ring") -> int:
    """Return the bytes that a rank needs beyond its own shards of inputs and outputs.

    ring: two rooms for K and V, and O in float32, into which each block is folded; backward dQ in
    float32 instead, and three rooms for dK and dV. gather: K and V of all ranks, backward their
    gradients as well. ulysses: Q, K, V and O once more, backward their gradients as well.
    """
    check_choice("method", method, METHODS)
    own = s.n * s.H * s.d
    if method == "ring":
        return 2 * s.kv_bytes + GRADIENT_BYTES * own + (3 * s.dkv_bytes if s.backward else 0)
    if method == "gather":
        return s.P * (s.kv_bytes + (s.dkv_bytes if s.backward else 0))
    return (2 if s.backward else 1) * (2 * own * s.element_bytes + s.kv_bytes)


def step_seconds(s: Sharing, rates: Rates, rank: int, source: int) -> float:
    """Return the seconds of a rank's work on the keys of another, merging included."""
    found = block(s.layout, rank, source, s.n, s.causal)
    if found is None:
        return 0.0
    rows, work = found[0], s.work(rank, source)
    merged = s.H * s.d * (rows.stop - rows.start) * rates.merge_bytes
    if s.backward:                                         # dQ, and dK and dV of the block
        merged += 2 * s.Hk * s.d * s.n * rates.merge_bytes
    return work / rates.flops_per_s + merged / rates.memory_bytes_per_s + rates.call_s


def seconds(s: Sharing, rates: Rates | None = None, method: str = "ring") -> float:
    """Return how long the slowest rank takes, in closed form: the steps of a ring are in lockstep.

    A step lasts as long as its longest work or, where links are hidden, its link, whichever is more.
    """
    check_choice("method", method, METHODS)
    rates = rates or Rates()
    if method != "ring":
        whole = s.work(0, 0) / s.pairs(0, 0) * (s.N * (s.N + 1) / 2 if s.causal else s.N * s.N) / s.P
        return (whole / rates.flops_per_s + traffic(s, method) / rates.link_bytes_per_s
                + rates.call_s * (2 if method == "gather" and s.causal else 1))
    work = [max(step_seconds(s, rates, rank, (rank - step) % s.P) for rank in range(s.P))
            for step in range(s.P)]
    kv, dkv = s.kv_bytes / rates.link_bytes_per_s, s.dkv_bytes / rates.link_bytes_per_s
    total = 0.0
    for step, compute in enumerate(work):
        link = (kv if step + 1 < s.P else 0) + (dkv if s.backward and step else 0)
        total += max(compute, link) if rates.hidden else compute + link
    return total + (dkv if s.backward and s.P > 1 else 0)


def one_gpu_seconds(s: Sharing, rates: Rates | None = None) -> float:
    """Return how long one GPU takes for the whole sequence, at the same rate."""
    rates = rates or Rates()
    pairs = s.N * (s.N + 1) // 2 if s.causal else s.N * s.N
    return s.work(0, 0) / s.pairs(0, 0) * pairs / rates.flops_per_s + rates.call_s


def efficiency(s: Sharing, rates: Rates | None = None, method: str = "ring") -> float:
    """Return T₁/(P·T_P): the share of P GPUs' time that one GPU would have needed."""
    return one_gpu_seconds(s, rates) / (s.P * seconds(s, rates, method))


def balance(s: Sharing) -> float:
    """Return the mean work of a step over the largest: 1 where no rank waits for another.

    Causal and contiguous: about 1/(2 − 1/P).
    """
    steps = [[s.work(rank, (rank - step) % s.P) for rank in range(s.P)] for step in range(s.P)]
    return sum(map(sum, steps)) / (s.P * sum(map(max, steps)))
