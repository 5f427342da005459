"""Fixtures of tests that plan a launch: no plan and nothing tuned before, a GPU that is not there."""

import pytest


@pytest.fixture
def nothing_kept():
    """What was planned for one capability does not count for the next, nor what was tuned."""
    from flashlib.kernels import dispatch, tuned

    tuned.forget_tuned()
    dispatch.forget()
    yield
    tuned.forget_tuned()
    dispatch.forget()


@pytest.fixture
def hopper(monkeypatch):
    """Make the CPU pass for a Hopper GPU of four SMs, as far as plans go."""
    from flashlib.kernels import launch, launch_hopper

    monkeypatch.setattr(launch, "capability_of", lambda device: (9, 0))
    monkeypatch.setattr(launch_hopper, "_sms", lambda device: 4)
