"""Spec sheets: every number has a unit and a source, the numbers agree with each other."""

import copy
import pickle
import subprocess
import sys
import types
from html import escape

import pytest

from flashlib import hardware
from flashlib.generations import GENERATIONS
from flashlib.hardware import ALL, GPU, Fact, get, human, this_machine

SCALARS = list(hardware._FIELDS)
# Matmul FLOPs per clock and SM, 16-bit in, float32 accumulated.
PER_CLOCK = {"V100": 1024, "T4": 1024, "A100": 2048, "RTX 4090": 512, "H100": 4096, "H200": 4096,
             "B200": 8192}
CORES = {"V100": 64, "T4": 64, "A100": 64, "RTX 4090": 128, "H100": 128, "H200": 128, "B200": 128}

every_gpu = pytest.mark.parametrize("gpu", ALL, ids=lambda gpu: gpu.name)


@every_gpu
def test_every_number_has_a_unit_and_a_source(gpu):
    facts = [getattr(gpu, name) for name in SCALARS]
    facts += [*gpu.matmul_flops_per_s.values(), *gpu.measured.values()]
    for fact in facts:
        assert isinstance(fact, Fact)
        assert float(fact) > 0
        assert fact.unit in {"SMs", "Hz", "B", "B/s", "FLOP/s", "exp/s"}
        assert "https://" in fact.source or "arXiv" in fact.source or "NVIDIA H200" in fact.source


@every_gpu
def test_what_we_measured_is_marked_dated_and_below_the_datasheet(gpu):
    assert not any(getattr(gpu, name).measured for name in SCALARS)
    for fact in gpu.measured.values():
        assert fact.measured and "2026" in fact.source and "torch" in fact.source
        peak = gpu.hbm_bytes_per_s if fact.unit == "B/s" else gpu.matmul_flops_per_s["bfloat16"]
        assert 0.5 * float(peak) < float(fact) < float(peak)


def test_the_h200_carries_our_measurements():
    assert {name: float(f) for name, f in get("H200").measured.items()} == {
        "bfloat16_matmul_slowest": 690e12, "bfloat16_matmul_fastest": 790e12, "copy": 4.25e12}


@every_gpu
def test_the_matmul_rate_is_sms_times_clock_times_flops_per_clock(gpu):
    rate = float(gpu.sms) * float(gpu.clock_hz) * PER_CLOCK[gpu.name]
    assert float(gpu.matmul_flops_per_s["float16"]) == pytest.approx(rate, rel=0.01)


@every_gpu
def test_the_vector_rate_is_two_flops_a_core_and_clock(gpu):
    rate = 2 * CORES[gpu.name] * float(gpu.sms) * float(gpu.clock_hz)
    # Hopper and Blackwell rate float32 at a higher clock than the tensor cores.
    assert float(gpu.vector_flops_per_s) == pytest.approx(rate, rel=0.09)
    assert gpu.matmul_flops_per_s["float32"] == gpu.vector_flops_per_s


@every_gpu
def test_exponentials_are_sixteen_per_clock_and_sm(gpu):
    rate = 16 * float(gpu.sms) * float(gpu.clock_hz)
    assert float(gpu.exps_per_s) == pytest.approx(rate, rel=1e-8)
    assert gpu.exps_per_s.source.startswith("derived")


def test_figures_that_the_flashattention_papers_state():
    h100, a100, b200 = get("H100"), get("A100"), get("B200")
    assert float(h100.matmul_flops_per_s["float16"]) == pytest.approx(989e12, rel=1e-3)
    assert float(h100.exps_per_s) == pytest.approx(3.9e12, rel=0.01)
    ratio = float(h100.matmul_flops_per_s["float16"]) / float(h100.exps_per_s)
    assert ratio == pytest.approx(256, rel=1e-3)
    assert float(a100.matmul_flops_per_s["bfloat16"]) / float(a100.vector_flops_per_s) == 16
    assert float(b200.matmul_flops_per_s["bfloat16"]) / float(b200.exps_per_s) == pytest.approx(512)


@every_gpu
def test_sizes_nest(gpu):
    sizes = [gpu.shared_memory_per_block_bytes, gpu.shared_memory_per_sm_bytes, gpu.l2_bytes,
             gpu.hbm_bytes]
    assert [int(s) for s in sizes] == sorted(int(s) for s in sizes)
    assert int(gpu.registers_per_sm_bytes) == 65536 * 4
    assert gpu.sram_bytes == int(gpu.shared_memory_per_block_bytes)


@pytest.mark.parametrize("name", ["V100", "T4"])
def test_no_bfloat16_before_ampere(name):
    assert not {"bfloat16", "tf32", "float8"} & set(get(name).matmul_flops_per_s)


@pytest.mark.parametrize("value, unit, binary, text", [
    (232448, "B", True, "227 KiB"), (50 * 2**20, "B", True, "50 MiB"), (80e9, "B", False, "80 GB"),
    (3.35e12, "B/s", False, "3.35 TB/s"), (900e9, "B/s", False, "900 GB/s"),
    (1978.9e12, "FLOP/s", False, "1,979 TFLOP/s"), (99.96e12, "FLOP/s", False, "100 TFLOP/s"),
    (1.83e9, "Hz", False, "1.83 GHz"), (132, "SMs", False, "132 SMs"), (512, "B", True, "512 B")])
def test_human_units(value, unit, binary, text):
    assert human(value, unit, binary=binary) == text


def test_on_chip_sizes_print_in_powers_of_1024_and_memory_in_powers_of_1000():
    h100 = get("H100")
    assert str(h100.shared_memory_per_sm_bytes) == "228 KiB"
    assert str(h100.l2_bytes) == "50 MiB"
    assert str(h100.hbm_bytes) == "80 GB"
    assert str(get("H200").measured["copy"]) == "4.25 TB/s (measured)"


@pytest.mark.parametrize("name", ["H100", "h100", "RTX 4090", "rtx4090", "RTX-4090", "4090"])
def test_get_forgives_spelling(name):
    assert get(name) in ALL
    assert get(get(name)) is get(name)


def test_get_names_the_known_gpus():
    with pytest.raises(ValueError, match=r"name: expected one of V100, T4, A100.*got 'H1000'"):
        get("H1000")
    with pytest.raises(TypeError, match="name: expected the name of a GPU, got 7"):
        get(7)


def test_a_gpu_of_your_own():
    mine = GPU.custom("mine", sram_bytes=100 * 1024, hbm_bytes_per_s=1e12, matmul_flops_per_s=1e14,
                      exps_per_s=2e12)
    assert mine.sram_bytes == 102400
    assert {k: float(v) for k, v in mine.matmul_flops_per_s.items()} == {
        "float16": 1e14, "bfloat16": 1e14}
    assert mine.exps_per_s == Fact(2e12, "exp/s", "given by the reader")
    assert mine.vector_flops_per_s is None


def test_changing_a_sheet_leaves_the_original_alone():
    a100 = get("A100")
    faster = a100.with_(name="A100, twice the bandwidth", hbm_bytes_per_s=2 * 2039e9,
                        matmul_flops_per_s={"float8": 624e12}, source="a thought")
    assert float(faster.hbm_bytes_per_s) == 2 * float(a100.hbm_bytes_per_s)
    assert faster.hbm_bytes_per_s.source == "a thought"
    assert set(faster.matmul_flops_per_s) == {*a100.matmul_flops_per_s, "float8"}
    assert "float8" not in a100.matmul_flops_per_s
    assert a100.with_(exps_per_s=None).exps_per_s is None


@pytest.mark.parametrize("change, error, match", [
    ({"hbm_bytes_per_s": "fast"}, TypeError, "hbm_bytes_per_s: .* a Fact, got 'fast'"),
    ({"hbm_bytes_per_s": -1}, ValueError, "hbm_bytes_per_s: .* positive, finite number, got -1"),
    ({"sram_bytes": float("nan")}, ValueError, "shared_memory_per_block_bytes: .* got nan"),
    ({"matmul_flops_per_s": {"float16": True}}, TypeError, r"matmul_flops_per_s\['float16'\]"),
    ({"watts": 700}, TypeError, "watts: expected a field of a spec sheet")])
def test_wrong_numbers_are_refused(change, error, match):
    with pytest.raises(error, match=match):
        get("A100").with_(**change)


def test_a_fact_needs_unit_and_source():
    with pytest.raises(ValueError, match="unit, source: expected both"):
        Fact(1, "B", "")


@every_gpu
def test_a_sheet_shows_itself(gpu):
    rows = gpu.table()
    assert len(rows) == len(SCALARS) + len(gpu.matmul_flops_per_s) + len(gpu.measured)
    html = gpu._repr_html_()
    for label, value, source in rows:
        assert label in str(gpu) and value in str(gpu)
        assert f"<td>{value}</td>" in html and escape(source) in html
    assert repr(gpu) == f"GPU({gpu.name!r})"


def test_html_is_escaped():
    html = GPU("<b>", note="<i>").with_(sms=3, source="<u>")._repr_html_()
    assert not {"<b>", "<i>", "<u>"} & {html[i:i + 3] for i in range(len(html))}


def test_sheets_are_frozen_hashable_and_can_be_copied():
    h200 = get("H200")
    with pytest.raises(AttributeError):
        h200.sms = 1
    with pytest.raises(TypeError):
        h200.matmul_flops_per_s["float16"] = 1
    assert pickle.loads(pickle.dumps(h200)) == copy.deepcopy(h200) == h200
    assert len({hash(gpu) for gpu in ALL}) == len(ALL)


def fake_torch(props, cuda="13.0"):
    torch = types.ModuleType("torch")
    torch.__version__ = "2.x"
    torch.version = types.SimpleNamespace(cuda=cuda)
    torch.cuda = types.SimpleNamespace(is_available=lambda: True,
                                       get_device_properties=lambda i: props)
    return torch


# What torch 2.11.0+cu130 says of one NVIDIA H200.
H200_PROPS = {"name": "NVIDIA H200", "major": 9, "minor": 0, "multi_processor_count": 132,
              "total_memory": 150109880320, "L2_cache_size": 62914560, "clock_rate": 1980000,
              "memory_clock_rate": 3201000, "memory_bus_width": 6016,
              "regs_per_multiprocessor": 65536, "shared_memory_per_block_optin": 232448,
              "shared_memory_per_multiprocessor": 233472}


def test_this_machine_takes_sizes_from_the_driver_and_rates_from_the_sheet(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", fake_torch(types.SimpleNamespace(**H200_PROPS)))
    here = get("this machine")
    assert here.name == "this machine (NVIDIA H200)"
    assert int(here.l2_bytes) == 62914560 and "driver" in here.l2_bytes.source
    assert int(here.hbm_bytes) == 150109880320
    assert here.matmul_flops_per_s == get("H200").matmul_flops_per_s
    for name in ("sms", "registers_per_sm_bytes", "shared_memory_per_sm_bytes", "l2_bytes",
                 "shared_memory_per_block_bytes"):
        assert int(getattr(here, name)) == int(getattr(get("H200"), name))


def test_an_sm_is_that_of_the_sheet_with_the_warps_of_its_generation():
    for gpu in ALL:
        assert gpu.sm == GENERATIONS[gpu.generation]
    a100 = get("A100")
    assert a100.with_(sram_bytes=50 * 1024).sm == a100.sm._replace(shared_per_block_bytes=50 * 1024)
    assert a100.with_(registers_per_sm_bytes=2**17).sm.registers == 2**15
    assert get("RTX 4090").sm.warps == 48 and get("RTX 4090").with_(generation="").sm.warps == 64


def test_this_machine_derives_rates_of_an_unknown_board(monkeypatch):
    props = types.SimpleNamespace(**H200_PROPS | {"name": "NVIDIA Something Else"})
    monkeypatch.setitem(sys.modules, "torch", fake_torch(props))
    here = this_machine()
    assert float(here.hbm_bytes_per_s) == pytest.approx(4.8e12, rel=0.01)
    assert float(here.vector_flops_per_s) == pytest.approx(66.9e12, rel=0.01)
    assert "derived" in here.vector_flops_per_s.source
    assert set(here.matmul_flops_per_s) == {"float32"}
    assert "with_" in here.note and here.generation == "sm_90"


@pytest.mark.parametrize("cuda", [None, "13.0"], ids=["not-cuda", "old-torch"])
def test_this_machine_leaves_out_what_it_cannot_know(monkeypatch, cuda):
    props = types.SimpleNamespace(name="Else", multi_processor_count=304, total_memory=2**37)
    monkeypatch.setitem(sys.modules, "torch", fake_torch(props, cuda))
    here = this_machine()
    assert (int(here.sms), here.l2_bytes, here.exps_per_s) == (304, None, None)
    assert not here.matmul_flops_per_s and here.generation not in GENERATIONS


def broken():
    raise RuntimeError("driver gone")


@pytest.mark.parametrize("torch, reason", [
    (None, "torch is not installed"),
    (types.SimpleNamespace(cuda=types.SimpleNamespace(is_available=lambda: False)), "no CUDA GPU"),
    (types.SimpleNamespace(cuda=types.SimpleNamespace(is_available=broken)), "driver gone"),
], ids=["no-torch", "no-gpu", "broken-driver"])
def test_this_machine_never_raises(monkeypatch, torch, reason):
    monkeypatch.setitem(sys.modules, "torch", torch)
    here = this_machine()
    assert reason in here.note and "A100" in here.note
    assert here.sram_bytes is None and here.table() == []
    assert "no GPU" in str(here) and here.name in here._repr_html_()


def test_importing_hardware_imports_no_third_party_package():
    code = ("import sys, flashlib.hardware;"
            "print({'torch', 'triton', 'matplotlib', 'ml_dtypes'} & set(sys.modules))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
