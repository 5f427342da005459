"""A process that is graded ends in time, says no more than it may, and leaves nothing behind."""

import json
import subprocess
import sys
import time

import pytest

from scripts import grade, grade_warden

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only there orphans can be told from others")
# Two generations in sessions of their own, which hold the pipe and write a sign of life.
ESCAPE = """
import os, sys, time
for _ in range(2):
    if os.fork():
        break
    os.setsid()
else:
    while True:
        with open("alive", "a") as file: file.write("x")
        time.sleep(0.02)
"""


def watch(folder, code, timeout=20.0, **options):
    """Start a warden over some Python code."""
    return subprocess.Popen(
        [sys.executable, "-I", grade.WARDEN, repr(timeout), sys.executable, "-c", code], cwd=folder,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)


def run(folder, code, timeout=20.0):
    """What the warden reports, and after how many seconds."""
    start = time.monotonic()
    with watch(folder, code, timeout) as warden:
        warden.stdin.write(b'{"job": 1}\n')
        warden.stdin.flush()
        said = warden.stdout.read()
    return json.loads(said), time.monotonic() - start


def lives(folder):
    size = (folder / "alive").stat().st_size
    time.sleep(0.3)
    return (folder / "alive").stat().st_size > size


def test_the_job_goes_in_and_what_is_told_comes_out(tmp_path):
    report, _ = run(tmp_path, "print('told', input())")
    assert report["told"].split(maxsplit=1) == ["told", '{"job": 1}\n']
    assert report["ending"] == "the code ended the process (exit code 0)"


def test_all_that_was_told_before_the_end_is_kept(tmp_path):
    report, _ = run(tmp_path, "import os; os.write(1, b'x' * 60_000); os._exit(3)")
    assert report["told"] == "x" * 60_000 and report["ending"].endswith("(exit code 3)")


def test_a_loop_without_end_ends(tmp_path):
    report, seconds = run(tmp_path, "print('told', flush=True)\nwhile True: pass", timeout=1.0)
    assert report == {"told": "told\n", "ending": "took longer than 1 s: a loop without end?"}
    assert seconds < 10


def test_a_flood_is_cut_off(tmp_path):
    report, seconds = run(tmp_path, "import os\nwhile True: os.write(1, b'x' * 2**16)")
    assert len(report["told"]) <= grade_warden.MOST_BYTES and "own channel" in report["ending"]
    assert seconds < 15


@LINUX
@pytest.mark.parametrize(("end", "timeout"), [("time.sleep(0.5)", 20.0), ("time.sleep(999)", 1.5)])
def test_orphans_in_their_own_session_are_killed(tmp_path, end, timeout):
    report, seconds = run(tmp_path, f"{ESCAPE}\n{end}", timeout)
    assert seconds < 15 and not lives(tmp_path)
    assert ("took longer" in report["ending"]) is (timeout < 2)


@LINUX
def test_nothing_outlives_the_grader(tmp_path):
    warden = watch(tmp_path, f"{ESCAPE}\ntime.sleep(999)")
    warden.stdin.write(b"{}\n")
    warden.stdin.flush()
    while not (tmp_path / "alive").exists():
        time.sleep(0.05)
    warden.stdin.close()                              # which the kernel does when a process dies
    assert json.loads(warden.stdout.read())["ending"] == "the code ended the process (exit code -9)"
    warden.wait(10)
    warden.stdout.close()
    assert not lives(tmp_path)
