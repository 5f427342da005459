"""What several GPUs take, by rates recorded or published, and as recorded; hosts of eight GPUs."""

from dataclasses import replace

import numpy as np

from flashlib.algorithms.state import SoftmaxState
from flashlib.course.notebook.data import measurements
from flashlib.models import ring
from flashlib.models.ring import Rates, Sharing
from flashlib.models.ring_timeline import timeline
from flashlib.numerics import round_to

# Bytes a second in one direction of one GPU. NVLink: copies between two H100s of one host, published
# in NVIDIA/nccl#1264 (376 to 380 GB/s); the sheet says 450. The others: what the name says, no losses.
LINKS = {"NVLink": 376e9, "PCIe 5": 64e9, "400 Gb/s network": 50e9, "100 Gb/s network": 12.5e9}
HOST = 8                                                    # GPUs that NVLink joins


def rates(link="NVLink", *, hidden=True) -> Rates:
    """Return one H200's recorded rates, forward, and those of a link."""
    recorded = measurements("attention_forward_h200")
    (call,) = recorded.where(impl="ours", mode="forward", causal=1, N_q=16384, H=16, H_k=16, d=128).rows
    return Rates(flops_per_s=1e12 * call["tflops_per_s"], link_bytes_per_s=LINKS[link],
                 memory_bytes_per_s=recorded.number("ceiling_copy_bytes_per_s"),
                 call_s=1e-6 * recorded.number("overhead_us_ours"), hidden=hidden)


def efficiency(s: Sharing, rates: Rates) -> float:
    """Return the simulated share of P times one GPU's speed."""
    return ring.one_gpu_seconds(s, rates) * 1e6 / (s.P * timeline(s, rates).cycles)


def of_two_sms(s: Sharing) -> Rates:
    """Return the rates with the link as NCCL's two SMs drive it, for the messages of a ring."""
    recorded = measurements("ring_links_h200_x4").where(sms_of_nccl="few", reserved_sms=2)
    sizes, found = zip(*((np.log(row["message_bytes"]), row["link_bytes_per_s"])
                         for row in recorded.rows), strict=True)
    return replace(rates(), link_bytes_per_s=float(np.interp(np.log(s.kv_bytes), sizes, found)))


def measured(P: int, mode: str, impl: str) -> dict[int, dict]:
    """Return tokens → recorded row of one way to share a causal sequence among P H200s."""
    found = measurements(f"ring_h200_x{P}").where(mode=mode, impl=impl)
    return {int(row["N_q"]): row for row in found.rows}


def race(P: int, mode: str) -> dict[str, dict[int, float]]:
    """Return way → tokens → recorded efficiency; of PyTorch's two ways to move keys the better."""
    names = {"zigzag ring": "ring", "contiguous ring": "ring_contiguous", "gathered": "gather",
             "all-to-all": "ulysses", "allgather": "torch_allgather_CUDNN",
             "alltoall": "torch_alltoall_CUDNN"}
    found = {name: {N: row["efficiency"] for N, row in measured(P, mode, impl).items()}
             for name, impl in names.items()}
    a, b = found.pop("allgather"), found.pop("alltoall")
    return found | {"PyTorch": {N: max(a[N], b[N]) for N in a}}


def bars(schedule) -> list[tuple]:
    """Return (gpu, start in ms, end in ms, whose keys, "work" or "link") of a timeline's events."""
    return [(int(e.unit.split()[1].split("→")[0]), e.start / 1e3, e.end / 1e3, e.tile,
             "work" if e.unit.startswith("gpu") else "link") for e in schedule.events]


def over_links(s: Sharing, rates: Rates, links_bytes_per_s) -> float:
    """Simulate a zigzag ring whose links differ; return the seconds until the last GPU is done.

    A message begins when its sender has the keys, its receiver is at the same step, and the link is
    free. links_bytes_per_s[r] is the rate from GPU r to the next.
    """
    if s.layout != "zigzag":
        raise ValueError(f"s: expected the layout 'zigzag', where GPUs work alike, got {s.layout!r}")
    own = ring.step_seconds(s, rates, 0, 0)
    other = ring.step_seconds(s, rates, 1, 0) if s.P > 1 else 0.0
    message = s.kv_bytes / np.broadcast_to(np.asarray(links_bytes_per_s, float), s.P)
    done, here, free = np.zeros(s.P), np.zeros(s.P), np.zeros(s.P)
    for step in range(s.P):
        start = np.maximum(done, here)
        done = start + (other if step else own)
        if step + 1 < s.P:
            free = np.maximum(free, np.maximum(start, np.roll(start, -1))) + message
            here = np.roll(free, 1)                        # what GPU r − 1 sent
    return float(done.max())


def flat(s: Sharing, rates: Rates, inside: float, outside: float) -> float:
    """Return the efficiency of one ring through all GPUs, eight of them in a host.

    The link from a host to the next is the network's, the others are NVLink's.
    """
    links = [outside if s.P > HOST and gpu % HOST == HOST - 1 else inside for gpu in range(s.P)]
    return ring.one_gpu_seconds(s, rates) / (s.P * over_links(s, rates, links))


def by_hosts(s: Sharing, rates: Rates, inside: float, outside: float) -> float:
    """Return the efficiency where a host exchanges heads for tokens, and rings run between hosts.

    Each GPU of a host has H/8 heads of all tokens of the host, and a ring of its own to its peers in
    the other hosts, over its own share of the network. The exchange inside is not hidden.
    """
    if s.P % HOST or s.Hk % HOST:
        raise ValueError(f"s: expected P and Hk to be multiples of {HOST}, got {s.P} and {s.Hk}")
    hosts = Sharing(s.P // HOST, s.N, s.H // HOST, s.Hk // HOST, s.d, s.causal, s.layout)
    host = Sharing(HOST, s.N * HOST // s.P, s.H, s.Hk, s.d)
    exchange = ring.traffic(host, "ulysses") / inside
    return ring.one_gpu_seconds(s, rates) / (s.P * (over_links(hosts, rates, outside) + exchange))


def rounded_error(Q, K, V, P, exact) -> float:
    """Return the RMS error of a ring that keeps O in bfloat16, over that of one rounding."""
    state = None
    for k, v in zip(np.split(K, P), np.split(V, P), strict=True):
        part = SoftmaxState.of(Q @ k.T / np.sqrt(Q.shape[1]), v)
        state = part if state is None else state.merge(part)
        O, lse = state.finish()                            # what stays between two steps
        state = SoftmaxState(lse, np.ones_like(lse), np.asarray(round_to(O, "bfloat16"), float))
    once = np.asarray(round_to(exact, "bfloat16"), float)
    return float(np.sqrt(np.mean((state.o - exact)**2) / np.mean((once - exact)**2)))
