"""Widgets: sliders over the tested code, each with a static picture for readers without a kernel.

A chapter's own widgets are in its `lab`; each returns a `base.Lab`. `LIVE` holds those that exist;
`sweep()` sets every control of each to every option and raises if a picture fails, which is how a
test runs a notebook's widgets.
"""

from flashlib.lazy import attach

_HOMES = {"LIVE": "base", "sweep": "base", "Lab": "base", "play": "player"}

__all__ = list(_HOMES)
__getattr__, __dir__ = attach(__name__, _HOMES)
