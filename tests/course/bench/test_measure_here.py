"""A live measurement says that there is no GPU, that it failed, or what it measured."""

import subprocess

import pytest

from flashlib.course.bench import attention, measure_here, peers

torch = pytest.importorskip("torch")


def test_without_a_gpu_nothing_is_measured_and_that_is_said(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    measure_here.attention_here()
    assert capsys.readouterr().out.startswith("No GPU here")


@pytest.mark.parametrize(("code", "stdout", "stderr", "said"), [
    (0, "ours 300", "",
     "Measured here, on a GPU, in bfloat16; TFLOP/s (speed of ours relative to it):\nours 300"),
    (1, "", "Traceback\nRuntimeError: out of memory", "failed: RuntimeError: out of memory"),
    (1, "", "", "failed: no reason given")])
def test_the_other_process_has_no_interpreter(code, stdout, stderr, said, monkeypatch, capsys):
    asked = {}

    def run(command, **options):
        asked.update(options, command=command)
        return subprocess.CompletedProcess(command, code, stdout, stderr)

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    monkeypatch.setattr(measure_here.subprocess, "run", run)
    measure_here.attention_here((1, 2, 64, 32))
    assert said in capsys.readouterr().out
    assert "TRITON_INTERPRET" not in asked["env"] and "measure([(1, 2, 64, 32)]" in asked["command"][-1]


@pytest.mark.parametrize(("capability", "dtype"), [((7, 5), "float16"), ((8, 0), "bfloat16"),
                                                   ((10, 0), "bfloat16")])
def test_a_gpu_from_before_bfloat16_is_measured_in_float16(capability, dtype, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(measure_here.subprocess, "run",
                        lambda command, **_: subprocess.CompletedProcess(command, 0, "ours 3", ""))
    measure_here.attention_here((1, 2, 64, 32))
    assert capsys.readouterr().out.startswith(f"Measured here, on a GPU, in {dtype};")

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

    monkeypatch.setattr(peers, "available", lambda device: (
        {"ours": peers.ours, "sdpa_flash": fails}, {"fa3": "flash_attn_interface is not installed"}))
    exec(measure_here._CODE.format(shape=(1, 1, 32, 16)).replace("'cuda'", "'cpu'"))
    *timed, last = capsys.readouterr().out.splitlines()
    assert len(timed) == 4 and all("ours" in line and "sdpa_flash" not in line for line in timed)
    why = "(RuntimeError No available kernel. Aborting execution.)"
    assert last == (f"Absent: fa3 (flash_attn_interface is not installed); sdpa_flash forward {why};"
                    f" sdpa_flash backward {why}")


def test_nobody_absent_is_not_worth_a_line(capsys):
    measure_here.say_absent({})
    assert capsys.readouterr().out == ""
