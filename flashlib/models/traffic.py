"""Closed forms of what every algorithm moves and computes, equal to the machine's count to the byte.

They are sums over row tiles, and share no loop and no skipping code with the algorithms: that two
derivations meet is the point. One table of what counts stands in `machine/machine.py`;
the vector FLOPs per tile are these, for a tile of b rows and c keys:

    standard     scale bc, mask bc, max bc, subtract bc, sum bc, divide bc, accumulate bd
    flash_v1     scale, max, subtract, sum 4bc, mask bc, statistics 8b, output 4bd; bc + 2b exps
    flash_v2     scale, max, subtract, sum 4bc, mask bc, statistics 4b, output 2bd; bc + b exps;
                 once per row tile: 3b + bd
    flash_decode as v2; the merge 6b + 3bd and 2b exps per split that a row tile sees
    flash_v3     as v2; in FP8 rounding bc, statistics 5b, output 3bd and 1 for the scale on top;
                 once per row tile: 4b + bd + 1
    flash_v4     scale, max, subtract, times log₂e, sum 5bc, mask bc, statistics 6b, output bd;
                 if it rescales, statistics 4b, output bd, b exps; bc exps, of which an emulated one
                 is 2·degree + 6 vector FLOPs instead; once per row tile: 3b + bd

Masking is paid only on tiles that a mask cuts through. The tile of the outer loop is loaded even where
nobody sees it: in `flash_v1` and the backward pass a tile of keys beside every window, elsewhere one of
rows that see nothing. The sums and the algorithms share one definition of a mask, `Window.keys_of`,
and nothing that is built on it.
"""

import functools
from dataclasses import dataclass

import numpy as np

from flashlib.arguments import check_block, check_choice, check_flag, check_share
from flashlib.exp2 import vector_flops
from flashlib.machine.traffic import Traffic
from flashlib.masks import window_of

LENGTHS = ("Nq", "Nk", "rows", "n", "M", "N", "K", "rescaled_rows")         # these may be zero


def _checked(closed_form):
    """Refuse sizes that are not whole numbers, or too small, by name."""
    defaults = closed_form.__kwdefaults__

    @functools.wraps(closed_form)
    def checked(**sizes):
        for name, size in sizes.items():
            if name in ("causal", "dlse", "dropout", "fp8"):
                check_flag(name, size)
            elif name == "window":
                window_of(False, size)
            elif name == "order":
                check_choice(name, size, ("kv", "q"))
            elif name == "emulated_share":
                check_share(name, size)
            elif size is not None or defaults.get(name, 0) is not None:
                check_block(name, size, least=0 if name in LENGTHS else 1)
        return closed_form(**sizes)
    return checked


@dataclass(frozen=True)
class _Grid:
    """The tiles of an attention matrix, one entry per row tile.

    b: rows; visited: key tiles not skipped; keys: keys in them; full_keys: keys in unmasked tiles;
    c: keys in the largest visited tile; starts: visited tiles in which some row sees its first key.
    """

    b: np.ndarray
    visited: np.ndarray
    keys: np.ndarray
    full_keys: np.ndarray
    c: np.ndarray
    starts: np.ndarray

    @property
    def touched(self) -> int:
        """Rows, once per visited tile."""
        return int(np.sum(self.visited * self.b))

    @property
    def area(self) -> int:
        """Pairs of a row and a key in visited tiles."""
        return int(np.sum(self.b * self.keys))

    @property
    def masked(self) -> int:
        """Those of them in tiles that the mask cuts through."""
        return int(np.sum(self.b * (self.keys - self.full_keys)))


def _grid(Nq, Nk, Br, Bc, causal, window, group=1) -> _Grid:
    window, first = window_of(causal, window), np.arange(0, Nq * group, Br, dtype=np.int64)
    b = np.minimum(Br, Nq * group - first)
    top_from, top_to = window.keys_of(first // group, Nq, Nk)      # what a tile's first row sees
    last_from, last_to = window.keys_of((first + b - 1) // group, Nq, Nk)
    begin, visited = top_from // Bc, -(-last_to // Bc) - top_from // Bc
    keys = np.minimum((begin + visited) * Bc, Nk) - np.minimum(begin * Bc, Nk)
    full_to = np.where(top_to == Nk, Nk, top_to // Bc * Bc)
    full_keys = np.maximum(full_to - -(-last_from // Bc) * Bc, 0)
    starts = np.where(visited > 0, last_from // Bc - begin + 1, 0)
    return _Grid(b, visited, keys, full_keys, np.minimum(Bc, keys), starts)


def _moved(element_bytes, stats_bytes, **tensors):
    """Turn counts of elements read and written into bytes; a dropout mask has one byte an element."""
    sizes = {**dict.fromkeys(("m", "l", "lse", "delta", "dlse"), stats_bytes), "keep": 1}
    return {name: tuple(int(n) * sizes.get(name, element_bytes) for n in counts)
            for name, counts in tensors.items()}


@_checked
def flash_v1(*, Nq, Nk, d, Br, Bc, causal=False, window=None, element_bytes=2, stats_bytes=4,
             accumulator_bytes=4) -> Traffic:
    """Return what `flash_v1` costs: Q, O, m and l move once per visited tile, K and V once."""
    g = _grid(Nq, Nk, Br, Bc, causal, window)
    touched, area = g.touched, g.area
    row_bytes = d * accumulator_bytes + 2 * stats_bytes
    pair_peak = g.b * (d * element_bytes + row_bytes) + element_bytes * g.c * (2 * d + g.b)
    peak = max(max(g.b, default=0) * row_bytes, 2 * min(Bc, Nk) * d * element_bytes,
               max(pair_peak[g.visited > 0], default=0))
    by_tensor = _moved(element_bytes, stats_bytes, K=(Nk * d, 0), V=(Nk * d, 0), Q=(touched * d, 0),
                       O=(touched * d, (Nq + touched) * d), m=(touched, Nq + touched),
                       l=(touched, Nq + touched))
    return Traffic.of(by_tensor, 4 * area * d, 4 * area + g.masked + touched * (8 + 4 * d),
                      area + 2 * touched, peak)


@_checked
def flash_v2(*, Nq, Nk, d, Br, Bc, causal=False, window=None, element_bytes=2, stats_bytes=4,
             accumulator_bytes=4) -> Traffic:
    """Return what `flash_v2` costs: K and V move once per row tile, Q and O once."""
    g = _grid(Nq, Nk, Br, Bc, causal, window)
    touched, area, keys = g.touched, g.area, int(np.sum(g.keys))
    peak = g.b * (d * (element_bytes + accumulator_bytes) + 2 * stats_bytes)
    peak = peak + element_bytes * g.c * (2 * d + g.b)
    by_tensor = _moved(element_bytes, stats_bytes, Q=(Nq * d, 0), K=(keys * d, 0), V=(keys * d, 0),
                       O=(0, Nq * d), lse=(0, Nq))
    return Traffic.of(by_tensor, 4 * area * d,
                      4 * area + g.masked + touched * (4 + 2 * d) + Nq * (3 + d),
                      area + touched, max(peak, default=0))


@_checked
def flash_decode(*, Nq, Nk, d, Br, Bc, keys=None, group=1, causal=False, window=None, element_bytes=2,
                 stats_bytes=4, accumulator_bytes=4) -> Traffic:
    """Return what `flash_decode` costs: `flash_v2`, and every split's O, m and l written and read."""
    keys, e, s, a = 2 * Bc if keys is None else keys, element_bytes, stats_bytes, accumulator_bytes
    g, rows = _grid(Nq, Nk, Br, Bc, causal, window, group), Nq * group
    touched, area, walked, merged = g.touched, g.area, int(np.sum(g.keys)), Nk > keys
    splits = _grid(Nq, Nk, Br, keys, causal, window, group).visited if merged else np.ones_like(g.b)
    loaded = int(np.sum(splits * g.b))                     # rows, once per split that sees them
    by_tensor = _moved(e, s, Q=(loaded * d, 0), K=(walked * d, 0), V=(walked * d, 0),
                       O=(0, rows * d), lse=(0, rows))
    peak = (g.b * (d * (e + a) + 2 * s) + e * g.c * (2 * d + g.b)) * (splits > 0)
    vector = 4 * area + g.masked + touched * (4 + 2 * d) + rows * (3 + d)
    if merged:
        by_tensor |= {"parts": (loaded * d * a,) * 2, **dict.fromkeys("ml", (loaded * s,) * 2)}
        peak = np.maximum(peak, g.b * (d * a + 2 * s) * (1 + (splits > 0)))
    return Traffic.of(by_tensor, 4 * area * d, vector + merged * loaded * (6 + 3 * d),
                      area + touched + merged * 2 * loaded, max(peak, default=0))


@_checked
def flash_v4(*, Nq, Nk, d, Br, Bc, causal=False, window=None, exp2_degree=None, emulated_share=0.0,
             rescaled_rows=None, element_bytes=2, stats_bytes=4, accumulator_bytes=4) -> Traffic:
    """Return what `flash_v4` costs: the bytes of `flash_v2`, and arithmetic that the data decides.

    `rescaled_rows`: rows of the (row tile, key tile) steps that rescaled, summed; None for the
    fewest, those in which some row sees its first key. Without a left bound that is one a row tile.
    """
    g = _grid(Nq, Nk, Br, Bc, causal, window)
    touched, area, starts = g.touched, g.area, int(np.sum(g.starts * g.b))
    rescaled = starts if rescaled_rows is None else rescaled_rows
    if not starts <= rescaled <= touched:
        raise ValueError(f"rescaled_rows: expected {starts} to {touched}, got {rescaled}")
    if emulated_share and exp2_degree is None:
        raise ValueError("exp2_degree: expected a degree for emulated_share > 0, got None")
    whole, last = g.keys // Bc, g.keys % Bc
    emulated = int(np.sum(g.b * (whole * round(emulated_share * Bc) + np.rint(emulated_share * last))))
    software = emulated * vector_flops(exp2_degree) if exp2_degree else 0
    v2 = flash_v2(Nq=Nq, Nk=Nk, d=d, Br=Br, Bc=Bc, causal=causal, window=window,
                  element_bytes=element_bytes, stats_bytes=stats_bytes,
                  accumulator_bytes=accumulator_bytes)
    return Traffic.of(v2.by_tensor, v2.matmul_flops,
                      5 * area + g.masked + touched * (6 + d) + Nq * (3 + d)
                      + rescaled * (4 + d) + software, area - emulated + rescaled, v2.sram_peak_bytes)


@_checked
def flash_v3(*, Nq, Nk, d, Br, Bc, causal=False, window=None, fp8=False, element_bytes=2, stats_bytes=4,
             accumulator_bytes=4, half_bytes=2) -> Traffic:
    """Return what `flash_v3` costs: v2's bytes, or in FP8 those with a 16-bit O and scales.

    A tile of Q brings one scale, a tile of K and V two, whether blocks have their own or share one.
    """
    if not fp8:
        return flash_v2(Nq=Nq, Nk=Nk, d=d, Br=Br, Bc=Bc, causal=causal, window=window,
                        element_bytes=element_bytes, stats_bytes=stats_bytes,
                        accumulator_bytes=accumulator_bytes)
    g = _grid(Nq, Nk, Br, Bc, causal, window)
    rows, visits, keys = len(g.b), int(np.sum(g.visited)), int(np.sum(g.keys))
    touched, area = g.touched, g.area
    peak = g.b * (d * (element_bytes + accumulator_bytes) + 2 * stats_bytes) + stats_bytes
    peak = peak + element_bytes * g.c * (2 * d + g.b) + (g.visited > 0) * 2 * stats_bytes
    by_tensor = _moved(element_bytes, stats_bytes, Q=(Nq * d, 0), K=(keys * d, 0), V=(keys * d, 0),
                       lse=(0, Nq))
    by_tensor |= {"O": (0, Nq * d * half_bytes), "scale_Q": (rows * stats_bytes, 0),
                  "scale_K": (visits * stats_bytes, 0), "scale_V": (visits * stats_bytes, 0)}
    return Traffic.of(by_tensor, 4 * area * d,
                      5 * area + g.masked + touched * (5 + 3 * d) + visits + Nq * (4 + d) + rows,
                      area + touched, max(peak, default=0))


@_checked
def standard_attention(*, Nq, Nk, d, Br=None, Bc=None, causal=False, window=None, element_bytes=2,
                       stats_bytes=4, accumulator_bytes=4) -> Traffic:
    """Return what `standard_attention` costs: ideal without blocks, same-SRAM with both."""
    if (Br is None) != (Bc is None):
        raise ValueError(f"Br, Bc: expected both or neither, got Br={Br} and Bc={Bc}")
    ideal, Br, Bc = Br is None, Br or max(Nq, 1), Bc or max(Nk, 1)
    g = _grid(Nq, Nk, Br, Bc, causal, window)
    Tr, Tc, area = -(-Nq // Br), -(-Nk // Bc), Nq * Nk
    last_masked = int(np.sum(g.b * (Nk - g.full_keys)))
    r, c = min(Br, Nq), min(Bc, Nk)
    peak = max(element_bytes * (r * d + c * d + r * c),
               (Nq if ideal else 1) * (Nk * element_bytes + 2 * stats_bytes),
               accumulator_bytes * r * d + element_bytes * (r * c + c * d)) if Nq else 0
    by_tensor = _moved(element_bytes, stats_bytes, Q=(Nq * d, 0), K=(Tr * Nk * d, 0), S=(area, area),
                       P=(area, area), V=(Tr * Nk * d, 0), O=(0, Nq * d))
    statistics = 2 * Nq if Nk else 0
    return Traffic.of(by_tensor, 4 * area * d, 5 * area + last_masked + statistics + Nq * d * Tc,
                      area, peak)


def _pairs(Nq, Nk, causal, window) -> int:
    """Return how many pairs of a row and a key see each other."""
    first, stop = window_of(causal, window).keys_of(np.arange(Nq, dtype=np.int64), Nq, Nk)
    return int(np.sum(stop - first))


@_checked
def multi_pass_attention(*, Nq, Nk, d, causal=False, window=None, element_bytes=2, stats_bytes=4,
                         accumulator_bytes=4) -> Traffic:
    """Return what `multi_pass_attention` costs: for every row K twice and V once."""
    pairs = _pairs(Nq, Nk, causal, window)
    by_tensor = _moved(element_bytes, stats_bytes, Q=(Nq * d, 0), K=(2 * pairs * d, 0),
                       V=(pairs * d, 0), O=(0, Nq * d), lse=(0, Nq))
    row_peak = d * (element_bytes + accumulator_bytes) + 2 * stats_bytes
    peak = (row_peak + 2 * d * element_bytes * bool(pairs)) if Nq else 0
    return Traffic.of(by_tensor, 6 * pairs * d, pairs * (9 + d) + 3 * Nq, 3 * pairs, peak)


@_checked
def one_pass_attention(*, Nq, Nk, d, causal=False, window=None, element_bytes=2, stats_bytes=4,
                       accumulator_bytes=4) -> Traffic:
    """Return what `one_pass_attention` costs: for every row K once and V once."""
    pairs = _pairs(Nq, Nk, causal, window)
    by_tensor = _moved(element_bytes, stats_bytes, Q=(Nq * d, 0), K=(pairs * d, 0),
                       V=(pairs * d, 0), O=(0, Nq * d), lse=(0, Nq))
    row_peak = d * (element_bytes + accumulator_bytes) + 2 * stats_bytes
    peak = (row_peak + 2 * d * element_bytes * bool(pairs)) if Nq else 0
    return Traffic.of(by_tensor, 4 * pairs * d, pairs * (6 + 2 * d) + Nq * (3 + d), 2 * pairs, peak)


def _softmax(rows, n, passes, vector, exps, statistics, element_bytes, stats_bytes) -> Traffic:
    rows = rows if n else 0
    by_tensor = _moved(element_bytes, stats_bytes, x=(passes * rows * n, 0), y=(0, rows * n))
    return Traffic.of(by_tensor, 0, rows * (vector * n + 1), exps * rows * n,
                      rows * (element_bytes + statistics * stats_bytes))


@_checked
def naive_softmax(*, rows, n, element_bytes=2, stats_bytes=4) -> Traffic:
    """Return what `naive_softmax` costs on `rows` rows of n: 2 loads and 1 store an element."""
    return _softmax(rows, n, 2, 2, 2, 1, element_bytes, stats_bytes)


@_checked
def safe_softmax(*, rows, n, element_bytes=2, stats_bytes=4) -> Traffic:
    """Return what `safe_softmax` costs on `rows` rows of n: 3 loads and 1 store an element."""
    return _softmax(rows, n, 3, 5, 2, 2, element_bytes, stats_bytes)


@_checked
def online_softmax(*, rows, n, element_bytes=2, stats_bytes=4) -> Traffic:
    """Return what `online_softmax` costs on `rows` rows of n: 2 loads and 1 store an element."""
    return _softmax(rows, n, 2, 7, 3, 2, element_bytes, stats_bytes)


@_checked
def naive_matmul(*, M, N, K, element_bytes=2, accumulator_bytes=4) -> Traffic:
    """Return what `naive_matmul` costs: 2·M·N·K loads."""
    by_tensor = _moved(element_bytes, 0, A=(M * N * K, 0), B=(M * N * K, 0), C=(0, M * N))
    peak = (2 * K * element_bytes + accumulator_bytes) if M * N else 0
    return Traffic.of(by_tensor, 2 * M * N * K, 0, 0, peak)


@_checked
def tiled_matmul(*, M, N, K, Bm, Bn, Bk, element_bytes=2, accumulator_bytes=4) -> Traffic:
    """Return what `tiled_matmul` costs: A once per column of tiles, B once per row of tiles."""
    m, n, k = min(Bm, M), min(Bn, N), min(Bk, K)
    by_tensor = _moved(element_bytes, 0, A=(M * K * -(-N // Bn), 0), B=(K * N * -(-M // Bm), 0),
                       C=(0, M * N))
    peak = (m * n * accumulator_bytes + element_bytes * (m * k + k * n)) if M * N else 0
    return Traffic.of(by_tensor, 2 * M * N * K, M * N * -(-K // Bk), 0, peak)


@_checked
def unfused_matmuls(*, Nq, Nk, d, Br, Bc, element_bytes=2, accumulator_bytes=4) -> Traffic:
    """Return what `unfused_matmuls` costs: S goes out and comes back, K and V once per row tile."""
    r, c, Tr, Tc, area = min(Br, Nq), min(Bc, Nk), -(-Nq // Br), -(-Nk // Bc), Nq * Nk
    by_tensor = _moved(element_bytes, 0, Q=(Nq * d, 0), K=(Tr * Nk * d, 0), S=(area, area),
                       V=(Tr * Nk * d, 0), O=(0, Nq * d))
    peak = max(element_bytes * (r * d + c * d + r * c),
               accumulator_bytes * r * d + element_bytes * (r * c + c * d)) if Nq else 0
    return Traffic.of(by_tensor, 4 * area * d, Nq * d * Tc, 0, peak)


@_checked
def fused_matmuls(*, Nq, Nk, d, Br, Bc, element_bytes=2, accumulator_bytes=4) -> Traffic:
    """Return what `fused_matmuls` costs: the same without S."""
    r, c, Tr, Tc = min(Br, Nq), min(Bc, Nk), -(-Nq // Br), -(-Nk // Bc)
    by_tensor = _moved(element_bytes, 0, Q=(Nq * d, 0), K=(Tr * Nk * d, 0), V=(Tr * Nk * d, 0),
                       O=(0, Nq * d))
    peak = (r * d * (element_bytes + accumulator_bytes) + element_bytes * c * (2 * d + r)
            if Nq else 0)
    return Traffic.of(by_tensor, 4 * Nq * Nk * d, Nq * d * Tc, 0, peak)


@_checked
def flash_backward(*, Nq, Nk, d, Br, Bc, order="kv", dlse=False, causal=False, window=None,
                   element_bytes=2, stats_bytes=4, accumulator_bytes=4) -> Traffic:
    """Return what `flash_backward` costs in either loop order, delta's pre-pass included.

    `dlse` says whether a gradient through lse is given. A tile of b rows and c keys costs 5bc vector
    FLOPs (scale, subtract lse, dP − delta, ∘ P, · scale), two masks where a mask cuts through, and b
    for lse; dV and dK 2cd in the K/V pass, dQ bd where it is accumulated; and bc exponentials.
    """
    g, e, s, a = _grid(Nq, Nk, Br, Bc, causal, window), element_bytes, stats_bytes, accumulator_bytes
    touched, area, keys = g.touched, g.area, int(np.sum(g.keys))
    b, c, seen, largest = g.b, g.c, g.visited > 0, int(max(g.b, default=0))
    kv = order == "kv"
    again_q, again_k = (0, 0) if kv else (Nq, keys)        # what the second pass loads once more
    rows = touched + again_q
    by_tensor = _moved(
        e, s, O=(Nq * d, 0), dO=((Nq + rows) * d, 0), delta=(rows, Nq), lse=(rows, 0),
        dlse=(Nq * dlse, 0), Q=(rows * d, 0), K=((Nk + again_k) * d, 0), V=((Nk + again_k) * d, 0),
        dQ=(touched * d, (Nq + touched) * d) if kv else (0, Nq * d), dK=(0, Nk * d), dV=(0, Nk * d))
    per_pass = 5 * area + 2 * g.masked + touched
    vector = 2 * Nq * d + Nq * dlse + per_pass + 2 * keys * d
    matmul, exps = 8 * area * d, area
    if kv:
        vector, matmul = vector + touched * d, matmul + 2 * area * d
    else:
        vector, matmul, exps = vector + per_pass + touched * d, matmul + 6 * area * d, exps + area

    pre = largest * (2 * d * e + s + s * dlse)
    pair_kv = 2 * c * d * (e + a) + b * (2 * d * e + 2 * s + 2 * c * e + (d * a if kv else 0))
    main = max(2 * min(Bc, Nk) * d * (e + a), int(max(pair_kv[seen], default=0)))
    rows_q = b * (2 * d * e + 2 * s + d * a) + 2 * c * e * (d + b)
    last = largest * d * a if kv else int(max(rows_q, default=0))
    return Traffic.of(by_tensor, matmul, vector, exps, max(pre, main, last))


@_checked
def standard_training_forward(*, Nq, Nk, d, dropout=False, causal=False, window=None, element_bytes=2,
                              stats_bytes=4, accumulator_bytes=4) -> Traffic:
    """Return what `standard_training_forward` costs: 6·Nq·Nk + 2·Nq·d + 2·Nk·d elements.

    Dropout adds two passes and a mask of one byte per weight.
    """
    e, s, a, area = element_bytes, stats_bytes, accumulator_bytes, Nq * Nk
    drops, masked = int(dropout), _pairs(Nq, Nk, causal, window) < area
    by_tensor = _moved(e, s, Q=(Nq * d, 0), K=(Nk * d, 0), V=(Nk * d, 0), O=(0, Nq * d),
                       S=(2 * area, 2 * area), P=(area, area), keep=(drops * area, 0),
                       Z=(drops * area, drops * area))
    vector = (5 + 2 * drops) * area + masked * area + 2 * Nq * (Nk > 0)
    peak = max(e * (Nq * d + Nk * d + area), e * area + 2 * s * Nq * (Nk > 0),
               drops * (e + 1) * area, e * (area + Nk * d) + a * Nq * d)
    return Traffic.of(by_tensor, 4 * area * d, vector, area, peak)


@_checked
def standard_backward(*, Nq, Nk, d, dropout=False, element_bytes=2, stats_bytes=4,
                      accumulator_bytes=4) -> Traffic:
    """Return what `standard_backward` costs: 7·Nq·Nk + 4·Nq·d + 4·Nk·d elements.

    Dropout adds two passes and a mask of one byte per weight.
    """
    e, s, a, area = element_bytes, stats_bytes, accumulator_bytes, Nq * Nk
    drops = int(dropout)
    by_tensor = _moved(e, s, Q=(Nq * d, 0), K=(Nk * d, 0), V=(Nk * d, 0), dO=(2 * Nq * d, 0),
                       dQ=(0, Nq * d), dK=(0, Nk * d), dV=(0, Nk * d), P=((2 - drops) * area, 0),
                       Z=(drops * area, 0), keep=(drops * area, 0), dZ=(drops * area, drops * area),
                       dP=(area, area), dS=(2 * area, area))
    peak = max(e * (area + Nq * d) + a * Nk * d, e * (area + Nq * d + Nk * d), drops * (e + 1) * area,
               2 * e * area + s * Nq, e * (area + Nk * d) + a * Nq * d)
    return Traffic.of(by_tensor, 8 * area * d, (5 + 2 * drops) * area, 0, peak)
