// One moment of a run: the matrix with its strips, what is in SRAM, and the bytes so far.
import { humanBytes, int } from "../format";
import { listed, say } from "../say";
import { at, box, hatches, hue, letters, named, path, rect, svg, text, wayOf } from "../svg";
import { run, RUNS, runTitle, SHEET, type Event, type Moment, type Run } from "./replay";

const STRIP = 18, GAP = 5;
const { N, B } = SHEET;
let heat: string | null = null;

/** The logits of the course's sentence as a small image: dark is large. It is drawn once. */
function logits(): string {
  if (heat !== null) return heat;
  const canvas = document.createElement("canvas"), ink = canvas.getContext("2d");
  canvas.width = canvas.height = N;
  if (!ink) return heat = "";
  const image = ink.createImageData(N, N);
  SHEET.levels.forEach((row, i) => [...row].forEach((level, j) => { image.data[4 * (i * N + j) + 3] = 22 * +level; }));
  ink.putImageData(image, 0, 0);
  return heat = canvas.toDataURL();
}

export function matrixPicture(m: Moment, width: number, id: string): string {
  const left = 26 + STRIP + GAP, right = 2 * (STRIP / 2 + GAP) + STRIP + 24, side = Math.min(width - left - right, 300);
  const x0 = left, y0 = 20 + 2 * (STRIP + GAP), s = side / N;
  const area = (e: Event) => [x0 + e.cols[0] * s, y0 + e.rows[0] * s, (e.cols[1] - e.cols[0]) * s, (e.rows[1] - e.rows[0]) * s] as const;
  const boxes = (list: Event[]) => list.map(e => box(...area(e))).join("");
  let out = hatches(id), lines = "";
  out += rect(x0, y0, side, side, "fx-empty");
  const inHbm = m.stored.filter(e => e.tensor === "S" || e.tensor === "P");
  out += `<clipPath id="${id}-c">${path(boxes([...m.visited, ...inHbm]) || "M0 0", "")}</clipPath>`;
  out += path(boxes(m.visited), "fx-visited") + path(boxes(inHbm), "fx-inhbm");
  out += `<image href="${logits()}" x="${x0}" y="${y0}" width="${at(side)}" height="${at(side)}" clip-path="url(#${id}-c)" preserveAspectRatio="none" class="fx-heat"/>`;
  if (inHbm.length) out += `<path d="${boxes(inHbm)}" fill="url(#${id}-s)"/>`;
  for (const e of m.skipped) {
    const [x, y, w, h] = area(e);
    out += `<path d="${box(x, y, w, h)}" fill="url(#${id}-s)"/>`
      + (w > 48 ? text(x + w / 2, y + h / 2 + 4, say("skipped"), "fx-small fx-dim fx-halo", "middle") : "");
  }
  for (let k = B; k < N; k += B) lines += `M${at(x0 + k * s)} ${y0}v${at(side)}M${x0} ${at(y0 + k * s)}h${at(side)}`;
  out += path(lines, "fx-rule") + rect(x0, y0, side, side, "fx-edge");
  // The order in which tiles were visited, where a number has room.
  m.visited.forEach((e, n) => {
    const [x, y, w, h] = area(e);
    if (Math.min(w, h) > 24) out += text(x + 5, y + 14, String(n + 1), "fx-small fx-order");
  });
  if (m.current) { const [x, y, w, h] = area(m.current); out += rect(x, y, w, h, "fx-now"); }
  // The tensors beside it.
  const strips: [string, number, boolean, number][] = [["Q", x0 - GAP - STRIP, true, STRIP], ["K", y0 - GAP - STRIP, false, STRIP],
    ["V", y0 - 2 * GAP - 2 * STRIP, false, STRIP], ["O", x0 + side + GAP, true, STRIP],
    ["m", x0 + side + 2 * GAP + STRIP, true, STRIP / 2], ["l", x0 + side + 3 * GAP + 1.5 * STRIP, true, STRIP / 2]];
  for (const [name, place, upright, thick] of strips) {
    const small = thick < STRIP, output = name === "O" || small;
    const part = (from: number, to: number, look: string) => upright ? rect(place, y0 + from * s, thick, (to - from) * s, look)
      : rect(x0 + from * s, place, (to - from) * s, thick, look);
    out += part(0, N, `fx-strip ${output ? "fx-blank" : hue(name)}`);
    if (output) for (const e of m.stored.filter(e => e.tensor === name || (name === "l" && e.tensor === "lse")))
      out += part(...e.rows, `fx-strip ${hue(name)}`);
    for (const e of m.live.filter(e => e.tensor === name)) out += part(...e.rows, `fx-held ${hue(name)}`);
    const label = `fx-b${m.live.some(e => e.tensor === name) ? "" : " fx-dim"}`;
    out += upright ? text(place + thick / 2, y0 + side + 15, named(name), label, "middle") : text(x0 - 7, place + 14, name, label, "end");
  }
  return svg(width, y0 + side + 20, say("The {N} × {N} matrix in tiles of {B}: {tiles} visited in this kernel",
    { N, B, tiles: m.visited.length }), out);
}

export function sramBar(m: Moment, r: Run, width: number): string {
  const most = Math.max(...RUNS.map(name => run(name).peakBytes)), scale = width / most, y = 22;
  let x = 0, out = text(0, 13, say("In SRAM now"), "fx-title")
    + text(width, 13, say("{now}, at most {most} B", { now: `<tspan class="fx-b">${int(m.sramBytes)} B</tspan>`, most: int(r.peakBytes) }), "fx-small", "end");
  out += rect(0, y, width, 22, "fx-sram");
  const sums = new Map<string, number>();
  for (const e of m.live) sums.set(e.tensor, (sums.get(e.tensor) ?? 0) + e.bytes);
  for (const [tensor, bytes] of sums) {
    const wide = bytes * scale;
    out += rect(x, y, wide, 22, `fx-t ${hue(tensor)}`, `${named(tensor)}: ${int(bytes)} B`);
    if (wide > 16) out += text(x + wide / 2, y + 15.5, named(tensor), `fx-in fx-on-${tensor}`, "middle");
    x += wide;
  }
  const peak = r.peakBytes * scale;
  out += path(`M${at(Math.min(peak, width - 1))} ${y - 4}v30`, "fx-limit");
  return svg(width, y + 28, m.live.length ? say("SRAM: {tensors}", { tensors: listed(m.live.map(e => named(e.tensor))) }) : say("SRAM: empty"), out);
}

/** One axis for all runs, so that the eye compares them. */
export function bytesBar(m: Moment, r: Run, width: number, id: string): string {
  const most = Math.max(...RUNS.map(name => run(name).totalBytes)), scale = width / most, y = 22;
  let x = 0, out = hatches(id) + text(0, 13, say("HBM bytes so far"), "fx-title")
    + text(width, 13, say("{now} of {all}", { now: `<tspan class="fx-b">${humanBytes(m.bytes)}</tspan>`, all: humanBytes(r.totalBytes) }), "fx-small", "end");
  out += rect(0, y, r.totalBytes * scale, 22, "fx-sram");
  for (const [tensor, moved] of Object.entries(m.moved)) for (const way of [0, 1]) {
    const wide = moved[way] * scale;
    if (!wide) continue;
    out += rect(x, y, wide, 22, `fx-t ${hue(tensor)}`, wayOf(way, tensor, `${int(moved[way])} B`));
    if (way) out += `<rect x="${at(x)}" y="${y}" width="${at(wide)}" height="22" fill="url(#${id}-w)" pointer-events="none"/>`;
    if (wide > 9 * letters(named(tensor)) + 7) out += text(x + wide / 2, y + 15.5, named(tensor), `fx-in fx-on-${tensor}`, "middle");
    x += wide;
  }
  // Where each run ends; from the right, a name that meets the one before goes a line down. Names lie over marks.
  let free = width + 1, line = 0, names = "";
  for (const name of [...RUNS].sort((a, b) => run(b).totalBytes - run(a).totalBytes)) {
    const end = Math.min(run(name).totalBytes * scale, width - 1), own = name === r.name, title = runTitle(name);
    line = end > free ? 1 - line : 0;
    free = end - letters(title) * 6.6 - 8;
    out += path(`M${at(end)} ${y - 3}v${28 + 15 * line}`, own ? "fx-limit" : "fx-mark");
    names += text(end + 1, y + 39 + 15 * line, title, own ? "fx-small fx-b fx-halo" : "fx-small fx-dim fx-halo", "end");
  }
  return svg(width, y + 58, say("{now} of {all} moved", { now: humanBytes(m.bytes), all: humanBytes(r.totalBytes) }), out + names);
}
