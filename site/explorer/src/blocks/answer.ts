// The block explorer's state, and what the models answer to it.
import gpuSheets from "../data/gpus.json";
import { expected } from "../ui";
import { bestOf, byParts, cut, decodeSeconds, headsOf, keysOfPart, kvBytes, partBytes, wavesOf, type Call, type DecodeRates,
  type Waves } from "../models/decode";
import { clip, type Grid, type Window } from "../models/grid";
import type { Layout, RingRates } from "../models/ring";
import { rateName, ridge, timeOf, type Gpu, type Time } from "../models/roofline";
import { bytesOf, flashBackward, flashDecode, flashV1, flashV2, flashV3, flashV4, gridFor, repeated, standardAttention,
  standardBackward, type Cost } from "../models/traffic";

/** A sheet with what was recorded on one H200, brought to this GPU by the data sheets. */
export interface Sheet extends Gpu { sms: number; decode: DecodeRates; ring: Omit<RingRates, "linkBytesPerS" | "hidden"> }
export const GPUS = gpuSheets as unknown as Sheet[];
const ALGORITHMS = ["standard", "v1", "v2", "v3", "v4", "backward", "backward_q", "decode", "ring"] as const;
export type Algorithm = typeof ALGORITHMS[number];
export interface State {
  algorithm: Algorithm;
  precision: "16" | "32" | "fp8";
  causal: boolean;
  left: number | null;      // keys before and after a query's own that it sees; null is no bound
  right: number | null;
  Br: number;
  Bc: number;
  Nq: number;
  Nk: number;
  same: boolean;
  d: number;
  share: number;
  gpu: string;
  group: number;            // of decoding and of the ring
  B: number;                // of decoding: sequences, heads of keys, keys in a cache, parts, keys of a page
  Hk: number;
  cache: number;
  parts: number;
  page: number;
  P: number;                // of the ring
  N: number;
  layout: Layout;
  link: string;
  backward: boolean;
  hidden: boolean;
}
export const DEFAULT: State = { algorithm: "v2", precision: "16", causal: true, left: null, right: null, Br: 128, Bc: 64,
  Nq: 4096, Nk: 4096, same: true, d: 128, share: 0, gpu: "A100", group: 4, B: 1, Hk: 8, cache: 65536, parts: 1, page: 64,
  P: 4, N: 65536, layout: "contiguous", link: "NVLink", backward: false, hidden: true };
const DEGREE = 3;
/** The GPU that a state names. */
export const sheetOf = (s: State) => GPUS[GPUS.findIndex(g => g.name === expected("gpu", s.gpu, GPUS.map(sheet => sheet.name)))];

/** Change one key, and what cannot stay with it. */
export function changed(state: State, key: string, value: unknown): State {
  const next = { ...state, [key]: value } as State;
  if (key === "Nk" && next.same) next.Nq = next.Nk;
  if (key === "Nq" && next.same) next.Nk = next.Nq;
  if (key === "same" && next.same) next.Nq = next.Nk;
  if (key === "precision" && value === "fp8") next.algorithm = "v3";
  if (key === "algorithm" && value !== "v3" && next.precision === "fp8") next.precision = "16";
  if (key === "algorithm" && value === "ring") next.causal = true;          // without a mask no layout matters
  return next;
}

export interface Answer {
  state: State;
  gpu: Sheet;
  grid: Grid;
  cost: Cost;
  ideal: Cost;              // standard attention without blocks, or its backward pass
  same: Cost;        // standard attention with the same blocks; of a backward pass, the other order; of decoding, one part
  time: Time | null;        // null where the GPU's tensor cores do not know the precision
  idealTime: Time | null;
  ridge: number;
  room: number;             // SRAM that is left; negative if the tiles do not fit
  decode: Decode | null;
}

/** What the SMs do in decoding, and how long it takes with other numbers of parts. */
export interface Decode { parts: number; keys: number; waves: Waves; seconds: number; times: [number, number][]; best: number;
  bestSeconds: number; floor: number; cacheBytes: number; partBytes: number; emptyBytes: number }

function decoding(state: State): Answer {
  const gpu = sheetOf(state), { B, Hk, group, d, cache: Nk, page } = state, call: Call = { B, Nk, Hk, group, d };
  const { sms, decode: rates } = gpu, heads = headsOf(call), keys = keysOfPart(call, state.parts), parts = cut(call, state.parts);
  const shape = { Nq: 1, Nk, d, Br: Math.max(16, group), Bc: 64 }, cost = repeated(flashDecode({ ...shape, group, keys }), heads);
  const ideal = repeated(flashV2(shape), heads * group), times = byParts(call, sms, rates), [best, bestSeconds] = bestOf(times);
  const rate = rateName(gpu, "16")!;
  return { state, gpu, grid: gridFor(shape, group), cost, ideal, room: gpu.sramBytes - cost.sramPeakBytes,
    same: repeated(flashDecode({ ...shape, group, keys: Nk }), heads), time: timeOf(cost, gpu, rate),
    idealTime: timeOf(ideal, gpu, rate), ridge: ridge(gpu, rate), decode: { parts, keys, waves: wavesOf(heads * parts, sms),
      seconds: decodeSeconds(call, parts, sms, rates), times, best, bestSeconds, floor: kvBytes(call) / rates.bytesPerS,
      cacheBytes: kvBytes(call), partBytes: partBytes(call, parts), emptyBytes: 4 * (page - 1) * heads * d } };
}

export function answer(state: State): Answer {
  const gpu = sheetOf(state);
  expected("algorithm", state.algorithm, ALGORITHMS);
  expected("precision", state.precision, ["16", "32", "fp8"]);
  if (state.algorithm === "decode") return decoding(state);
  const elementBytes = { "16": 2, "32": 4, fp8: 1 }[state.precision];
  const window: Window = { left: state.left, right: state.right };
  const { Nq, Nk, d, causal, Br, Bc } = state, backward = state.algorithm.startsWith("backward");
  const shape = { Nq, Nk, d, causal, window, elementBytes }, tiled = { ...shape, Br, Bc }, grid = gridFor(tiled);
  const dense = { ...shape, elementBytes: state.precision === "fp8" ? 2 : elementBytes };
  const ideal = backward ? standardBackward(dense) : standardAttention(dense);
  const orders = state.algorithm === "backward" ? ["kv", "q"] as const : ["q", "kv"] as const;
  const same = backward ? flashBackward({ ...tiled, order: orders[1] }, grid) : standardAttention({ ...dense, Br, Bc }, grid);
  const cost = state.algorithm === "standard" ? same
    : state.algorithm === "v1" ? flashV1(tiled, grid)
    : state.algorithm === "v2" ? flashV2(tiled, grid)
    : state.algorithm === "v3" ? flashV3({ ...tiled, fp8: state.precision === "fp8" }, grid)
    : state.algorithm === "v4" ? flashV4({ ...tiled, exp2Degree: DEGREE, emulatedShare: state.share }, grid)
    : flashBackward({ ...tiled, order: orders[0] }, grid);
  const rate = rateName(gpu, state.precision), denseRate = rateName(gpu, state.precision === "fp8" ? "16" : state.precision);
  return { state, gpu, grid, cost, ideal, same, room: gpu.sramBytes - cost.sramPeakBytes,
    time: rate ? timeOf(cost, gpu, rate) : null, idealTime: denseRate ? timeOf(ideal, gpu, denseRate) : null,
    ridge: rate ? ridge(gpu, rate) : NaN, decode: null };
}

export interface Tally { full: number; cut: number; skipped: number }
/** How many tiles are computed whole, cut by the mask, and left out. */
export function tally({ grid, state }: Answer): Tally {
  const { Bc, Nk } = state, wide = Math.ceil(Nk / Bc);
  let full = 0;
  for (const row of grid.rows) full += Math.ceil((row.fullFrom + row.full) / Bc) - Math.ceil(row.fullFrom / Bc);
  if (state.algorithm === "standard") return { full: grid.rows.length * wide, cut: 0, skipped: 0 };
  return { full, cut: grid.visits - full, skipped: grid.rows.length * wide - grid.visits };
}

/** The tile that the picture shows at work: about two thirds down, the last that its rows visit. */
export function tileAtWork({ grid, state }: Answer): { row: number; col: number } | null {
  const row = clip(Math.floor(grid.rows.length * 0.62), 0, grid.rows.length - 1), r = grid.rows[row];
  if (!r || !(r.visited > 0 || state.algorithm === "standard")) return null;
  return { row, col: state.algorithm === "standard" ? Math.floor(0.4 * state.Nk / state.Bc)
    : r.begin + Math.floor(r.visited * 0.6) };
}
export const total = bytesOf;
