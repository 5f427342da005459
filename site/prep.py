"""Write the site's sources from the executed notebooks; nothing is executed."""

import ast
import base64
import csv
import json
import re
import shutil
import sys
import zipfile
from pathlib import Path

import answers
import front
import labs
import predictions
from markup import islands, paint, powers, relink, slug, unfold
from tongue import ENGLISH, notebooks

ROOT = Path(__file__).resolve().parent.parent
CONTROL = "(a control: run this cell in JupyterLab to use it)"
SOURCE_TO_WALK = "show.source(fl.flash_v1)"
# Which explorer of site/static/explorer.js stands where, and how it opens there.
EXPLORERS = {SOURCE_TO_WALK: ("walk", {"run": "v1"}), "widgets.play": ("walk", {}),
             "softmax_steps": ("softmax", {}),
             "block_lab": ("blocks", {"algorithm": "v1", "causal": False, "Br": 32, "Bc": 32}),
             "backward_lab": ("blocks", {"algorithm": "backward", "causal": False, "Br": 32, "Bc": 32,
                                         "Nk": 2048, "Nq": 2048, "d": 64, "gpu": "H200"}),
             "decode_lab": ("blocks", {"algorithm": "decode", "gpu": "H200"}),
             "ring_lab": ("blocks", {"algorithm": "ring", "gpu": "H200"}),
             "tile_walk_lab": ("blocks", {"algorithm": "v2", "Nq": 512, "Nk": 512, "left": 127,
                                          "gpu": "H100"})}
# Which tables of labs.py stand where.
TABLES = {"roofline_lab": ["roof"], "matmul_lab": ["matmul"], "rescale_lab": ["walk"],
          "occupancy_lab": ["fill"], "pointer_lab": ["pointers"], "tile_lab": ["budgets"],
          "schedule_lab": ["schedule"], "hazard_lab": ["hazards"], "order_lab": ["sums"],
          "fp8_lab": ["numbers", "outliers"], "exp2_lab": ["units"], "model_lab": ["layer"]}
# Where the explorer says all that the picture above it would, or opens in another state.
PICTURED = ("matmul_lab", "backward_lab", "decode_lab", "ring_lab", "model_lab")
# Letters that mean something else there: an inner dimension, GPUs, the tokens of a prompt.
PLAIN = {"02": "K", "09": "K", "15": "P", "16": "P"}


def chapters():
    """Return the chapters that are written, from flashlib's own table."""
    sys.path.insert(0, str(ROOT))
    from flashlib.course.notebook.chapters import CHAPTERS, PARTS

    return [c for c in CHAPTERS if c.ready], PARTS


class Chapter:
    """One notebook on its way to a page."""

    def __init__(self, row, repository="", language=ENGLISH):
        self.row, self.repository, self.language = row, repository, language
        self.path, self.plain = ROOT / row.file, PLAIN.get(row.number, "")
        self.book = (json.loads(self.path.read_text("utf-8")) if language is ENGLISH
                     else notebooks.translated(row.number, language))
        self.predicted = 0                                  # predictions that have their field
        self.copied = set()                                 # files of the repository that are linked to
        asked = re.findall(rf"(?:{language.exercise}).*{language.minutes}", self.text())
        self.solve = sum(int(minutes) for _, minutes in asked)

    def text(self):
        return "\n\n".join(source(c) for c in self.book["cells"] if c["cell_type"] == "markdown")

    def target(self, to):
        """Return where a link of the notebook leads on the site."""
        path, _, anchor = to.partition("#")
        if re.match(r"[a-z]+:", to):
            return to
        if not path:
            return f"#{slug(anchor)}"
        if path.endswith("README.md") and "assets" not in path:
            return "index.md" if path.startswith("../README") else "questions.md"
        if path.endswith(".ipynb"):
            return f"{path}#{slug(anchor)}" if anchor else path
        file = (self.path.parent / path).resolve()
        inside = file.relative_to(ROOT).as_posix()
        if self.repository:
            return f"https://github.com/{self.repository}/blob/main/{inside}"
        if file.is_dir():
            inside += "/README.md"
        self.copied.add(inside)
        return f"{'../' if self.language.folder else ''}files/{inside}"

    def prose(self, text):
        """Rewrite a Markdown cell: links, powers, hues in formulas; course.js paints the rest."""
        text = "".join(paint(part, plain=self.plain) if kind in ("math", "display") else
                       powers(part) if kind == "prose" else part for kind, part in islands(text))
        return relink(text, self.target)

    def cells(self):
        """Return the notebook with its cells rewritten."""
        book = json.loads(json.dumps(self.book))
        cells, self.predicted = book["cells"], 0
        for n, cell in enumerate(cells):
            if cell["cell_type"] == "markdown":
                later = next((c for c in cells[n + 1:] if c["cell_type"] == "code"), None)
                cell["source"] = self.markdown(n, source(cell), later)
            elif cell["cell_type"] == "code":
                self.code(cell)
        ways = re.compile(rf"\n---\s*\n+[^\n]*(?:{self.language.ways})[^\n]*\s*$")
        cells[-1]["source"] = ways.sub("\n", source(cells[-1]))
        book["cells"] = list(self.answered(shown(cells)))
        return book

    def answered(self, cells):
        """Yield the cells, and after the stub of each exercise its folded hints and solution."""
        name = None
        for cell in cells:
            yield cell
            if cell["cell_type"] == "markdown":
                asked = re.findall(rf"(?m)^### {self.language.exercise}", source(cell))
                name = asked[-1] if asked else name
            elif name and "exercises.check_" in source(cell):
                folds = answers.folds(name, self.language.say)
                yield {"cell_type": "markdown", "metadata": {}, "source": folds,
                       "id": f"answers-{name.replace('.', '-')}"}
                name = None

    def markdown(self, n, text, later):
        if n == 0:
            facts = raw(front.facts(self))
            text = self.language.questioned.sub(
                lambda found: f"{found[1]}\n\n{facts}\n\n{box('question', found[2])}", text)
        text = self.language.taken.sub(lambda found: found[1] + box("takeaway", found[2]), text)
        text = self.prose(text)

        def fold(summary, body):
            before = ""
            if re.search(self.language.commit, summary):
                found = (predictions.fields("".join(stream(later)) if later else "")
                         or predictions.written(self.row.number, self.predicted))
                form = predictions.form(f"{self.row.number}-{n}", found, self.language.say)
                before, self.predicted = raw(form) + "\n\n", self.predicted + 1
            return f"{before}:::::::::{{fold}} {summary}\n\n{body}\n\n:::::::::"

        return unfold(text, fold)

    def code(self, cell):
        """Keep alternative texts, hide answers not given yet, and say where a lab can be moved."""
        kept = []
        for output in cell["outputs"]:
            data = output.get("data", {})
            image = output.get("metadata", {}).get("image/png", {})
            if image.get("alt"):
                own = cell["metadata"].setdefault("mystnb", {}).setdefault("image", {})
                own |= {"alt": image["alt"]}
                if "width" in image:
                    own |= {"width": f"{image['width']}px"}
            if CONTROL in "".join(data.get("text/plain", "")):
                place = explored(source(cell), self.language.say, self.repository)
                output = display("text/html", place)
            if "show." in source(cell) and is_code("".join(output.get("text", ""))):
                output = display("text/markdown", f"```python\n{''.join(output['text']).strip()}\n```")
            if re.match(r"✗ exercise [\da-z.]+: not answered yet", "".join(output.get("text", ""))):
                continue
            kept.append(output)
        if SOURCE_TO_WALK in source(cell) and (walk := explored(SOURCE_TO_WALK)):
            kept.append(display("text/html", walk))
        cell["outputs"] = kept


def shown(cells):
    """Return the cells but those that draw what the explorer behind them shows in another state."""
    calls = {f"lab.{name}()" for name in PICTURED}
    return [cell for cell, after in zip(cells, [*cells[1:], {"source": ""}], strict=True)
            if source(cell) != "lab.draw()" or source(after) not in calls]


def source(cell):
    return "".join(cell["source"])


def stream(cell):
    return ["".join(o["text"]) for o in cell["outputs"] if o.get("output_type") == "stream"]


def display(kind, text):
    return {"output_type": "display_data", "metadata": {}, "data": {kind: text}}


def explored(code, say=None, repository=""):
    """Return the places of the explorers for what a cell's code shows, or a note where none is."""
    note = front.lab_note(say, repository) if say else ""
    if not (ROOT / "site/static/explorer.js").exists():
        return note
    for word, (kind, state) in EXPLORERS.items():
        if word in code:
            return front.explore(kind, state, note)
    named = next((names for word, names in TABLES.items() if word in code), [])
    return "".join(front.explore("lab", labs.state(name, say), note) for name in named) or note


def is_code(text):
    """Tell whether a printed text is Python as a whole, as the source of a kernel is."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return False
    return any(isinstance(node, ast.FunctionDef) for node in tree.body)


def box(name, text):
    return f":::::{{container}} {name}\n{text}\n:::::"


def raw(text):
    return f"```{{raw}} html\n{text}\n```"


def bare(book):
    """Return a notebook without its outputs, as small as a download should be."""
    book = json.loads(json.dumps(book))
    for cell in book["cells"]:
        cell["source"] = source(cell)
        if cell["cell_type"] == "code":
            cell.update(outputs=[], execution_count=None)
    return json.dumps(book, ensure_ascii=False, separators=(",", ":")) + "\n"


def pack(path, name, text):
    """Write a zip of one file: what pages pack on their way stays as long as it is on a disk."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        packed.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED, 9)


def outputs(book, name):
    """Yield (cell, picture as PNG, alternative text) of each picture that was drawn."""
    for cell in book["cells"]:
        for output in cell.get("outputs", []):
            if name in output.get("data", {}):
                alt = output["metadata"].get(name, {}).get("alt", "")
                yield cell, base64.b64decode("".join(output["data"][name])), alt


def seconds():
    """Return the two recorded times of one training step, standard and FlashAttention."""
    path = ROOT / "assets/measurements/attention_demo_h200.csv"
    lines = [line for line in path.read_text("utf-8").splitlines() if not line.startswith("#")]
    step = {"mode": "forward+backward", "N_q": "4096", "B": "4"}
    rows = {row["impl"]: row for row in csv.DictReader(lines) if step.items() <= row.items()}
    return [float(rows[impl]["seconds"]) for impl in ("standard", "flash")]


def write(out, *, repository="", language=ENGLISH):
    """Write the sources of the site into the folder `out`, and what is copied as it is beside it."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    rows, parts = chapters()
    books = [Chapter(row, repository, language) for row in rows]
    say = language.say
    pages, extra = {}, out.parent / "extra" / language.folder
    shutil.rmtree(extra, ignore_errors=True)
    (extra / "notebooks").mkdir(parents=True)
    for book in books:
        (out / book.path.name).write_text(json.dumps(book.cells(), ensure_ascii=False), "utf-8")
        pack(extra / "notebooks" / f"{book.path.stem}.zip", book.path.name, bare(book.book))
        row = book.row
        question = say(row.question)
        about = say("{{question}} {{shows}}.", question=question, shows=say(row.shows))
        pages[book.path.stem] = {"title": f"{row.number} {say(row.title)}", "question": question,
                                 "description": about, "minutes": row.minutes}
    for name in sorted(set().union(*(book.copied for book in books))):
        place = out.parent / "extra" / "files" / name       # one copy for all languages
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, place)
    drawn = {book.row.number: list(outputs(book.book, "image/png")) for book in books}
    film = next(item for item in drawn["06"] if b"acTL" in item[1][:200])
    (out / "film.png").write_bytes(film[1])
    english = json.loads((ROOT / rows[0].file).read_text("utf-8"))
    surprise = next(alt for _, _, alt in outputs(english, "image/png") if alt.startswith("arithmetic"))
    (out / "index.md").write_text(front.page(books, parts, seconds(), surprise, film[2], say), "utf-8")
    index = ((ROOT / "notebooks/README.md").read_text("utf-8") if language is ENGLISH
             else notebooks.index(language))
    (out / "questions.md").write_text(front.questions(index, say), "utf-8")
    (out / "glossary.md").write_text(front.glossary(books, say), "utf-8")
    (out / "figures.md").write_text(front.figures(books, say), "utf-8")
    pages |= front.pages(say)
    (out / "pages.json").write_text(json.dumps(pages, ensure_ascii=False), "utf-8")
    return books
