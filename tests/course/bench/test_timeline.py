"""The kernel with readings of the clock in it is the kernel, and its readings are read rightly."""

import ast
import itertools
import re
from pathlib import Path

import pytest

from flashlib.course.bench import timeline
from flashlib.course.notebook.data import measurements
from tests.lens.toolchain import needs_triton

KERNEL = Path(timeline.__file__).parents[2] / "kernels" / "gluon" / "forward.py"


def test_every_reading_finds_its_place():
    changed = timeline.instrumented(KERNEL.read_text(encoding="utf-8"))
    events = re.findall(r"n = stamp\(readings, n, (\d)\)", changed)
    assert events == list("10234567")                       # products, then attend, then consumer
    assert changed.count("qk, acc, n = products(readings, n, acc, p, ") == 2
    assert changed.count("phase, key, n = attend(readings, n, (acc, ") == 3      # edge, whole, edge
    assert changed.count("(consumer, (o_desc, LSE, readings, scale_log2, ") == 5
    last_step = r"stamp\(readings, n, 4\)\n +if o_desc.dtype == gl.*?\n +_, _, start = read_entry"
    assert re.search(last_step, changed, re.DOTALL)
    compile(changed, "forward_timed.py", "exec")


def test_the_layout_of_the_kernel_does_not_matter():
    source = KERNEL.read_text(encoding="utf-8")
    assert timeline.instrumented(ast.unparse(ast.parse(source))) == timeline.instrumented(source)


@pytest.mark.parametrize("old, new, words", [
    ("my_turn(slot, c)", "turn(slot, c)", "1 × my_turn in products, got 0"),
    ("def attend(", "def fold(", "a function attend in gluon/forward.py"),
    ("= first_softmax(qk, scale_log2, start + c * ROWS, key, work, MASKED, o)\n    for",
     "= 0, 0, 0\n    for", "2 × first_softmax in consumer, got 1")])
def test_a_kernel_that_has_changed_is_refused(old, new, words):
    source = KERNEL.read_text(encoding="utf-8")
    assert source.count(old) == 1
    with pytest.raises(ValueError, match=f"^PLACES: expected {words}"):
        timeline.instrumented(source.replace(old, new))


@needs_triton
@pytest.mark.matrix
def test_it_compiles_as_well_as_the_kernel_itself():
    pytest.importorskip("torch")
    pytest.importorskip("triton.experimental.gluon")
    from dataclasses import replace

    from flashlib import lens

    case = lens.request("flash_fwd_hopper_kernel", arch="H200", causal=True)
    changed = timeline.instrumented(KERNEL.read_text(encoding="utf-8"))
    more = replace(case.call, arguments=case.call.arguments | {"readings": "*i32"})
    plain, timed = lens.compile_many([case, replace(case, call=more, where={
        "attribute": "flash_fwd_hopper_kernel", "source": changed})])
    assert "%clock" in timed.ptx and "%clock" not in plain.ptx
    assert timed.matrix_instructions == plain.matrix_instructions
    assert not timed.warnings and not timed.spills


def test_readings_are_decoded_until_the_first_empty_place():
    wrapped = [2**32 - 32 + 1, 16 + 2, 48 + 7]              # the clock has 32 bits and starts again
    signed = [value - 2**32 if value >= 2**31 else value for value in wrapped]
    assert timeline.decode([*signed, 0, 99]) == [
        {"event": "issued", "cycles": 0}, {"event": "scores", "cycles": 48},
        {"event": "finished", "cycles": 80}]
    assert timeline.decode([0] * 4) == []


def test_the_recorded_readings_follow_the_kernel():
    recorded = measurements("timeline_h200")
    loop = ["step", "issued", "scores", "output"]
    border = ["last step", "issued", "next scores", "last output", "finished"]
    for causal, group in itertools.product((0, 1), (0, 1)):
        rows = recorded.where(causal=causal, warpgroup=group).rows
        for tile in range(timeline.TILES):
            events = [row["event"] for row in rows if row["query_tile"] == tile]
            assert events == loop * ((len(events) - len(border)) // 4) + border
            if not causal:                                  # 4,096 keys: 31 steps, and the border
                assert len(events) == 31 * 4 + len(border)
        cycles = [row["cycles"] for row in rows]
        assert all(a < b for a, b in itertools.pairwise(cycles))


def test_without_a_gpu_it_says_so():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("has a GPU")
    with pytest.raises(SystemExit, match="needs an NVIDIA GPU"):
        timeline.main([])


def test_on_another_gpu_it_leaves_itself_out(monkeypatch, capsys):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    with pytest.raises(SystemExit) as left:
        timeline.main([])
    assert left.value.code == 0 and "needs a Hopper GPU" in capsys.readouterr().out
