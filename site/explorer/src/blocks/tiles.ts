// The attention matrix cut into tiles: what is visited, what the mask cuts, what is left out.
import { say } from "../say";
import { at, box, hatches, letters, path, rect, svg, text } from "../svg";
import { tally, tileAtWork, type Answer } from "./answer";
import { int } from "../format";

const STRIP = 13, GAP = 4, MOST_BANDS = 160;

/** Size of the matrix on the page: to scale, but never thinner than a finger can point at. */
function extent(Nq: number, Nk: number, room: number): [w: number, h: number] {
  const most = Math.min(room, 300), longer = Math.max(Nq, Nk);
  return [Math.max(most * Nk / longer, 26), Math.max(most * Nq / longer, 26)];
}

/** Lines between tiles. */
function rules(x: number, y: number, w: number, h: number, dx: number, dy: number): string {
  let d = "";
  for (let k = dx; k < w - 0.5; k += dx) d += `M${at(x + k)} ${at(y)}v${at(h)}`;
  for (let k = dy; k < h - 0.5; k += dy) d += `M${at(x)} ${at(y + k)}h${at(w)}`;
  return path(d, "fx-rule");
}

export function tilesPicture(a: Answer, width: number, id: string): string {
  const { Nq, Nk, Br, Bc, algorithm } = a.state, dense = algorithm === "standard", left = 22 + STRIP + GAP;
  const [w, h] = extent(Nq, Nk, width - left - STRIP - GAP - 22), top = 60, x0 = left, y0 = top;
  const sx = w / Nk, sy = h / Nq, rows = a.grid.rows, bands = Math.min(rows.length, MOST_BANDS);
  const fine = Math.min(Bc * sx, w) < 3.2 || Math.min(Br * sy, h) < 3.2;
  let whole = "", cut = "";
  for (let k = 0; k < bands; k++) {
    // With more rows of tiles than bands, a band shows the row in its middle.
    const first = Math.floor(k * rows.length / bands), next = Math.floor((k + 1) * rows.length / bands);
    const r = rows[Math.floor((first + next - 1) / 2)];
    // On whole pixels: a band begins where the one above it ends.
    const y = Math.round(y0 + first * Br * sy), high = Math.round(y0 + Math.min(next * Br, Nq) * sy) - y;
    if (dense) { whole += box(x0, y, w, high); continue; }
    if (r.visited <= 0) continue;
    const from = r.begin * Bc, to = from + r.keys;
    if (!r.full) { cut += box(x0 + from * sx, y, r.keys * sx, high); continue; }
    whole += box(x0 + r.fullFrom * sx, y, r.full * sx, high);
    if (r.fullFrom > from) cut += box(x0 + from * sx, y, (r.fullFrom - from) * sx, high);
    if (r.fullFrom + r.full < to) cut += box(x0 + (r.fullFrom + r.full) * sx, y, (to - r.fullFrom - r.full) * sx, high);
  }
  let out = hatches(id) + text(0, 13, say("Tiles of the {rows} × {columns} matrix", { rows: int(Nq), columns: int(Nk) }), "fx-title");
  const count = tally(a);
  if (count.skipped) out += rect(x0, y0, w, h, "fx-skip") + `<path d="${box(x0, y0, w, h)}" fill="url(#${id}-s)"/>`;
  out += path(whole, "fx-full") + path(cut, "fx-cut") + (fine ? "" : rules(x0, y0, w, h, Bc * sx, Br * sy));
  out += rect(x0, y0, w, h, "fx-edge");
  // The strips of the tensors, and one tile at work.
  const backward = algorithm.startsWith("backward"), now = tileAtWork(a);
  const right = backward ? "dQ" : "O", strips: [string, number, number, number, number][] = [
    ["Q", x0 - GAP - STRIP, y0, STRIP, h], [right, x0 + w + GAP, y0, STRIP, h], ["K", x0, y0 - GAP - STRIP, w, STRIP]];
  for (const [name, x, y, sw, sh] of strips) out += rect(x, y, sw, sh, `fx-strip fx-${name}`);
  out += text(x0 - GAP - STRIP - 5, y0 + h / 2 + 4, "Q", "fx-b", "end") + text(x0 + w + GAP + STRIP + 5, y0 + h / 2 + 4, right, "fx-b");
  out += text(x0 + w / 2, y0 - GAP - STRIP - 5, backward ? "K, V, dK, dV" : "K, V", "fx-b", "middle");
  if (now) {
    const y = now.row * Br * sy, high = Math.max(Math.min(Br, Nq - now.row * Br) * sy, 1.5);
    const x = now.col * Bc * sx, wide = Math.max(Math.min(Bc, Nk - now.col * Bc) * sx, 1.5);
    out += rect(x0 - GAP - STRIP, y0 + y, STRIP, high, "fx-held fx-Q") + rect(x0 + w + GAP, y0 + y, STRIP, high, `fx-held fx-${right}`)
      + rect(x0 + x, y0 - GAP - STRIP, wide, STRIP, "fx-held fx-K") + rect(x0 + x, y0 + y, wide, high, "fx-now",
        say("one tile at work: {queries} queries and {keys} keys", { queries: Math.min(Br, Nq), keys: Math.min(Bc, Nk) }));
  }
  const outer = dense ? "" : algorithm === "v1" || algorithm === "backward" ? say("outer loop: K and V, left to right")
    : say("outer loop: Q, top to bottom");
  const foot = y0 + h + 20;
  out += keyLine(0, foot, [["fx-full", say("{tiles} whole", { tiles: int(count.full) })],
    ["fx-cut", say("{tiles} cut by the mask", { tiles: int(count.cut) })],
    ["fx-skip", say("{tiles} skipped", { tiles: int(count.skipped) })]], width);
  let below = foot + (width < 330 ? 40 : 22);
  if (fine) out += text(0, below, say("{rows} × {columns} tiles, too fine to draw", { rows: int(rows.length), columns: int(Math.ceil(Nk / Bc)) }), "fx-dim");
  if (fine && outer) below += 18;
  out += text(0, below, outer, "fx-dim");
  return svg(width, below + 8, say("Tiles: {full} computed whole, {cut} cut by the mask, {skipped} skipped", { ...count }), out);
}

/** A key: swatches with words; the third goes to a second line where there is no room. */
export function keyLine(x: number, y: number, items: [string, string][], width: number): string {
  let out = "", at = x, line = y;
  for (const [look, words] of items) {
    const wide = 17 + letters(words) * 6.6 + 12;
    if (at > x && at + wide > width + 12) { at = x; line += 19; }
    out += rect(at, line - 10, 12, 12, look) + text(at + 17, line, words, "fx-small");
    at += wide;
  }
  return out;
}
