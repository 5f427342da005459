"""Write out what an instructor wants at hand: the predictions of a chapter, and its solutions.

The predictions come from the notebooks: the question after **Predict.**, the folded reasoning, and
the text that the next printing cell shows. The solutions come from `solutions` in the chapter's folder.
"""

import importlib
import inspect
import json
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PREDICT = re.compile(r"\*\*Predict\.\*\*(?P<question>.*?)<details>\s*<summary>.*?</summary>"
                     r"(?P<reasoning>.*?)</details>", re.DOTALL)


@dataclass(frozen=True)
class Prediction:
    """One place where readers commit to a number: question, folded reasoning, what comes out."""

    question: str
    reasoning: str
    shown: str


def predictions(notebook):
    """The predictions of a notebook (as JSON), in order."""
    cells, found = notebook["cells"], []
    for index, cell in enumerate(cells):
        if cell["cell_type"] != "markdown":
            continue
        for match in PREDICT.finditer("".join(cell["source"])):
            found.append(Prediction(match["question"].strip(), match["reasoning"].strip(),
                                    _next_text(cells[index + 1:])))
    return found


def _next_text(cells):
    """What the next cell that prints something prints, before the next prediction."""
    for cell in cells:
        if cell["cell_type"] == "markdown" and "**Predict.**" in "".join(cell["source"]):
            return ""
        printed = "".join("".join(output["text"]) for output in cell.get("outputs", [])
                          if output["output_type"] == "stream")
        if printed.strip():
            return printed.strip("\n")
    return ""


def sheet(path):
    """The answer sheet of the notebook at `path`, in Markdown."""
    from flashlib.course.exercises.overview import of_chapter

    notebook = json.loads(path.read_text(encoding="utf-8"))
    number = path.stem.partition("_")[0]
    title = re.search(r"(?m)^# (.+)$", "".join(notebook["cells"][0]["source"]))[1]
    lines = [f"# {title}: expected answers", "", "Made from the notebook by `make instructor`.", "",
             "## Predictions", ""]
    for count, each in enumerate(predictions(notebook), start=1):
        lines += [f"### Prediction {count}", "", each.question, "", "**Reasoning.** " + each.reasoning,
                  "", "**What the notebook shows.**", "", "```text", each.shown, "```", ""]
    lines += ["## Exercises", ""]
    solutions = importlib.import_module(f"flashlib.course.ch{number}.solutions")
    for exercise in of_chapter(number):
        lines += [f"### {exercise.name} · {exercise.title} ({exercise.effort})", ""]
        lines += [f"{n}. {text}" for n, text in enumerate(exercise.hints, start=1)]
        source = inspect.getsource(getattr(solutions, exercise.solution)).strip()
        lines += ["", "```python", source, "```", ""]
    return "\n".join(lines)


def sheets(root=ROOT):
    """{chapter's file name: answer sheet} for every notebook of the course."""
    return {path.stem: sheet(path) for path in sorted((root / "notebooks").glob("[0-9]*.ipynb"))}
