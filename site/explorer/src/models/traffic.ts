// The closed forms of flashlib.models.traffic, number for number: tests/site/explorer holds them to Python.
import { rint } from "../format";
import { ceilDiv, gridOf, windowOf, type Grid, type Row, type Window } from "./grid";

export type Moved = [read: number, write: number];
export interface Cost {
  byTensor: Record<string, Moved>;
  readBytes: number;
  writeBytes: number;
  matmulFlops: number;
  vectorFlops: number;
  exps: number;
  sramPeakBytes: number;
  held: [tensor: string, bytes: number][];        // what the peak is made of
}
export interface Sizes { elementBytes?: number; statsBytes?: number; accumulatorBytes?: number }
export interface Shape extends Sizes { Nq: number; Nk: number; d: number; causal?: boolean; window?: Window | null }
export interface Tiles { Br: number; Bc: number }
type Held = [string, number][];

const STATS = new Set(["m", "l", "lse", "delta", "dlse"]);
export const bytesOf = (cost: Cost) => cost.readBytes + cost.writeBytes;
export const flopsOf = (cost: Cost) => cost.matmulFlops + cost.vectorFlops + cost.exps;

const sum = (rows: Row[], f: (r: Row) => number) => rows.reduce((total, r) => total + f(r), 0);
const sizes = (p: Sizes) => [p.elementBytes ?? 2, p.statsBytes ?? 4, p.accumulatorBytes ?? 4] as const;
const weight = (held: Held) => held.reduce((total, [, bytes]) => total + bytes, 0);

/** The largest of several working sets; the first of equals. */
function peak(sets: Iterable<Held>): Held {
  let best: Held = [], most = 0;
  for (const held of sets) {
    const bytes = weight(held);
    if (bytes > most) [best, most] = [held, bytes];
  }
  return best.filter(([, bytes]) => bytes > 0);
}

/** The working set of the row of tiles that needs most: few shapes occur, so each is weighed once. */
function peakRow(rows: Row[], held: (r: Row) => Held): Held {
  const seen = new Map<string, Row>();
  for (const r of rows) {
    const key = `${r.b} ${r.c} ${r.visited > 0}`;
    if (!seen.has(key)) seen.set(key, r);
  }
  return peak([...seen.values()].map(held));
}

function costOf(byTensor: Record<string, Moved>, matmulFlops: number, vectorFlops: number, exps: number, held: Held): Cost {
  const kept: Record<string, Moved> = {};
  let readBytes = 0, writeBytes = 0;
  for (const [name, [read, write]] of Object.entries(byTensor)) {
    if (!read && !write) continue;
    kept[name] = [read, write];
    readBytes += read;
    writeBytes += write;
  }
  return { byTensor: kept, readBytes, writeBytes, matmulFlops, vectorFlops, exps, sramPeakBytes: weight(held), held };
}

/** Turn counts of elements read and written into bytes. */
function moved(e: number, s: number, tensors: Record<string, Moved>): Record<string, Moved> {
  return Object.fromEntries(Object.entries(tensors).map(([name, [read, write]]) => {
    const size = STATS.has(name) ? s : e;
    return [name, [read * size, write * size] as Moved];
  }));
}

export const gridFor = (p: Shape & Tiles, group = 1): Grid =>
  gridOf(p.Nq, p.Nk, p.Br, p.Bc, windowOf(p.causal ?? false, p.window ?? null), group);
/** What so many equal calls cost together: the SRAM of one. */
export const repeated = (c: Cost, n: number): Cost => ({ ...c, readBytes: n * c.readBytes, writeBytes: n * c.writeBytes,
  matmulFlops: n * c.matmulFlops, vectorFlops: n * c.vectorFlops, exps: n * c.exps,
  byTensor: Object.fromEntries(Object.entries(c.byTensor).map(([name, [read, write]]) => [name, [n * read, n * write]])) });

export function flashV1(p: Shape & Tiles, g = gridFor(p)): Cost {
  const { Nq, Nk, d } = p, [e, s, a] = sizes(p), { touched, area } = g, c = Math.min(p.Bc, Nk);
  const most = g.rows.length ? g.rows[0].b : 0;
  const held = peak([
    [["O", most * d * a], ["m", most * s], ["l", most * s]],
    [["K", c * d * e], ["V", c * d * e]],
    peakRow(g.rows.filter(r => r.visited > 0), r => [["K", r.c * d * e], ["V", r.c * d * e], ["Q", r.b * d * e],
      ["O", r.b * d * a], ["m", r.b * s], ["l", r.b * s], ["S", r.b * r.c * e]]),
  ]);
  return costOf(moved(e, s, { K: [Nk * d, 0], V: [Nk * d, 0], Q: [touched * d, 0],
    O: [touched * d, (Nq + touched) * d], m: [touched, Nq + touched], l: [touched, Nq + touched] }),
  4 * area * d, 4 * area + g.masked + touched * (8 + 4 * d), area + 2 * touched, held);
}

const heldV2 = (d: number, e: number, s: number, a: number, scales: number) => (r: Row): Held =>
  [["Q", r.b * d * e], ["O", r.b * d * a], ["m", r.b * s], ["l", r.b * s], ["K", r.c * d * e], ["V", r.c * d * e],
    ["S", r.b * r.c * e], ["scales", scales * (1 + (r.visited > 0 ? 2 : 0))]];

export function flashV2(p: Shape & Tiles, g = gridFor(p)): Cost {
  const { Nq, d } = p, [e, s, a] = sizes(p), { touched, area, keys } = g;
  return costOf(moved(e, s, { Q: [Nq * d, 0], K: [keys * d, 0], V: [keys * d, 0], O: [0, Nq * d], lse: [0, Nq] }),
    4 * area * d, 4 * area + g.masked + touched * (4 + 2 * d) + Nq * (3 + d), area + touched,
    peakRow(g.rows, heldV2(d, e, s, a, 0)));
}

/** `keys` are those of a split; a head of keys serves `group` query heads. */
export function flashDecode(p: Shape & Tiles & { keys?: number; group?: number }, g = gridFor(p, p.group)): Cost {
  const { Nk, d } = p, [e, s, a] = sizes(p), { touched, area } = g, rows = p.Nq * (p.group ?? 1), keys = p.keys ?? 2 * p.Bc;
  const merged = Nk > keys, splits = merged ? gridFor({ ...p, Bc: keys }, p.group).rows.map(r => r.visited) : g.rows.map(() => 1);
  const loaded = g.rows.reduce((total, r, k) => total + splits[k] * r.b, 0), walk = heldV2(d, e, s, a, 0);
  const sets = new Map<string, Held>();
  g.rows.forEach((r, k) => {
    const sees = splits[k] > 0, key = `${r.b} ${r.c} ${sees}`;
    if (sets.has(key)) return;
    const parts: Held = [["O", r.b * d * a], ["m", r.b * s], ["l", r.b * s], ["parts", sees ? r.b * (d * a + 2 * s) : 0]];
    const walking = sees ? walk(r) : [];
    sets.set(key, merged ? peak([walking, parts]) : walking);
  });
  const byTensor = moved(e, s, { Q: [loaded * d, 0], K: [g.keys * d, 0], V: [g.keys * d, 0], O: [0, rows * d], lse: [0, rows] });
  if (merged) Object.assign(byTensor, { parts: [loaded * d * a, loaded * d * a], m: [loaded * s, loaded * s], l: [loaded * s, loaded * s] });
  const merges = merged ? loaded : 0;
  return costOf(byTensor, 4 * area * d, 4 * area + g.masked + touched * (4 + 2 * d) + rows * (3 + d) + merges * (6 + 3 * d),
    area + touched + 2 * merges, peak(sets.values()));
}

export function flashV3(p: Shape & Tiles & { fp8?: boolean; halfBytes?: number }, g = gridFor(p)): Cost {
  if (!p.fp8) return flashV2(p, g);
  const { Nq, d } = p, [e, s, a] = sizes(p), { touched, area, keys, visits } = g, rows = g.rows.length;
  const tensors = moved(e, s, { Q: [Nq * d, 0], K: [keys * d, 0], V: [keys * d, 0], lse: [0, Nq] });
  return costOf({ ...tensors, O: [0, Nq * d * (p.halfBytes ?? 2)], scale_Q: [rows * s, 0], scale_K: [visits * s, 0],
    scale_V: [visits * s, 0] },
  4 * area * d, 5 * area + g.masked + touched * (5 + 3 * d) + visits + Nq * (4 + d) + rows, area + touched,
  peakRow(g.rows, heldV2(d, e, s, a, s)));
}

export interface Software { exp2Degree?: number | null; emulatedShare?: number; rescaledRows?: number | null }
export function flashV4(p: Shape & Tiles & Software, g = gridFor(p)): Cost {
  const { Nq, d, Bc } = p, { touched, area } = g, share = p.emulatedShare ?? 0;
  const rescaled = p.rescaledRows ?? sum(g.rows, r => r.starts * r.b);
  const emulated = sum(g.rows, r => r.b * (Math.floor(r.keys / Bc) * rint(share * Bc) + rint(share * (r.keys % Bc))));
  const software = p.exp2Degree ? emulated * (2 * p.exp2Degree + 6) : 0, v2 = flashV2(p, g);
  return { ...v2, exps: area - emulated + rescaled, vectorFlops: 5 * area + g.masked + touched * (6 + d) + Nq * (3 + d)
    + rescaled * (4 + d) + software };
}

export function standardAttention(p: Shape & Partial<Tiles>, known?: Grid): Cost {
  const { Nq, Nk, d } = p, [e, s, a] = sizes(p), ideal = p.Br === undefined;
  const Br = p.Br ?? Math.max(Nq, 1), Bc = p.Bc ?? Math.max(Nk, 1), g = known ?? gridFor({ ...p, Br, Bc });
  const Tr = ceilDiv(Nq, Br), Tc = ceilDiv(Nk, Bc), area = Nq * Nk, r = Math.min(Br, Nq), c = Math.min(Bc, Nk);
  const lastMasked = sum(g.rows, row => row.b * (Nk - row.full)), rows = ideal ? Nq : 1;
  const held = Nq ? peak([
    [["Q", e * r * d], ["K", e * c * d], ["S", e * r * c]],
    [["S", rows * Nk * e], ["m", rows * s], ["l", rows * s]],
    [["O", a * r * d], ["P", e * r * c], ["V", e * c * d]],
  ]) : [];
  return costOf(moved(e, s, { Q: [Nq * d, 0], K: [Tr * Nk * d, 0], S: [area, area], P: [area, area], V: [Tr * Nk * d, 0],
    O: [0, Nq * d] }), 4 * area * d, 5 * area + lastMasked + (Nk ? 2 * Nq : 0) + Nq * d * Tc, area, held);
}

export function flashBackward(p: Shape & Tiles & { order?: "kv" | "q"; dlse?: boolean }, g = gridFor(p)): Cost {
  const { Nq, Nk, d } = p, [e, s, a] = sizes(p), kv = (p.order ?? "kv") === "kv", dlse = p.dlse ? 1 : 0;
  const { touched, area, keys } = g, largest = g.rows.length ? g.rows[0].b : 0;
  const [againQ, againK] = kv ? [0, 0] : [Nq, keys], rows = touched + againQ, c = Math.min(p.Bc, Nk);
  const byTensor = moved(e, s, { O: [Nq * d, 0], dO: [(Nq + rows) * d, 0], delta: [rows, Nq], lse: [rows, 0],
    dlse: [Nq * dlse, 0], Q: [rows * d, 0], K: [(Nk + againK) * d, 0], V: [(Nk + againK) * d, 0],
    dQ: kv ? [touched * d, (Nq + touched) * d] : [0, Nq * d], dK: [0, Nk * d], dV: [0, Nk * d] });
  const perPass = 5 * area + 2 * g.masked + touched;
  let vector = 2 * Nq * d + Nq * dlse + perPass + 2 * keys * d + touched * d, matmul = 10 * area * d, exps = area;
  if (!kv) {
    vector += perPass;
    matmul = 14 * area * d;
    exps += area;
  }
  const sides = (b: number, k: number): Held =>
    [["K", k * d * e], ["V", k * d * e], ["Q", b * d * e], ["dO", b * d * e], ["lse", b * s], ["delta", b * s],
      ["S", b * k * e], ["dP", b * k * e]];
  const held = peak([
    [["O", largest * d * e], ["dO", largest * d * e], ["delta", largest * s], ["dlse", largest * s * dlse]],
    [["K", c * d * e], ["V", c * d * e], ["dK", c * d * a], ["dV", c * d * a]],
    peakRow(g.rows.filter(r => r.visited > 0), r => [...sides(r.b, r.c), ["dK", r.c * d * a], ["dV", r.c * d * a],
      ["dQ", kv ? r.b * d * a : 0]]),
    kv ? [["dQ", largest * d * a]] : peakRow(g.rows, r => [...sides(r.b, r.c), ["dQ", r.b * d * a]]),
  ]);
  return costOf(byTensor, matmul, vector, exps, held);
}

export function standardBackward(p: { Nq: number; Nk: number; d: number } & Sizes): Cost {
  const { Nq, Nk, d } = p, [e, s, a] = sizes(p), area = Nq * Nk, rows = Nq * d, keys = Nk * d;
  const held = peak([
    [["P", e * area], ["dO", e * rows], ["dV", a * keys]],
    [["dP", e * area], ["dO", e * rows], ["V", e * keys]],
    [["P", e * area], ["dP", e * area], ["delta", s * Nq]],
    [["dS", e * area], ["K", e * keys], ["dQ", a * rows]],
    [["dS", e * area], ["Q", e * rows], ["dK", a * keys]],
  ]);
  return costOf(moved(e, s, { Q: [rows, 0], K: [keys, 0], V: [keys, 0], dO: [2 * rows, 0], dQ: [0, rows], dK: [0, keys],
    dV: [0, keys], P: [2 * area, 0], dP: [area, area], dS: [2 * area, area] }), 8 * area * d, 5 * area, 0, held);
}
