"""One schema: the recorded files call their columns and keys what their README says, and no other."""

import re

import pytest

from flashlib.course.notebook.data import asset, read_measurement

FILES = sorted(asset("measurements").glob("*.csv"))
README = asset("measurements", "README.md").read_text(encoding="utf-8")
ORDER = ("impl", "mode", "causal", "B", "H", "H_k", "N_q", "N_k", "d")
VERSIONS = {"compute_capability", "driver", "python", "torch", "triton", "numpy", "cuda", "date"}


def named(title):
    """Return the names in the first column of the README's table with this title."""
    table = README[README.index(f"| {title} |"):].split("\n\n")[0]
    first = [row.split("|")[1] for row in table.splitlines()[2:]]
    return re.findall(r"`([^`]+)`", " ".join(first))


COLUMNS, KEYS = named("column"), named("key of the head")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_column_and_key_is_in_the_schema(path):
    found = read_measurement(path)
    assert set(found.columns) <= set(COLUMNS)
    patterns = [re.sub(r"<[^>]+>", r"\\w+", name) for name in KEYS]
    for key in found.provenance:
        assert key in COLUMNS or any(re.fullmatch(pattern, key) for pattern in patterns), key
    first = [name for name in found.columns if name in ORDER]
    assert first == [name for name in ORDER if name in first] == list(found.columns[:len(first)])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_key_that_holds_a_number_holds_nothing_else(path):
    found = read_measurement(path)
    for key, value in found.provenance.items():
        if key not in VERSIONS and re.match(r"[\d.]+([eE][+-]?\d+)?\b", value) and key != "flops":
            assert found.number(key) >= 0


def test_the_schema_names_nothing_twice_and_nothing_that_no_file_has():
    assert len(COLUMNS) == len(set(COLUMNS)) and len(KEYS) == len(set(KEYS))
    found = [read_measurement(path) for path in FILES]
    assert not set(COLUMNS) - {name for one in found for name in one.columns}
    keys = {key for one in found for key in one.provenance}
    for name in set(KEYS):
        assert any(re.fullmatch(re.sub(r"<[^>]+>", r"\\w+", name), key) for key in keys), name


@pytest.mark.parametrize("path", [p for p in FILES if "H_k" in read_measurement(p).columns],
                         ids=lambda path: path.stem)
def test_rates_and_counts_agree_with_the_times(path):
    for row in read_measurement(path).rows:
        assert row["H"] % row["H_k"] == 0
        for amount, rate, unit in (("flops", "tflops_per_s", 1e12),
                                   ("least_bytes", "least_bytes_per_s", 1)):
            if row.get("seconds") and row.get(amount):
                assert row[rate] == pytest.approx(row[amount] / row["seconds"] / unit, rel=2e-5)
