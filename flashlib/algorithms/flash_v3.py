"""FlashAttention v3's FP8 forward: eight-bit operands, a scale per block, a rotation of Q and K."""

import numpy as np

from flashlib.arguments import check_attention, check_block, check_choice, check_flag
from flashlib.machine import Machine
from flashlib.masks import mask_of, tiles
from flashlib.quant import quantise, random_signs, rotate

SHIFT = 8 * float(np.log(2))           # P = 256·e^(S − m): its small weights stay off the grid's end


def flash_v3(Q, K, V, *, Br, Bc, causal=False, window=None, scale=None, dtype=None, block_scales=True,
             rotation=True, seed=0, machine=None):
    """Attention with Q, K, V and P in eight bits; v2 to the bit and to the byte with `dtype=None`.

    FlashAttention-3 (Shah et al. 2024, arXiv:2407.08608), section 3.3. Taught in notebook 13. What
    v3 overlaps (copies, matmuls, softmax) changes no value and no byte: that is notebook 12. Rotation
    and rounding belong to the kernel before, which writes Q, K and V in any case, and count nothing
    here. Causal aligns bottom right (row i sees keys j ≤ i + Nk − Nq); torch aligns top left.

    Args:
        Q: queries, (Nq, d).  K, V: keys and values, (Nk, d); float64 or float32.
        Br, Bc: tile heights, in rows of Q and of K.
        causal: hide later keys.  scale: factor on the logits, None for 1/√d.
        window: (left, right), the keys that row i sees before and after key i + Nk − Nq; None: all.
        dtype: "e4m3" or "e5m2", the grid of Q, K, V and P, or None for the arithmetic of v2. S, m, l
            and O are computed in the dtype of the arrays, as a GPU does in float32.
        block_scales: one scale for each tile's rows of Q, K and V; False for one per tensor.
        rotation: multiply Q and K by a Hadamard matrix with random signs first, drawn from `seed`.
        machine: the `Machine` that counts, Machine(element_bytes=1) for FP8; None for no limits.
    Returns:
        O (Nq, d) and lse (Nq,), natural log.
    Raises:
        SRAMOverflow: the working set does not fit in `machine.sram_bytes`.

    Unmasked it reads Nq·d + 2·Nk·d·Tr elements and Tr + 2·Tc·Tr scales, writes Nq·d elements, of two
    bytes in FP8, and Nq statistics. A block's scale sees its largest value: under a causal mask a
    later key in the same block can move a row within the rounding, unless it is NaN or infinite.
    """
    Nq, Nk, d, scale = check_attention(Q, K, V, causal, scale)
    Br, Bc = check_block("Br", Br), check_block("Bc", Bc)
    for name, flag in (("block_scales", block_scales), ("rotation", rotation)):
        check_flag(name, flag)
    check_block("seed", seed, least=0)
    fp8 = dtype is not None
    machine = Machine.or_unbounded(machine)
    mask = mask_of(causal, Nq, Nk, window)
    lowest, tiny = np.finfo(Q.dtype).min, np.finfo(Q.dtype).tiny
    shift = SHIFT if fp8 else 0.0

    sQ = sK = sV = np.ones(0)                              # no scales but in FP8
    if fp8:
        check_choice("dtype", dtype, ("e4m3", "e5m2"))
        if rotation:                                   # QKᵀ stays what it was: (QR)(KR)ᵀ = QKᵀ
            signs = random_signs(d, seed)
            Q, K = rotate(Q, signs), rotate(K, signs)
        Q, K, V, sQ, sK, sV = _on_the_grid(Q, K, V, Br, Bc, dtype, block_scales)
    sQ, sK, sV = machine.hbm(kind="stats", scale_Q=sQ, scale_K=sK, scale_V=sV)
    Q, K, V = machine.hbm(Q=Q, K=K, V=V)
    O = machine.hbm_empty("O", (Nq, d), kind="half" if fp8 else "element")
    lse = machine.hbm_empty("lse", (Nq,), kind="stats")

    with machine.kernel("flash_v3") as sram:
        for i, rows in enumerate(tiles(Nq, Br)):                       # in parallel on a GPU
            with sram.scope():
                Qi = sram.load(Q[rows])                                # reads Br·d
                Oi = sram.tile("O", rows, d, kind="accumulator", fill=0.0)
                m = sram.tile("m", rows, kind="stats", fill=lowest)    # −∞ but for its arithmetic
                l = sram.tile("l", rows, kind="stats", fill=0.0)
                row_scale = sram.load(sQ[i:i + 1]) * scale if fp8 else scale

                for j, keys in enumerate(tiles(Nk, Bc)):
                    if mask.skips(rows, keys):
                        continue
                    with sram.scope():
                        Kj, Vj = sram.load(K[keys]), sram.load(V[keys])    # reads 2·Bc·d
                        Sij = sram.tile("S", rows, keys)
                        factor = row_scale * sram.load(sK[j:j + 1]) if fp8 else row_scale
                        Sij[...] = (Qi @ Kj.T) * factor
                        if (visible := mask.visible(rows, keys)) is not None:
                            Sij[...] = np.where(visible, Sij, -np.inf)

                        m_new = np.maximum(m, Sij.max(axis=1))
                        alpha = np.exp(m - m_new)
                        top = m_new - shift if fp8 else m_new          # P = 256·e^(S − m) in FP8
                        Pij = Sij                                      # one room: P overwrites S
                        Pij[...] = np.exp(Sij - top[:, None])
                        l[...] = alpha * l + Pij.sum(axis=1)           # of P before it is rounded
                        if fp8:
                            Pij[...] = Pij.rounded(dtype)
                        PV = Pij.dot(Vj, where=visible)
                        PV = PV * sram.load(sV[j:j + 1]) if fp8 else PV
                        Oi[...] = alpha[:, None] * Oi + PV
                        m[...] = m_new

                Oi[...] = Oi / np.maximum(l, tiny)[:, None]            # 256 cancels here
                sram.store(Oi, O[rows])                                # writes Br·d
                lse_i = m + np.log(l)
                sram.store(lse_i - shift if fp8 else lse_i, lse[rows])
    return O.to_host(), lse.to_host()


def _on_the_grid(Q, K, V, Br, Bc, dtype, block_scales):
    """Return the values of Q, K, V in eight bits, and a scale per tile of rows for each."""
    kept, factors = [], []
    for x, rows in ((Q, Br), (K, Bc), (V, Bc)):
        q = quantise(x, block=rows if block_scales else None, fmt=dtype)
        kept.append(q.values)
        count = len(tiles(len(x), rows))               # a scale for all is the same scale everywhere
        factors.append(q.scales if block_scales else np.resize(q.scales, count).astype(x.dtype))
    return *kept, *factors
