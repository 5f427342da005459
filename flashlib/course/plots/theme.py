"""The look of every figure: which hue is which tensor, which background is which memory.

A function of `flashlib.plots` draws inside `style()`, which changes matplotlib's settings for the
time of the drawing only, and returns a `Picture`: a figure that shows itself in a notebook, knows
its alt text and needs no pyplot, so that nothing is shown twice and nothing has to be closed.
"""

import base64
import colorsys
import functools
import io
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.offsetbox import AnchoredOffsetbox, DrawingArea, HPacker, TextArea
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.textpath import TextPath
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from flashlib.hardware import human

WIDTH = 7.0
SMALL, TINY = 8, 7.5

# Paul Tol's muted set, whose worst pair stays apart under the three color deficiencies. The parts
# that A, B, C and x, y play outside attention are those of Q, K, S and S, P inside it.
TENSOR_COLORS = {"Q": "#332288", "K": "#DDCC77", "V": "#117733", "S": "#88CCEE", "P": "#999933",
                 "O": "#CC6677", "m": "#5F5F5F", "l": "#8C8C8C", "lse": "#B4B4B4", "delta": "#CFCFCF",
                 "A": "#332288", "B": "#DDCC77", "C": "#88CCEE", "x": "#88CCEE", "y": "#999933"}
NEUTRAL = "#7A869A"
PALE = ("K", "S", "B", "C", "x")

INK, GREY, FAINT = "#222222", "#6B6B6B", "#D5D5D5"
EDGE = "#3A3A3A"
OVER = "#CC3311"
GRID = "#DDDDDD"

# Where it lives: keyword arguments of a patch.
HBM = {"facecolor": "#ECECEC", "edgecolor": "#BDBDBD", "hatch": "////"}
SRAM = {"facecolor": "#F1F5FA", "edgecolor": "#B9C6D6"}
REGISTER = {"facecolor": "#FFFFFF", "edgecolor": "#9A9A9A"}

# Versions are ordered: steps of viridis, a marker each; what came before FlashAttention is grey.
_VERSIONS = {"standard": ("#6B6B6B", "s"), "multi_pass": ("#8C8C8C", "P"), "one_pass": ("#A5A5A5", "X"),
             "v1": ("#440154", "o"), "v2": ("#31688E", "D"), "v3": ("#35B779", "^"),
             "v4": ("#B8A018", "v")}
_OTHERS = (("#222222", "o"), ("#8A6D3B", "h"), ("#5B7F95", "p"), ("#7A5C86", "<"), ("#4F7A5B", ">"),
           ("#9C9C9C", "*"), ("#A0527A", "d"))


@functools.cache
def _settings() -> dict:
    path = Path(__file__).with_name("flashlib.mplstyle")
    return dict(mpl.rc_params_from_file(path, use_default_template=False))


def style():
    """Return a context in which matplotlib draws in the style of the course."""
    return mpl.rc_context(_settings())


def styled(draw: Callable) -> Callable:
    """Decorate a function that draws, so that it does so in the style of the course."""

    @functools.wraps(draw)
    def wrapper(*args, **kwargs):
        with style():
            return draw(*args, **kwargs)

    return wrapper


class Picture(Figure):
    """A matplotlib figure that shows itself as a PNG, with its alt text in place of a repr."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        FigureCanvasAgg(self)
        self._alt = ""

    def png(self, dpi: float | None = None, *, fast: bool = False) -> bytes:
        """Return the figure as the bytes of a PNG file; `fast` is for a widget.

        It compresses little and leaves out the hinting of the letters, which takes half the time.
        """
        out = io.BytesIO()
        with mpl.rc_context(_settings() | ({"text.hinting": "none"} if fast else {})):
            self.savefig(out, format="png", dpi=dpi or self.dpi,
                         metadata={"Software": None, "Description": self._alt},
                         pil_kwargs={"compress_level": 1} if fast else None)
        return out.getvalue()

    def shown(self) -> tuple[bytes, dict]:
        """Return what a notebook keeps: a PNG of two dots a pixel, and how wide to show it.

        The metadata name the width in pixels of the page, and the alt text if there is one. In the 256
        colors that fit best the PNG is a third of its size; only edges of letters move, by a shade.
        """
        full = Image.open(io.BytesIO(self.png(2 * self.dpi))).convert("RGB")
        few = full.quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        info, out = PngInfo(), io.BytesIO()
        info.add_text("Description", self._alt)
        few.save(out, format="png", optimize=True, pnginfo=info)
        width = round(self.dpi * self.get_figwidth())
        return out.getvalue(), {"width": width} | ({"alt": self._alt} if self._alt else {})

    def _repr_mimebundle_(self, include=None, exclude=None):
        png, metadata = self.shown()
        data = {"image/png": base64.b64encode(png).decode(),
                "text/plain": self._alt or f"<figure, {self.get_figwidth():g} in wide>"}
        return data, {"image/png": metadata}


def figure(height: float, width: float = WIDTH, *, layout: str | None = "constrained") -> Picture:
    """Return an empty `Picture`; `layout=None` for axes that are placed by hand (and faster)."""
    with style():
        return Picture(figsize=(width, height), layout=layout or "none")


def subplots(rows: int = 1, cols: int = 1, *, height: float = 3.2, width: float = WIDTH, **kwargs):
    """Return a `Picture` and its axes, as `pyplot.subplots` does."""
    fig = figure(height, width)
    with style():
        return fig, fig.subplots(rows, cols, **kwargs)


def canvas(ax: Axes | None, height: float) -> tuple[Figure, Axes]:
    """Return the figure and the axes to draw on: a new one, or the one that `ax` belongs to."""
    if ax is not None:
        return ax.figure, ax
    return subplots(height=height)


def describe(fig: Figure, text: str) -> Figure:
    """Store the alt text of a figure, and return the figure."""
    fig._alt = " ".join(text.split())
    return fig


def alt_text(fig: Figure) -> str:
    """Return the alt text of a figure, "" if it has none."""
    return getattr(fig, "_alt", "")


def key_of(name: str) -> str | None:
    """Return which tensor a name means: 'Qi' is 'Q', 'S_ij' is 'S', 'dK' is 'K'; None if none."""
    for candidate in (name, name[1:] if name[:1] == "d" else name):
        for key in ("lse", "delta"):
            if candidate.startswith(key):
                return key
        if candidate[:1] in TENSOR_COLORS and not (candidate[:1].islower() and candidate[1:2].isalpha()
                                                   and candidate[1:] not in ("i", "j", "ij")):
            return candidate[0]
    return None


def tensor_color(name: str) -> str:
    """Return the hue of a tensor, by its name or its first letter; a neutral one if unknown.

    A gradient, as dQ, has the hue of its tensor, lighter.
    """
    key = key_of(name)
    hue = TENSOR_COLORS.get(key, NEUTRAL)
    return tint(hue, 0.4) if key and name[:1] == "d" and key[:1] != "d" else hue


def edge_color(name: str) -> str:
    """Return the edge of a tensor's patches: dark, because K and S are pale."""
    return mix(tensor_color(name), "#000000", 0.45 if key_of(name) in PALE else 0.3)


def mix(color, other, share: float) -> str:
    """Return `color` with a `share` (0…1) of `other` mixed in."""
    a, b = np.array(to_rgb(color)), np.array(to_rgb(other))
    return to_hex((1 - share) * a + share * b)


def tint(color, share: float = 0.75) -> str:
    """Return `color` with a share of white mixed in."""
    return mix(color, "#FFFFFF", share)


def luminance(color) -> float:
    """Return the relative luminance of a color, 0 to 1, as WCAG defines it."""
    rgb = np.array(to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def ink_on(color) -> str:
    """Return the text color, dark or white, that reads better on `color`."""
    light = luminance(color) + 0.05
    return INK if light / 0.0656 >= 1.05 / light else "#FFFFFF"


def readable(color) -> str:
    """Return `color`, darkened as far as small text on white needs: a contrast of 4.5 to 1."""
    shades = (mix(color, "#000000", share) for share in np.arange(0, 1, 0.05))
    return next(shade for shade in shades if 1.05 / (luminance(shade) + 0.05) >= 4.5)


@functools.cache
def tensor_cmap(name: str, low: float = 0.0) -> LinearSegmentedColormap:
    """Return a map from white through the hue of a tensor to a dark shade, from `low` on."""
    hue = tensor_color(name)
    h, lightness, saturation = colorsys.rgb_to_hls(*to_rgb(hue))
    dark = colorsys.hls_to_rgb(h, 0.24, min(1.0, max(saturation, 0.2)))
    stops = ([(0.0, "#FFFFFF"), (0.5, hue), (1.0, dark)] if lightness > 0.35
             else [(0.0, "#FFFFFF"), (0.5, tint(hue, 0.45)), (1.0, hue)])
    full = LinearSegmentedColormap.from_list(f"flashlib_{name}", stops)
    if not low:
        return full
    return LinearSegmentedColormap.from_list(f"flashlib_{name}_{low}", full(np.linspace(low, 1, 64)))


def version_style(name: str, index: int = 0) -> dict:
    """Return color and marker of an algorithm, as keyword arguments: `ax.plot(x, y, **style)`.

    Any name that holds "v1" … "v4", "standard", "one_pass" or "multi_pass" has its own; for other
    names `index` counts through a neutral set.
    """
    plain = name.lower().replace("-", "_").replace(" ", "_")
    for key, (color, marker) in _VERSIONS.items():
        if key in plain:
            return {"color": color, "marker": marker}
    color, marker = _OTHERS[index % len(_OTHERS)]
    return {"color": color, "marker": marker}


def percent(share) -> str:
    """Return a share for people, with a decimal where the rounded one would say 100 %."""
    return f"{100 * share:.{1 if 0.99 < share < 1 else 0}f} %"


def human_bytes(n: float) -> str:
    """Return bytes for people: 1500000 is '1.5 MB'."""
    return human(n, "B")


def human_room(n: float) -> str:
    """Return a size on the chip for people, in powers of two: 166912 is '163 KiB'."""
    return human(n, "B", binary=True)


def human_count(n: float) -> str:
    """Return a count for people: 1500000 is '1.5 M'."""
    return human(n, "").strip()


@functools.lru_cache(maxsize=4096)
def text_width(text: str, size: float = 9.0, weight: str = "normal") -> float:
    """Return the width of a text in inches, to know whether it has room."""
    if not text.strip():
        return 0.0
    font = FontProperties(family="DejaVu Sans", weight=weight)
    return TextPath((0, 0), text, size=size, prop=font).get_extents().width / 72


def halo(width: float = 2.5, color: str = "#FFFFFF") -> list:
    """Return path effects that keep a text readable across lines."""
    return [withStroke(linewidth=width, foreground=color)]


def patch_key(ax: Axes, items, *, at=(1.0, 1.0), loc: str = "lower right"):
    """Write a small key, [(text, patch keyword arguments)], at a place in the axes."""
    parts = []
    for text, look in items:
        swatch = DrawingArea(18, 8)
        swatch.add_artist(Rectangle((0, 0), 18, 8, **{"lw": 0.6, **look}))
        parts += [swatch, TextArea(text, textprops={"fontsize": TINY, "color": GREY})]
    row = HPacker(children=parts, pad=0, sep=5, align="center")
    key = AnchoredOffsetbox(loc, child=row, frameon=False, bbox_to_anchor=at, pad=0.1, borderpad=0.2,
                            bbox_transform=ax.transAxes)
    ax.add_artist(key)
    return key


def read_write_key(ax: Axes, *, at=(1.0, 1.0)):
    """Write the key, solid for read and hatched for written, above the right end of the axes."""
    grey = {"facecolor": "#C8C8C8", "edgecolor": "#6B6B6B", "lw": 0}
    return patch_key(ax, [("read", grey), ("written", {**grey, "hatch": "/////"})], at=at)
