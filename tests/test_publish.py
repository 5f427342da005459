"""What a host would read: how the course is cited, and the workflows that test and publish it."""

import datetime
import re
from pathlib import Path

import pytest

import flashlib

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def read(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_citation_has_what_the_format_requires():
    """Citation File Format 1.2.0: four keys must be there; a licence is named as SPDX names it."""
    cff = read(ROOT / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= cff.keys()
    assert cff["cff-version"] == "1.2.0" and cff["license"] == "MIT" and cff["type"] == "software"
    assert cff["version"] == flashlib.__version__
    assert isinstance(cff["date-released"], datetime.date)
    assert cff["title"] in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_what_is_there(path):
    """Its jobs may only read the repository, but to publish; every make target and script exists."""
    flow = read(path)
    assert flow["permissions"]["contents"] == "read"
    assert set(flow[True]) <= {"push", "pull_request", "workflow_dispatch"}     # YAML 1.1 reads "on" so
    targets = re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    for job in flow["jobs"].values():
        assert job.get("timeout-minutes", 0) <= 60
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            if "uses" in step:
                assert re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"])
            elif step["run"].startswith("make "):
                assert step["run"].split()[1] in targets
            else:
                assert (ROOT / step["run"].split()[-1]).exists()


def test_both_are_there_and_the_site_is_taken_from_where_it_is_built():
    assert [path.stem for path in WORKFLOWS] == ["ci", "site"]
    steps = read(WORKFLOWS[1])["jobs"]["build"]["steps"]
    folder = next(s["with"]["path"] for s in steps if "upload" in s.get("uses", ""))
    assert f"site/build.py {folder}" in (ROOT / "Makefile").read_text(encoding="utf-8")
