"""Counters are read from the profiler's table case by case, and each loop order runs its own kernel."""

import pytest

from flashlib.course.bench import counters, profiler
from flashlib.course.bench.profiler import METRICS
from flashlib.course.notebook.data import measurements, read_measurement


def table(names):
    """Return what `ncu --csv --page raw` prints, some chatter first; the n-th kernel moves n bytes."""
    head = ",".join(f'"{name}"' for name in ("ID", "Kernel Name", *METRICS))
    units = ",".join('""' for _ in range(2 + len(METRICS)))
    lines = [",".join([f'"{n}"', f'"{name}"', *[f'"{n:,}"'] * len(METRICS)])
             for n, name in enumerate(names)]
    return "\n".join(["==PROF== chatter", head, units, *lines])


def test_every_case_is_written_beside_its_tile_and_order(tmp_path, monkeypatch):
    names = ["flash_fwd_kernel"] * len(counters.CASES) + [
        {"v1": "flash_fwd_v1_order_kernel", "v2": "flash_fwd_kernel"}[order]
        for order, *_ in counters.ORDERS]

    class Done:
        returncode = 0
        stdout, stderr = table([names[0], "fill_kernel", *names[1:]]), ""

    monkeypatch.setattr(profiler.shutil, "which", lambda name: name)
    monkeypatch.setattr(profiler.subprocess, "run", lambda *command, **options: Done)
    counters.main(["--out", str(tmp_path), "--name", "toy"])
    blocks = read_measurement(tmp_path / "blocks_counters_toy.csv")
    orders = read_measurement(tmp_path / "loop_order_counters_toy.csv")
    assert blocks.columns == measurements("blocks_counters_h200").columns
    assert orders.columns == measurements("loop_order_counters_h200").columns
    assert len(blocks.rows) == len(counters.CASES) and blocks.rows[1]["dram_read_bytes"] == 2
    assert [row["impl"] for row in orders.rows] == ["v1", "v2", "v1", "v2"]
    assert orders.rows[0]["dram_read_bytes"] == len(counters.CASES) + 1
    assert [(row["N_q"], row["num_stages"]) for row in orders.where(impl="v1").rows] == [
        (1024, 1), (4096, 1)]


def test_counters_are_sorted_by_case_and_kernels_of_no_case_do_not_count():
    wanted = {"a": "read", "b": "copy"}
    text = table(["read_kernel", "fill", "copy_kernel"])
    assert profiler.sorted_out(text, wanted, ("seconds", "extra"), {"none": "extra"}) == {
        "a": {"seconds": 0, "extra": None}, "b": {"seconds": 2e-9, "extra": None}}
    with pytest.raises(ValueError, match="2 kernels in the cases' order, got 2: copy_kernel, read_ker"):
        profiler.sorted_out(table(["copy_kernel", "read_kernel"]), wanted, ("seconds",))


def test_without_a_profiler_every_case_has_none_and_the_reason_is_said(monkeypatch, capsys):
    monkeypatch.setattr(profiler.shutil, "which", lambda name: None)
    assert profiler.by_case("a", {"x": "k", "y": "k"}, ("seconds",)) == {
        "x": {"seconds": None}, "y": {"seconds": None}}
    assert capsys.readouterr().out == "No hardware counters: Nsight Compute (ncu) is not on the PATH.\n"


def test_only_further_metrics_that_this_ncu_has_are_asked_for(monkeypatch):
    asked = []
    monkeypatch.setattr(profiler, "known", lambda metrics: metrics[:1])
    monkeypatch.setattr(profiler, "count", lambda module, parse, more, timeout: asked.append(more))
    profiler.by_case("a", {}, (), {"l1.sum": "one", "l2.sum": "two"})
    assert asked == [["l1.sum"]]


def test_each_order_runs_its_own_kernel(monkeypatch):
    pytest.importorskip("triton")
    from flashlib.course.bench import loop_order_kernels

    seen = []
    monkeypatch.setattr(counters, "inputs", lambda shape, device: ["q", "k", "v", "do"])
    monkeypatch.setattr(counters.blocks_sweep, "caller", lambda *case: lambda: seen.append("v2"))
    monkeypatch.setattr(loop_order_kernels, "launcher", lambda *t, **tile: (
        lambda: seen.append((t, tile)), "o"))
    for order, shape, config in counters.ORDERS[:2]:
        counters.caller(order, shape, config)()
    assert seen == [(("v1", "q", "k", "v"), {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4}), "v2"]
