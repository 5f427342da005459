"""The arithmetic of chapter 17: who is ahead and by how much, attention's share, what a share buys."""

from typing import NamedTuple

OURS = "ours"
# Named beside ours, but in no race: they are ours, or no attention, or promise other things.
ASIDE = ("ours", "ours_triton", "ours_auto", "ours_causal", "ours_page_16", "ours_page_64", "sum",
         "fa3_deterministic", "fa4_deterministic", "triton_tutorial")


class Lead(NamedTuple):
    """Our speed over the best other's at one shape: the median, and the range of the rounds."""

    shape: str
    ratio: float
    low: float
    high: float
    best: str


def leads(measurement, **equal):
    """Return a `Lead` for every shape of a recorded race, in the file's order."""
    cases: dict[tuple, dict] = {}
    for row in measurement.where(**equal).rows:
        key = tuple(row.get(name) for name in ("causal", "B", "H", "H_k", "N_q", "N_k", "d"))
        if row["seconds"]:
            cases.setdefault(key, {})[row["impl"]] = row
    found = []
    for key, rows in cases.items():
        others = {name: row for name, row in rows.items() if name not in ASIDE}
        best = min(others, key=lambda name: others[name]["seconds"])
        ours, other = rows[OURS], others[best]
        found.append(Lead(_words(key), other["seconds"] / ours["seconds"],
                          other["seconds_low"] / ours["seconds_high"],
                          other["seconds_high"] / ours["seconds_low"], best))
    return found


def _words(key):
    causal, B, H, H_k, N_q, N_k, d = key
    heads = f"{H}" if H_k == H else f"{H}/{H_k}"
    rows = f"{N_q:,}" if N_q == N_k else f"{N_q} on {N_k:,}"
    return f"{B} · {heads} · {rows} · {d}" + (" causal" if causal else "")


def attention_over_dense(N, C, rates=1.0):
    """Return causal attention's time over that of a layer's matrices.

    A token costs 2·N·C FLOPs in attention (half of N keys) and 24·C² in matrices of 12·C² weights.

    Args:
        rates: FLOP/s of the matrices over FLOP/s of attention.
    """
    return N / (12 * C) * rates


def share(N, C, rates=1.0):
    """Return attention's share of a layer's time."""
    over = attention_over_dense(N, C, rates)
    return over / (1 + over)


def speedup(part, faster):
    """Return how much faster the whole is if a part of it runs `faster` times as fast (Amdahl)."""
    return 1 / (1 - part + part / faster)


def part_behind(gain, faster):
    """Return which part of the time it must have been, if the whole gained so much."""
    return (1 - 1 / gain) / (1 - 1 / faster)


def parameters(L, C, kinds):
    """Return the weights of chapter 17's GPT."""
    return 12 * L * C * C + kinds * C


def saved_bytes(N, B, H, element_bytes=4, mask_bytes=1):
    """Return the bytes of N × N that standard attention keeps in one layer: P and the mask.

    The mask is shared by all heads and sequences.
    """
    return B * H * N * N * element_bytes + N * N * mask_bytes


def tokens_per_s(weight_bytes, kv_bytes, bytes_per_s):
    """Return the most tokens a second of one sequence: each reads all weights and its own cache."""
    return bytes_per_s / (weight_bytes + kv_bytes)


def step_s(dense_s, N, T, L, C, rates):
    """Return the seconds of a training step: the matrices', and attention's FLOPs over its two rates.

    Args:
        dense_s: a step without attention.  T: tokens of it.
        rates: FLOP/s of attention's forward and of its backward, by the customary count.
    """
    forward = T * L * 2 * N * C
    return dense_s + forward / rates[0] + 2.5 * forward / rates[1]


def by_length(steps, impl, what="seconds", compiled=1):
    """Return N → a column of the recorded steps of an implementation, where it ran."""
    rows = steps.where(impl=impl, compiled=compiled).rows
    return {row["N_q"]: row[what] for row in rows if row[what]}


def apart(losses, seed, step):
    """Return the largest difference between two attentions' recorded losses at a step of a seed."""
    found = losses.where(seed=seed, step=step).column("loss")
    return float(found.max() - found.min())
