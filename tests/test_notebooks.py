"""The house rules of a committed notebook; render_notebooks.py --check sees that it runs."""

import re
from pathlib import Path
from statistics import median
from urllib.parse import unquote

import nbformat
import pytest

from flashlib.course.notebook.chapters import CHAPTERS
from scripts.render_notebooks import SIZE_LIMIT_BYTES, stale

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
MACHINE_PATH = re.compile(r"(?<![\w.:/])/(home|Users|root|tmp|mnt|work\w*)/\w")
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)[^)]*\)")
IMG = re.compile(r"<img\b[^>]*>")

pytestmark = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook):
    return [output for cell in code_cells(notebook) for output in cell.outputs]


def texts(notebook):
    """Everything that a reader can read: sources, streams, and outputs that are text."""
    for cell in notebook.cells:
        yield cell.source
    for output in outputs(notebook):
        yield output.get("text", "")
        for kind, data in output.get("data", {}).items():
            if not kind.startswith("image/"):
                yield str(data)


def test_outputs_belong_to_the_sources(path):
    assert stale(read(path)) is None


def test_is_valid_and_has_a_name_like_NN_verb_noun(path):
    nbformat.validate(read(path))
    assert re.fullmatch(r"\d\d[a-z]?(_[a-z0-9]+)+", path.stem)


def test_holds_no_error(path):
    for output in outputs(read(path)):
        assert output.output_type != "error", output.evalue
        assert output.get("name") != "stderr", output.text


def test_is_small_enough_for_a_website(path):
    assert path.stat().st_size <= SIZE_LIMIT_BYTES


def test_metadata_is_what_rendering_leaves(path):
    notebook = read(path)
    assert "widgets" not in notebook.metadata
    assert notebook.metadata.kernelspec.name == "python3"
    for cell in code_cells(notebook):
        assert "execution" not in cell.metadata


def test_cells_are_few_and_short(path):
    notebook = read(path)
    lines = [len(cell.source.splitlines()) for cell in code_cells(notebook)]
    assert len(notebook.cells) <= 60
    assert max(lines) <= 25
    assert median(lines) <= 6


def test_links_lead_somewhere_and_pictures_say_what_they_show(path):
    for cell in read(path).cells:
        if cell.cell_type != "markdown":
            continue
        targets = []
        for is_image, alt, target in LINK.findall(cell.source):
            assert alt or not is_image, f"no alt text: {target}"
            targets.append(target)
        for tag in IMG.findall(cell.source):
            assert re.search(r'\balt="[^"]+"', tag), f"no alt text: {tag}"
            targets += re.findall(r'\bsrc="([^"]+)"', tag)
        for target in targets:
            if re.match(r"[a-z]+:|#", target):
                continue
            file = path.parent / unquote(target.partition("#")[0])
            assert file.exists(), f"{target} does not exist"


def test_papers_are_links(path):
    """GitHub makes no link of a plain arXiv number."""
    for cell in read(path).cells:
        if cell.cell_type == "markdown":
            plain = re.search(r"(?<!\[)arXiv:\d{4}\.\d+", cell.source)
            assert not plain, f"{plain[0]}: write [{plain[0]}](https://arxiv.org/abs/{plain[0][6:]})"


def test_it_ends_with_the_ways_back_and_on(path):
    ready = [chapter for chapter in CHAPTERS if chapter.ready]
    at = [Path(chapter.file).name for chapter in ready].index(path.name)
    before, after = ready[max(at - 1, 0):at], ready[at + 1:at + 2]
    ways = [*(f"← [{c.number} {c.title}]({Path(c.file).name})" for c in before),
            "[all chapters](../README.md#chapters)",
            *(f"[{c.number} {c.title}]({Path(c.file).name}) →" for c in after)]
    last = read(path).cells[-1]
    assert last.cell_type == "markdown" and last.source.splitlines()[-1] == " · ".join(ways)


def test_it_takes_as_long_as_the_table_of_chapters_says(path):
    chapter = next(c for c in CHAPTERS if Path(c.file).name == path.name)
    said = [minutes for cell in read(path).cells
            for minutes in re.findall(r"[Rr]eading time:\s+(\d+)\s+minutes", cell.source)]
    assert said == [str(chapter.minutes)]


def test_names_no_path_of_the_machine_that_rendered_it(path):
    for text in texts(read(path)):
        found = MACHINE_PATH.search(text)
        assert not found, text[max(0, found.start() - 40) : found.end() + 40]


def test_installs_and_downloads_nothing(path):
    for cell in code_cells(read(path)):
        assert not re.search(r"(?m)^\s*[!%]\s*(pip|conda|wget|curl)\b", cell.source), cell.source
