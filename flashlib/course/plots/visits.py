"""The key figure of the course: the attention matrix, tile by tile, with its HBM bytes."""

from collections.abc import Mapping

import numpy as np

from flashlib.course.plots import stage, theme
from flashlib.course.plots.replay import Replay
from flashlib.course.plots.theme import SMALL, Figure, human_bytes, styled, text_width
from flashlib.machine.trace import Trace


@styled
def tile_visits(trace: Trace | Replay, Nq: int, Nk: int, upto: int | None = None, *,
                title: str | None = None, sram_bytes: int | None = None) -> Figure:
    """Draw one moment of an algorithm: tiles visited, what SRAM holds, HBM bytes so far.

    Visited tiles of the matrix darken in the order of their visits and carry its number; the one
    at work is framed. Strips show the other tensors: solid is in SRAM now, pale and hatched is in
    HBM, blank is not written yet. Below, the bytes so far, on an axis that ends at their total.

    Args:
        trace: `machine.trace`, after an algorithm ran.
        Nq, Nk: rows and columns of the matrix.
        upto: how many events to replay; None for all.
        sram_bytes: capacity of the SRAM, drawn as a line in its gauge.
    """
    replay = trace if isinstance(trace, Replay) else Replay(trace, Nq, Nk)
    moment = replay.at(upto)
    height, size = 4.85, (4.2, 3.5)
    fig = theme.figure(height, layout=None)
    ax = stage.frame(fig, 0.1, 0.86, *size)
    stage.matrix(ax, replay, moment, size, numbers=True)
    stage.sram(stage.frame(fig, 4.55, 0.98, 2.31, 3.38), replay, moment, sram_bytes, (2.31, 3.38))
    stage.byte_bars(stage.frame(fig, 0.14, 0.14, 6.72, 0.34), [("", moment)], replay.total_bytes, 6.72,
                    note="HBM bytes so far")
    done, all_visits = len(moment.visits), len(replay.grid(moment.kernel)[2])
    stage.heading(fig, 0.14, height - 0.24, title or moment.kernel, stage.status(replay, moment))
    theme.patch_key(ax, stage.PLACES, at=((6.86 - 0.1) / size[0], (height - 0.36 - 0.86) / size[1]))
    text = (f"{title or moment.kernel}: {done} of {all_visits} tiles of the {replay.Nq} × {replay.Nk} "
            f"matrix visited, {human_bytes(moment.hbm_bytes)} of {human_bytes(replay.total_bytes)} "
            f"moved between HBM and SRAM.")
    return theme.describe(fig, text)


@styled
def key_frames(trace: Trace | Replay, Nq: int, Nk: int, count: int = 4) -> Figure:
    """Draw the picture of `tile_visits` at `count` moments side by side, the last one the end.

    A moment lies in the middle of a visit: what it loads is counted, what it stores is not yet.
    """
    replay = trace if isinstance(trace, Replay) else Replay(trace, Nq, Nk)
    if count < 1:
        raise ValueError(f"count: expected at least 1 moment, got {count}")
    frames = replay.frames
    picks = np.unique(np.round(np.linspace(min(1, len(frames) - 1), len(frames) - 1,
                                           count)).astype(int))
    moments = [replay.at(frames[n]) for n in picks]
    total, gap = replay.total_bytes, 0.22
    width = (theme.WIDTH - 0.2 - gap * (len(moments) - 1)) / len(moments)
    size = (width, min(width * 1.02, 2.6))
    foot = 0.28
    height = size[1] + 0.98 + foot
    fig = theme.figure(height, layout=None)
    for n, moment in enumerate(moments):
        left = 0.1 + n * (width + gap)
        stage.matrix(stage.frame(fig, left, 0.6 + foot, *size), replay, moment, size, numbers=True,
                     small=True)
        stage.byte_bars(stage.frame(fig, left, 0.32 + foot, width, 0.2), [("", moment)], total, width,
                        small=True)
        x, y = left / theme.WIDTH, (0.7 + foot + size[1]) / height
        last = moment.upto == len(replay.trace)
        name = ("the end" if last
                else f"tile {len(moment.visits)} of {len(replay.grid(moment.kernel)[2])}")
        fig.text(x, y, name, fontsize=9, fontweight="bold", va="bottom")
        fig.text(x, (0.15 + foot) / height, f"{human_bytes(moment.hbm_bytes)} moved", fontsize=SMALL,
                 va="center")
    stage.frames_key(stage.frame(fig, 0, 0, theme.WIDTH, 0.2), replay)
    moved = ", ".join(human_bytes(m.hbm_bytes) for m in moments)
    text = (f"{len(moments)} moments of {replay.trace[-1].kernel} on a {replay.Nq} × {replay.Nk} "
            f"matrix; HBM bytes moved by then: {moved}.")
    return theme.describe(fig, text)


@styled
def compare(traces: Mapping[str, Trace | Replay], Nq: int, Nk: int, *, visit: int | None = None,
            title: str | None = None) -> Figure:
    """Draw the loop orders of two or three algorithms side by side, and their bytes on one axis.

    `visit` replays each up to that visit (counted from 1); None shows the end.
    """
    if not 1 <= len(traces) <= 3:
        raise ValueError(f"traces: expected one to three algorithms, got {len(traces)}")
    replays = {name: t if isinstance(t, Replay) else Replay(t, Nq, Nk)
               for name, t in traces.items()}
    moments = {}
    for name, replay in replays.items():
        frames = replay.frames
        moments[name] = replay.at(None if visit is None
                                  else frames[min(max(visit, 1), len(frames)) - 1])
    gap = 0.35
    width = (theme.WIDTH - 0.2 - gap * (len(replays) - 1)) / len(replays)
    size = (width, min(width, 3.1))
    foot = 0.52 + 0.42 * len(replays)
    height = foot + size[1] + 0.42 + 0.3 * bool(title)
    fig = theme.figure(height, layout=None)
    for n, (name, replay) in enumerate(replays.items()):
        left = 0.1 + n * (width + gap)
        stage.matrix(stage.frame(fig, left, foot, *size), replay, moments[name], size, numbers=True)
        stage.heading(fig, left, foot + size[1] + 0.14, name, stage.status(replay, moments[name]))
    longest = max(text_width(name, 9) for name in replays) + 0.15
    largest = max(r.total_bytes for r in replays.values())
    inches = theme.WIDTH - 0.24 - longest
    bars = stage.frame(fig, 0.1 + longest, 0.1, inches, 0.42 * len(replays))
    stage.byte_bars(bars, list(moments.items()), largest, inches)
    theme.patch_key(bars, stage.PLACES, at=(0.0, 1.0), loc="lower left")
    if title:
        fig.text(0.1 / theme.WIDTH, 1 - 0.06 / height, title, fontsize=10, fontweight="bold", va="top")
    text = "; ".join(f"{name}: {len(m.visits)} tiles visited, {human_bytes(m.hbm_bytes)} moved"
                     for name, m in moments.items())
    return theme.describe(fig, f"Loop orders side by side. {text}.")
