"""The benchmark of attention: its steps at toy sizes, its files' columns, and the README's table."""

import json
import sys
from types import SimpleNamespace

import pytest

from flashlib.course.bench import accuracy, attention, binaries, blocks_sweep, counters, peers, readme
from flashlib.course.notebook.data import measurements, read_measurement

SHAPE = ("B", "H", "H_k", "N_q", "N_k", "d")
COLUMNS = ("impl", "mode", "causal", *SHAPE, "seconds", "seconds_low", "seconds_high", "rounds",
           "flops", "tflops_per_s", "least_bytes", "least_bytes_per_s", "relative_error",
           "ours_over_this", "registers", "spilled_words", "shared_bytes")


@pytest.fixture(scope="module")
def dry(tmp_path_factory):
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("bench")
    attention.main(["--dry-run", "--out", str(folder), "--name", "toy", "--rounds", "2"])
    return read_measurement(folder / "attention_toy.csv")


def test_dry_run_writes_what_the_recorded_file_holds(dry):
    assert dry.columns == COLUMNS == measurements("attention_h200").columns
    assert len(dry.rows) == len(attention.DRY) * 2 * 2 * 2
    assert (dry.column("seconds") > 0).all() and (dry.column("rounds") == 2).all()
    assert (dry.where(impl="ours").column("ours_over_this") == 1).all()
    assert (dry.column("relative_error") < attention.TOLERANCE).all()
    for name in ("triton_tutorial", "flex", "fa3", "fa4"):
        assert dry.provenance[f"absent_{name}"] == "needs a GPU"
    assert dry.number("ceiling_matmul_flops_per_s") > 0 and dry.number("ceiling_matmul_rows") == 256
    assert set(dry.numbers("overhead_us_")) == {"ours", "sdpa_flash"}
    assert dry.provenance["impl_sdpa_flash"] == peers.NAMES["sdpa_flash"]


def test_flops_and_bytes_are_the_customary_counts():
    assert attention.flops((4, 32, 4096, 64), False, "forward") == 4 * 4 * 32 * 4096**2 * 64
    assert attention.flops((1, 1, 8, 16), True, "backward") == 2.5 * 2 * 64 * 16
    assert attention.least_bytes((1, 1, 8, 16), "forward") == 4 * 8 * 16 * 2 + 8 * 4


def test_wrong_attention_of_ours_is_never_timed(monkeypatch):
    torch = pytest.importorskip("torch")
    broken = {"ours": lambda q, k, v, causal: q + 0 * k * v}
    monkeypatch.setattr(peers, "present", lambda device: (broken, {}))
    with pytest.raises(RuntimeError, match="ours is wrong at"):
        attention.measure([(1, 1, 32, 16)], "cpu", 1)
    nan = {"ours": lambda q, k, v, causal: (q + k + v) * torch.nan}
    monkeypatch.setattr(peers, "present", lambda device: (nan, {}))
    with pytest.raises(RuntimeError, match="inf"):
        attention.measure([(1, 1, 32, 16)], "cpu", 1)


def test_a_wrong_or_failing_peer_is_named_as_absent(monkeypatch):
    pytest.importorskip("torch")

    def fails(q, k, v, causal):
        raise RuntimeError("no such kernel")

    found, _ = peers.present("cpu")
    found = {"ours": found["ours"], "wrong": lambda q, k, v, causal: q + k + v, "fails": fails}
    monkeypatch.setattr(peers, "present", lambda device: (found, {}))
    rows, _, absent = attention.measure([(1, 1, 32, 16)], "cpu", 1, say=lambda text: None)
    assert {row["impl"] for row in rows} == {"ours"}
    assert set(absent) == {f"{name} {mode} at (1, 1, 32, 16)" for name in ("wrong", "fails")
                           for mode in attention.MODES}
    for mode in attention.MODES:
        assert "wrong, relative error" in absent[f"wrong {mode} at (1, 1, 32, 16)"]
        assert "no such kernel" in absent[f"fails {mode} at (1, 1, 32, 16)"]


def test_a_peer_whose_backward_is_wrong_or_fails_is_timed_forward_only(monkeypatch):
    torch = pytest.importorskip("torch")
    found, _ = peers.present("cpu")
    ours = found["ours"]

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            return ours(q, k, v, False)

        @staticmethod
        def backward(ctx, dO):
            raise RuntimeError("no backward for this shape")

    def wrong(q, k, v, causal):
        return ours(q, k, v, causal) + (q - q.detach())     # the same O, another dQ

    def fails(q, k, v, causal):
        return ours(q, k, v, causal) if causal else Fails.apply(q, k, v)

    monkeypatch.setattr(peers, "present", lambda device: (
        {"ours": ours, "wrong": wrong, "fails": fails}, {}))
    rows, _, absent = attention.measure([(1, 1, 32, 16)], "cpu", 1, say=lambda text: None)
    timed = {(row["impl"], row["mode"], row["causal"]) for row in rows}
    both = {(mode, causal) for mode in attention.MODES for causal in (0, 1)}
    assert timed == ({("ours", *case) for case in both} | {("fails", *case) for case in both}
                     | {("wrong", "forward", causal) for causal in (0, 1)}) - {("fails", "backward", 0)}
    assert set(absent) == {"wrong backward at (1, 1, 32, 16)", "fails backward at (1, 1, 32, 16)"}
    assert "wrong, relative error" in absent["wrong backward at (1, 1, 32, 16)"]
    assert "no backward for this shape" in absent["fails backward at (1, 1, 32, 16)"]


def test_the_recorded_command_repeats_the_run(tmp_path):
    pytest.importorskip("torch")
    asked = ["--dry-run", "--rounds", "1", "--mode", "forward", "--name", "toy", "--out"]
    attention.main([*asked, str(tmp_path)])
    found = read_measurement(tmp_path / "attention_toy.csv").provenance["command"]
    assert found == f"python -m flashlib.course.bench.attention {' '.join(asked)} assets/measurements"
    attention.main([*found.split()[3:], "--out", str(tmp_path)])


def test_overhead_is_measured_of_what_ran_alone(tmp_path, monkeypatch):
    """SDPA's kernels do not exist for every GPU: whoever could not be timed is not called again."""
    pytest.importorskip("torch")
    found, _ = peers.present("cpu")

    def fails(q, k, v, causal):
        raise RuntimeError("no kernel for this GPU")

    monkeypatch.setattr(peers, "present", lambda device: (found | {"sdpa_cudnn": fails}, {}))
    attention.main(["--dry-run", "--rounds", "1", "--out", str(tmp_path), "--name", "toy"])
    found = read_measurement(tmp_path / "attention_toy.csv")
    assert "sdpa_flash" in found.numbers("overhead_us_") and "sdpa_cudnn forward at" in \
        found.provenance["failed"] and "sdpa_cudnn" not in found.numbers("overhead_us_")


def test_overhead_is_the_best_of_the_repeats_for_one_call(monkeypatch):
    pytest.importorskip("torch")
    clock = iter([0.0, 6.0, 10.0, 14.0])                    # 6 s, then 4 s, for 2 calls each
    monkeypatch.setattr(attention.time, "perf_counter", lambda: next(clock))
    seen = []
    found = attention.overhead_us({"ours": lambda *a: seen.append(a)}, "cpu", calls=2, repeats=2)
    assert found == {"ours": 2e6} and len(seen) == 4


@pytest.mark.parametrize("name", ["attention_h200", "attention_forward_h200", "attention_again_h200",
                                  "attention_forward_again_h200"])
def test_a_call_of_ours_was_recorded_to_cost_the_cpu_at_most_50_us(name):
    assert measurements(name).number("overhead_us_ours") <= 50


def test_it_times_only_the_passes_and_peers_that_were_asked_for(monkeypatch):
    pytest.importorskip("torch")
    ours = peers.present("cpu")[0]["ours"]
    monkeypatch.setattr(peers, "present", lambda device: (
        {"ours": ours, "sdpa_flash": ours, "triton_tutorial": ours}, {"flex": "needs a GPU"}))

    def timed(**options):
        rows, _, absent = attention.measure([(1, 1, 32, 16)], "cpu", 1, lambda text: None, **options)
        return {(row["impl"], row["mode"]) for row in rows}, absent

    found, _ = timed()
    assert ("triton_tutorial", "forward") in found and ("triton_tutorial", "backward") not in found
    found, absent = timed(only=["sdpa_flash"], modes=("forward",))
    assert found == {("ours", "forward"), ("sdpa_flash", "forward")}
    assert absent["triton_tutorial"] == "not asked for" and absent["flex"] == "needs a GPU"


def test_the_tutorial_is_tuned_for_each_mask_and_gets_float16(monkeypatch):
    torch = pytest.importorskip("torch")
    kernel, seen = SimpleNamespace(cache=None), []

    def run(q, k, v, causal, scale, specialized):
        seen.append((q.dtype, id(kernel.cache), scale, specialized, q.data_ptr()))
        return q

    monkeypatch.setattr(peers, "_tuned", {})
    monkeypatch.setitem(sys.modules, peers.TUTORIAL, SimpleNamespace(_attn_fwd=kernel, attention=run))
    x = torch.ones(1, 1, 4, 64, dtype=torch.bfloat16)
    for causal in (False, True, False):
        peers._tutorial(x, x, x, causal)
    assert [s[0] for s in seen] == [torch.float16] * 3 and len({s[4] for s in seen}) == 1
    assert seen[0][1] == seen[2][1] != seen[1][1] and seen[0][2:4] == (0.125, False)
    with pytest.raises(NotImplementedError, match="d = 64 and 128 only"):
        peers._tutorial(*[torch.ones(1, 1, 4, 32)] * 3, False)


@pytest.mark.parametrize("module", [attention, accuracy, blocks_sweep], ids=lambda m: m.__name__)
def test_without_a_gpu_it_ends_in_one_sentence(module, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="needs an NVIDIA GPU"):
        module.main([])


def test_accuracy_dry_run_has_the_recorded_columns(tmp_path):
    pytest.importorskip("torch")
    accuracy.main(["--dry-run", "--out", str(tmp_path), "--name", "toy"])
    dry = read_measurement(tmp_path / "accuracy_toy.csv")
    assert dry.columns == measurements("accuracy_h200").columns
    assert set(dry.column("impl")) == {"ours", "sdpa_flash", "plain"}
    assert set(dry.column("tensor")) == {"O", "dQ", "dK", "dV"}


def test_recorded_sweep_gives_each_row_a_time_or_a_reason():
    recorded = measurements("blocks_h200")
    assert recorded.provenance["gpu"] == "NVIDIA H200"
    for row in recorded.rows:
        assert (row["seconds"] is not None) == (row["status"] == "ok")
        if row["status"] == "ok":
            assert row["relative_error"] < attention.TOLERANCE and row["registers"] <= 255
    for shape in blocks_sweep.SHAPES:
        assert len(recorded.where(d=shape[3]).rows) == len(blocks_sweep.configurations(shape[3]))


def test_a_configuration_that_does_not_fit_keeps_its_row_with_the_reason(monkeypatch):
    torch = pytest.importorskip("torch")

    def caller(tensors, config):
        if config[0] == 256:
            raise RuntimeError("out of resource: shared memory\nmore")
        return lambda: tensors[0] if config[0] == 64 else torch.softmax(tensors[0], -1)

    x = torch.ones(1, 1, 4, 8)
    monkeypatch.setattr(blocks_sweep, "inputs", lambda shape, device: [x] * 4)
    monkeypatch.setattr(blocks_sweep, "caller", caller)
    monkeypatch.setattr(blocks_sweep.binaries, "forget", lambda: None)
    monkeypatch.setattr(blocks_sweep.binaries, "loaded",
                        lambda: [dict.fromkeys(blocks_sweep.RESOURCES, 7)])
    rows = list(blocks_sweep.measure((1, 1, 4, 8), [(256, 64, 4, 2), (64, 64, 4, 2), (32, 64, 4, 2)],
                                     lambda call: (2.0, 1.0, 3.0, 9)))
    assert {tuple(row) for row in rows} == {measurements("blocks_h200").columns}
    assert [(row["status"], row["seconds"]) for row in rows] == [
        ("shared memory", None), ("ok", 2.0), ("wrong", None)]


def test_recorded_kernels_belong_to_the_recorded_times():
    timed, kernels = measurements("attention_h200"), measurements("attention_kernels_h200")
    for row in timed.where(impl="ours").rows:
        case = {key: row[key] for key in ("mode", "causal", *SHAPE)}
        mine = kernels.where(**case)
        assert row["registers"] == mine.column("registers").max()
        assert row["spilled_words"] == mine.column("spilled_words").max()


def test_live_says_why_nothing_was_measured(monkeypatch):
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    rows, note = blocks_sweep.live([(64, 64, 4, 2)])
    assert rows == [] and note.startswith("Not measured here")


def test_matrix_instructions_are_counted_by_shape():
    ptx = ("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {x};\n" * 2
           + "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {y};\n")
    assert binaries.matrix_instructions(ptx) == "mma.m16n8k16×1+wgmma.m64n128k16×2"
    assert binaries.worst([]) == {"registers": None, "spilled_words": None, "shared_bytes": None}


def test_loaded_reads_what_triton_compiled(monkeypatch):
    binary = SimpleNamespace(metadata=SimpleNamespace(num_warps=4, num_stages=2, shared=10), n_regs=168,
                             n_spills=0, asm={"ptx": ""})
    kernel = SimpleNamespace(fn=SimpleNamespace(__name__="flash_fwd_kernel"),
                             device_caches={0: ({"key": binary}, None)})
    monkeypatch.setattr(binaries, "kernels", lambda: [kernel])
    assert binaries.loaded() == [{"kernel": "flash_fwd_kernel", "num_warps": 4, "num_stages": 2,
                                  "registers": 168, "spilled_words": 0, "shared_bytes": 10,
                                  "matrix_instructions": ""}]


def ncu(*names):
    head = '"ID","Kernel Name","dram__bytes_read.sum","l1tex__m_xbar2l1tex_read_bytes.sum"'
    return "\n".join(["==PROF== note", head, '"","","byte","byte"',
                      *(f'"{i}","{name}","1,024","2048"' for i, name in enumerate(names))])


def test_counters_take_one_forward_kernel_for_each_case():
    cases = [("v2", (1, 1, 64, 64), (64, 64, 4, 2))]
    [row] = counters.parse(ncu("flash_fwd_kernel", "fill"), cases)
    assert (row["dram_read_bytes"], row["l2_to_sm_bytes"], row["BLOCK_M"]) == (1024, 2048, 64)
    with pytest.raises(ValueError, match="expected 1 kernels in the cases' order, got 2"):
        counters.parse(ncu("flash_fwd_kernel", "flash_fwd_kernel"), cases)
    with pytest.raises(ValueError, match="got none"):
        counters.parse("==ERROR== no permission", cases)


def test_readme_is_rewritten_between_the_markers_and_nowhere_else(tmp_path):
    path = tmp_path / "README.md"
    path.write_text(f"before\n{readme.START}\nold\n{readme.END}\nafter\n", encoding="utf-8")
    readme.main(["--readme", str(path)])
    once = path.read_text(encoding="utf-8")
    assert once.startswith("before\n") and once.endswith(f"{readme.END}\nafter\n") and "old" not in once
    readme.main(["--readme", str(path)])
    assert path.read_text(encoding="utf-8") == once


@pytest.mark.parametrize("text", ["", readme.START, f"{readme.END} {readme.START}",
                                  f"{readme.START}{readme.START}{readme.END}"], ids=json.dumps)
def test_a_readme_without_the_markers_is_refused(text):
    with pytest.raises(ValueError, match="bench:start"):
        readme.rewrite(text, "table")


def test_table_has_a_row_for_each_case_and_says_where_from():
    recorded = measurements("attention_h200")
    text = readme.table(recorded)
    cases = {tuple(row[key] for key in ("mode", "causal", *SHAPE)) for row in recorded.rows}
    assert sum(line.startswith("| ") for line in text.splitlines()) == len(cases) + 2
    [row] = recorded.where(impl="sdpa_flash", mode="forward", causal=0, N_q=4096, d=128).rows
    assert f"{row['tflops_per_s']:.0f} ({row['ours_over_this']:.2f}×)" in text
    for needed in ("NVIDIA H200", recorded.provenance["date"], "FlashAttention-3", "make bench"):
        assert needed in text


@pytest.mark.parametrize("mode", attention.MODES)
@pytest.mark.parametrize("D", [32, 64, 128, 192, 256])
def test_every_kernel_that_is_launched_is_among_those_whose_binaries_are_read(D, mode):
    pytest.importorskip("triton.experimental.gluon")
    import torch

    from flashlib.kernels.problem import Device, Problem

    known = {kernel.fn.__name__ for kernel in binaries.kernels()}
    for capability in ((8, 0), (9, 0), (10, 0)):
        p = Problem.example(B=1, H=2, N_Q=256, N_K=256, D=D, dtype=torch.bfloat16,
                            device=Device("cuda", None, capability, 132, "a GPU"))
        tiles = attention.tiles_of(p, mode)
        assert tiles and set(tiles) <= known
        assert all(len(tile) == 2 for launches in tiles.values() for tile in launches)
