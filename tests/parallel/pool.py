"""Four processes that are one gloo group, and groups inside it, kept for a whole test run.

To start four costs seconds, a job for them milliseconds. Groups of 2 and 3 leave rank 0 or rank 1 out,
so that a rank of the group is not the rank of the process.
"""

from __future__ import annotations

import faulthandler
import importlib
import multiprocessing
import os
import sys
import tempfile
import traceback

P_MOST = 4
MEMBERS = {1: [2], 2: [1, 3], 3: [0, 2, 3], 4: [0, 1, 2, 3]}
TIME_LIMIT_S = 20.0
PATIENCE_S = 120.0


def work(rank, folder, pipe):
    """Be one rank: do jobs until there is none."""
    faulthandler.dump_traceback_later(15 * 60, exit=True)
    from flashlib.parallel import launch

    if sys.platform in launch.LOOPBACK:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", launch.LOOPBACK[sys.platform])
    launch.join(folder, rank, P_MOST, TIME_LIMIT_S)
    import torch.distributed as dist

    groups = {P: dist.new_group(members) for P, members in MEMBERS.items()}
    pipe.send("ready")
    while (job := pipe.recv()) is not None:
        P, function, arguments = job
        module, _, name = function.partition(":")
        try:
            pipe.send(("done", getattr(importlib.import_module(module), name)(groups[P], *arguments)))
        except Exception as error:
            pipe.send(("raised", (type(error).__name__, str(error), traceback.format_exc())))


class Pool:
    """Ranks that wait for jobs."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        context, self.ranks = multiprocessing.get_context("spawn"), []
        for rank in range(P_MOST):
            here, there = context.Pipe()
            process = context.Process(target=work, args=(rank, self.folder.name, there), daemon=True)
            process.start()
            self.ranks.append((process, here))
        for rank, (_, pipe) in enumerate(self.ranks):
            assert self._hear(rank, pipe) == "ready"

    def __call__(self, P, function, *arguments):
        """Run a function on the group of P; return ("done", result) or ("raised", …) by rank."""
        members = MEMBERS[P]
        for rank in members:
            self.ranks[rank][1].send((P, f"tests.parallel.jobs:{function}", arguments))
        return [self._hear(rank, self.ranks[rank][1]) for rank in members]

    def results(self, P, function, *arguments):
        """Run a function on the group of P; return what each rank returned."""
        answers = self(P, function, *arguments)
        failed = [f"rank {rank}:\n{answer[2]}" for rank, (how, answer) in enumerate(answers)
                  if how == "raised"]
        assert not failed, "\n".join(failed)
        return [answer for _, answer in answers]

    def errors(self, P, function, *arguments):
        """Run a function that fails on all ranks; return (type, message) by rank."""
        answers = self(P, function, *arguments)
        assert all(how == "raised" for how, _ in answers), answers
        return [answer[:2] for _, answer in answers]

    @staticmethod
    def _hear(rank, pipe):
        assert pipe.poll(PATIENCE_S), f"rank {rank} says nothing"
        return pipe.recv()

    def close(self):
        for process, pipe in self.ranks:
            pipe.send(None)
            process.join(5)
            process.kill()
        self.folder.cleanup()
