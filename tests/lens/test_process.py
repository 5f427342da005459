"""The compiling process ends: in time, on Ctrl-C, and with the process that asked for it."""

import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

import flashlib as fl
from flashlib import lens
from flashlib.lens import cache
from tests.lens.toolchain import needs_triton

pytestmark = needs_triton

ENDLESS = """
import triton
import triton.language as tl

@triton.jit
def endless(X):
    for _ in tl.static_range(10_000_000):
        tl.store(X, 1.0)

@triton.jit
def short(X):
    tl.store(X, 1.0)
"""
ASK = """
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)      # a shell's background job ignores it
sys.path.insert(0, {folder!r})
from flashlib import lens
from endless_kernel import endless
print("asking", flush=True)
try:
    lens.compile(endless, arguments={{"X": "*fp32"}})
except KeyboardInterrupt:                             # as a notebook's kernel does, which goes on
    print("interrupted", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    """A module with a kernel that takes for ever to compile, and one that does not."""
    (tmp_path / "endless_kernel.py").write_text(ENDLESS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    import endless_kernel

    yield endless_kernel
    del sys.modules["endless_kernel"]


def compilers_of(parent):
    """The compiling processes that a process has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(stat[1]) == parent and b"flashlib.lens.worker" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:                               # it has ended meanwhile
            continue
    return found


def wait_for(what, seconds=60):
    end = time.monotonic() + seconds
    while not (found := what()) and time.monotonic() < end:
        time.sleep(0.05)
    return found


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_kernel_that_takes_too_long_is_an_error_and_costs_no_other(kernels):
    with pytest.raises(lens.CompileError, match="no result after 4 s; `timeout_s=` sets another"):
        lens.compile(kernels.endless, arguments={"X": "*fp32"}, timeout_s=4)
    assert wait_for(lambda: not compilers_of(os.getpid()), 10)
    assert lens.compile(kernels.short, arguments={"X": "*fp32"}).registers > 0


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), "soon"])
def test_a_wrong_limit_is_refused(wrong):
    with pytest.raises(ValueError, match="timeout_s: expected a number of seconds above 0"):
        lens.compile_many([], timeout_s=wrong)


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "killed"])
def test_the_compiler_ends_with_whoever_asked(kernels, tmp_path, sign):
    with subprocess.Popen([sys.executable, "-c", ASK.format(folder=str(tmp_path))], text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as asking:
        assert asking.stdout.readline() == "asking\n"
        [compiler] = wait_for(lambda: compilers_of(asking.pid))
        time.sleep(2)                                 # in the middle of it
        assert is_running(compiler)
        asking.send_signal(sign)
        if sign == signal.SIGINT:
            assert asking.stdout.readline() == "interrupted\n"
        assert wait_for(lambda: not is_running(compiler), 10)
        if sign == signal.SIGKILL:
            assert asking.wait(60) == -sign
        else:
            assert asking.poll() is None                    # it was interrupted, and lives
        asking.stdin.close()


@pytest.fixture
def no_home(tmp_path, monkeypatch):
    """A home in which nothing can be made, for root neither."""
    (tmp_path / "file").write_text("")
    for name in ("TRITON_CACHE_DIR", "TRITON_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "file" / "home"))
    monkeypatch.setattr(cache, "_temporary", {})


def test_an_unwritable_home_is_said_once_and_does_not_matter(kernels, no_home):
    with pytest.warns(UserWarning, match="set TRITON_CACHE_DIR to a folder that can be written"):
        assert lens.compile(kernels.short, arch="A100", arguments={"X": "*fp32"}).registers > 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lens.compile(kernels.short, arch="H100", arguments={"X": "*fp32"}).registers > 0


def test_the_doctor_sees_an_unwritable_home(no_home, tmp_path):
    report = fl.doctor()
    assert report.machine["cache"] == f"none: {tmp_path / 'file'} is no folder"
    assert "set TRITON_CACHE_DIR" in report.missing["cache"]


def test_the_doctor_makes_nothing_and_is_silent_where_all_is_well(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "a" / "b"))
    assert "cache" not in fl.doctor().machine
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert cache.problem(os.environ) == f"{tmp_path} cannot be written"
