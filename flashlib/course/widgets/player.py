"""The player: an algorithm replayed tile by tile on the key figure of the course."""

from collections.abc import Mapping

from flashlib.course.plots.replay import Replay
from flashlib.course.plots.visits import compare, tile_visits
from flashlib.course.widgets.base import Lab, choice
from flashlib.machine.trace import Trace


def play(trace: Trace | Mapping[str, Trace], Nq: int, Nk: int, *, sram_bytes: int | None = None,
         start: int = 1) -> Lab:
    """Return a widget that replays a trace, tile by tile, with a play button and a slider.

    Args:
        trace: `machine.trace`; or {name: trace} of two or three algorithms, replayed side by side.
        Nq, Nk: rows and columns of the matrix.
        sram_bytes: capacity of the SRAM, drawn as a line.
        start: the frame shown at first, counted from 1.
    """
    if isinstance(trace, Mapping):
        replays = {label: Replay(t, Nq, Nk) for label, t in trace.items()}
        count = max(len(replay.frames) for replay in replays.values())

        def draw(frame):
            return compare(replays, Nq, Nk, visit=frame)

        label = " and ".join(replays)
    else:
        replay = Replay(trace, Nq, Nk)
        count = len(replay.frames)

        def draw(frame):
            return tile_visits(replay, Nq, Nk, replay.frames[frame - 1], sram_bytes=sram_bytes)

        label = replay.trace[-1].kernel
    frames = [(f"tile {n} of {count - 1}" if n < count else "the end", n) for n in range(1, count + 1)]
    control = choice(frames, min(max(start, 1), count), "tile", kind="play",
                     tooltip="the moment of the algorithm; arrow keys step")
    return Lab(f"play {label}", {"frame": control}, draw)
