"""The live measurement of chapter 10 says that there is no GPU, or what it measured."""

import pytest

from flashlib.course.bench import attention, harness, peers

torch = pytest.importorskip("torch")


def test_without_a_gpu_nothing_is_measured_and_that_is_said(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    attention.measure_here()
    assert capsys.readouterr().out.startswith("No GPU here")


@pytest.mark.parametrize(("capability", "dtype"), [((7, 5), "float16"), ((8, 0), "bfloat16"),
                                                   ((10, 0), "bfloat16")])
def test_a_gpu_from_before_bfloat16_is_measured_in_float16(capability, dtype, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    asked = []
    monkeypatch.setattr(harness, "elsewhere", lambda *words: asked.append(words) or "ours 3")
    attention.measure_here((1, 2, 64, 32))
    assert capsys.readouterr().out == (f"Measured here, on a GPU, in {dtype};"
                                       " TFLOP/s (speed of ours relative to it):\nours 3\n")
    assert asked == [("flashlib.course.bench.attention", "--quick", 1, 2, 64, 32)]
    monkeypatch.setattr(harness, "elsewhere", lambda *words: None)
    attention.measure_here((1, 2, 64, 32))                  # it has said why
    assert capsys.readouterr().out == ""

    made, seen = [], []
    monkeypatch.setattr(torch, "Generator", lambda device: torch.default_generator)
    monkeypatch.setattr(torch, "randn", lambda *shape, **options: made.append(options["dtype"]))
    attention.inputs((1, 2, 64, 32), "cuda")
    monkeypatch.setattr(attention, "microseconds", lambda call, *_: call())
    attention.overhead_us({"ours": lambda *tensors: seen.append(tensors)}, "cuda")
    assert made == [getattr(torch, dtype)] * 7 and len(seen) == 1


def test_the_other_process_names_who_is_absent_in_one_line(monkeypatch, capsys):
    def fails(q, k, v, causal):
        raise RuntimeError("No available kernel.\nAborting execution.")

    monkeypatch.setattr(peers, "present", lambda device: (
        {"ours": peers.ours, "sdpa_flash": fails}, {"fa3": "flash_attn_interface is not installed"}))
    attention.main(["--dry-run", "--quick", "1", "1", "32", "16"])
    *timed, last = capsys.readouterr().out.splitlines()
    assert len(timed) == 4 and all("ours" in line and "sdpa_flash" not in line for line in timed)
    why = "(RuntimeError No available kernel. Aborting execution.)"
    assert last == (f"Absent: fa3 (flash_attn_interface is not installed); sdpa_flash forward {why};"
                    f" sdpa_flash backward {why}")


def test_nobody_absent_is_not_worth_a_line(monkeypatch, capsys):
    monkeypatch.setattr(peers, "present", lambda device: ({"ours": peers.ours}, {}))
    attention.quick((1, 1, 32, 16), "cpu")
    assert "Absent" not in capsys.readouterr().out
