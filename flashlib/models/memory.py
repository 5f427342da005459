"""What training must keep between the forward and the backward pass of attention, in bytes.

Not traffic: this is how much memory is occupied while a network's other layers run. Taught in
notebook 07.
"""

from flashlib.arguments import check_block, check_choice, check_flag
from flashlib.machine import Machine
from flashlib.models.blocks import largest

ALGORITHMS = ("standard", "flash_v1", "flash_v2")


def saved_bytes(algorithm: str, *, Nq: int, Nk: int, d: int, heads: int = 1, logits: bool = False,
                dropout: bool = False, element_bytes: int = 2,
                stats_bytes: int = 4) -> dict[str, int]:
    """Return the bytes that `algorithm` keeps for its backward pass, by tensor.

    Args:
        algorithm: "standard" keeps Q, K, V and P; "flash_v1" Q, K, V, O, m and l; "flash_v2"
            Q, K, V, O and lse.
        Nq, Nk, d: queries, keys, head dimension.
        heads: how many of them, over all layers and the batch.
        logits: standard attention keeps S, too, as the FlashAttention paper counts it.
        dropout: standard attention keeps the mask, one byte a weight, and Z, the weights after it;
            FlashAttention keeps the seed of a random generator, a few bytes in all, and draws the
            mask again.
        element_bytes, stats_bytes: sizes of an element, and of an element of m, l or lse.

    O is counted where the backward pass of attention reads it. The next layer keeps O as its own
    input in every case, so that standard attention does not avoid it either.
    """
    check_choice("algorithm", algorithm, ALGORITHMS)
    check_flag("logits", logits)
    check_flag("dropout", dropout)
    for name, size, least in (("Nq", Nq, 0), ("Nk", Nk, 0), ("d", d, 1), ("heads", heads, 1),
                              ("element_bytes", element_bytes, 1), ("stats_bytes", stats_bytes, 1)):
        check_block(name, size, least=least)
    rows, keys, weights = element_bytes * Nq * d, element_bytes * Nk * d, Nq * Nk
    saved = {"Q": rows, "K": keys, "V": keys}
    if algorithm == "standard":
        if logits:
            saved["S"] = element_bytes * weights
        saved["P"] = element_bytes * weights
        if dropout:
            saved |= {"keep": Machine.mask_bytes * weights, "Z": element_bytes * weights}
    else:
        statistics = ("m", "l") if algorithm == "flash_v1" else ("lse",)
        saved |= {"O": rows, **dict.fromkeys(statistics, stats_bytes * Nq)}
    return {name: heads * size for name, size in saved.items()}


def longest_sequence(algorithm: str, capacity_bytes: int, **options) -> int:
    """Return the largest N = Nq = Nk whose saved tensors fit into `capacity_bytes`, 0 if none does.

    `options` are those of `saved_bytes`, except Nq and Nk.
    """
    check_block("capacity_bytes", capacity_bytes, least=0)

    def fits(N):
        return sum(saved_bytes(algorithm, Nq=N, Nk=N, **options).values()) <= capacity_bytes

    return largest(fits)
