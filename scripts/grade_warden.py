"""Run one grading process with limits, and leave nothing of it behind; `grade.py` starts it.

    grade_warden.py TIMEOUT COMMAND...

The first line of stdin goes to the command. What it writes, up to a limit, and how it ended go out as
one JSON object. When the command has ended, took too long or wrote too much, or when stdin is closed
because the grader is gone, everything that it started is killed: on Linux also what left its session,
since orphans of this process's family become its children; elsewhere what stayed in its session.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time

MOST_BYTES = 2**20                                    # of events; a verdict takes some hundred
PATIENCE_S = 5                                        # for the kernel to bury what was killed
SET_DUMPABLE, SET_CHILD_SUBREAPER = 4, 36             # of prctl


def main():
    timeout, command = float(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None).prctl
        prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        prctl(SET_DUMPABLE, 0, 0, 0, 0)               # no other process opens our descriptors
    job = sys.stdin.buffer.readline()
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, start_new_session=True)
    told, reasons = bytearray(), []

    def feed():
        with contextlib.suppress(OSError), worker.stdin as pipe:
            pipe.write(job)

    def listen():
        while piece := worker.stdout.read1(2**16):
            told.extend(piece)
            if len(told) > MOST_BYTES:
                del told[MOST_BYTES:]
                reasons.append("the code wrote into the grader's own channel")
                return worker.kill()

    def outlive():
        sys.stdin.buffer.read(1)
        worker.kill()

    listener, *others = [threading.Thread(target=task, daemon=True) for task in (listen, feed, outlive)]
    for thread in (listener, *others):
        thread.start()
    try:
        worker.wait(timeout)
    except subprocess.TimeoutExpired:
        reasons.append(f"took longer than {timeout:g} s: a loop without end?")
    _end(worker)
    listener.join(PATIENCE_S)
    ending = reasons[0] if reasons else f"the code ended the process (exit code {worker.returncode})"
    reply = {"told": bytes(told).decode("utf-8", "replace"), "ending": ending}
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.buffer.write(json.dumps(reply).encode())
        sys.stdout.buffer.flush()
    os._exit(0)                                       # a thread may still wait for its pipe


def _end(worker):
    """Kill the worker and whatever it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError, AttributeError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.kill()
    worker.wait()
    end = time.monotonic() + PATIENCE_S
    while (left := _children()) and time.monotonic() < end:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.005)


def _children():
    """The processes whose parent is this one, which orphans become; none where there is no /proc."""
    found = []
    for name in os.listdir("/proc") if sys.platform == "linux" else ():
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
                found += [int(name)] * (parent == os.getpid())
    return found


if __name__ == "__main__":
    main()
