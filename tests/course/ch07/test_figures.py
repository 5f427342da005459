"""The figures of chapter 07 show what they were given: marks, counts and alt text."""

import numpy as np
import pytest

import flashlib as fl
from flashlib.course.ch07 import figures
from flashlib.course.ch07.lab import backward_lab, draw
from flashlib.course.plots import theme
from flashlib.models import traffic
from tests.cases import normal
from tests.course.choices import draw_choices


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


def test_the_lab_opens_where_tiles_lose_and_its_axis_stays():
    fig = draw()
    N, d = 2048, 64
    kv = traffic.flash_backward(Nq=N, Nk=N, d=d, Br=32, Bc=32)
    standard = traffic.standard_backward(Nq=N, Nk=N, d=d)
    assert kv.hbm_bytes > standard.hbm_bytes
    assert f"standard, ideal {theme.human_bytes(standard.hbm_bytes)}, kv" in theme.alt_text(fig)
    assert "kv and q move more than ideal standard attention" in theme.alt_text(fig)
    assert len({draw(Br=b, Bc=b).axes[0].get_xlim() for b in (16, 64, 256)}) == 1
    assert "▶" in "".join(words(draw(Br=16, Bc=16)))                 # beyond the axis, and said so
    assert "both orders move less" in theme.alt_text(draw(Br=128, Bc=128))


def test_the_lab_counts_updates_and_says_what_does_not_fit():
    Q, K, V, dO = normal(0, *[(64, 8)] * 4)
    O, lse = fl.flash_v2(Q, K, V, Br=16, Bc=16, causal=True)
    machine = fl.Machine()
    fl.flash_backward(Q, K, V, O, lse, dO, Br=16, Bc=48, causal=True, machine=machine)
    said = theme.alt_text(draw(Br=16, Bc=48, N=64, d=8, causal=True))
    assert f"{machine.trace.atomic_updates()} atomic updates" in said
    assert "too many" in theme.alt_text(draw(Br=256, Bc=256, d=128, gpu="T4"))


def test_every_control_of_the_lab_draws():
    lab = backward_lab()
    assert set(draw_choices(lab)) == set(lab.controls)


def test_the_figures_say_what_they_find():
    N = np.array([512, 1024, 2048, 4096])
    fig = figures.saved_memory(N, {"standard": N**2 * 4e3, "flash_v2": N * 1e5}, {"A100": 8e10}, fits={
        "standard": {"A100": 4000}, "flash_v2": {"A100": 50_000}})
    assert fig.axes[0].get_title("left") == "The same A100 holds a sequence 12.5 times as long"
    fig = figures.what_is_kept({"standard": ["Q", "K", "V", "P"], "flash": ["Q", "K", "V", "O", "lse"]})
    assert {"P, N×N, is kept", "nothing N×N is kept"} <= set(words(fig))
