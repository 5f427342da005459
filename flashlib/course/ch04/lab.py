"""What moves in chapter 04: online softmax along one row of logits; and its sums in other orders."""

from __future__ import annotations

import functools

import numpy as np

from flashlib.course.ch04.figures import running_state
from flashlib.course.notebook import data
from flashlib.course.plots.animation import animate
from flashlib.course.widgets import base

ORDERS = ("as written", "sorted up", "sorted down", "random")
SEED = 4


def walk(x):
    """Return m, l and the rescale factor after each logit of x, one array (n,) each.

    The first factor is e^{−∞} = 0: there was no sum to rescale. Taught in notebook 04.
    """
    m, l, states = -np.inf, 0.0, []
    for xi in x:
        m_new = max(m, xi)
        factor = np.exp(m - m_new)
        l = l * factor + np.exp(xi - m_new)
        m = m_new
        states.append((m, l, factor))
    return tuple(np.array(states).T)


def film(x, words, query):
    """Return the walk along a row as an animation: one frame a logit, longer ones where it rescales.

    After the last rescale only every fourth logit has a frame.
    """
    m, l, factor = walk(x)
    events = [i for i in range(1, len(x)) if factor[i] < 1]
    steps = [*range(1, max(events) + 2), *range(len(x), max(events) + 2, -4)[::-1]]
    frames = (running_state(x, m, l, factor, words=words, at=step, title=f"the query is “{query}”",
                            note=_sentence(words, x, m, l, step - 1)) for step in steps)
    seconds = [2.4 if step - 1 in events else 0.4 for step in steps]
    return animate(frames, seconds=seconds, colors=48, alt=(
        f"The row of “{query}” is read from left to right. The running maximum rises {len(events)}"
        f" times, at {', '.join(f'“{words[i]}”' for i in events)}; each time the running sum first"
        f" shrinks, then the new term is added. It ends at {l[-1]:.2f}."))


def in_blocks(x, size):
    """Return ℓ of every row of x, (rows, n): blocks added one by one, then merged one by one.

    A block knows its own maximum; `size` 1 is online softmax.
    """
    parts = x.reshape(len(x), -1, size)
    m = parts.max(axis=2)
    l = np.cumsum(np.exp(parts - m[..., None]), axis=2)[..., -1]
    m_all, l_all = m[:, 0], l[:, 0]
    for mj, lj in zip(m.T[1:], l.T[1:], strict=True):
        m_new = np.maximum(m_all, mj)
        l_all = l_all * np.exp(m_all - m_new) + lj * np.exp(mj - m_new)
        m_all = m_new
    return l_all


def as_a_tree(x):
    """Return ℓ of every row of x, (rows, n), n a power of 2: neighbors merge, then their sums."""
    m, l = x, np.ones_like(x)
    while m.shape[1] > 1:
        (a, b), (la, lb) = (m[:, ::2], m[:, 1::2]), (l[:, ::2], l[:, 1::2])
        m = np.maximum(a, b)
        l = la * np.exp(a - m) + lb * np.exp(b - m)
    return l[:, 0]


def error(l, x):
    """Return the root mean square of ℓ's relative error over the rows of x, in units of 2⁻²⁴."""
    x = x.astype(np.float64)
    exact = np.exp(x - x.max(axis=1, keepdims=True)).sum(axis=1)
    return np.sqrt(np.mean((l / exact - 1) ** 2)) * 2**24


def picture(order="sorted up", head=0, query=46, step=56):
    """Draw the state after `step` logits of one row of the course's sentence.

    Args:
        order: in which order the logits come, one of `ORDERS`.
        head, query: which row, logits(head)[query].
        step: logits read so far, 1 to 56.
    """
    words, x, m, l, factor = _row(order, head, query)
    i = step - 1
    rescales = int(np.sum(factor[1:step] < 1))
    count = f"{rescales} rescale{'' if rescales == 1 else 's'} so far"
    return running_state(x, m, l, factor, words=words, at=step, note=_sentence(words, x, m, l, i),
                         title=f"the query is “{_sentence_data().tokens[query]}”, {order}: {count}")


def softmax_steps(order="sorted up", head=0, query=46, step=56):
    """Return the widget: a slider over the steps of online softmax, and a choice of row and order.

    The arguments are what it shows at first; see `picture`.
    """
    tokens, heads = _sentence_data().tokens, _sentence_data().heads
    return base.Lab("softmax_steps", {
        "order": base.choice(ORDERS, order, "order", kind="toggle",
                             tooltip="the order in which the logits are read"),
        "head": base.choice([(f"{h}: {text}", h) for h, text in enumerate(heads)], head, "head",
                            kind="dropdown", tooltip="the attention head that the row is from"),
        "query": base.choice([(f"{i}: {word}", i) for i, word in enumerate(tokens)], query,
                             "query word", kind="dropdown", tooltip="the word whose row is read"),
        "step": base.choice(range(1, len(tokens) + 1), step, "logits read", kind="play",
                            tooltip="the number of logits read so far"),
    }, picture)


@functools.cache
def _sentence_data():
    return data.sentence()


@functools.cache
def _row(order, head, query):
    """Return words, logits and states of a row, put in order."""
    if order not in ORDERS:
        raise ValueError(f"order: expected one of {', '.join(ORDERS)}, got {order!r}")
    x = _sentence_data().logits(head)[query]
    places = {"as written": np.arange(len(x)), "sorted up": np.argsort(x),
              "sorted down": np.argsort(-x),
              "random": np.random.default_rng(SEED).permutation(len(x))}[order]
    return [_sentence_data().tokens[i] for i in places], x[places], *walk(x[places])


def _sentence(words, x, m, l, i):
    """Say what happened at step i."""
    start = f"step {i + 1}, “{words[i]}”: x = {_number(x[i])}"
    if i == 0:
        return f"{start} is the first maximum; ℓ = 0 + e^0 = 1"
    old, new, before, after = map(_number, (m[i - 1], m[i], l[i - 1], l[i]))
    less = f"− {new}" if m[i] >= 0 else f"+ {new[1:]}"
    if m[i] > m[i - 1]:
        return f"{start} > m = {old}: rescale; ℓ = {before} · e^({old} {less}) + 1 = {after}"
    return f"{start} ≤ m = {new}: no rescale; ℓ = {before} + e^({_number(x[i])} {less}) = {after}"


def _number(value):
    return f"{value:.2f}".replace("-", "−")
