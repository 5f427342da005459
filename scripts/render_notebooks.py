"""Execute the notebooks and keep their outputs, or check that the kept ones still hold.

    render_notebooks.py [06 ...]          execute in place; one that fails is left as it was
    render_notebooks.py --check [06 ...]  execute, write nothing, compare with the kept outputs
    render_notebooks.py --stale [06 ...]  execute nothing: do the outputs belong to the sources?

A rendered notebook records the hash of its code in metadata.flashlib.source_sha256. Outputs are
compared as text, never as images; integers must agree exactly and other numbers closely, because
the last digit depends on the processor. A cell tagged `volatile` (timings, this machine's name)
is not compared.
"""

import argparse
import hashlib
import html
import json
import math
import os
import re
import sys
import tempfile
import time
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
SIZE_LIMIT_BYTES = 1_500_000
CELL_TIMEOUT_S = 120
SWEEP_TIMEOUT_S = 1200                                      # of the cell that draws every picture
KERNEL_ENV = {
    "PYTHONHASHSEED": "0",
    "TQDM_DISABLE": "1",
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    "JUPYTER_PREFER_ENV_PATH": "1",
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
}
# What a notebook says of its kernel, on every machine that renders it.
KERNEL_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {
        "codemirror_mode": {"name": "ipython", "version": 3},
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "nbconvert_exporter": "python",
        "pygments_lexer": "ipython3",
    },
}
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
WIDGET_TEXT = "(a control: run this cell in JupyterLab to use it)"
# Sets every control of every live widget to every option; a callback's error ends up in the cell.
SWEEP = """\
from importlib.util import find_spec
if find_spec("flashlib"):
    from flashlib import widgets
    widgets.sweep()
"""
# How many widgets were there to be swept.
ALIVE = """\
import sys
print("flashlib" in sys.modules and len(sys.modules["flashlib"].widgets.LIVE))
"""
# Put on the kernel's PYTHONPATH as sitecustomize.py: the named modules are as good as uninstalled.
BLOCKER = """\
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {names!r}:
            return self.finder.find_spec(name, path, target)
        if {loud!r}:
            print("asks for", name, file=sys.stderr)

    def find_distributions(self, context):
        found = getattr(self.finder, "find_distributions", lambda context: [])
        return [] if context.name in {names!r} else found(context)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""


class NotebookError(Exception):
    """A notebook that does not run, or whose outputs do not hold."""


def source_sha256(notebook):
    """Hash of the code cells' sources: what the outputs depend on, together with flashlib."""
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256(json.dumps(sources).encode()).hexdigest()


def stale(notebook):
    """Why the outputs do not belong to the sources, or None where they do."""
    recorded = notebook.metadata.get("flashlib", {}).get("source_sha256")
    if recorded is None:
        return "was never rendered; run: make notebooks"
    if recorded != source_sha256(notebook):
        return "has code that changed after its outputs were made; run: make notebooks"
    return None


def execute(notebook, *, cwd, without=(), never=(), sweep=False, on_cell=None, timeout=CELL_TIMEOUT_S):
    """A copy of the notebook with fresh outputs; NotebookError at an error or a word on stderr."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    fresh = nbformat.from_dict(notebook)
    for cell in fresh.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    if sweep:
        fresh.cells += [nbformat.v4.new_code_cell(SWEEP), nbformat.v4.new_code_cell(ALIVE)]
    with tempfile.TemporaryDirectory() as startup:
        client = NotebookClient(
            fresh,
            timeout_func=lambda cell: SWEEP_TIMEOUT_S if cell.source == SWEEP else timeout,
            kernel_name="python3",
            extra_arguments=["--log-level=ERROR"],
            record_timing=False,
            coalesce_streams=True,
            store_widget_state=False,
            resources={"metadata": {"path": str(cwd)}},
            on_cell_complete=on_cell,
        )
        try:
            client.execute(env=_kernel_env(Path(startup), without, never))
        except CellTimeoutError as error:
            raise NotebookError(f"a cell ran longer than it may: {error}") from None
        except DeadKernelError as error:
            raise NotebookError(f"the kernel died: {error}") from None
        except CellExecutionError as error:
            raise NotebookError(_plain(str(error))) from None
    for index, cell in enumerate(fresh.cells):
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                raise NotebookError(f"cell {index} ends in {output.ename}: {output.evalue}")
            if output.output_type == "stream" and output.name == "stderr":
                raise NotebookError(f"cell {index} writes to stderr: {output.text.strip()}")
    if sweep:
        *fresh.cells, _, alive = fresh.cells
        shown = any(WIDGET_VIEW in o.get("data", {}) for c in fresh.cells for o in c.get("outputs", []))
        if shown and alive.outputs[0].text.strip() in ("0", "False"):
            raise NotebookError("shows a control, and no widget was alive at its end to be swept")
    return fresh


def _kernel_env(startup, without, never):
    env = {**os.environ, **KERNEL_ENV}
    if without or never:
        blocker = BLOCKER.format(names=tuple(never or without), loud=bool(never))
        (startup / "sitecustomize.py").write_text(blocker)
        paths = [str(startup), env.get("PYTHONPATH")]
        env["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return env


def clean(notebook):
    """Strip what changes from run to run, and record which code the outputs belong to."""
    cleaned = nbformat.from_dict(notebook)
    kept = {k: v for k, v in cleaned.metadata.items() if k not in ("widgets", "jupytext")}
    ours = {**kept.get("flashlib", {}), "source_sha256": source_sha256(cleaned)}
    kept.update(KERNEL_METADATA, flashlib=ours)
    cleaned.metadata = nbformat.from_dict(kept)
    cleaned.nbformat, cleaned.nbformat_minor = 4, 5
    used = set()
    for cell in cleaned.cells:
        cell.id = _cell_id(cell, used)
        for noise in ("execution", "ExecuteTime", "collapsed", "scrolled"):
            cell.metadata.pop(noise, None)
        for output in cell.get("outputs", []):
            if WIDGET_VIEW in output.get("data", {}):
                # A saved view without its kernel shows an error: say what to do instead.
                output.data = nbformat.from_dict({"text/plain": WIDGET_TEXT})
    return cleaned


def _cell_id(cell, used):
    """An id that depends on the cell's source alone, so that other cells' edits leave it."""
    name = hashlib.sha256(f"{cell.cell_type}:{cell.source}".encode()).hexdigest()[:8]
    number = 1
    while (cell_id := name if number == 1 else f"{name}-{number}") in used:
        number += 1
    used.add(cell_id)
    return cell_id


def compare(kept, fresh):
    """The first difference between the text of kept and fresh outputs, or None."""
    pairs = zip(kept.cells, fresh.cells, strict=True)
    for index, (old, new) in enumerate(pairs):
        if old.cell_type != "code" or "volatile" in old.metadata.get("tags", []):
            continue
        before, now = _output_texts(old), _output_texts(new)
        if len(before) != len(now):
            return f"cell {index} kept {len(before)} outputs and now makes {len(now)}"
        for was, comes in zip(before, now, strict=True):
            difference = _text_difference(was, comes)
            if difference:
                return f"cell {index} {difference}"
    return None


def _output_texts(cell):
    texts = []
    for output in cell.outputs:
        if output.output_type == "stream":
            texts.append(output.text)
        elif output.output_type in ("display_data", "execute_result"):
            data = output.data
            if "text/html" in data:
                markup = re.sub(r"(?s)<(style|script)\b.*?</\1>", " ", data["text/html"])
                texts.append(html.unescape(re.sub(r"<[^>]*>", " ", markup)))
            else:
                keys = ("text/markdown", "text/latex", "text/plain")
                texts.append(next((data[key] for key in keys if key in data), ""))
    return texts


_TOKEN = re.compile(r"[-+]?\d[\d,_]*(?:\.\d+)?(?:[eE][-+]?\d+)?|[^\W\d]+|[^\w\s]")


def _text_difference(was, comes):
    was, comes = (re.sub(r"0x[0-9a-f]{6,}", "0x", text) for text in (was, comes))
    before, now = _TOKEN.findall(was), _TOKEN.findall(comes)
    for old, new in zip(before, now, strict=False):
        if not _same_token(old, new):
            return f"kept {old!r} and now says {new!r}, in: {_around(comes, new)}"
    if len(before) != len(now):
        return f"kept {_around(was)} and now says {_around(comes)}"
    return None


def _same_token(old, new):
    if old == new:
        return True
    try:
        a, b = (float(token.replace(",", "").replace("_", "")) for token in (old, new))
    except ValueError:
        return False
    if not any(mark in token for token in (old, new) for mark in ".eE"):
        return False
    return math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-6)


def _around(text, token=None):
    line = next((line for line in text.splitlines() if token and token in line), text)
    return repr(line.strip()[:120])


def _plain(text):
    """A message without terminal colors."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text).strip()


def write(path, notebook):
    """Replace the file as a whole; refuse one that a website would not show."""
    text = nbformat.writes(notebook).rstrip("\n") + "\n"
    size_bytes = len(text.encode())
    if size_bytes > SIZE_LIMIT_BYTES:
        raise NotebookError(f"would be {size_bytes:,} bytes; the limit is {SIZE_LIMIT_BYTES:,}")
    nbformat.validate(notebook)
    beside = path.with_name(f".{path.name}.part")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


def read(path):
    return nbformat.read(path, as_version=4)


def select(names, folder=NOTEBOOKS):
    """The notebooks that names stand for: paths, or beginnings such as 06; all for no name."""
    every = sorted(folder.glob("*.ipynb"))
    chosen = []
    for name in names:
        path = Path(name)
        found = [path] if path.is_file() else [
            p for p in every if p.name.partition("_")[0] == name] or [
            p for p in every if p.name.startswith(name)]
        if not found:
            raise SystemExit(f"No notebook called {name} in {folder}.")
        chosen += found
    return chosen if names else every


def process(path, options, on_cell=None):
    """Do to one notebook what the options ask; NotebookError says what is wrong with it."""
    notebook = read(path)
    size_bytes = path.stat().st_size
    if options.check or options.stale:
        if size_bytes > SIZE_LIMIT_BYTES:
            raise NotebookError(f"has {size_bytes:,} bytes; the limit is {SIZE_LIMIT_BYTES:,}")
        if reason := stale(notebook):
            raise NotebookError(reason)
    if options.stale:
        return
    fresh = execute(
        notebook,
        cwd=options.cwd or path.parent,
        without=options.without,
        never=options.never,
        sweep=options.sweep,
        on_cell=on_cell,
        timeout=options.timeout,
    )
    cleaned = clean(fresh)
    if not options.check:
        write(path, cleaned)
    elif not options.without and (difference := compare(notebook, cleaned)):
        raise NotebookError(f"{difference}; if that is right, run: make notebooks")


def modules(text):
    """The names in torch,triton."""
    return tuple(name for name in text.split(",") if name)


def parse(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="files, or beginnings such as 06; default: all")
    parser.add_argument("--check", action="store_true", help="write nothing, compare outputs")
    parser.add_argument("--stale", action="store_true", help="execute nothing, compare hashes")
    parser.add_argument("--sweep", action="store_true", help="try every option of every widget")
    parser.add_argument("--cwd", type=Path, help="the kernel's folder; default: the notebook's")
    parser.add_argument(
        "--without",
        type=modules,
        default=(),
        metavar="torch,triton",
        help="check as if these modules were not installed; outputs may then differ",
    )
    parser.add_argument(
        "--never",
        type=modules,
        default=(),
        metavar="torch,triton",
        help="fail where one of these is asked for: with and without them it is the same notebook",
    )
    parser.add_argument("--timeout", type=int, default=CELL_TIMEOUT_S, help="seconds a cell")
    options = parser.parse_args(arguments)
    if options.without and options.never:
        parser.error("--never has what --without has, and compares outputs: give one of them")
    if options.without and not options.check:
        parser.error("--without goes with --check: what runs without them is not kept")
    return options


def main(arguments=None):
    options = parse(arguments)
    paths = select(options.names)
    failures = []
    with _progress(paths, options) as bar:
        for path in paths:
            start = time.perf_counter()
            bar.set_description(path.stem)
            try:
                process(path, options, on_cell=lambda **_: bar.update())
            except NotebookError as error:
                failures.append(path.stem)
                bar.write(f"{path.stem}: {error}")
            else:
                if not options.stale:
                    bar.write(f"{path.stem}: {time.perf_counter() - start:.1f} s")
    verb = "checked" if options.check or options.stale else "rendered"
    print(f"notebooks: {len(paths) - len(failures)} {verb}, {len(failures)} failed")
    return 1 if failures else 0


def _progress(paths, options):
    from tqdm import tqdm

    codes = [sum(cell.cell_type == "code" for cell in read(path).cells) for path in paths]
    hidden = options.stale or not sys.stdout.isatty()
    total = sum(codes) + options.sweep * len(paths)
    return tqdm(total=total, unit="cell", file=sys.stdout, disable=hidden)


if __name__ == "__main__":
    sys.exit(main())
