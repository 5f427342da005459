// A run of the paper machine, step by step: what a line did, what is in SRAM, what has moved.
import glossSheet from "../data/gloss.json";
import walkSheet from "../data/walk.json";
import { int } from "../format";
import { say } from "../say";
import { expected } from "../ui";
import type { Moved } from "../models/traffic";

type Range = [start: number, stop: number];
export interface Event { op: "load" | "store" | "tile" | "free" | "skip"; tensor: string; rows: Range; cols: Range; bytes: number }
export interface Step { line: number; from: number; upto: number; matmul: number; vector: number; exps: number }
interface RawRun {
  file: string;
  firstLine: number;
  code: string[];
  kernels: [string, number][];
  tensors: string[];
  events: Lettered[];       // seven columns, starts as differences, stops as lengths, bytes an element
  steps: [columns: number[][], order: string];              // five columns of the steps that occur
}
/** Values that occur, and a letter for the one of each row: scripts/explorer_data.py writes them. */
type Lettered = [values: number[], letters: string];
const places = (letters: string) => [...letters].map(letter => letter.charCodeAt(0) - 35);
export interface Run extends Omit<RawRun, "events" | "steps"> {
  name: string;
  events: Event[];
  steps: Step[];
  stops: number[];          // the step in which each tile is filled
  totalBytes: number;
  peakBytes: number;
}
export interface Moment {
  step: Step;
  code: string;
  events: Event[];          // of this step
  live: Event[];            // tiles in SRAM after it
  sramBytes: number;
  moved: Record<string, Moved>;
  bytes: number;
  kernel: string;
  visited: Event[];         // tiles of the matrix made by this kernel, in order
  current: Event | null;    // the one that is in SRAM
  skipped: Event[];
  stored: Event[];
}

const OPS = ["load", "store", "tile", "free", "skip"] as const;
export const SHEET = walkSheet as unknown as { words: string[]; N: number; d: number; B: number; levels: string[];
  runs: Record<string, RawRun> };
const GLOSS = glossSheet as Record<string, string>;
export const RUNS = Object.keys(SHEET.runs);
const matrix = (e: Event) => e.op === "tile" && (e.tensor === "S" || e.tensor === "P");
export const bare = (line: string) => line.replace(/\s{2,}#.*$/, "").trim();
/** The sentence on a line; those of gloss.json are messages, too. */
export const gloss = (line: string) => say(GLOSS[bare(line)] ?? "");
export const runTitle = (name: string) => name === "standard" ? say("standard") : name === "v2, causal" ? say("v2, causal") : name;

const runs = new Map<string, Run>();
export function run(name: string): Run {
  const known = runs.get(name);
  if (known) return known;
  const raw = SHEET.runs[expected("run", name, RUNS)], events: Event[] = [], steps: Step[] = [];
  let row = 0, col = 0, from = 0;
  const columns = raw.events.map(([values, letters]) => places(letters).map(place => values[place]));
  for (let k = 0; k < columns[0].length; k++) {
    const [op, tensor, down, high, right, wide, size] = columns.map(column => column[k]);
    row += down;
    col += right;
    events.push({ op: OPS[op], tensor: raw.tensors[tensor] ?? "", rows: [row, row + high], cols: [col, col + wide], bytes: size * high * wide });
  }
  for (const place of places(raw.steps[1])) {
    const [line, many, matmul, vector, exps] = raw.steps[0].map(column => column[place]);
    steps.push({ line, from, upto: from + many, matmul, vector, exps });
    from += many;
  }
  const stops: number[] = [];
  steps.forEach((step, k) => {
    if (events.slice(step.from, step.upto).some(matrix)) stops.push(Math.min(k + 1, steps.length - 1));
  });
  let bytes = 0, used = 0, peakBytes = 0;
  for (const e of events) {
    if (e.op === "load" || e.op === "store") bytes += e.bytes;
    if (e.op === "tile") peakBytes = Math.max(peakBytes, used += e.bytes);
    if (e.op === "free") used -= e.bytes;
  }
  const made: Run = { ...raw, name, events, steps, stops, totalBytes: bytes, peakBytes };
  runs.set(name, made);
  return made;
}

/** The machine after a step. */
export function moment(r: Run, at: number): Moment {
  const step = r.steps[at], live = new Map<string, Event>(), moved: Record<string, Moved> = {};
  const stored: Event[] = [], skipped: Event[] = [];
  const began = r.kernels.filter(([, first]) => first < Math.max(step.upto, 1)).pop() ?? r.kernels[0];
  let visited: Event[] = [];
  r.events.slice(0, step.upto).forEach((e, n) => {
    const key = `${e.tensor} ${e.rows} ${e.cols}`;
    if (n === began[1]) visited = [];
    if (e.op === "tile") live.set(key, e);
    else if (e.op === "free") live.delete(key);
    else if (e.op === "skip") skipped.push(e);
    else {
      const sum = moved[e.tensor] ??= [0, 0];
      sum[e.op === "load" ? 0 : 1] += e.bytes;
      if (e.op === "store") stored.push(e);
    }
    if (matrix(e)) visited.push(e);
  });
  const held = [...live.values()], last = visited[visited.length - 1];
  const bytes = Object.values(moved).reduce((sum, [a, b]) => sum + a + b, 0);
  return { step, code: r.code[step.line], events: r.events.slice(step.from, step.upto), live: held, moved, bytes,
    sramBytes: held.reduce((sum, e) => sum + e.bytes, 0), kernel: began[0], visited, stored, skipped,
    current: last && held.includes(last) ? last : null };
}

/** What the machine recorded for a step, in words. */
export function facts(m: Moment): string {
  const said: string[] = [];
  for (const op of ["load", "store"] as const) {
    const found = m.events.filter(e => e.op === op);
    if (!found.length) continue;
    const tensors = found.map(e => (e.tensor === "l" ? "ℓ" : e.tensor)).reduce((names, name) => say("{names} and {name}", { names, name }));
    const bytes = int(found.reduce((sum, e) => sum + e.bytes, 0));
    said.push(op === "load" ? say("{tensors}: {bytes} B read from HBM", { tensors, bytes }) : say("{tensors}: {bytes} B written to HBM", { tensors, bytes }));
  }
  const loaded = m.events.some(e => e.op === "load" || e.op === "store"), made = m.events.filter(e => e.op === "tile");
  if (made.length && !loaded) said.push(say("{bytes} B of SRAM", { bytes: int(made.reduce((sum, e) => sum + e.bytes, 0)) }));
  const freed = m.events.filter(e => e.op === "free").reduce((sum, e) => sum + e.bytes, 0);
  if (freed) said.push(say("{bytes} B of SRAM are free again", { bytes: int(freed) }));
  if (m.step.matmul) said.push(say("{flops} FLOP of matmul", { flops: int(m.step.matmul) }));
  if (m.step.exps) said.push(say("{exps} exponentials", { exps: int(m.step.exps) }));
  if (m.step.vector) said.push(say("{flops} FLOP of other math", { flops: int(m.step.vector) }));
  return said.length ? say("{facts}.", { facts: said.reduce((facts, fact) => say("{facts}, {fact}", { facts, fact })) }) : "";
}
