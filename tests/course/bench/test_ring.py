"""The benchmark of several GPUs: its steps at toy sizes over two gloo processes."""

import pytest

pytest.importorskip("torch")

from flashlib import parallel
from flashlib.course.bench import ring
from flashlib.course.notebook.data import read_measurement
from flashlib.parallel import launch

pytestmark = pytest.mark.more                             # the benchmark itself, at toy sizes


@pytest.fixture(scope="module")
def dry(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ring")
    parallel.run(2, "flashlib.course.bench.ring:main",
                 ["--dry-run", "--out", str(folder), "--name", "toy", "--rounds", "2"])
    return {name: read_measurement(folder / f"{name}_toy.csv") for name in ("ring", "ring_links")}


def test_a_dry_run_has_a_row_for_every_way_and_mode(dry):
    rows = dry["ring"].rows
    ours = [name for name in ring.IMPLS if not name.startswith("torch")]
    assert sorted((row["impl"], row["mode"]) for row in rows) == sorted(
        (name, mode) for name in ours for mode in ring.MODES)
    assert {row["P"] for row in rows} == {2} and {row["H_k"] for row in rows} == {ring.HK}
    assert all(row["seconds"] > 0 and row["rounds"] == 2 for row in rows)
    command = dry["ring"].provenance["command"]
    assert command.startswith("torchrun --nproc-per-node 2 -m flashlib.course.bench.ring --dry-run")


def test_efficiency_is_the_share_of_one_device(dry):
    one = {row["mode"]: row["seconds"] for row in dry["ring"].where(impl="one").rows}
    for row in dry["ring"].rows:
        expected = one[row["mode"]] / row["seconds"] / (1 if row["impl"] == "one" else 2)
        assert row["efficiency"] == pytest.approx(expected, rel=1e-4)


def test_links_are_timed_alone_and_beside_attention(dry):
    row, = dry["ring_links"].rows
    rate = row["message_bytes"] / row["link_seconds"]
    assert row["link_bytes_per_s"] == pytest.approx(rate, rel=1e-4)
    assert row["both_seconds"] > 0 and row["reserved_sms"] == 0


def test_multicast_stays_off(monkeypatch):
    for name in launch.QUIET:
        monkeypatch.setenv(name, "")                        # so that it is put back as it was
        monkeypatch.delenv(name)
    ring.quiet()
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "1")
    with pytest.raises(SystemExit, match="NCCL_NVLS_ENABLE: expected 0, got 1"):
        ring.quiet()
