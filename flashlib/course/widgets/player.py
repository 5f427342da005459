"""The player: an algorithm replayed tile by tile on the key figure of the course."""

from collections.abc import Mapping

from flashlib.course.plots.replay import Replay
from flashlib.course.plots.visits import compare, tile_visits
from flashlib.course.widgets.base import Lab, choice
from flashlib.machine.trace import Trace


def play(trace: Trace | Mapping[str, Trace], Nq: int, Nk: int, *, tensor: str = "S",
         sram_bytes: int | None = None, title: str | None = None, start: int = 1,
         name: str | None = None) -> Lab:
    """Return a widget that replays a trace, tile by tile, with a play button and a slider.

    Args:
        trace: `machine.trace`; or {name: trace} of two or three algorithms, replayed side by side.
        Nq, Nk: rows and columns of the matrix (M and N of a matmul).
        tensor: "S" for attention, "C" for a matmul.
        sram_bytes: capacity of the SRAM, drawn as a line; title: instead of the kernel's name.
        start: the frame shown at first, counted from 1.
        name: what `sweep` calls the widget; None for "play" and the kernel's name.
    """
    if isinstance(trace, Mapping):
        replays = {label: Replay(t, Nq, Nk, tensor) for label, t in trace.items()}
        count = max(len(replay.frames) for replay in replays.values())

        def draw(frame):
            return compare(replays, Nq, Nk, visit=frame, title=title)

        label = " and ".join(replays)
    else:
        replay = Replay(trace, Nq, Nk, tensor)
        count = len(replay.frames)

        def draw(frame):
            return tile_visits(replay, Nq, Nk, replay.frames[frame - 1], title=title,
                               sram_bytes=sram_bytes)

        label = replay.trace[-1].kernel
    frames = [(f"tile {n} of {count - 1}" if n < count else "the end", n) for n in range(1, count + 1)]
    control = choice(frames, min(max(start, 1), count), "tile", kind="play",
                     tooltip="the moment of the algorithm; arrow keys step")
    return Lab(name or f"play {label}", {"frame": control}, draw)
