// The block explorer's state, and what the models answer to it.
import gpuSheets from "../data/gpus.json";
import { expected } from "../ui";
import { clip, type Grid, type Window } from "../models/grid";
import { rateName, ridge, timeOf, type Gpu, type Time } from "../models/roofline";
import { bytesOf, flashBackward, flashV1, flashV2, flashV3, flashV4, gridFor, standardAttention, standardBackward,
  type Cost } from "../models/traffic";

export const GPUS = gpuSheets as unknown as Gpu[];
export type Algorithm = "standard" | "v1" | "v2" | "v3" | "v4" | "backward" | "backward_q";
export interface State {
  algorithm: Algorithm;
  precision: "16" | "32" | "fp8";
  causal: boolean;
  window: number | null;
  Br: number;
  Bc: number;
  Nq: number;
  Nk: number;
  same: boolean;
  d: number;
  share: number;
  gpu: string;
}
export const DEFAULT: State = { algorithm: "v2", precision: "16", causal: true, window: null, Br: 128, Bc: 64, Nq: 4096,
  Nk: 4096, same: true, d: 128, share: 0, gpu: "A100" };
const DEGREE = 3;

/** Change one key, and what cannot stay with it. */
export function changed(state: State, key: string, value: unknown): State {
  const next = { ...state, [key]: value } as State;
  if (key === "Nk" && next.same) next.Nq = next.Nk;
  if (key === "Nq" && next.same) next.Nk = next.Nq;
  if (key === "same" && next.same) next.Nq = next.Nk;
  if (key === "precision" && value === "fp8") next.algorithm = "v3";
  if (key === "algorithm" && value !== "v3" && next.precision === "fp8") next.precision = "16";
  return next;
}

export interface Answer {
  state: State;
  gpu: Gpu;
  grid: Grid;
  cost: Cost;
  ideal: Cost;              // standard attention without blocks, or its backward pass
  same: Cost | null;        // standard attention with the same blocks
  time: Time | null;        // null where the GPU's tensor cores do not know the precision
  idealTime: Time | null;
  ridge: number;
  room: number;             // SRAM that is left; negative if the tiles do not fit
}

export function answer(state: State): Answer {
  const gpu = GPUS[GPUS.findIndex(g => g.name === expected("gpu", state.gpu, GPUS.map(sheet => sheet.name)))];
  expected("algorithm", state.algorithm, ["standard", "v1", "v2", "v3", "v4", "backward", "backward_q"]);
  expected("precision", state.precision, ["16", "32", "fp8"]);
  const elementBytes = { "16": 2, "32": 4, fp8: 1 }[state.precision];
  const window: Window | null = state.window === null ? null : { left: state.window, right: state.window };
  const { Nq, Nk, d, causal, Br, Bc } = state, backward = state.algorithm.startsWith("backward");
  const shape = { Nq, Nk, d, causal, window, elementBytes }, tiled = { ...shape, Br, Bc }, grid = gridFor(tiled);
  const dense = { ...shape, elementBytes: state.precision === "fp8" ? 2 : elementBytes };
  const ideal = backward ? standardBackward(dense) : standardAttention(dense);
  const same = backward ? null : standardAttention({ ...dense, Br, Bc }, grid);
  const cost = state.algorithm === "standard" ? same!
    : state.algorithm === "v1" ? flashV1(tiled, grid)
    : state.algorithm === "v2" ? flashV2(tiled, grid)
    : state.algorithm === "v3" ? flashV3({ ...tiled, fp8: state.precision === "fp8" }, grid)
    : state.algorithm === "v4" ? flashV4({ ...tiled, exp2Degree: DEGREE, emulatedShare: state.share }, grid)
    : flashBackward({ ...tiled, order: state.algorithm === "backward" ? "kv" : "q" }, grid);
  const rate = rateName(gpu, state.precision), denseRate = rateName(gpu, state.precision === "fp8" ? "16" : state.precision);
  return { state, gpu, grid, cost, ideal, same, room: gpu.sramBytes - cost.sramPeakBytes,
    time: rate ? timeOf(cost, gpu, rate) : null, idealTime: denseRate ? timeOf(ideal, gpu, denseRate) : null,
    ridge: rate ? ridge(gpu, rate) : NaN };
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
