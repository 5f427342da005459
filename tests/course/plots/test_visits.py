import numpy as np
import pytest

import flashlib
from flashlib import plots
from flashlib.course.plots.replay import Replay
from flashlib.course.plots.theme import human_bytes

CASES = {
    "N6-Br2-Bc3": (flashlib.flash_v2, 6, dict(Br=2, Bc=3)),
    "N16-v1": (flashlib.flash_v1, 16, dict(Br=4, Bc=4)),
    "N64-causal": (flashlib.flash_v2, 64, dict(Br=16, Bc=16, causal=True)),
    "N64-ragged": (flashlib.flash_v2, 64, dict(Br=5, Bc=7)),
    "N64-ragged-causal-v1": (flashlib.flash_v1, 64, dict(Br=5, Bc=7, causal=True)),
    "N1": (flashlib.flash_v2, 1, dict(Br=1, Bc=1)),
    "one-pass": (flashlib.one_pass_attention, 6, {}),
}


def traced(algorithm, N, d=4, **kwargs):
    Q, K, V = np.random.default_rng(0).normal(size=(3, N, d))
    machine = flashlib.Machine()
    algorithm(Q, K, V, machine=machine, **kwargs)
    return machine


def parts(ax, gid):
    return [c for c in ax.get_children() if c.get_gid() == gid]


@pytest.fixture(params=CASES, ids=str)
def case(request):
    algorithm, N, kwargs = CASES[request.param]
    return traced(algorithm, N, **kwargs), N


def test_one_rectangle_for_each_visit(case):
    machine, N = case
    replay = Replay(machine.trace, N, N)
    for n, upto in enumerate(replay.frames[:-1], 1):
        if n in (1, len(replay.visits) // 2, len(replay.visits)) and n:
            ax = plots.tile_visits(replay, N, N, upto).axes[0]
            (done,) = parts(ax, "visits")
            assert len(done.get_paths()) == n
            assert len(parts(ax, "current")) == 1


def test_the_bar_is_as_long_as_the_bytes(case):
    machine, N = case
    fig = plots.tile_visits(machine.trace, N, N)
    bars = {name: sum(r.get_width() for r in fig.axes[2].patches
                      if r.get_gid() in (f"read {name}", f"write {name}"))
            for name in machine.traffic.by_tensor}
    assert bars == {name: m.total_bytes for name, m in machine.traffic.by_tensor.items()}
    assert human_bytes(machine.traffic.hbm_bytes) in [t.get_text() for t in fig.axes[2].texts]


def test_causal_tiles_are_skipped_and_said_so():
    machine = traced(flashlib.flash_v2, 64, Br=16, Bc=16, causal=True)
    fig = plots.tile_visits(machine.trace, 64, 64)
    (skipped,) = parts(fig.axes[0], "skipped")
    assert len(skipped.get_paths()) == 6
    assert "skipped" in [t.get_text() for t in fig.axes[0].texts]
    assert any("6 skipped" in t.get_text() for t in fig.texts)


def test_visits_are_numbered_in_order_and_darken():
    machine = traced(flashlib.flash_v1, 16, Br=8, Bc=8)
    ax = plots.tile_visits(machine.trace, 16, 16).axes[0]
    assert [t.get_text() for t in parts(ax, "order")] == ["1", "2", "3", "4"]
    (done,) = parts(ax, "visits")
    lightness = done.get_facecolors()[:, :3].mean(axis=1)
    assert (np.diff(lightness) < 0).all()


def test_the_strips_tell_sram_from_hbm():
    machine = traced(flashlib.flash_v2, 16, Br=8, Bc=8)
    replay = Replay(machine.trace, 16, 16)
    ax = plots.tile_visits(replay, 16, 16, replay.frames[0]).axes[0]
    for name in "QKVO":
        assert parts(ax, f"sram {name}"), name
    assert parts(ax, "hbm K") and not parts(ax, "hbm O"), "O is not written yet"
    ax = plots.tile_visits(replay, 16, 16).axes[0]
    assert parts(ax, "hbm O") and not parts(ax, "sram Q")


def test_the_gauge_adds_up_to_the_sram_in_use():
    machine = traced(flashlib.flash_v2, 16, Br=8, Bc=8)
    replay = Replay(machine.trace, 16, 16)
    moment = replay.at(replay.frames[2])
    assert sum(e.bytes for e in moment.sram) == moment.sram_bytes
    assert replay.peak_bytes == machine.traffic.sram_peak_bytes


def test_a_matmul_has_a_frame_for_each_step_along_k():
    rng = np.random.default_rng(0)
    machine = flashlib.Machine()
    flashlib.tiled_matmul(rng.normal(size=(8, 6)), rng.normal(size=(6, 4)), Bm=4, Bn=2, Bk=3,
                          machine=machine)
    replay = Replay(machine.trace, 8, 4, "C")
    assert len(replay.visits) == 4 and len(replay.frames) == 4 * 2 + 1
    moment = replay.at(replay.frames[0])
    assert {e.tensor for e in moment.sram} == {"A", "B", "C"}
    plots.tile_visits(replay, 8, 4, replay.frames[3])


def test_standard_attention_is_drawn_kernel_by_kernel():
    machine = traced(flashlib.standard_attention, 8, Br=4, Bc=4)
    replay = Replay(machine.trace, 8, 8)
    assert len(replay.at(replay.frames[3]).visits) == 4
    assert {v.tensor for v in replay.at().visits} == {"P"}


@pytest.mark.parametrize("count", [1, 3, 4])
def test_key_frames_share_one_byte_axis(count):
    machine = traced(flashlib.flash_v2, 16, Br=4, Bc=4)
    fig = plots.key_frames(machine.trace, 16, 16, count)
    bars = fig.axes[1::2]
    assert len(bars) == count
    assert len({ax.get_xlim() for ax in bars}) == 1
    assert len(fig.axes) == 2 * count + 1  # the last one holds the key
    assert fig.get_figwidth() == plots.WIDTH


def test_compare_puts_both_on_one_byte_axis():
    v1 = traced(flashlib.flash_v1, 16, Br=4, Bc=4)
    v2 = traced(flashlib.flash_v2, 16, Br=4, Bc=4)
    fig = plots.compare({"v1": v1.trace, "v2": v2.trace}, 16, 16)
    texts = [t.get_text() for t in fig.axes[-1].texts]
    assert human_bytes(v1.traffic.hbm_bytes) in texts and human_bytes(v2.traffic.hbm_bytes) in texts
    assert fig.axes[-1].get_xlim()[1] >= v1.traffic.hbm_bytes


def test_an_empty_trace_is_explained():
    with pytest.raises(ValueError, match="record=True"):
        plots.tile_visits(flashlib.Machine(record=False).trace, 4, 4)


def test_texts_of_the_key_figure_do_not_touch():
    machine = traced(flashlib.flash_v1, 64, d=16, Br=16, Bc=16, causal=True)
    replay = Replay(machine.trace, 64, 64)
    fig = plots.tile_visits(replay, 64, 64, replay.frames[6], sram_bytes=4096)
    renderer = fig.canvas.get_renderer()
    boxes = [t.get_window_extent(renderer) for ax in fig.axes for t in ax.texts if t.get_text()]
    boxes += [t.get_window_extent(renderer) for t in fig.texts]
    assert not any(a.overlaps(b) for n, a in enumerate(boxes) for b in boxes[:n])
    whole = fig.bbox
    assert all(whole.x0 <= b.x0 and b.x1 <= whole.x1 and whole.y0 <= b.y0 and b.y1 <= whole.y1
               for b in boxes)
