// The row of logits, its running maximum, and the weights against that maximum: when it rises, they shrink.
import { say } from "../say";
import { at, path, rect, svg, text } from "../svg";
import { isLowest, type Method, type Step } from "./steps";

/** Up to three digits after the point, and a true minus. */
export function num(x: number): string {
  if (isLowest(x) || x === -Infinity) return "−∞";
  const size = Math.abs(x);
  const words = size !== 0 && (size < 0.0005 || size >= 1e5) ? x.toExponential(1) : String(+x.toFixed(3));
  return words.replace(/-/g, "−");
}

export function rowPicture(x: number[], all: Step[], k: number, method: Method, width: number): string {
  const s = all[k], n = x.length, left = 30, w = width - left, cell = w / n, bar = Math.min(cell * 0.6, 46);
  const finite = x.filter(Number.isFinite), top = 34, high = 108;
  const most = Math.max(0, ...finite), least = Math.min(0, ...finite), scale = high / Math.max(most - least, 1e-9);
  const zero = top + most * scale, mid = (j: number) => left + (j + 0.5) * cell, small = cell < 30 ? "fx-tiny" : "fx-small";
  let out = text(0, 13, say("logits {x}, and the maximum so far", { x: `<tspan class="fx-i">x</tspan>` }), "fx-title");
  const read = s.pass > 1 || s.j >= n ? n : s.j + 1;
  if (s.j < n) out += rect(left + s.j * cell + 1, top - 12, cell - 2, high + 24, "fx-column");
  out += path(`M${left} ${at(zero)}H${at(width)}`, "fx-axis");
  let labels = "";
  x.forEach((xj, j) => {
    const value = Number.isFinite(xj) ? xj : 0, y = Math.min(zero, zero - value * scale), h = Math.abs(value) * scale;
    out += rect(mid(j) - bar / 2, y, bar, h, `fx-t ${j < read ? "fx-S" : "fx-empty"}`, `x = ${num(xj)}`);
    labels += text(mid(j), value >= 0 ? y - 4 : y + h + 12, num(xj), `fx-halo ${small}${j === s.j ? " fx-b" : ""}`, "middle");
  });
  if (!isLowest(s.m) && Number.isFinite(s.m)) {
    const y = zero - s.m * scale, end = left + read * cell;
    out += path(`M${left} ${at(y)}H${at(end)}`, "fx-max");
    out += text(left - 4, y + 4, "<tspan class=\"fx-i\">m</tspan>", "fx-b", "end");
    if (s.before !== s.m && !isLowest(s.before) && Number.isFinite(s.before))
      out += path(`M${left} ${at(zero - s.before * scale)}H${at(left + s.j * cell)}`, "fx-max-old");
  }
  out += labels;
  // Weights: those of the sum so far, against the maximum of now; outlines show them before the rescale.
  const base = top + high + 34 + 92, tall = 78;
  const inSum = method === "3" ? (s.pass === 1 ? 0 : s.pass === 2 ? s.j + 1 : n) : s.pass === 1 ? Math.min(s.j + 1, n) : n;
  const divided = s.pass === (method === "3" ? 3 : 2) || s.j === n;
  const power = `e<tspan dy="-4" class="fx-tiny">x − m</tspan>`;
  out += text(0, base - 92, divided ? say("weights, {formula}", { formula: `${power}<tspan dy="4"> / ℓ</tspan>` })
    : say("terms of ℓ, {formula}", { formula: power }), "fx-title");
  out += path(`M${left} ${base}H${at(width)}`, "fx-axis");
  for (let j = 0; j < n; j++) {
    if (j >= inSum) continue;
    const e = Math.exp(x[j] - s.m), done = divided && (j <= s.j), weight = divided && s.l > 0 ? e / s.l : e, h = weight * tall;
    out += rect(mid(j) - bar / 2, base - h, bar, h, `fx-t ${divided && !done ? "fx-empty" : "fx-P"}`, num(weight));
    if (!divided && j < s.j && s.before < s.m) {
      const old = Math.exp(x[j] - s.before) * tall;
      out += rect(mid(j) - bar / 2, base - old, bar, old, "fx-was");
    }
    out += text(mid(j), base + 14, num(weight), small, "middle");
  }
  return svg(width, base + 20, say("Logits {logits}; maximum {m}, sum {sum}",
    { logits: x.map(num).join(", "), m: num(s.m), sum: num(s.l) }), out);
}

/** Where the output stands between the values: the mean so far. */
export function outputPicture(v: number[], all: Step[], k: number, method: Method, width: number): string {
  const s = all[k], last = all[all.length - 1].o ?? 0, low = Math.min(...v, 0), high = Math.max(...v, 0), pad = 16;
  const px = (value: number) => pad + (width - 2 * pad) * (high > low ? (value - low) / (high - low) : 0.5), y = 40;
  let out = text(0, 13, say("output, between the values"), "fx-title") + path(`M${pad} ${y}H${at(width - pad)}`, "fx-axis");
  for (const value of new Set([low, high, ...v])) out += path(`M${at(px(value))} ${y - 5}v10`, "fx-axis") + text(px(value), y + 19, num(value), "fx-small", "middle");
  out += `<circle cx="${at(px(last))}" cy="${y}" r="7" class="fx-goal"><title>${say("the result: {o}", { o: num(last) })}</title></circle>`;
  if (s.o !== null) {
    const running = method === "1" && s.j < v.length && s.l > 0, now = running ? s.o / s.l : s.o;
    out += `<circle cx="${at(px(now))}" cy="${y}" r="5" class="fx-O fx-t"/>` + text(px(now), y - 11, `${running ? "o / ℓ" : "o"} = ${num(now)}`, "fx-b", now > (low + high) / 2 ? "end" : "start");
  }
  return svg(width, y + 24, s.o === null ? say("no output yet") : say("output {o}, at the end {last}", { o: num(s.o), last: num(last) }), out);
}
