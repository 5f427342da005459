"""The figures of chapter 07 show what they were given: marks, counts and alt text."""

import numpy as np
import pytest

import flashlib as fl
from flashlib.course.ch07 import figures
from flashlib.course.plots import theme
from tests.cases import normal


def words(fig):
    return [t.get_text() for ax in fig.axes for t in ax.texts] + [t.get_text() for t in fig.texts]


def by_gid(fig, prefix):
    return {a.get_gid(): a for ax in fig.axes for a in ax.get_children()
            if str(a.get_gid()).startswith(prefix)}


@pytest.fixture(scope="module")
def traces():
    Q, K, V, dO = normal(0, *[(12, 4)] * 4)
    O, lse = fl.flash_v2(Q, K, V, Br=4, Bc=4)
    machines = {"kv": fl.Machine(), "q": fl.Machine()}
    for order, machine in machines.items():
        fl.flash_backward(Q, K, V, O, lse, dO, Br=4, Bc=4, order=order, machine=machine)
    return {order: machine.trace for order, machine in machines.items()}


def test_saved_memory_draws_curves_limits_and_crossings():
    N = np.array([512, 1024, 2048, 4096])
    fig = figures.saved_memory(N, {"standard": N**2 * 4e3, "flash_v2": N * 1e5},
                               {"A100": 8e10, "T4": 1.6e10}, fits={"standard": {"A100": 4472}})
    assert set(by_gid(fig, "curve")) == {"curve standard", "curve flash_v2"}
    assert set(by_gid(fig, "limit")) == {"limit A100", "limit T4"}
    assert "A100 full at\nN = 4,472" in words(fig)
    assert "A100 is full at 4,472 tokens" in theme.alt_text(fig)
    assert fig.png()[:4] == b"\x89PNG"


def test_what_is_kept_names_every_matrix_and_frames_the_kept():
    fig = figures.what_is_kept({"standard": ["Q", "K", "V", "P"], "flash": ["Q", "K", "V", "O", "lse"]})
    texts = words(fig)
    assert {"dQ", "dK", "dV", "dP", "dS", "delta", "lse"} <= set(texts)
    assert texts.count("S") == 3 and texts.count("P") == 3         # once, and twice
    assert "standard keeps Q, K, V, P between" in theme.alt_text(fig)
    framed = [p for ax in fig.axes for p in ax.get_children()
              if getattr(p, "get_linewidth", lambda: 0)() == 2.2]
    assert len(framed) == 4 + 5


def test_backward_orders_counts_the_stores_of_each_gradient(traces):
    fig = figures.backward_orders(traces, 12, 12)
    texts = words(fig)
    assert {"kv", "q, pass 1", "q, pass 2", "makes dK, dV, dQ", "makes dQ"} <= set(texts)
    assert texts.count("3×") == 3                                   # dQ, a tile each, in "kv" only
    assert texts.count("1×") == 6 + 6 + 3                           # dK and dV twice, dQ of pass 2
    assert texts.count("9") >= 3                                    # nine visits in each pass
    assert "9 atomic updates" in theme.alt_text(fig) and "0 atomic" in theme.alt_text(fig)


def test_training_time_tells_predicted_from_measured():
    times = {"A100": {"standard": 11.8e-3, "flash_v2": 3.3e-3},
             "H200": {"standard": 5e-3, "flash_v2": 0.9e-3}}
    fig = figures.training_time(times, measured={"H200": {"standard": 10e-3, "flash_v2": 4e-3}},
                                bounds={"A100": {"standard": "memory"}})
    labels = [t.get_text() for t in fig.axes[0].get_yticklabels()]
    assert labels == ["A100", "H200", "H200, measured"]
    texts = words(fig)
    assert "11.8 ms  memory" in texts and "900 µs" in texts and "÷ 2.5" in texts
    faces = [line.get_markerfacecolor() for line in fig.axes[0].lines if line.get_marker() != "None"]
    assert faces.count("white") == 4 and len(faces) == 6
    assert "H200 measured: standard 10 ms" in theme.alt_text(fig)
