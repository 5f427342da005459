"""Run a module in a process of its own, once for all workers of a test run."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import flashlib

ROOT = Path(flashlib.__file__).parent.parent
PATIENCE_S = 600


def run(*command):
    """Return the JSON that `python *command` prints last; Triton's interpreter is its own choice."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True,
                          timeout=PATIENCE_S, env=environment | {"OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:])
    return json.loads(done.stdout.splitlines()[-1])


@functools.cache
def run_once(*command):
    """Return what `run` returns; under pytest-xdist one worker runs it, and the others wait."""
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if not session:
        return run(*command)
    name = hashlib.sha256(" ".join(command).encode()).hexdigest()[:16]
    result = Path(tempfile.gettempdir()) / f"flashlib-{session}-{name}.json"
    try:
        os.close(os.open(result.with_suffix(".lock"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        until = time.monotonic() + PATIENCE_S
        while not result.exists() and time.monotonic() < until:
            time.sleep(0.2)
        return json.loads(result.read_text(encoding="utf-8"))
    try:
        text = json.dumps(run(*command))
    except Exception as error:
        text = json.dumps({"error": str(error)})
    partial = result.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    partial.rename(result)
    return json.loads(text)
