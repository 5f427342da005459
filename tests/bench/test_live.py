"""A live measurement says that there is no GPU, that it failed, or what it measured."""

import subprocess

import pytest

from flashlib.bench import live

torch = pytest.importorskip("torch")


def test_without_a_gpu_nothing_is_measured_and_that_is_said(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    live.attention_here()
    assert capsys.readouterr().out.startswith("No GPU here")


@pytest.mark.parametrize(("code", "stdout", "stderr", "said"), [
    (0, "ours 300", "", "Measured here, on a GPU; TFLOP/s (speed of ours relative to it):\nours 300"),
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
    monkeypatch.setattr(live.subprocess, "run", run)
    live.attention_here((1, 2, 64, 32))
    assert said in capsys.readouterr().out
    assert "TRITON_INTERPRET" not in asked["env"] and "measure([(1, 2, 64, 32)]" in asked["command"][-1]
