"""Run a module in a process of its own, once in a test process.

The tests of a file stay together (`--dist loadfile`), so that each module runs once in a test run.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
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


run_once = functools.cache(run)
