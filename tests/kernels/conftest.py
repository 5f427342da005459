"""Fixtures of tests that plan a launch: no plan and nothing tuned before, a GPU that is not there."""

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
