"""The site's explorers in JupyterLab: pictures that answer while a slider moves, without the kernel.

One bundle, `site/static/explorer.js`, serves the pages and the notebook. Here anywidget carries it:
`explorer("blocks").state` is what the reader chose, and setting it moves the controls.
"""

from __future__ import annotations

import functools
from pathlib import Path

from flashlib.course.notebook.data import PACKAGE

KINDS = ("blocks", "walk", "softmax")
MISSING = ("The explorers need anywidget, which is not installed here: in the course's folder run"
           ' `pip install ".[explorer]"`, elsewhere `pip install anywidget`, then restart the kernel.')


def bundle() -> Path:
    """Return the path of the built script, in the installed package or in the checkout."""
    installed = PACKAGE / "_assets"
    path = (installed / "explorer" / "explorer.js" if installed.is_dir()
            else PACKAGE.parent / "site" / "static" / "explorer.js")
    if not path.is_file():
        raise FileNotFoundError(f"The explorers' script is not at {path}: install flashlib anew, or run"
                                " `make explorer`.")
    return path


def explorer(kind: str = "blocks", **state):
    """Return an explorer as a widget.

    Args:
        kind: "blocks", what tiles, parts of the keys or a ring of GPUs cost; "walk", an algorithm line
            by line and tile by tile; "softmax", a row of logits in three passes, two or one.
        state: where it opens, as in `explorer("blocks", algorithm="v1", Br=64, gpu="H100")`.
    Raises:
        ModuleNotFoundError: anywidget is not installed; the message says which extra brings it.
    """
    if kind not in KINDS:
        raise ValueError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    return _widget()(kind=kind, state=state)


@functools.cache
def _widget():
    try:
        import anywidget
        import traitlets
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(MISSING, name=error.name) from None

    class Explorer(anywidget.AnyWidget):
        """One of the explorers; `state` follows the reader's hand, and leads it when it is set."""

        # A page loads the bundle as a classic script; a notebook's front end wants a module.
        _esm = (bundle().read_text(encoding="utf-8")
                + "\nexport default { render: flashExplorer.render };\n")
        kind = traitlets.Enum(KINDS, "blocks").tag(sync=True)
        state = traitlets.Dict().tag(sync=True)

    return Explorer
