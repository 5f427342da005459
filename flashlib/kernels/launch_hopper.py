"""From tensors to the Gluon kernels: descriptors, a grid that fills the GPU once, a table of tiles.

The arguments were checked by `flashlib.kernels.attention`; nothing here is public. The backward is
that of `flashlib.kernels.launch`: its kernels need only O and lse.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from flashlib.kernels import dispatch, launch, tuned
from flashlib.kernels.configs import padded
from flashlib.kernels.gluon.forward import flash_fwd_hopper_kernel
from flashlib.kernels.gluon.forward_fp8 import flash_fwd_fp8_kernel
from flashlib.kernels.gluon.forward_unspecialized import flash_fwd_pipelined_kernel
from flashlib.kernels.gluon.parts import ROWS
from flashlib.kernels.launch import backward  # noqa: F401  (the same for both)
from flashlib.kernels.tile_order import deal, order_tiles, tile_lengths
from flashlib.masks import Window, visits

if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 6):
    raise ImportError(f"the Hopper kernel needs Triton 3.6 or newer, got {triton.__version__}")

LOG2E = launch.LOG2E
L2_SHARE_BYTES = 32 * 2**20                                 # of keys and values at a time
MANY_TILES = 100_000                                        # beyond, dealing them out is not worth it


class HopperConfig(NamedTuple):
    """Rows of a key tile, consumer warpgroups, slots of the ring; then what can be switched.

    Without SPECIALIZED the warps that compute also ask for tiles (`forward_unspecialized`), only
    OVERLAP counts, and CONSUMERS must be 2. EMULATED of four exponentials and the threshold TAU are
    ideas of FlashAttention-4. The 8-bit kernel knows only PING_PONG and PERSISTENT.
    """

    BLOCK_N: int
    CONSUMERS: int
    STAGES: int
    Q_SLOTS: int = 2
    O_PARTS: int = 1
    PING_PONG: bool = True
    OVERLAP: bool = True
    UNDER_SOFTMAX: bool = True
    PERSISTENT: bool = True
    SPECIALIZED: bool = True
    EMULATED: int = 0
    TAU: float = 0.0

    @property
    def BLOCK_M(self) -> int:
        """Rows of a query tile."""
        return self.CONSUMERS * ROWS.value


# PV under the softmax is off where an H200 under sustained load was faster without, or as fast.
CONFIGS = {  # (head dimension, whether a mask cuts tiles: causal, or keys that no tile divides)
    (32, False): HopperConfig(128, 3, 4, TAU=8.0),
    (64, False): HopperConfig(128, 3, 3, TAU=8.0),
    (128, False): HopperConfig(64, 3, 4, Q_SLOTS=1, UNDER_SOFTMAX=False, TAU=8.0),
    (256, False): HopperConfig(64, 2, 2, Q_SLOTS=1, O_PARTS=2, UNDER_SOFTMAX=False, TAU=8.0),
    (32, True): HopperConfig(128, 3, 3, UNDER_SOFTMAX=False, TAU=8.0),
    (64, True): HopperConfig(128, 3, 3, UNDER_SOFTMAX=False, TAU=8.0),
    (128, True): HopperConfig(64, 3, 4, Q_SLOTS=1, UNDER_SOFTMAX=False, TAU=8.0),
    (256, True): HopperConfig(64, 2, 2, Q_SLOTS=1, O_PARTS=2, UNDER_SOFTMAX=False, TAU=8.0),
}
# 192 do not divide 1,024 rows: the last tile, with a mask the longest, is two thirds empty, and the
# diagonal cuts more of taller tiles. So for few rows 128 are faster, at d = 128 without a mask as well;
# 1,024, 2,048 and 4,096 were timed. With ragged keys, 192 rows and key tiles of 128 do not fit into
# registers at d = 64.
SHORT, SHORTER = 2048, 1024                                 # with a causal mask, and without
SHORT_64, SHORT_128 = HopperConfig(128, 2, 4, TAU=8.0), HopperConfig(128, 2, 2, TAU=8.0)
# The masks of a window take registers: with taller tiles the kernel spills. Not timed.
WINDOW_CONFIGS = {32: CONFIGS[32, True], 64: SHORT_64, 128: SHORT_128, 256: CONFIGS[256, True]}
FP8_CONFIGS = {  # (head dimension, whether causal)
    (64, False): HopperConfig(128, 2, 4),
    (128, False): HopperConfig(128, 2, 4),
    (256, False): HopperConfig(64, 2, 2, PING_PONG=False),
    (64, True): HopperConfig(128, 2, 4),
    (128, True): HopperConfig(128, 2, 4),
    (256, True): HopperConfig(64, 2, 2, PING_PONG=False),
}
ELEMENT = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16, torch.float8_e4m3fn: gl.float8e4nv}
# With two or three consumers: registers of a consumer's thread, and the cap that the launch asks for.
REGISTERS = {2: (232, 168), 3: (160, 128)}
REGISTERS_256 = (224, 168)                                  # of two: with 232, 12 bytes spill


def registers_of(config: HopperConfig, head_dim: int) -> tuple[int, int]:
    """Return the registers of a consumer's thread, and the cap that the launch asks for."""
    return REGISTERS_256 if (config.CONSUMERS, head_dim) == (2, 256) else REGISTERS[config.CONSUMERS]


@functools.cache
def _sms(device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def _describe(x, rows: int, head_dim: int):
    """Return a function that makes the descriptor of any tensor that lies in memory as x does."""
    block = [1, 1, rows, head_dim]
    layout = gl.NVMMASharedLayout.get_default_for(block, ELEMENT[x.dtype])
    shape = list(x.shape)
    strides = [stride if size > 1 else 128 for size, stride in zip(shape, x.stride(), strict=True)]
    strides[3] = 1
    return lambda tensor: TensorDescriptor(tensor, shape, strides, block, layout)


def refusal(q, k, v) -> str | None:
    """Return why this kernel cannot take these tensors, or None."""
    capability = launch.capability_of(q.device)
    if capability is None or capability[0] != 9:
        found = "the CPU" if capability is None else "compute capability {}.{}".format(*capability)
        return f"impl: 'gluon' expected a Hopper GPU (compute capability 9.0), got {found}"
    if q.dtype not in (torch.float16, torch.bfloat16):
        return f"impl: 'gluon' expected float16 or bfloat16, got {q.dtype}"
    if q.shape[3] < launch.NARROW:
        return (f"impl: 'gluon' expected a head dimension D of at least {launch.NARROW},"
                f" got {q.shape[3]}")
    if not launch._uses_tma(q, k, v):
        return ("impl: 'gluon' expected q, k and v as the copy engine reads them: the last dimension"
                " contiguous, other strides positive multiples of 8 elements, addresses of 16 bytes")
    return None


def is_faster(q) -> bool:
    """Tell whether this kernel was faster on an H200 than the one in Triton."""
    return q.shape[3] > 16


def config_for(D: int, causal: bool, N_K: int, N_Q: int | None = None) -> HopperConfig:
    """Return the table's entry; N_Q is N_K unless given."""
    head_dim = max(32, padded(D))
    ragged = N_K % CONFIGS[head_dim, False].BLOCK_N != 0
    if head_dim == 64 and (ragged or (causal and N_K <= SHORT)):
        return SHORT_64
    fewest = N_K if N_Q is None else min(N_Q, N_K)
    if head_dim == 128 and (fewest <= SHORTER or (causal and fewest <= SHORT)):
        return SHORT_128
    return CONFIGS[head_dim, causal or ragged]


def _order(q, k, config, causal, window=None):
    """Return the table of who computes what, as the kernel reads it: int32 (programs, entries, 4)."""
    (B, H, N_Q, D), (H_K, N_K) = q.shape, k.shape[1:3]
    lengths = tile_lengths(N_Q, N_K, config.BLOCK_M, config.BLOCK_N, causal)
    if window is not None:                                  # as the kernel counts them, 1 at least
        visited = visits(window, N_Q, N_K, config.BLOCK_M, config.BLOCK_N)
        lengths = visited.clip(1).tolist()
    tiles = len(lengths) * B * H
    heads_at_once = max(1, L2_SHARE_BYTES // (2 * N_K * D * q.element_size())) * (H // H_K)
    order = range(tiles) if tiles > MANY_TILES else order_tiles(B * H, lengths, heads_at_once)
    if not config.PERSISTENT:
        hands = [[tile] for tile in order]
    elif tiles > MANY_TILES:
        hands = [order[i::_sms(q.device)] for i in range(_sms(q.device))]
    else:
        hands = deal(order, lengths, min(tiles, _sms(q.device)))
    longest = max(map(len, hands))
    table = torch.tensor([[len(hand), *hand, *[0] * (longest + 1 - len(hand))] for hand in hands])
    head, tile = table // len(lengths), table % len(lengths)
    entries = torch.stack([head // H, head % H, tile * config.BLOCK_M, torch.zeros_like(tile)], -1)
    entries[:, 0, 0] = table[:, 0]
    return entries.to(torch.int32).to(q.device)


def _specialized(q, k, v, o, N_K, causal, c, fp8=False, window=None):
    """Return the launch of a warp-specialised kernel."""
    _, H, N_Q, D = q.shape
    head_dim, rows = max(32, padded(D)), ROWS.value
    registers, cap = registers_of(c, head_dim)
    order = _order(q, k, c, causal, window)
    if fp8:
        kernel, switches, v_block = flash_fwd_fp8_kernel, {}, (head_dim, c.BLOCK_N)
    else:
        kernel, v_block = flash_fwd_hopper_kernel, (c.BLOCK_N, head_dim)
        switches = dict(OVERLAP=c.OVERLAP, UNDER_SOFTMAX=c.UNDER_SOFTMAX, EMULATED=c.EMULATED,
                        TAU=c.TAU)
    tiles = ((q, rows, head_dim), (k, c.BLOCK_N, head_dim), (v, *v_block),
             (o, rows, head_dim // c.O_PARTS))
    return dispatch.Launch(
        kernel, order.shape[0],
        dict(ORDER=order, ENTRIES=order.shape[1], sizes=(H, H // k.shape[1], N_Q, N_K),
             window=launch.sides_of(window, N_Q, N_K), BLOCK_N=c.BLOCK_N, HEAD_DIM=head_dim,
             IS_CAUSAL=causal, RAGGED=N_K % c.BLOCK_N != 0, CONSUMERS=c.CONSUMERS, STAGES=c.STAGES,
             Q_SLOTS=c.Q_SLOTS, O_PARTS=c.O_PARTS, PING_PONG=c.PING_PONG, **switches,
             REGISTERS=registers),
        {at: _describe(*tile) for at, tile in enumerate(tiles)}, num_warps=4, maxnreg=cap)


def _pipelined(q, k, v, o, causal, c):
    """Return the launch of the kernel without warp specialisation."""
    B, H, N_Q, D = q.shape
    N_K, head_dim, rows = k.shape[2], max(32, padded(D)), c.BLOCK_M
    tiles = (q, rows), (k, c.BLOCK_N), (v, c.BLOCK_N), (o, rows)
    return dispatch.Launch(
        flash_fwd_pipelined_kernel, triton.cdiv(N_Q, rows) * B * H,
        dict(sizes=(H, H // k.shape[1], N_Q, N_K), TILE_M=rows, BLOCK_N=c.BLOCK_N, HEAD_DIM=head_dim,
             IS_CAUSAL=causal, RAGGED=N_K % c.BLOCK_N != 0, STAGES=c.STAGES, OVERLAP=c.OVERLAP),
        {at: _describe(*tile, head_dim) for at, tile in enumerate(tiles)}, num_warps=4 * c.CONSUMERS)


def _plan_forward(q, k, v, causal, config, window=None):
    if window is not None:
        config = config or WINDOW_CONFIGS[max(32, padded(q.shape[3]))]
    config = (config or tuned.kept("gluon_forward", q, k, causal, True)
              or config_for(q.shape[3], causal, k.shape[2], q.shape[2]))
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if config.SPECIALIZED:
        return _specialized(q, k, v, o, k.shape[2], causal, config, False, window)
    if window is not None:
        raise NotImplementedError("window: expected a SPECIALIZED config, got one without")
    return _pipelined(q, k, v, o, causal, config)


def _plan_or_reason(q, k, v, causal, config, window=None):
    """Return the launch, or why there is none."""
    return refusal(q, k, v) or _plan_forward(q, k, v, causal, config, window)


def forward(q, k, v, *, causal: bool, scale: float, config=None, otherwise=None,
            window: Window | None = None):
    """Return O, like q but contiguous, and lse (B, H, N_Q) float32.

    Tensors that this kernel refuses, or for which the other is faster, go to the forward `otherwise`;
    without one, the refusal is an error. A window excludes causal.
    """
    options = {"causal": causal, "scale": scale} | ({} if window is None else {"window": window})
    if otherwise is not None and not is_faster(q):
        return otherwise(q, k, v, **options)
    run = dispatch.plan_for(_plan_or_reason, (q, k, v), causal, config, window)
    if isinstance(run, str):
        if otherwise is None:
            raise NotImplementedError(f"{run}; use impl='auto'")
        return otherwise(q, k, v, **options)
    o = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    # −∞ · 0 is NaN: where the scale is 0, a factor too small to be seen takes its place.
    factor = (scale or 2.0**-100) * LOG2E
    with dispatch.on(q.device):
        run(q, k, v, o, lse, factor)
    return o, lse


def _plan_fp8(q, k, v, q_scale, k_scale, v_scale, N_K, causal, dtype, config):
    o = torch.empty(q.shape, dtype=dtype, device=q.device)
    return _specialized(q, k, v, o, N_K, causal, config or FP8_CONFIGS[q.shape[3], causal], True)


def forward_fp8(q, k, v, *, causal: bool, scale: float, dtype=torch.bfloat16, config=None):
    """Return O in `dtype` and lse (B, H, N_Q) float32; q, k, v as `fp8.prepare` returns them."""
    (q, q_scale), (k, k_scale), (v, v_scale) = q, k, v
    run = dispatch.plan_for(_plan_fp8, (q, k, v, q_scale, k_scale, v_scale), k.shape[2], causal, dtype,
                            config)
    o = torch.empty(q.shape, dtype=dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    with dispatch.on(q.device):
        run(q, k, v, o, lse, q_scale, k_scale, v_scale,
            (scale or 2.0**-100) * LOG2E)
    return o, lse
