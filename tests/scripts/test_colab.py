"""Chapters for Colab: what installs itself there, and links that lead on."""

import json
import re
import subprocess
import sys
import tomllib

import pytest

from scripts import colab

ROOT = colab.ROOT
CHAPTERS = sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("colab")
    command = [sys.executable, ROOT / "scripts" / "colab.py", out, "--repository", "someone/course"]
    command += ["--revision", "1a2b3c"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"{2 * len(CHAPTERS)} notebooks" in found.stdout
    return out


def read(path):
    return json.loads(path.read_text("utf-8"))


def test_the_first_cell_installs_the_package_at_the_pushed_revision(folder):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for name in CHAPTERS:
        first, *rest = read(folder / name)["cells"]
        line = "".join(first["source"]).splitlines()[-1]
        assert line == '%pip install -q "flashlib[colab] @ git+https://github.com/someone/course@1a2b3c"'
        here = read(ROOT / "notebooks" / name)["cells"]
        assert [cell["id"] for cell in rest] == [cell["id"] for cell in here]
        assert [cell.get("outputs") for cell in rest] == [cell.get("outputs") for cell in here]
    assert not any("jupyterlab" in needed for needed in project["optional-dependencies"]["colab"])


@pytest.mark.parametrize("inside", ["", "zh/"])
def test_every_link_leads_to_a_file_that_is_there(folder, inside):
    seen = 0
    for name in CHAPTERS:
        text = "\n".join("".join(cell["source"]) for cell in read(folder / inside / name)["cells"]
                         if cell["cell_type"] == "markdown")
        assert not re.search(r"\]\((?:\.\./|\d\d\w*\.ipynb)", text), "leads nowhere from Colab"
        for place in re.findall(r"github/someone/course/blob/colab/([^)#\s]+)", text):
            assert place.startswith(inside) and (folder / place).is_file()
            seen += 1
        for place in re.findall(r"github\.com/someone/course/blob/main/([^)#\s]+)", text):
            assert (ROOT / place).exists(), f"{name}: {place}"
    assert seen > 20


def test_a_repository_of_another_form_is_refused():
    with pytest.raises(ValueError, match=r"^repository: expected OWNER/NAME, got 'course'$"):
        colab.for_colab({"cells": []}, "course")


def test_the_workflow_pushes_what_the_command_writes():
    flow = (ROOT / ".github" / "workflows" / "site.yml").read_text("utf-8")
    assert "make colab SITE_REPO=" in flow and "push_colab.sh" in flow
    script = (ROOT / ".github" / "push_colab.sh").read_text("utf-8")
    assert "--work-tree=_colab" in script and script.rstrip().endswith("git push --force origin colab")
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert "scripts/colab.py _colab" in makefile
