"""Pictures that follow each other: one animated PNG, which a notebook keeps and a website plays.

It is a PNG because every viewer of notebooks shows one: nbconvert leaves out `image/gif`, and a viewer
that knows no animation shows the first frame alone, so that one must make sense on its own.
"""

from __future__ import annotations

import base64
import io
import math
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from PIL import Image

from flashlib.course.plots.theme import Picture

# Nothing flashes: three changes a second are the most that WCAG 2.3.1 allows.
SHORTEST_S, LONGEST_S = 1 / 3, 60.0
# As many frames choose the palette: more cost time and find hardly another color.
_SAMPLES = 8


class Animation:
    """An animated PNG that shows itself in a notebook, with its alt text in place of a repr."""

    def __init__(self, png: bytes, width: int, alt: str):
        self.png, self.width, self.alt = png, width, alt

    def _repr_mimebundle_(self, include=None, exclude=None):
        data = {"image/png": base64.b64encode(self.png).decode(), "text/plain": self.alt}
        return data, {"image/png": {"width": self.width, "alt": self.alt}}


def animate(pictures: Iterable[Picture], *, alt: str, seconds: float | Sequence[float] = 0.6,
            rest: float = 3.0, still: int = -1, loops: int = 10, colors: int = 64,
            most_bytes: int = 600_000) -> Animation:
    """Return figures of one size as an animated picture; the same figures make the same bytes.

    It opens on one of them, the `still`, and then shows all in their order. A frame keeps only the
    pixels that differ from the frame before, so draw what does not move at the same place each time.

    Args:
        pictures: figures, best from a generator that draws one after the other.
        alt: what is seen to happen, for who cannot see it.
        seconds: how long a frame stands, or a number for each of them.
        rest: how long the still stands at the start, and the last frame at the end.
        still: the index of the frame to open on.
        loops: how often all is played, before it stops at the last frame.
        colors: how many the common palette has, up to 255.
        most_bytes: the largest file; a notebook keeps four bytes for three of them.
    Raises:
        ValueError: for pictures of different sizes, a frame that is too short, a file too large.
    """
    if not alt.strip():
        raise ValueError("alt: expected what is seen to happen, in words, got an empty text")
    if not 2 <= colors <= 255:
        raise ValueError(f"colors: expected 2 to 255, got {colors}")
    if loops < 1:
        raise ValueError(f"loops: expected at least 1, got {loops}")
    files, widths = [], []
    for picture in pictures:
        files.append(picture.png(2 * picture.dpi, fast=True))
        widths.append(round(picture.dpi * picture.get_figwidth()))
    if not -len(files) <= still < len(files):
        raise ValueError(f"still: expected the index of a picture, got {still} of {len(files)}")
    durations = _durations(seconds, rest, len(files))
    palette, frames = _indexed(files, colors)
    text = " ".join(alt.split())
    png = _encode(palette, [frames[still], *frames], durations, loops, text)
    if len(png) > most_bytes:
        raise ValueError(f"pictures: {len(files)} frames make {len(png):,} bytes, and most_bytes is"
                         f" {most_bytes:,}; draw fewer, or let less change from one to the next")
    return Animation(png, widths[0], text)


def _durations(seconds: float | Sequence[float], rest: float, count: int) -> list[float]:
    """Return how long the still and each of `count` frames stand; no frame flashes."""
    given = np.ravel(np.asarray(seconds, dtype=float))
    if given.size not in (1, count):
        raise ValueError(f"seconds: expected one number or {count}, one for each, got {given.size}")
    durations = [rest, *np.broadcast_to(given, count)[:-1].tolist(), rest]
    if not SHORTEST_S <= min(durations) <= max(durations) <= LONGEST_S:
        raise ValueError(f"seconds, rest: expected {SHORTEST_S:.2f} (so that nothing flashes) to"
                         f" {LONGEST_S:g} for each frame, got {min(durations):g} to {max(durations):g}")
    return durations


def _indexed(files: Sequence[bytes], colors: int) -> tuple[bytes, list[np.ndarray]]:
    """Return the common palette of PNG files, and each as an array of indices into it."""
    samples = np.unique(np.linspace(0, len(files) - 1, _SAMPLES).astype(int))
    palette = _palette([_image(files[i]) for i in samples], colors)
    nearest, known, frames = np.zeros(2**24, np.uint8), np.zeros(2**24, bool), []
    for image in map(_image, files):
        red, green, blue = np.moveaxis(np.asarray(image).astype(np.int32), 2, 0)
        pixels = red << 16 | green << 8 | blue
        if frames and pixels.shape != frames[0].shape:
            sizes = f"{frames[0].shape[::-1]} and {image.size}"
            raise ValueError(f"pictures: expected one size, got {sizes} pixels")
        fresh = np.unique(pixels[~known[pixels]])
        gaps = np.stack([fresh >> 16, fresh >> 8 & 255, fresh & 255], axis=1)[:, None] - palette
        nearest[fresh], known[fresh] = np.argmin((gaps**2).sum(axis=2), axis=1), True
        frames.append(nearest[pixels])
    return palette.astype(np.uint8).tobytes(), frames


def _palette(samples: Sequence[Image.Image], colors: int) -> np.ndarray:
    """Return colors, (colors, 3): the most frequent ones exactly, and means of the others."""
    counts: Counter[tuple[int, ...]] = Counter()
    for image in samples:
        # Room for all colors there are is a second's work to clear, and few pictures have so many.
        found = image.getcolors(2**16) or image.getcolors(2**24)
        counts.update({color: count for count, color in found})
    ranked = np.array(sorted(counts, key=lambda color: (-counts[color], color)))
    if len(ranked) <= colors:
        return ranked
    exact, others = np.split(ranked, [colors // 2])
    row = Image.fromarray(others.astype(np.uint8)[None])
    few = row.quantize(colors - len(exact), method=Image.Quantize.MEDIANCUT)
    return np.concatenate([exact, np.reshape(few.getpalette(), (-1, 3))])


def _image(file: bytes) -> Image.Image:
    return Image.open(io.BytesIO(file)).convert("RGB")


def _encode(palette: bytes, frames: Sequence[np.ndarray], durations: Sequence[float], loops: int,
            text: str) -> bytes:
    """Write frames of indices as an animated PNG (W3C, PNG third edition, chunks acTL, fcTL, fdAT).

    Of each frame but the first stands the rectangle that changed; in it, what did not change is
    transparent, which packs to a third of the bytes. Equal neighbors become one frame.
    """
    height, width = frames[0].shape
    clear = len(palette) // 3
    parts = [(0, 0, frames[0], durations[0])]
    for before, after, duration in zip(frames, frames[1:], durations[1:], strict=False):
        changed = before != after
        if not changed.any():
            parts[-1] = (*parts[-1][:3], parts[-1][3] + duration)
            continue
        rows, cols = np.flatnonzero(changed.any(axis=1)), np.flatnonzero(changed.any(axis=0))
        box = slice(rows[0], rows[-1] + 1), slice(cols[0], cols[-1] + 1)
        pixels = np.where(changed, after, clear).astype(np.uint8)[box]
        parts.append((int(cols[0]), int(rows[0]), pixels, duration))
    out = [b"\x89PNG\r\n\x1a\n",
           _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
           _chunk(b"acTL", struct.pack(">II", len(parts), loops)),
           _chunk(b"PLTE", palette + bytes(3)), _chunk(b"tRNS", b"\xff" * clear + b"\x00"),
           _chunk(b"iTXt", b"Description\0\0\0\0\0" + text.encode())]
    order = 0
    for x, y, pixels, duration in parts:
        h, w = pixels.shape
        # Disposal 0 leaves a frame standing; blending 1 lets it show through what is transparent.
        out.append(_chunk(b"fcTL", struct.pack(">IIIIIHHBB", order, w, h, x, y,
                                               math.ceil(100 * duration), 100, 0, int(order > 0))))
        packed = zlib.compress(np.pad(pixels, ((0, 0), (1, 0))).tobytes(), 9)  # 0: unfiltered rows
        out.append(_chunk(b"fdAT", struct.pack(">I", order + 1) + packed) if order
                   else _chunk(b"IDAT", packed))
        order += 2 if order else 1
    return b"".join([*out, _chunk(b"IEND", b"")])


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
