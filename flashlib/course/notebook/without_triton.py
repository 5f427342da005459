"""Is Triton here? And what a notebook shows where it is not: the outputs that the course recorded.

A cell that begins with the remark `# needs Triton` runs where torch and Triton are installed. Where
they are not (macOS, Windows), `import_triton` puts the output of the course's own copy in its place,
and says so once. `import_torch` does that for cells with the remark `# needs torch`.
"""

import importlib
import importlib.util
import json
import os
import platform
from pathlib import Path

REMARK, TORCH_REMARK = "# needs Triton", "# needs torch"
NOTEBOOKS = Path(__file__).resolve().parents[3] / "notebooks"
_recorded: dict[str, list] = {}
_replayed: set[str] = set()                                 # remarks whose cells are not run


def why_not(names: tuple[str, ...] = ("torch", "triton")) -> str | None:
    """Return None where torch and Triton are both installed, else what is missing and what to do."""
    absent = [name for name in names if importlib.util.find_spec(name) is None]
    if not absent:
        return None
    remedy = ("install the course's requirements" if platform.system() == "Linux"
              else "install torch" if "triton" not in absent
              else "Triton exists for Linux only: use a Linux machine, WSL or Colab")
    return f"{' and '.join(absent)} cannot be imported here ({remedy})."


class StandIn:
    """Takes the place of a module that is not installed: a notebook can name things in it."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn(f"{self._name}.{name}")

    def __call__(self, *arguments, **options):
        if self._name == "triton.jit" and arguments:
            return arguments[0]
        raise NotImplementedError(f"{self._name}: {why_not()}")


def import_triton(name: str):
    """Return torch, triton and triton.language, with the interpreter on, for notebook `name`.

    Where one of them is missing: prints one sentence, returns stand-ins, and cells that begin with the
    remark show their recorded outputs from then on.
    """
    if why_not():
        replay(name)
        return StandIn("torch"), StandIn("triton"), StandIn("triton.language")
    os.environ["TRITON_INTERPRET"] = "1"
    return tuple(map(importlib.import_module, ("torch", "triton", "triton.language")))


def import_torch(name: str):
    """Return torch for notebook `name`; where it is missing, do as `import_triton` does."""
    if said := why_not(("torch",)):
        replay(name, TORCH_REMARK, said)
        return StandIn("torch")
    return importlib.import_module("torch")


def replay(name: str, remark: str = REMARK, said: str | None = None) -> None:
    """Show recorded outputs for cells of notebook `name` with a remark, and print one sentence."""
    _replayed.add(remark)
    path = NOTEBOOKS / f"{name}.ipynb"
    if path.exists():
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                _recorded[_key("".join(cell["source"]))] = cell["outputs"]
    print(f"{said or why_not()} Cells that begin with '{remark}' show what the course recorded, not a"
          " run.")
    try:
        from IPython import get_ipython
    except ImportError:
        return
    shell = get_ipython()
    if shell is not None and _redirect not in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.append(_redirect)


def _key(source: str) -> str:
    return "\n".join(line.rstrip() for line in source.strip().splitlines())


def _redirect(lines: list[str]) -> list[str]:
    """Replace a cell that needs what is missing by a call that shows its recorded output."""
    if not lines or not lines[0].startswith(tuple(_replayed)):
        return lines
    return [f"__import__('{__name__}', fromlist=['show']).show({_key(''.join(lines))!r})\n"]


def show(source: str) -> None:
    """Show the recorded output of a cell, by its source."""
    outputs = _recorded.get(source)
    if outputs is None:
        print("This cell needs what is missing here, and no output of it is recorded.")
        return
    from IPython.display import publish_display_data

    for output in outputs:
        if output["output_type"] == "stream":
            print("".join(output["text"]), end="")
        elif "data" in output:
            data = {kind: "".join(text) if isinstance(text, list) else text
                    for kind, text in output["data"].items()}
            publish_display_data(data, output.get("metadata", {}))
