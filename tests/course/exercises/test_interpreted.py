"""A check in a process of its own: its verdict is not the kernel's to give."""

import json

import pytest

from flashlib.course.ch09 import exercises as ch09
from flashlib.course.exercises import interpreted
from flashlib.course.exercises.core import Wrong
from flashlib.course.notebook.without_triton import why_not

needs_triton = pytest.mark.skipif(bool(why_not()), reason="torch or Triton is not installed")
FORGED = json.dumps({"passed": True, "message": "right.", "nonce": "0"})

if not why_not():
    import triton.language as tl

    def prints_a_verdict(X, Y, stride_xm, N, BLOCK: tl.constexpr):
        print('{"passed": true, "message": "right.", "nonce": "0"}', flush=True)

    def leaves_python(X, Y, stride_xm, N, BLOCK: tl.constexpr):
        import os
        print('{"passed": true, "message": "right.", "nonce": "0"}', flush=True)
        os._exit(0)

    def writes_to_every_descriptor(X, Y, stride_xm, N, BLOCK: tl.constexpr):
        import os
        for fd in map(int, os.listdir("/proc/self/fd")):
            if fd > 2 and os.access(f"/proc/self/fd/{fd}", os.W_OK):
                os.write(fd, b'{"passed": true, "message": "right.", "nonce": "0"}')
        os._exit(0)

    def never_ends(X, Y, stride_xm, N, BLOCK: tl.constexpr):
        import time
        while True:                                         # asleep: nobody else's core is taken
            time.sleep(1)

    def begins_and_stops(X, Y, stride_xm, N, BLOCK: tl.constexpr):
        print("✓")
        raise NotImplementedError

    def shows_its_work(X, Y, stride_xm, N, BLOCK: tl.constexpr):
        row = tl.program_id(0)
        col = tl.arange(0, BLOCK)
        x = tl.load(X + row * stride_xm + col, mask=col < N, other=float("-inf"))
        print("at work")
        tl.store(Y + row, tl.max(x, 0))


@needs_triton
def test_a_kernel_that_prints_a_verdict_does_not_pass(capsys):
    verdict = ch09.check_row_max(prints_a_verdict)
    assert not verdict
    assert "right." in capsys.readouterr().out and "right." not in verdict.message


@needs_triton
@pytest.mark.parametrize("name", ["leaves_python", "writes_to_every_descriptor"])
def test_a_kernel_that_ends_the_process_does_not_pass(name):
    verdict = ch09.check_row_max(globals()[name])
    assert not verdict
    assert "without a verdict" in verdict.message


@pytest.mark.parametrize("answer", [7, "text", []])
def test_what_is_no_function_is_refused(answer):
    with pytest.raises(Wrong, match="expected a function"):
        interpreted.refuse_stub(answer)


def test_a_stub_is_recognized_without_calling_it():
    def unedited(X, Y):
        """Do nothing yet."""
        raise NotImplementedError

    def emptied(X, Y):
        pass

    def dots(X, Y):
        ...

    def begun(X, Y):
        raise SystemExit

    for stub in (unedited, emptied, dots):
        with pytest.raises(NotImplementedError):
            interpreted.refuse_stub(stub)
    interpreted.refuse_stub(begun)


@needs_triton
def test_a_stub_with_a_line_before_its_raise_is_not_answered_yet():
    verdict = ch09.check_row_max(begins_and_stops)
    assert not verdict and "not answered yet" in verdict.message


@needs_triton
def test_a_right_kernel_may_print(capsys):
    assert ch09.check_row_max(shows_its_work)
    assert "at work\n" in capsys.readouterr().out


@needs_triton
def test_a_kernel_that_does_not_end_is_stopped(monkeypatch):
    monkeypatch.setattr(interpreted, "TIMEOUT_S", 6)
    assert "does every loop end?" in ch09.check_row_max(never_ends).message


@pytest.mark.parametrize("text", ["", "null", "[]", "7", "{}", FORGED, FORGED[:-1] + "x",
                                  FORGED.replace('"0"', "null")])
def test_only_a_verdict_with_the_number_counts(text):
    with pytest.raises(Wrong, match="without a verdict"):
        interpreted._praise(text, "1234")


def test_a_genuine_verdict_says_what_the_check_said():
    genuine = {"passed": True, "message": "well done", "nonce": "1234"}
    assert interpreted._praise(json.dumps(genuine), "1234") == "well done"
    with pytest.raises(NotImplementedError):
        interpreted._praise(json.dumps(genuine | {"passed": None}), "1234")
    for passed in (False, 1, "true"):
        with pytest.raises(Wrong, match="not this"):
            interpreted._praise(json.dumps(genuine | {"passed": passed, "message": "not this"}), "1234")
