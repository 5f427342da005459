"""Bugs planted in the decoding kernels' source, and the checks that must catch them, interpreted.

Run as a module, with "true" or "planted", it prints JSON: check or mutant → what was said of it, "" if
nothing was.
"""

from __future__ import annotations

import os

if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"

import importlib.util
from pathlib import Path
from typing import NamedTuple

from tests.kernels.decode_checks import CHECKS
from tests.kernels.mutated import patched
from tests.kernels.planted import report
from tests.quick_interpreter import quicken


class Mutant(NamedTuple):
    """One planted bug: every `old` becomes `new`, and `check` must fail."""

    name: str
    old: str
    new: str
    check: str


MUTANTS = [Mutant(*fields) for fields in (
    # a part
    ("acc is not rescaled", "acc * alpha[:, None], input_precision", "acc, input_precision",
     "overflow"),
    ("l is not rescaled", "l_i * alpha + tl.sum", "l_i + tl.sum", "overflow"),
    ("m is not carried", "m_i = m_new\n", "m_i = m_i\n", "overflow"),
    ("O is not divided", "acc / tl.where(empty, 1.0, l)", "acc / 1.0", "value"),
    ("lse in base 2", "tl.constexpr(exp2.LN2)", "tl.constexpr(1.0)", "value"),
    ("lse without its maximum", "(m + tl.log2(", "(0.0 + tl.log2(", "value"),
    ("a part weighs hidden keys alike",
     "tl.where(seen, tl.exp2(qk * factor - m_new[:, None]), 0.0)",
     "tl.exp2(qk * factor - m_new[:, None])", "mask"),
    ("all heads read the first keys", "head % H_K", "head % H_K * 0", "group"),
    ("all sequences read the first keys", "b.to(tl.int64) * stride_k[0] + n", "n * 0 + n", "value"),
    ("all sequences read the first values", "b.to(tl.int64) * stride_v[0] + n", "n * 0 + n", "value"),
    ("queries and heads of a group are swapped", "r // GROUP, r % GROUP", "r % N_Q, r // N_Q", "mask"),
    ("all heads of a group ask for the first", "h = hk * GROUP + member", "h = hk * GROUP + member * 0",
     "group"),
    ("a part begins one tile late", "tl.maximum(part * KEYS * UNITS, begin",
     "tl.maximum(part * KEYS * UNITS + BLOCK_N, begin", "value"),
    ("a part takes one key of the next", "tl.minimum((part + 1) * KEYS * UNITS, end)",
     "tl.minimum((part + 1) * KEYS * UNITS + 1, end)", "value"),
    ("a part leaves out its last key", "tl.minimum((part + 1) * KEYS * UNITS, end)",
     "tl.minimum((part + 1) * KEYS * UNITS - 1, end)", "value"),
    ("the second tile of rows asks as the first", "r = tile * BLOCK_M +", "r = tile * 0 +", "group"),
    ("columns behind the end are loaded", "there[:, None] & (d < D)[None, :]\n",
     "there[:, None] & (d > -1)[None, :]\n", "value"),
    ("values lie where keys would", "row * stride_v[2]", "row * 0", "pages"),
    ("O rounds past the largest half", "tl.where(tl.abs(out) < 65600.0", "tl.where(tl.abs(out) < 0.0",
     "largest"),
    ("a row that sees nothing keeps a NaN", "tl.where(empty, 0.0, acc / tl.where(empty, 1.0, l))",
     "acc / l", "lengths"),
    # lengths, masks
    ("every length is that of the first sequence", "tl.load(LENGTHS + b)", "tl.load(LENGTHS + b * 0)",
     "lengths"),
    ("one key too many counts", "tl.maximum(tl.load(LENGTHS + b), 0)",
     "tl.maximum(tl.load(LENGTHS + b), 0) + 1", "lengths"),
    ("lengths are not looked at", "if LENGTHS is not None:", "if False:", "poison"),
    ("a length beyond the room is believed", "tl.minimum(tl.maximum(tl.load(LENGTHS + b), 0), N_K)",
     "tl.maximum(tl.load(LENGTHS + b), 0)", "lengths"),
    ("causal aligns to the room", "visible(row[:, None], n[None, :], N_Q, length",
     "visible(row[:, None], n[None, :], N_Q, N_K", "mask"),
    ("the last visible key is skipped", "last + 1 + length - N_Q, 0)", "last + length - N_Q, 0)",
     "mask"),
    ("keys behind the diagonal are visited",
     "end = tl.minimum(end, tl.maximum(last + 1 + length - N_Q, 0))", "end = end", "visits"),
    ("the window begins a key late", "first + length - N_Q - left", "first + length - N_Q - left + 1",
     "window"),
    ("keys before the window are visited", "tl.maximum(first + length - N_Q - left, 0)", "first * 0",
     "visits"),
    ("the window's last key is not visited", "last + 1 + length - N_Q + right",
     "last + length - N_Q + right", "window"),
    # pages
    ("the table row of the first sequence", "TABLE + b.to(tl.int64) * (N_K // PAGE)",
     "TABLE + b.to(tl.int64) * 0", "pages"),
    ("every page is the first of its row", "+ n // PAGE, mask", "+ n * 0, mask", "pages"),
    ("the next tile has this tile's page", "page_of(start + BLOCK_N, start", "page_of(start, start",
     "pages"),
    ("the first tile has the row's first page", "page_of(lo, lo < hi", "page_of(lo * 0, lo < hi",
     "pages"),
    ("a tile behind the end is looked up", "start + BLOCK_N < hi, b", "start < hi, b", "look_ups"),
    ("rows of a page are not counted anew", "row) % PAGE", "row)", "pages"),
    ("every tile begins with its page", "start % PAGE", "start * 0", "pages"),
    ("keys on pages behind the end are read", "< hi - start", "< hi", "pages"),
    # runs of units
    ("a unit is not folded", "if (start + BLOCK_N) % KEYS == 0:", "if start < 0:", "runs"),
    ("a unit ends a tile late", "if (start + BLOCK_N) % KEYS == 0:", "if start % KEYS == 0:", "runs"),
    ("a run loses its last unit", "m_i, l_i, acc = fold(m_run, l_run, acc_run, m_i, l_i, acc)",
     "m_i, l_i, acc = m_run, l_run, acc_run", "runs"),
    ("the merge takes units for runs", "tl.arange(0, LANES)) * OF_RUN +",
     "tl.arange(0, LANES)) +", "runs"),
    ("the merge folds one unit of a run", "for unit in tl.static_range(OF_RUN)",
     "for unit in tl.static_range(1)", "runs"),
    ("lanes have the runs of their neighbours", "n // OF_RUN * LANES + tl.arange(0, LANES)",
     "n // OF_RUN + tl.arange(0, LANES) * AHEAD", "merges"),
    # the merge
    ("parts of later rounds weigh alike", "acc_b * b[:, None]", "acc_b", "many"),
    ("the merge does not rescale O", "tl.fma(acc_a, wide_a,", "tl.fma(acc_a, wide_a * 0.0 + 1.0,",
     "many"),
    ("the merge does not rescale its mass", "tl.fma(l_a, a, l_b * b)", "l_a + l_b * b", "many"),
    ("half of the lanes are lost", "acc = fold(m_a, l_a, acc_a, m_b, l_b, acc_b)",
     "acc = m_a, l_a, acc_a", "many"),
    ("lanes swap their O", "acc_a, acc_b = halves", "acc_b, acc_a = halves", "many"),
    ("lanes swap their mass", "l_a, l_b = halves", "l_b, l_a = halves", "many"),
    ("every round reads the first runs", "(run + n // OF_RUN", "(run * 0 + n // OF_RUN",
     "merges"),
    ("the lanes of a window begin too late", "range(begin // RUN // LANES * LANES,",
     "range((begin // RUN // LANES + 1) * LANES,", "window"),
    ("the merge leaves out the last part", "(part * KEYS * FOLDED < end)",
     "((part + 1) * KEYS * FOLDED < end)", "value"),
    ("the merge takes the parts of another head", "(h // GROUP).to(tl.int64) * PARTS * apart",
     "(h // GROUP).to(tl.int64) * apart", "group"),
    ("the merge takes another row", "row * GROUP + h % GROUP", "row + h % GROUP * N_Q", "mask"),
    ("the merge reads parts that a row does not see", "& ((part + 1) * KEYS * FOLDED > begin)", "",
     "window"),
    ("the second columns are those of the first", "d = column * BLOCK_D +", "d = column * 0 +",
     "merges"),
    # scores
    ("distances are counted from the room", "logits, N_Q, length)", "logits, N_Q, N_K)", "alibi"),
    ("all heads of a group have the first slope", "ALIBI, b, h[:, None],",
     "ALIBI, b, h[:, None] // GROUP * GROUP,", "alibi"),
    ("the sink is left out of the merge", "with_sink(m_i, l_i, of_head(SINK, b, h % (H_K * GROUP),",
     "with_sink(m_i, l_i, -1e30 + 0.0 * of_head(SINK, b, h % (H_K * GROUP),", "sink"),
    ("the sink counts in every run", "fold(m_i, l_i, acc, *state)",
     "fold(with_sink(m_i, l_i, tl.load(SINK))[0], with_sink(m_i, l_i, tl.load(SINK))[1],"
     " acc * with_sink(m_i, l_i, tl.load(SINK))[2][:, None], *state)", "sink"),
    ("the merge has the sink of another head", "of_head(SINK, b, h % (H_K * GROUP),",
     "of_head(SINK, b, h // GROUP % H_K,", "sink"),
    ("the merge does not rescale O by the sink", "acc *= keep[:, None]", "acc *= 1.0", "sink"),
    ("one part does not rescale O by the sink", "acc = acc * keep[:, None]", "acc = acc", "sink"),
)]
KERNELS = ("flash_decode_fwd_kernel", "flash_decode_merge_kernel")


def install(folder, mutant=None):
    """Make fresh kernels from their source, patched or not, and have the backend run them."""
    from flashlib.kernels import plans
    from flashlib.kernels.backends import decode as backend

    edits = [(mutant.old, mutant.new)] if mutant else []
    path = Path(folder) / f"decode_{len(list(Path(folder).iterdir()))}.py"     # read through its file
    path.write_text(patched("decode", *edits), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in KERNELS:
        setattr(backend, name, getattr(module, name))
    plans.forget()


if __name__ == "__main__":
    quicken()
    report(CHECKS, MUTANTS, install)
