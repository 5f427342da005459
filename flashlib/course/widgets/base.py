"""The shell of every widget: controls with names, one picture, and no swallowed errors.

A `Lab` draws into an image instead of an output area: the picture is replaced in one step, and an
exception becomes a sentence in the widget that `sweep` raises again.
"""

import html
import io
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from flashlib import hardware

try:
    import ipywidgets
except ImportError:
    ipywidgets = None
if not hasattr(getattr(ipywidgets, "Widget", None), "_repr_mimebundle_"):
    ipywidgets = None  # version 7, which some hosted notebooks carry, shows itself in another way

FALLBACK = "Interactive: run this notebook to move the sliders; the figure above shows the default."
MISSING = ("This widget needs ipywidgets 8, which is not installed here, so what follows is its default"
           " picture. Remedy: `pip install 'ipywidgets>=8.1'`, then restart the kernel.")
# An inch of a figure is 100 pixels of the page, drawn with two dots each: sharp where a screen has two.
_PIXELS_PER_INCH = 100
_DPI = 2 * _PIXELS_PER_INCH
# In pixels: JupyterLab's bars and the cell's edges, a row of controls, and the sentence below.
_CHROME, _ROW, _NOTE = 132, 32, 44

# The widgets that exist, oldest first; one whose cell was run again is replaced by its successor.
LIVE: dict[str, "Lab"] = {}


class Choice(NamedTuple):
    """One control: its options as (label, value), its default value, and how it presents itself."""

    options: tuple[tuple[str, Any], ...]
    default: Any
    description: str
    tooltip: str
    kind: str
    live: bool

    def position(self, value: Any) -> int:
        """Return the number of the option that has this value."""
        return [v for _, v in self.options].index(value)


class SweepRow(NamedTuple):
    """One picture that `sweep` drew."""

    widget: str
    control: str
    option: Any
    seconds: float


def choice(options: Iterable, default: Any, description: str, *, tooltip: str | None = None,
           kind: str = "slider", live: bool = True) -> Choice:
    """Return a control over a fixed list of options, so that an invalid one cannot be chosen.

    Args:
        options: values, or (label, value) pairs.
        default: the value at first; one of the options.
        description: the visible name.  tooltip: a longer one; the description if None.
        kind: "slider", "dropdown", "toggle" (buttons) or "play" (a slider with a play button).
        live: redraw while a slider is dragged; False where a picture takes long.
    """
    pairs = tuple(o if isinstance(o, tuple) and len(o) == 2 and isinstance(o[0], str) else (str(o), o)
                  for o in options)
    if kind not in _MAKERS:
        raise ValueError(f"kind: expected one of {sorted(_MAKERS)}, got {kind!r}")
    if default not in [value for _, value in pairs]:
        raise ValueError(f"default: expected one of {[v for _, v in pairs]}, got {default!r}")
    if not description:
        raise ValueError("description: expected the visible name of the control, got ''")
    return Choice(pairs, default, description, tooltip or description, kind, live)


def including(value: Any, options: Iterable) -> list:
    """Return options in order with a value of the reader's own among them; None adds nothing."""
    return sorted({*options, *([] if value is None else [value])})


def over_gpus(draw: Callable[..., Figure], gpu, tooltip: str,
              names: Iterable | None = None) -> tuple[Choice, Callable[..., Figure]]:
    """Return a control over GPUs, `gpu` among them, and `draw` for its values, which are names.

    `gpu` is a name or a sheet of the reader's own; `names` are the others, every GPU if None.
    """
    first = hardware.get(gpu)
    sheets = {sheet.name: sheet for sheet in map(hardware.get, names or hardware.ALL)}
    sheets[first.name] = first
    control = choice(list(sheets), first.name, "GPU", kind="dropdown", tooltip=tooltip)
    return control, lambda gpu, **choices: draw(gpu=sheets[gpu], **choices)


class Lab:
    """Controls above one picture that `draw` makes from their values.

    `Lab("block_lab", {"Br": choice([16, 32], 16, "Br, rows of Q")}, draw)` calls `draw(Br=16)`.

    Args:
        name: what `LIVE` and `sweep` call it; a later Lab of that name replaces it.
        controls: {keyword of draw: Choice}.
        draw: returns a figure.
        note: a sentence below the picture.
    """

    def __init__(self, name: str, controls: Mapping[str, Choice], draw: Callable[..., Figure], *,
                 note: str = ""):
        if not controls:
            raise ValueError("controls: expected at least one, as in {'Br': choice(...)}, got none")
        self.name, self.controls, self.note = name, dict(controls), note
        self._draw = draw
        self.values = {key: control.default for key, control in self.controls.items()}
        self.error: Exception | None = None
        self.alt = ""
        self._handles: dict[str, Any] = {}
        self._box, self._still = None, False
        LIVE.pop(name, None)
        LIVE[name] = self

    def figure(self, **changes) -> Figure:
        """Return the picture of the present values, or of some changed: for static readers."""
        unknown = set(changes) - set(self.controls)
        if unknown:
            raise TypeError(f"{self.name}: expected controls {sorted(self.controls)}, got"
                            f" {sorted(unknown)}")
        return self._draw(**{**self.values, **changes})

    def set(self, **values) -> None:
        """Set controls, as a reader's hand would, and redraw once; an error shows and is kept."""
        for key, value in values.items():
            options = [v for _, v in self.controls[key].options]
            if value not in options:
                raise ValueError(f"{key}: expected one of {options}, got {value!r}")
        if self._box is None:
            self.values.update(values)
            return
        before, self._still = dict(self.values), True
        try:
            for key, value in values.items():
                self._handles[key].value = self.controls[key].position(value)
        finally:
            self._still = False
        if self.values != before:
            self._redraw()

    @property
    def widget(self):
        """The ipywidgets box, made on first use."""
        if ipywidgets is None:
            raise ImportError(MISSING)
        if self._box is None:
            self._build()
        return self._box

    def _build(self) -> None:
        rows, wide = [], 0
        for key, control in self.controls.items():
            handle, row = _MAKERS[control.kind](control, control.position(self.values[key]))
            handle.observe(self._listener(key), names="value")
            self._handles[key] = handle
            if _is_wide(control):
                row.layout.grid_column, wide = "1 / -1", wide + 1
            rows.append(row)
        controls = ipywidgets.GridBox(rows, layout=_TWO_COLUMNS)
        self._lines = wide + -(-(len(rows) - wide) // 2)
        # A flex item would be stretched to the window, and blurred.
        self._image = ipywidgets.Image(format="png", layout={"align_self": "flex-start"})
        self._message = ipywidgets.HTML(layout={"margin": "0 2px"})
        self._box = ipywidgets.VBox([controls, self._image, self._message])
        self._box.add_class("flashlib-lab")
        self._redraw()

    def _listener(self, key):
        def listen(change):
            self._changed(key, self.controls[key].options[change["new"]][1])

        return listen

    def _changed(self, key, value) -> None:
        self.values[key] = value
        if not self._still:
            self._redraw()

    def _redraw(self) -> None:
        """Draw the present values; an exception becomes a sentence in place of a stale picture."""
        try:
            fig = self._draw(**self.values)
            picture = _png(fig)
            width = _shown_width(*fig.get_size_inches(), self._lines)
        except Exception as error:
            self.error = error
            self._image.layout.display = "none"
            self._message.value = _sentence(self.name, self.values, error)
            return
        self.error = None
        self.alt = getattr(fig, "_alt", "")
        self._image.value = picture
        self._image.layout.display, self._image.layout.width = None, width
        if hasattr(self._image, "alt"):
            self._image.alt = self.alt
        self._message.value = (f"<span class='sr-only' style='{_HIDDEN}'>{html.escape(self.alt)}</span>"
                               "<small style='display:block;line-height:1.3'>"
                               f"{html.escape(self.note)}</small>")

    def _repr_mimebundle_(self, include=None, exclude=None):
        if ipywidgets is None:
            print(MISSING)
            bundle = self.figure()
            return (bundle._repr_mimebundle_() if hasattr(bundle, "_repr_mimebundle_")
                    else {"text/plain": repr(bundle)})
        data = self.widget._repr_mimebundle_()
        data, meta = data if isinstance(data, tuple) else (data, {})
        return {**data, "text/plain": FALLBACK}, meta

    def __repr__(self):
        return FALLBACK if ipywidgets is not None else f"<Lab {self.name}>"


# Read by screen readers and shown to nobody else.
_HIDDEN = "position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)"


_TWO_COLUMNS = {"grid_template_columns": "repeat(auto-fit, minmax(min(360px, 100%), 1fr))",
                "grid_auto_flow": "row dense", "grid_gap": "0 16px", "max_width": "860px"}


def _is_wide(control) -> bool:
    """Return whether a control needs both columns: a player, or long texts to choose from."""
    texts = [len(label) for label, _ in control.options]
    room = sum(texts) + 4 * len(texts) if control.kind == "toggle" else max(texts)
    return control.kind == "play" or room > 36


def _shown_width(wide, high, lines) -> str:
    """Return the CSS width of a picture: its own, or less if a low window would hide the controls.

    It gives way to the rows of controls above it, down to four fifths.
    """
    own = round(_PIXELS_PER_INCH * wide)
    fits = f"calc((100vh - {_CHROME + _ROW * lines + _NOTE}px) * {wide / high:.4f})"
    return f"min(100%, {own}px, max({round(0.8 * own)}px, {fits}))"


def _png(fig) -> bytes:
    if hasattr(fig, "png"):
        return fig.png(_DPI, fast=True)
    if not isinstance(fig, Figure):
        raise TypeError(f"draw: expected it to return a figure, got {type(fig).__name__}")
    out = io.BytesIO()
    fig.savefig(out, format="png", dpi=_DPI)
    return out.getvalue()


def _sentence(name, values, error) -> str:
    """Say what failed, where, and what to do."""
    setting = ", ".join(f"{key} = {value}" for key, value in values.items())
    where = traceback.extract_tb(error.__traceback__)[-1]
    text = f"{type(error).__name__}: {error}"
    return (f"<div role='alert' style='border-left:4px solid #CC3311;padding:6px 10px;background:#fff;"
            f"color:#222;max-width:46em'><b>No picture for {html.escape(setting)}.</b><br>"
            f"{html.escape(text)}<br><small>in {html.escape(name)}, {html.escape(where.name)}(): "
            f"move a control to draw again</small></div>")


def _numbered(control) -> list[tuple[str, int]]:
    """Return the options under their numbers: to ipywidgets a value of None means no choice."""
    return [(label, number) for number, (label, _) in enumerate(control.options)]


def _look(control) -> dict:
    return {"description": control.description, "tooltip": control.tooltip,
            "style": {"description_width": "13em"}, "layout": {"width": "auto", "max_width": "100%"}}


def _slider(control, index):
    handle = ipywidgets.SelectionSlider(options=_numbered(control), value=index,
                                        continuous_update=control.live, **_look(control))
    return handle, handle


def _dropdown(control, index):
    look = _look(control)
    # A Dropdown with a name drops its tooltip, so the name carries it. JupyterLab takes arrow keys
    # and letters away from a list that is closed, so the tooltip says how to open it.
    tooltip = html.escape(f"{control.tooltip} (keyboard: Space opens the list)", quote=True)
    look["description"] = f"<span title='{tooltip}'>{html.escape(control.description)}</span>"
    handle = ipywidgets.Dropdown(options=_numbered(control), value=index, description_allow_html=True,
                                 **look)
    return handle, handle


def _toggle(control, index):
    look = _look(control)
    tooltips = [f"{control.tooltip}: {label}" for label, _ in control.options]
    look["style"] = {**look["style"], "button_width": "auto"}
    handle = ipywidgets.ToggleButtons(options=_numbered(control), value=index, tooltips=tooltips,
                                      **look)
    # Its name stands to the left of the buttons, in line with the names of the other controls.
    handle.add_class("jupyter-widgets")
    handle.add_class("widget-inline-hbox")
    return handle, handle


def _play(control, index):
    """Return a slider over the numbers of the options, with a play button linked to it."""
    last = len(control.options) - 1
    look = {**_look(control), "layout": {"width": "36em", "max_width": "100%"}}
    handle = ipywidgets.IntSlider(min=0, max=last, value=index, continuous_update=control.live,
                                  readout=False, **look)
    button = ipywidgets.Play(min=0, max=last, value=index, interval=450, show_repeat=False,
                             layout={"width": "auto"})
    button.tooltip = f"Play: {control.tooltip}"
    shown = ipywidgets.Label(control.options[index][0])
    ipywidgets.link((button, "value"), (handle, "value"))
    handle.observe(lambda change: setattr(shown, "value", control.options[change["new"]][0]), "value")
    return handle, ipywidgets.HBox([handle, button, shown], layout={"flex_flow": "row wrap"})


_MAKERS: dict[str, Callable] = {"slider": _slider, "dropdown": _dropdown, "toggle": _toggle,
                                "play": _play}


def sweep(names: Sequence[str] | None = None, *, most: int = 200) -> list[SweepRow]:
    """Set every control of every living widget to every option, the others at their defaults.

    Args:
        names: which widgets; None for all in `LIVE`.
        most: of a control with more options, that many are drawn, spread evenly, ends included.
    Returns:
        (widget, control, option, seconds) of every picture; that of the defaults is drawn once.
    Raises:
        RuntimeError: a picture failed; the message names widget, control and option, and the
            exception of `draw` is its cause.
    """
    rows = []
    for name in list(LIVE) if names is None else names:
        if name not in LIVE:
            raise ValueError(f"names: expected widgets out of {sorted(LIVE)}, got {name!r}")
        lab = LIVE[name]
        kept = dict(lab.values)
        defaults = {key: control.default for key, control in lab.controls.items()}
        usual = _try(lab, defaults, *next(iter(defaults.items())))              # one picture for all
        for key, control in lab.controls.items():
            last, default = len(control.options) - 1, control.position(control.default)
            for at in dict.fromkeys([*range(0, last + 1, max(1, -(-last // max(most - 1, 1)))), last]):
                row = usual if at == default else _try(lab, defaults, key, control.options[at][1])
                rows.append(row._replace(control=key, option=control.options[at][1]))
        lab.set(**kept)
    return rows


def _try(lab, defaults, key, option) -> SweepRow:
    values = {**defaults, key: option}
    start = time.perf_counter()
    if ipywidgets is None:
        try:
            _png(lab.figure(**values))
        except Exception as error:
            raise _failure(lab, key, option, error) from error
    else:
        if lab.widget is not None:  # made on first use, and not timed
            start = time.perf_counter()
        if lab.values == values:
            lab._redraw()
        else:
            lab.set(**values)
        if lab.error is not None:
            raise _failure(lab, key, option, lab.error) from lab.error
    return SweepRow(lab.name, key, option, time.perf_counter() - start)


def _failure(lab, key, option, error) -> RuntimeError:
    return RuntimeError(f"widget {lab.name!r}, control {key!r}, option {option!r}:"
                        f" {type(error).__name__}: {error}")
