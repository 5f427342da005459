"""The lab of chapter 05: one query walks over the keys, block by block, with its accumulator."""

from __future__ import annotations

import functools

import numpy as np

from flashlib.course.ch05.figures import walk
from flashlib.course.notebook import data
from flashlib.course.plots.animation import animate
from flashlib.course.widgets import base

SIZES = (1, 2, 4, 8, 16, 28, 56)


def picture(head=0, query=46, size=1, keys=32):
    """Draw one query's state after `keys` keys, rounded up to whole blocks, and the block's effect.

    Args:
        head, query: which row of the course's sentence, logits(head)[query].
        size: keys in a block.
        keys: keys read so far, 1 to 56.
    """
    words, s, V = row_of(head, query)
    start = (keys - 1) // size * size
    stop = min(start + size, len(words))
    now, before = state_of(s, V, stop), state_of(s, V, start) if start else None
    states = [state_of(s, V, n) for n in (*range(size, len(words), size), len(words))]
    limits = [1.08 * max(np.abs(part).max() for part in parts)
              for parts in zip(*((o, o / l) for _, _, l, o in states), strict=True)]
    final = states[-1][3] / states[-1][2]
    block = (f"“{words[start]}”" if stop == start + 1
             else f"“{words[start]}” … “{words[stop - 1]}”")
    title = f"the query is “{words[query]}”, after {stop} of {len(words)} keys"
    return walk(words, now, before, final, limits=limits, title=title,
                note=_sentence(block, now, before))


def rescale_lab(head=0, query=46, size=1, keys=32):
    """Return the widget: a slider over the keys, the size of a block, and a choice of row.

    The arguments are what it shows at first; see `picture`.
    """
    tokens, heads = data.sentence().tokens, data.sentence().heads
    return base.Lab("rescale_lab", {
        "head": base.choice([(f"{h}: {text}", h) for h, text in enumerate(heads)], head, "head",
                            kind="dropdown", tooltip="the attention head that the row is from"),
        "query": base.choice([(f"{i}: {word}", i) for i, word in enumerate(tokens)], query,
                             "query word", kind="dropdown", tooltip="the word whose row is read"),
        "size": base.choice(base.including(size, SIZES), size, "keys in a block"),
        "keys": base.choice(range(1, len(tokens) + 1), keys, "keys read", kind="play",
                            tooltip="the number of keys read so far, rounded up to whole blocks"),
    }, picture, note="Dashed: before the last block.")


def film(head=0, query=46):
    """Return the walk of one query as an animated picture, for readers on GitHub.

    It shows the state before and after every key that raises the maximum, in between a few more, and
    opens on the key that shrinks the past most.
    """
    words, s, _ = row_of(head, query)
    m = np.maximum.accumulate(s)
    shrink = np.exp(m[:-1] - m[1:])
    raised = np.flatnonzero(shrink < 1) + 1                 # so many keys stand before one that raises
    shown = sorted({1, *raised.tolist(), *(raised + 1).tolist(), *range(8, len(words), 12), len(words)})
    most = int(np.argmin(shrink)) + 2
    names = ", ".join(f"“{words[i]}”" for i in raised)
    return animate((picture(head, query, keys=keys) for keys in shown), still=shown.index(most),
                   seconds=[2.4 if keys - 1 in raised else 1.0 for keys in shown], colors=32,
                   alt=f"The query “{words[query]}” walks over {len(words)} keys. Its weights and its"
                       f" accumulator grow from key to key, and shrink by one factor at {names}.")


@functools.cache
def row_of(head, query):
    """Return (words, logits, V) of one query of the sentence."""
    sentence = data.sentence()
    return sentence.tokens, sentence.logits(head)[query], sentence.V[head]


def state_of(s, V, stop):
    """Return (weights, m, l, o) after the first `stop` keys, in units of their maximum."""
    m = s[:stop].max()
    weights = np.exp(s[:stop] - m)
    return weights, m, weights.sum(), weights @ V[:stop]


def _sentence(block, now, before):
    """Say what the last block did to the state."""
    if before is None:
        return f"{block}: nothing to rescale yet; m = {_number(now[1])}, ℓ = {_number(now[2])}"
    factor = np.exp(before[1] - now[1])
    added = now[2] - factor * before[2]
    if factor == 1:
        return (f"{block}: m stays {_number(now[1])}, no rescale;"
                f" ℓ = {_number(before[2])} + {_number(added)} = {_number(now[2])}")
    return (f"{block}: m = {_number(before[1])} → {_number(now[1])}, all that was there × {factor:.3f};"
            f" ℓ = {_number(before[2])} · {factor:.3f} + {_number(added)} = {_number(now[2])}")


def _number(value):
    return f"{value:.2f}".replace("-", "−")
