"""Pictures that several chapters draw: data in, a figure out; a chapter's own are its `figures`.

Every function returns a figure that shows itself in a notebook; `sram_gauge` can also draw into
an `ax=`. Importing this module also teaches IPython to show small arrays as colored grids.
"""

import sys

from flashlib.lazy import attach

_HOMES = {
    "TENSOR_COLORS": "theme", "WIDTH": "theme", "describe": "theme", "figure": "theme",
    "human_bytes": "theme", "style": "theme", "styled": "theme", "subplots": "theme",
    "tensor_color": "theme", "version_style": "theme",
    "show": "matrices", "register_formatters": "matrices",
    "tile_visits": "visits", "key_frames": "visits", "compare": "visits",
    "traffic_bars": "traffic", "sram_gauge": "traffic", "sweep": "curves",
    "roofline": "roofline", "causal_rows": "causal", "gantt": "gantt",
    "origin": "parts", "animate": "animation",
}

__all__ = list(_HOMES)
__getattr__, __dir__ = attach(__name__, _HOMES)

if "IPython" in sys.modules and (_shell := sys.modules["IPython"].get_ipython()) is not None:
    __getattr__("register_formatters")(_shell)
