// Bytes by tensor, SRAM, roofline and time of one answer.
import { humanBytes, humanRoom, humanTime, int, ratio } from "../format";
import { bytesOf, flopsOf, type Cost, type Moved } from "../models/traffic";
import { say } from "../say";
import { at, hatches, hue, letters, named, path, rect, svg, text, wayOf } from "../svg";
import type { Answer } from "./answer";
import { compared, other, partOf, short } from "./words";

/** A bar of bytes: its names, what moved or lies there by tensor, and its sum for the reader. */
export interface Bar { name: string; narrow?: string; moved: Record<string, Moved>; sum: number; note?: string; look: string }

/** Bars under their names and sums, tensors side by side, written parts hatched. */
export function barsPicture(head: string, bars: Bar[], width: number, id: string, ways = true): string {
  const most = Math.max(...bars.map(bar => bar.sum), 1), scale = width / most;
  let y = 36, out = hatches(id) + text(0, 13, head, "fx-title");
  if (ways) out += rect(width - 118, 4, 12, 12, "fx-plain") + text(width - 102, 14, say("read"), "fx-small")
    + rect(width - 68, 4, 12, 12, "fx-plain") + `<rect x="${at(width - 68)}" y="4" width="12" height="12" fill="url(#${id}-w)"/>`
    + text(width - 52, 14, say("written"), "fx-small");
  for (const { name, narrow, moved, sum, note, look } of bars) {
    let x = 0;
    out += text(0, y, width < 420 ? narrow ?? name : name, look)
      + text(width, y, `<tspan class="fx-b">${humanBytes(sum)}</tspan>${note ?? ""}`, look, "end");
    for (const [tensor, both] of Object.entries(moved)) for (const way of [0, 1]) {
      const wide = both[way] * scale, bytes = humanBytes(both[way]);
      if (!wide) continue;
      out += rect(x, y + 6, wide, 20, `fx-t ${hue(tensor)}`, ways ? wayOf(way, tensor, bytes) : say("{name}: {bytes}", { name: named(tensor), bytes }));
      if (way) out += `<rect x="${at(x)}" y="${y + 6}" width="${at(wide)}" height="20" fill="url(#${id}-w)" pointer-events="none"/>`;
      if (wide > 9 * letters(named(tensor)) + 8) out += text(x + wide / 2, y + 20.5, named(tensor), `fx-in fx-on-${tensor}`, "middle");
      x += wide;
    }
    y += 48;
  }
  return svg(width, y - 20, bars.map(({ name, sum }) => say("{name}: {bytes}", { name, bytes: humanBytes(sum) }))
    .reduce((bars, bar) => say("{bars}; {bar}", { bars, bar })), out);
}

export function bytesPicture(a: Answer, width: number, id: string): string {
  const base = bytesOf(a.ideal), rows = compared(a), head = a.decode ? say("HBM bytes of one layer") : say("HBM bytes of one head");
  return barsPicture(head, rows.map(([name, cost, narrow], k) => ({ name, narrow, moved: cost.byTensor, sum: bytesOf(cost),
    note: k ? ` · ${ratio(bytesOf(cost) / Math.max(base, 1))} ×` : "", look: k === rows.length - 1 ? "fx-label" : "fx-dim" })), width, id);
}

export function sramPicture(a: Answer, width: number): string {
  const { cost, gpu, room } = a, most = Math.max(gpu.sramBytes, cost.sramPeakBytes), scale = width / most, y = 24;
  let x = 0, out = text(0, 13, say("SRAM of one block on {gpu}", { gpu: gpu.name }), "fx-title") + rect(0, y, gpu.sramBytes * scale, 30, "fx-sram");
  for (const [tensor, bytes] of cost.held) {
    const wide = bytes * scale;
    out += rect(x, y, wide, 30, `fx-t ${hue(tensor)}`, `${named(tensor)}: ${humanRoom(bytes)}`);
    if (wide > 9 * letters(named(tensor)) + 6) out += text(x + wide / 2, y + 19.5, named(tensor), `fx-in fx-on-${tensor}`, "middle");
    x += wide;
  }
  const limit = gpu.sramBytes * scale;
  out += path(`M${at(Math.min(limit, width - 1))} ${y - 5}v40`, "fx-limit");
  const used = humanRoom(cost.sramPeakBytes), all = humanRoom(gpu.sramBytes);
  const words = room < 0 ? say("{used} of {all}: {more} too large", { used, all, more: humanRoom(-room) })
    : say("{used} of {all}: {rest} left", { used, all, rest: humanRoom(room) });
  out += text(0, y + 49, words, room < 0 ? "fx-bad fx-b" : "fx-label");
  return svg(width, y + 56, say("SRAM: {words}", { words }), out);
}

export function timePicture(a: Answer, width: number): string {
  const y0 = 30, left = 94, high = 22;
  const gpu = a.gpu.name, head = a.decode ? say("Time of one layer on {gpu}", { gpu }) : say("Time of one head on {gpu}", { gpu });
  let out = text(0, 13, head, "fx-title");
  if (!a.time) {
    out += text(0, y0 + 8, say("{gpu}’s tensor cores know no FP8.", { gpu: a.gpu.name }), "fx-bad");
    return svg(width, y0 + 20, say("no time: {gpu} knows no FP8", { gpu: a.gpu.name }), out);
  }
  const rows: [string, number, boolean][] = [[say("memory"), a.time.parts.memory, false], [say("matmul"), a.time.parts.matmul, false],
    [say("exponentials"), a.time.parts.exp, false], [say("other math"), a.time.parts.vector, false]];
  if (a.decode) rows.push([say("with idle SMs"), a.decode.seconds, true]);
  else if (a.idealTime) rows.push([say("standard"), a.idealTime.timeS, true]);
  const most = Math.max(...rows.map(r => r[1]), 1e-12), scale = (width - left - 62) / most;
  rows.forEach(([name, seconds, other], k) => {
    const y = y0 + k * high, longest = !other && seconds === a.time!.timeS, look = longest ? "fx-b" : "fx-dim";
    out += text(left - 8, y + 11, name, look, "end") + rect(left, y, Math.max(seconds * scale, 1), 14, other ? "fx-plain" : longest ? "fx-long" : "fx-short");
    out += text(left + seconds * scale + 6, y + 11.5, humanTime(seconds), look);
  });
  return svg(width, y0 + rows.length * high, say("Time: {time}, {bound}", { time: humanTime(a.time.timeS), bound: partOf(a.time) }), out);
}

// Fixed axes, so that a dot moves and not the paper: from 1/4 to 16,384 FLOP per byte, 10¹¹ to 10¹⁶ FLOP/s.
const X = [-2, 14], Y = [11, 16];
export function rooflinePicture(a: Answer, width: number): string {
  const left = 46, top = 26, w = width - left - 8, h = Math.min(200, Math.max(150, w * 0.5)), bottom = top + h;
  const px = (x: number) => left + w * Math.min(Math.max((Math.log2(x) - X[0]) / (X[1] - X[0]), 0), 1);
  const py = (y: number) => bottom - h * Math.min(Math.max((Math.log10(y) - Y[0]) / (Y[1] - Y[0]), 0), 1);
  let out = text(0, 13, say("Roofline of {gpu}", { gpu: a.gpu.name }), "fx-title"), lines = "";
  for (let e = Y[0]; e <= Y[1]; e++) {
    lines += `M${left} ${at(py(10 ** e))}h${at(w)}`;
    out += text(left - 6, py(10 ** e) + 4, `10<tspan dy="-4" class="fx-tiny">${e}</tspan>`, "fx-small", "end");
  }
  const marks: [number, string][] = width < 300 ? [[1, "1"], [64, "64"], [4096, "4,096"]]
    : [[1, "1"], [8, "8"], [64, "64"], [512, "512"], [4096, "4,096"]];
  for (const [x, words] of marks) {
    lines += `M${at(px(x))} ${top}v${h}`;
    out += text(px(x), bottom + 15, words, "fx-small", "middle");
  }
  out += path(lines, "fx-grid") + text(left + w, bottom + 31, say("FLOP per byte of HBM"), "fx-small fx-dim", "end") + text(0, bottom + 31, "FLOP/s", "fx-small fx-dim");
  const peak = a.ridge * a.gpu.bytesPerS;
  if (a.time) {
    const x0 = 2 ** X[0];
    out += path(`M${at(px(x0))} ${at(py(x0 * a.gpu.bytesPerS))}L${at(px(a.ridge))} ${at(py(peak))}L${at(left + w)} ${at(py(peak))}`, "fx-roof");
    out += text(left + w - 4, py(peak) - 7, say("{rate} TFLOP/s in matmul", { rate: int(peak / 1e12) }), "fx-small", "end");
  }
  const dots: [string, Cost, number | undefined, string][] = [[other(a.state), a.ideal, a.idealTime?.timeS, "fx-dot-other"],
    [short(a.state), a.cost, a.time?.timeS, "fx-dot"]];
  const places = dots.filter(([, cost, s]) => s && bytesOf(cost)).map(([name, cost, s, look]) =>
    ({ name, look, x: px(flopsOf(cost) / bytesOf(cost)), y: py(flopsOf(cost) / s!) }));
  if (places.length === 2 && Math.hypot(places[0].x - places[1].x, places[0].y - places[1].y) > 14)
    out += path(`M${at(places[0].x)} ${at(places[0].y)}L${at(places[1].x)} ${at(places[1].y)}`, "fx-way");
  const beside = places.length === 2 && Math.abs(places[0].x - places[1].x) < 60 && Math.abs(places[0].y - places[1].y) < 12;
  for (const [k, p] of places.entries()) {
    // The other one's name stands above the rising roof, this one's below it, and so does the other's where it has no room.
    const other = k === 0, onLeft = other ? p.x - 8 - 6.6 * letters(p.name) > left - 10 : p.x > left + w - 62;
    out += `<circle cx="${at(p.x)}" cy="${at(p.y)}" r="5" class="${p.look}"/>`
      + text(p.x + (onLeft ? -7 : 8), p.y + (!other ? 18 : onLeft ? -7 : beside ? 34 : 18), p.name, other ? "fx-small fx-dim fx-halo" : "fx-small fx-b fx-halo", onLeft ? "end" : "start");
  }
  return svg(width, bottom + 36, Number.isNaN(a.ridge)
    ? say("Roofline: the ridge of {gpu} is at no FLOP per byte", { gpu: a.gpu.name })
    : say("Roofline: the ridge of {gpu} is at {ridge} FLOP per byte", { gpu: a.gpu.name, ridge: int(a.ridge) }), out);
}
