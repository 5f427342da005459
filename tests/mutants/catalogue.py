"""Planted bugs: what is changed, and the check that must catch it.

`survives` names checks that the bug passes: some bugs change no result, and only the bytes, the
masks or the overflow tell them from the truth.
"""

from __future__ import annotations

from typing import NamedTuple

CHANGES_NO_RESULT = ("check_value", "check_lse", "check_mask", "check_leak", "check_overflow")


class Mutant(NamedTuple):
    """One planted bug in `module`: edits (old, new), and the check that must catch it."""

    name: str
    module: str
    edits: tuple[tuple[str, str], ...]
    caught_by: str
    survives: tuple[str, ...] = ()


def _bug(name, module, old, new, caught_by, survives=()):
    return Mutant(name, module, ((old, new),), caught_by, tuple(survives))


V2_UPDATE = "Oi[...] = alpha[:, None] * Oi + Pij.dot(Vj, where=visible)"
V1_UPDATE = "Oi[...] = (kept[:, None] * Oi + new[:, None] * PV) / np.maximum(l_new, tiny)[:, None]"

MUTANTS = [
    # flash_v2
    _bug("v2 forgets to rescale l", "flash_v2", "l[...] = alpha * l +", "l[...] = l +",
         "check_value"),
    _bug("v2 forgets to rescale O", "flash_v2", V2_UPDATE,
         V2_UPDATE.replace("alpha[:, None] * ", ""), "check_value", ["check_lse", "check_bytes"]),
    _bug("v2 rescales with the wrong sign", "flash_v2", "alpha = np.exp(m - m_new)",
         "alpha = np.exp(m_new - np.maximum(m, -99.0))", "check_value"),
    _bug("v2 keeps the first tile's maximum, consistently", "flash_v2",
         "m_new = np.maximum(m, Sij.max(axis=1))",
         "m_new = np.where(m > lowest, m, Sij.max(axis=1))", "check_overflow",
         ["check_value", "check_lse", "check_bytes"]),
    _bug("v2 does not carry m", "flash_v2", "m[...] = m_new\n", "m[...] = m\n", "check_value"),
    _bug("v2 takes the tile's maximum for the running one", "flash_v2",
         "m_new = np.maximum(m, Sij.max(axis=1))", "m_new = np.maximum(Sij.max(axis=1), lowest)",
         "check_overflow", ["check_value", "check_lse"]),
    _bug("v2 leaves the diagonal tile unmasked", "flash_v2",
         "Sij[...] = np.where(visible, Sij, -np.inf)",
         "Sij[...] = np.where(visible, Sij, Sij)", "check_mask", ["check_value"]),
    _bug("v2 lets 0 × NaN leak from a masked value", "flash_v2", "Pij.dot(Vj, where=visible)",
         "Pij @ Vj", "check_leak", ["check_value", "check_mask", "check_overflow", "check_bytes"]),
    _bug("v2 divides twice", "flash_v2", "sram.store(Oi, O[rows])",
         "sram.store(Oi / np.maximum(l, tiny)[:, None], O[rows])", "check_value",
         ["check_lse", "check_bytes"]),
    _bug("v2 divides in every tile as well", "flash_v2", "m[...] = m_new\n",
         "m[...] = m_new; Oi[...] = Oi / l[:, None]\n", "check_value"),
    _bug("v2 forgets the division", "flash_v2", "Oi[...] = Oi / np.maximum(l, tiny)[:, None]",
         "Oi[...] = Oi", "check_value", ["check_lse", "check_bytes"]),
    _bug("v2 swaps Br and Bc", "flash_v2",
         'Br, Bc = check_block("Br", Br), check_block("Bc", Bc)',
         'Br, Bc = check_block("Bc", Bc), check_block("Br", Br)', "check_bytes", CHANGES_NO_RESULT),
    Mutant("v2 hoists the loads of K and V", "flash_v2", (
        ('    with machine.kernel("flash_v2") as sram:\n',
         '    with machine.kernel("flash_v2") as sram:\n'
         '        Kall, Vall = sram.load(K), sram.load(V)\n'),
        ("Kj, Vj = sram.load(K[keys]), sram.load(V[keys])", "Kj, Vj = Kall[keys], Vall[keys]")),
        "check_bytes", CHANGES_NO_RESULT),
    _bug("v2 visits the tiles that it may skip", "flash_v2",
         "if mask.skips(rows, keys):\n    continue",
         "if mask.skips(rows, keys):\n    pass", "check_bytes",
         CHANGES_NO_RESULT),
    _bug("v2 scales twice", "flash_v2", "(Qi @ Kj.T) * scale", "(Qi @ Kj.T) * scale * scale",
         "check_value"),
    _bug("v2 forgets the scale", "flash_v2", "(Qi @ Kj.T) * scale", "(Qi @ Kj.T) * 1.0",
         "check_value"),
    _bug("v2 forgets m in lse", "flash_v2", "sram.store(m + np.log(l), lse[rows])",
         "sram.store(np.log(l), lse[rows])", "check_lse", ["check_value", "check_bytes"]),
    _bug("v2 stores lse in base 2", "flash_v2", "m + np.log(l)", "m + np.log2(l)", "check_lse",
         ["check_value", "check_bytes"]),
    _bug("v2 starts from a true minus infinity", "flash_v2", "np.finfo(Q.dtype).min,", "-np.inf,",
         "check_mask", ["check_value", "check_overflow"]),
    _bug("v2 reads values where keys are", "flash_v2", "sram.load(V[keys])", "sram.load(K[keys])",
         "check_value", ["check_lse"]),
    _bug("v2 moves lse at the size of an element", "flash_v2", '(Nq,), kind="stats")', "(Nq,))",
         "check_bytes", CHANGES_NO_RESULT),
    _bug("v2 keeps its accumulator at half precision", "flash_v2", 'kind="accumulator", ', "",
         "check_sram", [*CHANGES_NO_RESULT, "check_bytes"]),
    _bug("v2 never frees a tile of K and V", "flash_v2",
         "with sram.scope():\n    Kj", "if True:\n    Kj", "check_sram",
         [*CHANGES_NO_RESULT, "check_bytes"]),
    # flash_v1
    _bug("v1 forgets e^(m − m_new) on the old output", "flash_v1", V1_UPDATE,
         V1_UPDATE.replace("kept", "li"), "check_value", ["check_lse", "check_bytes"]),
    _bug("v1 takes the stored output for unnormalised", "flash_v1", V1_UPDATE,
         V1_UPDATE.replace("kept", "old"), "check_value", ["check_lse", "check_bytes"]),
    _bug("v1 forgets to rescale the new tile", "flash_v1", V1_UPDATE,
         V1_UPDATE.replace("new[:, None] * ", ""), "check_value", ["check_lse"]),
    _bug("v1 forgets to rescale l", "flash_v1", "kept = old * li", "kept = 1.0 * li", "check_value"),
    _bug("v1 rescales with the wrong sign", "flash_v1", "np.exp(m_tile - m_new)",
         "np.exp(m_new - m_tile)", "check_value"),
    _bug("v1 inverts the ratio of the masses, as some notes print it", "flash_v1",
         "/ np.maximum(l_new, tiny)[:, None]", "* l_new[:, None]", "check_value", ["check_lse"]),
    _bug("v1 does not store m", "flash_v1", "mi[...], li[...] = m_new, l_new", "li[...] = l_new",
         "check_value"),
    _bug("v1 forgets to initialise O in HBM", "flash_v1",
         'sram.store(sram.tile("O", rows, d, kind="accumulator", fill=0.0), O[rows])', "pass",
         "check_value"),
    _bug("v1 moves m at the size of an element", "flash_v1",
         'm = machine.hbm_empty("m", (Nq,), kind="stats")', 'm = machine.hbm_empty("m", (Nq,))',
         "check_bytes", CHANGES_NO_RESULT),
    Mutant("v1 loads Q once for all", "flash_v1", (
        ('    with machine.kernel("flash_v1") as sram:\n',
         '    with machine.kernel("flash_v1") as sram:\n        Qall = sram.load(Q)\n'),
        ("Qi = sram.load(Q[rows])", "Qi = Qall[rows]")), "check_bytes", CHANGES_NO_RESULT),
    _bug("v1 loads V a second time", "flash_v1", "sram.store(mi, m[rows])",
         "sram.store(mi, m[rows]); sram.load(V[keys])", "check_bytes", CHANGES_NO_RESULT),
    _bug("v1 swaps Br and Bc", "flash_v1", 'Br, Bc = check_block("Br", Br), check_block("Bc", Bc)',
         'Br, Bc = check_block("Bc", Bc), check_block("Br", Br)', "check_bytes", CHANGES_NO_RESULT),
    _bug("v1 visits the tiles that it may skip", "flash_v1",
         "if mask.skips(rows, keys):\n    continue",
         "if mask.skips(rows, keys):\n    pass", "check_bytes",
         CHANGES_NO_RESULT),
    # masks and tiles
    _bug("the mask hides the diagonal", "masks", "return j <= i + self.offset",
         "return j < i + self.offset", "check_mask", ["check_value"]),
    _bug("the mask shows one key too many", "masks", "return j <= i + self.offset",
         "return j <= i + self.offset + 1", "check_mask", ["check_value"]),
    _bug("the mask aligns top left, as torch does", "masks", "self.offset = Nk - Nq",
         "self.offset = 0", "check_mask", ["check_value"]),
    _bug("a diagonal tile passes for full", "masks", "if keys.stop <= self.seen(rows.start):",
         "if keys.stop <= self.seen(rows.stop - 1):", "check_mask", ["check_value"]),
    _bug("the test for a full tile is off by one", "masks",
         "if keys.stop <= self.seen(rows.start):", "if keys.stop <= self.seen(rows.start) + 1:",
         "check_mask", ["check_value"]),
    _bug("the skip test is off by one and visits too much", "masks",
         "keys.start >= self.seen(rows.stop - 1)", "keys.start > self.seen(rows.stop - 1)",
         "check_bytes", CHANGES_NO_RESULT),
    _bug("the skip test is off by one and skips too much", "masks",
         "keys.start >= self.seen(rows.stop - 1)", "keys.start >= self.seen(rows.stop - 1) - 1",
         "check_mask", ["check_value"]),
    _bug("the skip test asks the first row", "masks", "keys.start >= self.seen(rows.stop - 1)",
         "keys.start >= self.seen(rows.start)", "check_mask", ["check_value"]),
    _bug("the ragged tail is dropped", "masks", "range(0, N, B)]", "range(0, N - B + 1, B)]",
         "check_value"),
    _bug("the ragged tail reaches back and counts keys twice", "masks",
         "slice(start, min(start + B, N))", "slice(max(0, min(start, N - B)), min(start + B, N))",
         "check_value"),
    # one query and one key at a time
    _bug("one-pass forgets to rescale o", "one_pass", "oi * alpha[:, None]", "oi * 1.0",
         "check_value", ["check_lse"]),
    _bug("one-pass forgets to rescale l", "one_pass", "l[...] = l * alpha + p", "l[...] = l + p",
         "check_value"),
    _bug("multi-pass forgets the last key", "multi_pass",
         "for j in range(seen):\n    with sram.scope():\n        kj, vj",
         "for j in range(seen - 1):\n    with sram.scope():\n        kj, vj", "check_value",
         ["check_lse"]),
    _bug("multi-pass keeps the logit's maximum out of pass 2", "multi_pass",
         "p = np.exp(s - m) / total", "p = np.exp(s) / total", "check_value", ["check_lse"]),
    # standard attention
    _bug("standard attention forgets its mask", "standard",
         "Sij[...] = np.where(visible, Sij, -np.inf)", "Sij[...] = np.where(visible, Sij, Sij)",
         "check_mask", ["check_value"]),
    _bug("standard attention exponentiates unshifted", "standard", "np.exp(Si - m[:, None])",
         "np.exp(Si - 0 * m[:, None])", "check_overflow", ["check_value"]),
    _bug("standard attention stores S a second time", "standard",
         "sram.store(Sij, S[rows, keys])", "sram.store(Sij, S[rows, keys]);"
         " sram.store(Sij, S[rows, keys])", "check_bytes", CHANGES_NO_RESULT),
    # softmax and the state
    _bug("safe softmax forgets to subtract the maximum", "softmax",
         "m[...] = np.maximum(m, xj)\n", "m[...] = 0 * m\n",
         "check_softmax_overflow", ["check_softmax", "check_bytes"]),
    _bug("online softmax rescales with the wrong sign", "softmax", "l * np.exp(m - m_new)",
         "l * np.exp(m_new - np.maximum(m, -9.0))", "check_softmax"),
    _bug("online softmax forgets to rescale", "softmax", "l * np.exp(m - m_new)", "l",
         "check_softmax", ["check_bytes"]),
    _bug("naive softmax forgets to divide", "softmax", "yj = np.exp(xj) / l", "yj = np.exp(xj)",
         "check_softmax", ["check_bytes"]),
    _bug("merge swaps the two corrections", "state", "mine, theirs = np.exp(self.m",
         "theirs, mine = np.exp(self.m", "check_state"),
    _bug("merge adds without a correction", "state", "mine * self.l + theirs * other.l",
         "self.l + other.l", "check_state", ["check_empty_state"]),
    _bug("an empty state makes NaN", "state", "return np.maximum(m, np.finfo(m.dtype).min)",
         "return m", "check_empty_state", ["check_state"]),
    _bug("finish forgets m in lse", "state", "np.add(self.m, np.log", "np.add(0 * self.l, np.log",
         "check_state", ["check_empty_state"]),
]
