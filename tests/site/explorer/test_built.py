"""What is committed is what the sources give: the bundle, the exported data, a gloss for every line."""

import gzip
import hashlib
import json
import re

import pytest

from scripts import explorer_data
from tests.site.explorer.places import ROOT, SOURCE

pytestmark = pytest.mark.site

BUNDLE = ROOT / "site" / "static" / "explorer.js"
REMEDY = "run `make explorer`"


def digest():
    """Return what build.mjs writes at the head of the bundle."""
    files = [path for path in (SOURCE / "src").rglob("*") if path.is_file()]
    files += [SOURCE / "build.mjs", SOURCE / "package.json"]
    found = hashlib.sha256()
    for name, path in sorted((path.relative_to(SOURCE).as_posix(), path) for path in files):
        found.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


def test_the_built_script_is_not_stale():
    head = BUNDLE.read_text(encoding="utf-8").partition("*/")[0]
    assert f"sources {digest()} " in head, f"site/static/explorer.js is stale: {REMEDY}"


def test_the_built_script_is_what_the_sources_give(built):
    assert (built / "explorer.js").read_bytes() == BUNDLE.read_bytes(), REMEDY


def test_the_exported_data_is_not_stale():
    for name, text in explorer_data.texts().items():
        kept = (explorer_data.FOLDER / name).read_text(encoding="utf-8")
        assert kept == text, f"{name} is stale: {REMEDY}"


def test_the_script_is_small_and_asks_no_one():
    text = BUNDLE.read_text(encoding="utf-8")
    size = len(gzip.compress(text.encode(), 9))
    print(f"{size:,} bytes compressed")
    assert size <= 40_000
    assert not re.search(r"\bfetch\(|XMLHttpRequest|sendBeacon|import\(|https?://", text)


def test_packages_have_exact_versions_and_no_lock_names_a_host():
    package = json.loads((SOURCE / "package.json").read_text(encoding="utf-8"))
    versions = package["devDependencies"].values()
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in versions)
    assert not list(SOURCE.glob("*lock*"))


def test_every_line_that_runs_has_a_gloss_and_no_gloss_is_left_over():
    gloss = json.loads((explorer_data.FOLDER / "gloss.json").read_text(encoding="utf-8"))
    lines = set()
    for run in explorer_data.walks()["runs"].values():
        lines |= {re.sub(r"\s{2,}#.*", "", run["code"][line]).strip() for line in run["steps"][::5]}
    assert lines == set(gloss)


@pytest.mark.parametrize("name", explorer_data.RUNS)
def test_a_walk_is_the_machines_run(name):
    run = explorer_data.walks()["runs"][name]
    ops, tensors = explorer_data.OPS, run["tensors"]
    moved, used, peak = {}, 0, 0
    for op, tensor, *_, size in zip(*[iter(run["events"])] * 7, strict=True):
        if ops[op] in ("load", "store"):
            moved.setdefault(tensors[tensor], [0, 0])[ops[op] == "store"] += size
        used += {"tile": size, "free": -size}.get(ops[op], 0)
        peak = max(peak, used)
    steps = list(zip(*[iter(run["steps"])] * 5, strict=True))
    counted = run["traffic"]
    assert moved == counted["byTensor"] and peak == counted["sramPeakBytes"] and used == 0
    assert sum(step[1] for step in steps) == len(run["events"]) // 7
    totals = [sum(column) for column in list(zip(*steps, strict=True))[2:]]
    assert totals == [counted["matmulFlops"], counted["vectorFlops"], counted["exps"]]
