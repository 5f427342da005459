"""Fixtures of tests that plan a launch: no plan and nothing tuned before, a GPU that is not there."""

import itertools
import types

import pytest


@pytest.fixture
def nothing_kept():
    """What was planned for one capability does not count for the next, nor what was tuned."""
    from flashlib.kernels import plans
    from flashlib.kernels.tuning import store

    def forget():
        store.forget_tuned()
        plans.forget()

    forget()
    yield
    forget()


@pytest.fixture
def gpu(monkeypatch, nothing_kept):
    """Return a function that makes the CPU pass for a GPU of a capability, as far as plans go."""
    from flashlib.kernels import plans, problem

    def pretend(*capability, sms=4, type="cuda"):
        device = problem.Device(type, 0, capability or None, sms, "cpu")
        monkeypatch.setattr(problem, "device_of", lambda _: device)
        monkeypatch.setattr(problem.Device, "place", property(lambda _: problem.torch.device("cpu")))
        monkeypatch.setattr(plans, "current_device", lambda: 0)
        plans.forget()

    return pretend


@pytest.fixture
def hopper(gpu):
    """Make the CPU pass for a Hopper GPU of four SMs, as far as plans go."""
    gpu(9, 0)


@pytest.fixture
def stub_driver(monkeypatch, nothing_kept):
    """Make Triton's driver a GPU that does nothing, where descriptors encode to what they describe."""
    import triton

    from flashlib.kernels import plans

    streams = itertools.count(70)
    active = types.SimpleNamespace(get_current_device=lambda: 3,
                                   get_current_stream=lambda device: (device, next(streams)))
    monkeypatch.setattr(triton.runtime, "driver", types.SimpleNamespace(active=active))
    monkeypatch.setattr(plans, "make_tensordesc_arg",
                        lambda described, meta: ["map", *described, meta["elem_size"]])
    monkeypatch.setattr(plans, "_slow", {})
    monkeypatch.setattr(plans, "_pinned", set())
