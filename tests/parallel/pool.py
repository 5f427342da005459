"""Four processes that are one gloo group, and groups inside it, kept for a whole test run.

To start four costs seconds, a job for them milliseconds. Groups of 2 and 3 leave rank 0 or rank 1 out,
so that a rank of the group is not the rank of the process.
"""

from __future__ import annotations

import datetime
import faulthandler
import multiprocessing
import os
import sys
import tempfile
import traceback

P_MOST = 4
MEMBERS = {1: [2], 2: [1, 3], 3: [0, 2, 3], 4: [0, 1, 2, 3], "2 again": [1, 3],
           "forward": [0, 2, 3], "backward": [0, 2, 3]}
TIME_LIMIT_S = {"forward": 2.0, "backward": 4.0}            # of groups that a test breaks
LONG_S = 20.0
PATIENCE_S = 60.0


def work(rank, folder, pipe):
    """Be one rank: do jobs until there is none."""
    faulthandler.dump_traceback_later(15 * 60, exit=True)
    from flashlib.parallel import launch

    if sys.platform in launch.LOOPBACK:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", launch.LOOPBACK[sys.platform])
    launch.join(folder, rank, P_MOST, LONG_S)
    import torch.distributed as dist

    from tests.parallel import jobs

    for name, members in MEMBERS.items():                   # all ranks make all groups
        limit = datetime.timedelta(seconds=TIME_LIMIT_S.get(name, LONG_S))
        jobs.GROUPS[name] = dist.new_group(members, timeout=limit)
    pipe.send("ready")
    while (job := pipe.recv()) is not None:
        group, function, arguments = job
        try:
            pipe.send(("done", getattr(jobs, function)(jobs.GROUPS[group], *arguments)))
        except Exception as error:
            pipe.send(("raised", (type(error).__name__, str(error), traceback.format_exc())))


class Pool:
    """Ranks that wait for jobs."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        context, self.ranks, self.lost = multiprocessing.get_context("spawn"), [], ""
        for rank in range(P_MOST):
            here, there = context.Pipe()
            process = context.Process(target=work, args=(rank, self.folder.name, there), daemon=True)
            process.start()
            self.ranks.append((process, here))
        for rank, (_, pipe) in enumerate(self.ranks):
            assert self._hear(rank, pipe) == "ready"

    def __call__(self, group, function, *arguments):
        """Run a function on a group; return ("done", result) or ("raised", …) by rank."""
        assert not self.lost, self.lost
        members = MEMBERS[group]
        for rank in members:
            self.ranks[rank][1].send((group, function, arguments))
        return [self._hear(rank, self.ranks[rank][1]) for rank in members]

    def results(self, group, function, *arguments):
        """Run a function on a group; return what each rank returned."""
        answers = self(group, function, *arguments)
        failed = [f"rank {rank}:\n{answer[2]}" for rank, (how, answer) in enumerate(answers)
                  if how == "raised"]
        assert not failed, "\n".join(failed)
        return [answer for _, answer in answers]

    def errors(self, group, function, *arguments):
        """Run a function that fails on all ranks; return (type, message) by rank."""
        answers = self(group, function, *arguments)
        assert all(how == "raised" for how, _ in answers), answers
        return [answer[:2] for _, answer in answers]

    def _hear(self, rank, pipe):
        if not pipe.poll(PATIENCE_S):
            self.lost = f"rank {rank} says nothing since an earlier test"
            raise AssertionError(f"rank {rank} says nothing")
        return pipe.recv()

    def close(self):
        for process, pipe in self.ranks:
            if process.is_alive():
                pipe.send(None)
        for process, _ in self.ranks:
            process.join(5)
            process.kill()
        self.folder.cleanup()
