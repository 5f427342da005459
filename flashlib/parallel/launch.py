"""Several processes on this machine, each a rank of a group: from a notebook, a script or a test.

Functions of a notebook cannot be sent to another process, so that what runs is named: module:function.
"""

from __future__ import annotations

import datetime
import importlib
import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from flashlib.arguments import check_block, check_choice, check_number

GRACE_S = 3.0                      # for the others to end once one has failed
# NCCL without NVLink multicast, which not every host of GPUs allows.
QUIET = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
LOOPBACK = {"linux": "lo", "darwin": "lo0"}


def run(P: int, what: str, *arguments, timeout_s: float = 120.0, backend: str = "gloo") -> list[Any]:
    """Run a function in P processes that are one group; return what each returned, by rank.

    >>> run(2, "flashlib.parallel.demo:compare")                          # doctest: +SKIP

    Args:
        P: processes, each with one thread.  what: "module:function", importable from `sys.path`.
        arguments: of the function, the same for all ranks; pickled, as the results are.
        timeout_s: for all of it, and of the group: what a rank waits for another.
        backend: "gloo", on the CPU, or "nccl", where rank r has GPU r.
    Raises:
        RuntimeError: a rank failed: with its number and the traceback of the first one that did.
        TimeoutError: naming the ranks that had not ended.

    What rank 0 prints is printed here.
    """
    check_block("P", P)
    timeout_s = check_number("timeout_s", timeout_s, least=1)
    check_choice("backend", backend, ("gloo", "nccl"))
    module, colon, function = what.partition(":") if isinstance(what, str) else ("", "", "")
    if not (module and colon and function):
        raise ValueError(f"what: expected 'module:function', got {what!r}")
    with tempfile.TemporaryDirectory(prefix="flashlib") as name:
        folder = Path(name)
        call = P, module, function, arguments, timeout_s, backend
        (folder / "call").write_bytes(pickle.dumps(call))
        ranks = [_start(folder, rank) for rank in range(P)]
        try:
            first = _until_all_end(ranks, time.monotonic() + timeout_s)
        finally:
            for process in ranks:
                if process.poll() is None:
                    process.kill()
                process.wait()
        print((folder / "out 0").read_text(encoding="utf-8"), end="")
        if first is not None:
            said = (folder / f"error {first}").read_text(encoding="utf-8").strip()
            code = ranks[first].returncode
            raise RuntimeError(f"rank {first} of {P} failed, with exit status {code}:\n{said[-4000:]}")
        return [pickle.loads((folder / f"result {rank}").read_bytes()) for rank in range(P)]


def _start(folder: Path, rank: int) -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                                "OMP_NUM_THREADS": "1"}
    for name, value in QUIET.items():
        environment.setdefault(name, value)
    if sys.platform in LOOPBACK:
        environment.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK[sys.platform])
    program = "import sys; from flashlib.parallel import launch; launch.work(*sys.argv[1:])"
    with open(folder / f"out {rank}", "wb") as out, open(folder / f"error {rank}", "wb") as error:
        return subprocess.Popen([sys.executable, "-c", program, str(folder), str(rank)],
                                env=environment, stdout=out, stderr=error, stdin=subprocess.DEVNULL)


def _until_all_end(ranks, deadline) -> int | None:
    """Wait; return the first rank that failed, after a moment for the others to end, or None."""
    first, until = None, deadline
    while any(process.poll() is None for process in ranks):
        failed = [rank for rank, process in enumerate(ranks) if process.poll()]
        if failed and first is None:
            first, until = failed[0], min(deadline, time.monotonic() + GRACE_S)
        if time.monotonic() > until:
            break
        time.sleep(0.02)
    failed = [rank for rank, process in enumerate(ranks) if process.poll()]
    first = failed[0] if first is None and failed else first
    late = [str(rank) for rank, process in enumerate(ranks) if process.poll() is None]
    if late and first is None:
        raise TimeoutError(f"no end within the time limit on rank {', '.join(late)} of {len(ranks)}")
    return first


def work(folder: str, rank: str) -> None:
    """Be one rank of `run`: join the group, call the function, write down what it returns."""
    P, module, function, arguments, timeout_s, backend = pickle.loads(
        (Path(folder) / "call").read_bytes())
    join(folder, int(rank), P, timeout_s, backend)
    result = getattr(importlib.import_module(module), function)(*arguments)
    (Path(folder) / f"result {rank}").write_bytes(pickle.dumps(result))
    dist.barrier()                                          # nobody leaves while others still send
    dist.destroy_process_group()


def join(folder: str, rank: int, P: int, timeout_s: float, backend: str = "gloo") -> None:
    """Make this process a rank of a group whose members meet in a file."""
    torch.set_num_threads(1)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, init_method=(Path(folder) / "store").as_uri(), rank=rank,
                            world_size=P, timeout=datetime.timedelta(seconds=timeout_s))
