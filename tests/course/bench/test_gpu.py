"""Where the GPU or torch is missing, a measurement leaves with one sentence that says what helps."""

import sys

import pytest

from flashlib.course.bench import gpu

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("dry_run, device", [(True, "cpu"), (False, "cuda"), (None, "cuda")])
def test_the_device_is_what_was_asked_for(monkeypatch, dry_run, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert gpu.device_for(dry_run) == device


def test_without_a_gpu_only_a_dry_run_goes_on(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.device_for(True) == "cpu"
    with pytest.raises(SystemExit, match="needs an NVIDIA GPU; --dry-run tries"):
        gpu.device_for(False)
    with pytest.raises(SystemExit, match=r"needs an NVIDIA GPU\.$"):
        gpu.device_for()


def test_without_torch_even_a_dry_run_ends(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SystemExit, match="needs torch"):
        gpu.device_for(True)


@pytest.mark.parametrize("capability, found", [((9, 0), True), ((8, 0), False), ((10, 0), False)])
def test_hopper_is_capability_nine(monkeypatch, capsys, capability, found):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert gpu.is_hopper() is found
    assert ("needs a Hopper GPU" in capsys.readouterr().out) is not found
