"""The ranks of a call: which group they are, whether they agree, and how their programs are driven."""

from __future__ import annotations

import contextlib
import struct
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from flashlib.algorithms.layouts import LAYOUTS
from flashlib.kernels.attention import check_arguments
from flashlib.machine.ranks import Links, Message, Rank
from flashlib.masks import Window

VERSION = 1                        # of what ranks tell one another
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
OPERATIONS = ("ring_attention", "gather_attention", "ulysses_attention", "tree_decode")
SMS = 2                            # of a GPU, which NCCL may take beside attention
_counting: list[Links] = []
_beside: dict[tuple, Any] = {}     # groups of few SMs, by the name of the group that asked
_agreed: set[tuple] = set()        # what was compared on CUDA: there a call must not wait for the host


class Ranks(NamedTuple):
    """A process group with this rank's place in it."""

    group: Any
    rank: int
    P: int

    @property
    def backend(self) -> str:
        """What carries messages: "gloo", "nccl", or both of them for tensors of either kind."""
        return dist.get_backend(self.group)

    @classmethod
    def of(cls, group) -> Ranks:
        """Return the ranks of a ProcessGroup, a 1-D DeviceMesh, or None for all processes."""
        if not (dist.is_available() and dist.is_initialized()):
            raise ValueError("group: expected an initialised process group: torchrun and"
                             " torch.distributed.init_process_group, or flashlib.parallel.run")
        if group is None:
            group = dist.group.WORLD
        if isinstance(group, DeviceMesh):
            if group.ndim != 1:
                raise ValueError(f"group: expected a DeviceMesh of one dimension, got {group.ndim}:"
                                 " take one, mesh['cp']")
            group = group.get_group()
        if not isinstance(group, dist.ProcessGroup):
            raise ValueError("group: expected a ProcessGroup that this process belongs to, or a"
                             f" DeviceMesh, got {group!r}")
        return cls(group, dist.get_rank(group), dist.get_world_size(group))

    def beside(self) -> Ranks:
        """Return these ranks in a group of their own, whose messages travel while a kernel computes.

        NCCL moves bytes by kernels, and theirs wait for SMs as others do. Here they have `SMS`, which a
        launch of attention leaves to them. All ranks ask for the first time together.
        """
        members = dist.get_process_group_ranks(self.group)
        if self.P == 1 or self.backend != "nccl" or members != sorted(members):
            return self
        name = self.group.group_name, self.rank
        if name not in _beside:
            options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
            options.config.max_ctas = SMS
            _beside[name] = dist.new_group(
                members, backend="nccl", pg_options=options, use_local_synchronization=True,
                timeout=self.group._get_backend(torch.device("cuda")).options._timeout)
        return self._replace(group=_beside[name])


class Options(NamedTuple):
    """What all ranks must ask for alike."""

    operation: str
    causal: bool
    window: Window
    scale: float
    layout: str
    impl: str
    differentiable: bool


@contextlib.contextmanager
def count_links() -> Iterator[Links]:
    """Count what this rank sends inside a `with`: yields the `Links`, whose `bytes` are by link."""
    links = Links()
    _counting.append(links)
    try:
        yield links
    finally:
        _counting.remove(links)


def drive(program: Rank, ranks: Ranks) -> Any:
    """Run this rank's program to its end; return what it returns.

    Raises:
        RuntimeError: a message did not come within the group's time limit; it says which.
    """
    under_way: dict[tuple[int | None, str], deque] = {}
    answer = None
    while True:
        try:
            request = program.send(answer)
        except StopIteration as end:
            return end.value
        answer = None
        if request.kind == "compute":
            answer = request.function(*request.payload)
        elif request.kind == "put":
            sent = request.payload.contiguous()
            room = torch.empty_like(sent)
            for links in _counting:
                links.messages.append(Message(ranks.rank, request.peer, request.what, sent.nbytes))
            try:
                works = dist.batch_isend_irecv([        # both as one: no order that could be wrong
                    dist.P2POp(dist.isend, sent, group=ranks.group, group_peer=request.peer),
                    dist.P2POp(dist.irecv, room, group=ranks.group, group_peer=request.source)])
            except RuntimeError as error:
                raise _lost(ranks, f"could not send {request.what} to rank {request.peer}",
                            error) from error
            under_way.setdefault((request.source, request.what), deque()).append((room, sent, works))
        else:
            answer, sent, works = under_way[request.peer, request.what].popleft()
            for work in works:
                try:
                    work.wait()
                except RuntimeError as error:
                    raise _lost(ranks, f"{request.what} from rank {request.peer} is missing",
                                error) from error


def _lost(ranks, what, error) -> RuntimeError:
    return RuntimeError(f"rank {ranks.rank} of {ranks.P}: {what}. That rank is late, has ended, or"
                        f" calls something else; torch says: {error}")


def check_shards(q, k, v, ranks: Ranks, causal, scale, return_lse, impl):
    """Check this rank's tensors as `flash_attention` does; return q, k, v and the scale."""
    q, k, v, scale = check_arguments(q, k, v, causal, scale, return_lse, impl)
    backend = ranks.backend
    if q.is_cuda and "nccl" not in backend:
        raise ValueError(f"q: expected a CPU tensor for a group of backend {backend}, got {q.device}")
    if not q.is_cuda and backend == "nccl":
        raise ValueError(f"q: expected a CUDA tensor for a group of backend nccl, got {q.device}")
    return q, k, v, scale


def agree(ranks: Ranks, tensors: dict[str, torch.Tensor], options: Options | None,
          error: Exception | None = None) -> None:
    """Compare what all ranks were given, before anything is sent; each rank raises the same error.

    gloo does not compare the sizes of messages: one too short leaves numbers that nobody sent, one too
    long ends the process. On the CPU every call compares, 0.4 ms and more; on CUDA the first of its
    kind in a group. A rank that alone meets a new kind waits for the others, up to the time limit.

    Args:
        error: what this rank's own check has refused: all ranks raise it.
    """
    if ranks.P == 1:
        if error is not None:
            raise error
        return
    mine = _fingerprint(tensors, options, error)
    cuda = "nccl" in ranks.backend and torch.cuda.is_available()
    key = (ranks.group.group_name, ranks.rank, tuple(mine))
    if cuda and error is None and key in _agreed:
        return
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    sent = torch.tensor(mine, dtype=torch.int64, device=device)
    rows = [torch.empty_like(sent) for _ in range(ranks.P)]
    try:
        dist.all_gather(rows, sent, group=ranks.group)
    except RuntimeError as lost:
        raise _lost(ranks, "the ranks could not be compared", lost) from lost
    told = [row.tolist() for row in rows]
    if any(row[0] for row in told):                         # at least one has refused its own
        reasons: list[Any] = [None] * ranks.P
        dist.all_gather_object(reasons, None if error is None else (type(error), str(error)),
                               group=ranks.group)
        rank, (kind, text) = next((r, reason) for r, reason in enumerate(reasons) if reason)
        raise (kind if kind in (ValueError, TypeError, NotImplementedError) else ValueError)(
            f"rank {rank}: {text}") from error
    for rank, row in enumerate(told):
        for name, here, first in zip(_names(tensors), _fields(row), _fields(told[0]), strict=True):
            if here != first:
                raise ValueError(f"{name}: rank {rank} has {_told(name, here)} where rank 0 has"
                                 f" {_told(name, first)}")
    if cuda:
        _agreed.add(key)


SIZES = (1, 5, 5, 5, 1, 1, 1, 2, 1, 1, 1, 1, 1)             # of the fields of a fingerprint


def _names(tensors) -> list[str]:
    """Return what the fields of a fingerprint are called: those of an error."""
    return ["arguments", *(f"{name}'s shape" for name in tensors), "dtype", "operation", "causal",
            "window", "scale", "layout", "impl", "requires_grad", "version"]


def _fingerprint(tensors, options, error) -> list[int]:
    """Return what must be alike as whole numbers: of one length, whatever they are."""
    if error is not None or options is None:
        return [1] + [0] * (sum(SIZES) - 1)
    shapes = [n for x in tensors.values() for n in (x.ndim, *x.shape, *[0] * (4 - x.ndim))]
    sides = [-1 if side is None else side for side in (options.window.left, options.window.right)]
    scale = struct.unpack("<q", struct.pack("<d", options.scale))[0]
    impl = int.from_bytes(options.impl.encode()[:7].ljust(7), "little")
    return [0, *shapes, DTYPES.index(next(iter(tensors.values())).dtype),
            OPERATIONS.index(options.operation), int(options.causal), *sides, scale,
            LAYOUTS.index(options.layout), impl, int(options.differentiable), VERSION]


def _fields(row) -> list[tuple[int, ...]]:
    found, at = [], 0
    for size in SIZES:
        found.append(tuple(row[at:at + size]))
        at += size
    return found


def _told(name, field):
    """Return a field of a fingerprint in words."""
    if name.endswith("shape"):
        return tuple(field[1:1 + field[0]])
    if name == "dtype":
        return DTYPES[field[0]]
    if name == "operation":
        return OPERATIONS[field[0]]
    if name == "layout":
        return repr(LAYOUTS[field[0]])
    if name == "window":
        return tuple(None if side < 0 else side for side in field)
    if name == "scale":
        return struct.unpack("<d", struct.pack("<q", field[0]))[0]
    if name == "impl":
        return repr(field[0].to_bytes(7, "little").decode().strip())
    return bool(field[0]) if name in ("causal", "requires_grad") else field[0]
