"""Time attention on this machine's GPU for a notebook that has Triton's interpreter on.

A kernel that was defined under the interpreter cannot be compiled any more, so that the measurement
runs in a process of its own. Used in notebook 10.
"""

from __future__ import annotations

import os
import subprocess
import sys

from flashlib.course.bench import attention

_CODE = """
from flashlib.course.bench import attention, measure_here
measure_here.say_absent(attention.measure([{shape}], 'cuda', 1)[2])
"""


def say_absent(absent: dict[str, str]) -> None:
    """Print in one line who was not timed, and why."""
    if absent:
        print("Absent:", "; ".join(f"{name.split(' at ')[0]} ({' '.join(reason.split())})"
                                   for name, reason in absent.items()))


def attention_here(shape: tuple[int, int, int, int] = (4, 48, 4096, 32)) -> None:
    """Time (B, H, N, d) against the peers that are installed and print it; without a GPU, say so."""
    try:
        import torch
    except ImportError:
        torch = None
    if torch is None or not torch.cuda.is_available():
        print("No GPU here: all times in this chapter are the recorded ones.")
        return
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    path = os.pathsep.join(folder for folder in sys.path if folder)
    done = subprocess.run([sys.executable, "-c", _CODE.format(shape=tuple(map(int, shape)))], text=True,
                          capture_output=True, env={**environment, "PYTHONPATH": path})
    if done.returncode:
        print("The measurement failed:", (done.stderr.strip().splitlines() or ["no reason given"])[-1])
        return
    print(f"Measured here, on {torch.cuda.get_device_name()}, in {attention.input_dtype('cuda')};"
          " TFLOP/s (speed of ours relative to it):")
    print(done.stdout)
