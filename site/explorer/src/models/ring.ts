// Several GPUs in a ring: flashlib.models.ring and the blocks of flashlib.algorithms.layouts, number for number.

export const LAYOUTS = ["contiguous", "zigzag", "stripe"] as const;
export const METHODS = ["ring", "gather", "ulysses"] as const;
export type Layout = typeof LAYOUTS[number];
export type Method = typeof METHODS[number];
/** N tokens on P ranks: H query heads, Hk heads of keys and values, of d elements. */
export interface Sharing { P: number; N: number; H: number; Hk: number; d: number; causal: boolean; layout: Layout; backward: boolean; elementBytes: number }
/** `hidden` says whether links work while GPUs compute. */
export interface RingRates { flopsPerS: number; linkBytesPerS: number; memoryBytesPerS: number; mergeBytes: number; callS: number; hidden: boolean }
/** Rows and keys of a rank's one call on the keys of another: [first, stop], and whether a diagonal cuts them. */
export interface Block { rows: [number, number]; keys: [number, number]; masked: boolean }

const GRADIENT_BYTES = 4, BACKWARD_PASSES = 2.5;
const passes = (s: Sharing) => s.backward ? BACKWARD_PASSES : 1;
export const tokensOf = (s: Sharing) => s.N / s.P;
export const hopBytes = (s: Sharing) => 2 * tokensOf(s) * s.Hk * s.d * s.elementBytes;
const gradientBytes = (s: Sharing) => 2 * tokensOf(s) * s.Hk * s.d * GRADIENT_BYTES;

export function blockOf(layout: Layout, rank: number, source: number, n: number, causal: boolean): Block | null {
  const whole: [number, number] = [0, n], half = Math.floor(n / 2);
  if (!causal) return { rows: whole, keys: whole, masked: false };
  if (source === rank) return { rows: whole, keys: whole, masked: true };
  if (layout === "stripe") return source < rank ? { rows: whole, keys: whole, masked: true }
    : n > 1 ? { rows: [1, n], keys: [0, n - 1], masked: true } : null;
  if (layout === "contiguous") return source < rank ? { rows: whole, keys: whole, masked: false } : null;
  return source < rank ? { rows: whole, keys: [0, half], masked: false } : { rows: [half, n], keys: whole, masked: false };
}

export function pairsOf(s: Sharing, rank: number, source: number): number {
  const found = blockOf(s.layout, rank, source, tokensOf(s), s.causal);
  if (!found) return 0;
  const rows = found.rows[1] - found.rows[0], keys = found.keys[1] - found.keys[0];
  return found.masked ? rows * (rows + 1) / 2 : rows * keys;
}
export const workOf = (s: Sharing, rank: number, source: number) => passes(s) * 4 * s.H * s.d * pairsOf(s, rank, source);

export function stepSeconds(s: Sharing, r: RingRates, rank: number, source: number): number {
  const n = tokensOf(s), found = blockOf(s.layout, rank, source, n, s.causal);
  if (!found) return 0;
  let merged = s.H * s.d * (found.rows[1] - found.rows[0]) * r.mergeBytes;
  if (s.backward) merged += 2 * s.Hk * s.d * n * r.mergeBytes;
  return workOf(s, rank, source) / r.flopsPerS + merged / r.memoryBytesPerS + r.callS;
}

export interface Step { start: number; work: number[]; linkAt: number; link: number }
/** The steps in lockstep, each as long as its longest work or its link, and when all are done. */
export function ringSteps(s: Sharing, r: RingRates): { steps: Step[]; seconds: number } {
  const ranks = Array.from({ length: s.P }, (_, rank) => rank), steps: Step[] = [];
  const kv = hopBytes(s) / r.linkBytesPerS, dkv = gradientBytes(s) / r.linkBytesPerS;
  let total = 0;
  for (const step of ranks) {
    const work = ranks.map(rank => stepSeconds(s, r, rank, (rank - step + s.P) % s.P)), longest = Math.max(...work);
    const link = (step + 1 < s.P ? kv : 0) + (s.backward && step ? dkv : 0);
    steps.push({ start: total, work, linkAt: total + (r.hidden ? 0 : longest), link });
    total += r.hidden ? Math.max(longest, link) : longest + link;
  }
  if (!s.backward || s.P === 1) return { steps, seconds: total };
  steps.push({ start: total, work: ranks.map(() => 0), linkAt: total, link: dkv });      // the gradients' last hop
  return { steps, seconds: total + dkv };
}

const allPairs = (s: Sharing) => s.causal ? s.N * (s.N + 1) / 2 : s.N * s.N;
export function ringSeconds(s: Sharing, r: RingRates, method: Method = "ring"): number {
  if (method === "ring") return ringSteps(s, r).seconds;
  const whole = workOf(s, 0, 0) / pairsOf(s, 0, 0) * allPairs(s) / s.P;
  return whole / r.flopsPerS + sentBytes(s, method) / r.linkBytesPerS + r.callS * (method === "gather" && s.causal ? 2 : 1);
}
export const oneGpuSeconds = (s: Sharing, r: RingRates) => workOf(s, 0, 0) / pairsOf(s, 0, 0) * allPairs(s) / r.flopsPerS + r.callS;
export const efficiency = (s: Sharing, r: RingRates, method: Method = "ring") => oneGpuSeconds(s, r) / (s.P * ringSeconds(s, r, method));

/** Bytes that each rank sends, and as many that it receives. */
export function sentBytes(s: Sharing, method: Method): number {
  if (method === "ulysses") {
    const once = Math.floor((s.P - 1) * tokensOf(s) * s.d * s.elementBytes * 2 * (s.H + s.Hk) / s.P);
    return s.backward ? 2 * once : once;
  }
  const hops = method === "ring" && s.P > 1 ? s.P : s.P - 1;
  return (s.P - 1) * hopBytes(s) + (s.backward ? hops * gradientBytes(s) : 0);
}

/** Bytes that a rank needs beyond its own shards of inputs and outputs. */
export function roomBytes(s: Sharing, method: Method): number {
  const own = tokensOf(s) * s.H * s.d;
  if (method === "ring") return 2 * hopBytes(s) + GRADIENT_BYTES * own + (s.backward ? 3 * gradientBytes(s) : 0);
  if (method === "gather") return s.P * (hopBytes(s) + (s.backward ? gradientBytes(s) : 0));
  return (s.backward ? 2 : 1) * (2 * own * s.elementBytes + hopBytes(s));
}

/** The same bytes by tensor. */
export function byTensor(s: Sharing, method: Method): { sent: Record<string, number>; room: Record<string, number> } {
  const kv = hopBytes(s) / 2, dkv = s.backward ? gradientBytes(s) / 2 : 0, own = tokensOf(s) * s.H * s.d, away = s.P - 1;
  if (method === "ulysses") {
    const room = (twice: boolean, share = 1): Record<string, number> => {
      const q = own * s.elementBytes * share, k = kv * share;
      return { Q: q, K: k, V: k, O: q, ...(twice ? { dQ: q, dK: k, dV: k, dO: q } : {}) };
    };
    return { sent: room(s.backward, away / s.P), room: room(s.backward) };
  }
  const hops = method === "ring" && s.P > 1 ? s.P : away, rooms = method === "ring" ? 3 * dkv : s.P * dkv;
  const state = method === "ring" ? { [s.backward ? "dQ" : "O"]: GRADIENT_BYTES * own } : {}, held = method === "ring" ? 2 * kv : s.P * kv;
  return { sent: { K: away * kv, V: away * kv, dK: hops * dkv, dV: hops * dkv },
    room: { K: held, V: held, ...state, dK: rooms, dV: rooms } };
}

/** From how many tokens a GPU on a step hides its link. */
export function hidesFrom(flopsPerS: number, linkBytesPerS: number, H: number, Hk: number,
  { zigzag = true, backward = false, elementBytes = 2 } = {}): number {
  const hop = elementBytes + (backward ? GRADIENT_BYTES : 0), share = zigzag ? 0.5 : 1;
  return Hk * hop * flopsPerS / (2 * (backward ? BACKWARD_PASSES : 1) * share * H * linkBytesPerS);
}

/** The mean work of a step over the largest: 1 where no rank waits for another. */
export function balance(s: Sharing): number {
  const ranks = Array.from({ length: s.P }, (_, rank) => rank);
  const steps = ranks.map(step => ranks.map(rank => workOf(s, rank, (rank - step + s.P) % s.P)));
  return steps.flat().reduce((a, b) => a + b) / (s.P * steps.map(work => Math.max(...work)).reduce((a, b) => a + b));
}
