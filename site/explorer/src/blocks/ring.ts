// Several GPUs in a ring: who works and who waits, whose keys each one sees, what is sent, kept, and how long it takes.
import links from "../data/links.json";
import { human, humanBytes, humanTime, int } from "../format";
import { blockOf, byTensor, efficiency, hidesFrom, hopBytes, LAYOUTS, METHODS, oneGpuSeconds, ringSeconds, ringSteps, roomBytes,
  sentBytes, tokensOf, workOf, type Layout, type Method, type RingRates, type Sharing, type Step } from "../models/ring";
import type { Moved } from "../models/traffic";
import { join, say } from "../say";
import { at, box, hatches, path, rect, svg, text } from "../svg";
import { expected } from "../ui";
import { sheetOf, type State } from "./answer";
import { barsPicture } from "./picture";
import { keyLine } from "./tiles";

export const LINKS = links as Record<string, number>;
export const HEADS = 32;
const nameOf = (layout: Layout) => layout === "contiguous" ? say("contiguous") : layout === "zigzag" ? say("zigzag") : say("stripe");
const methodName = (method: Method) => method === "ring" ? say("ring") : method === "gather" ? say("gather all keys first") : say("exchange heads for tokens");

interface Run { steps: Step[]; seconds: number; share: number; idle: number }
export interface RingAnswer {
  state: State;
  s: Sharing;
  rates: RingRates;
  runs: Record<Layout, Run>;
  rival: Layout;            // what the layout is held against
  one: number;              // seconds on one GPU
  hides: number;            // tokens of a GPU from which a step hides its link
  sent: Record<Method, number>;
  room: Record<Method, number>;
  methods: Method[];        // those that these numbers of heads and GPUs allow
}

export function ringAnswer(state: State): RingAnswer {
  const { P, N, d, causal, layout, backward, group } = state, sheet = sheetOf(state);
  const linkBytesPerS = LINKS[expected("link", state.link, Object.keys(LINKS))], rates = { ...sheet.ring, linkBytesPerS, hidden: state.hidden };
  const s: Sharing = { P, N, H: HEADS, Hk: HEADS / group, d, causal, layout: expected("layout", layout, LAYOUTS), backward, elementBytes: 2 };
  if (N % (2 * P)) throw new Error(`N: expected a multiple of 2·P = ${2 * P}, got ${N}`);
  const runs = Object.fromEntries(LAYOUTS.map(name => {
    const mine = { ...s, layout: name }, { steps, seconds } = ringSteps(mine, rates);
    const works = steps.flatMap(step => step.work).reduce((a, b) => a + b, 0);
    return [name, { steps, seconds, share: efficiency(mine, rates), idle: 1 - works / (P * seconds) }];
  })) as Record<Layout, Run>;
  const all = (f: (s: Sharing, m: Method) => number) => Object.fromEntries(METHODS.map(m => [m, f(s, m)])) as Record<Method, number>;
  return { state, s, rates, runs, rival: layout === "contiguous" ? "zigzag" : "contiguous", one: oneGpuSeconds(s, rates),
    hides: hidesFrom(rates.flopsPerS, linkBytesPerS, s.H, s.Hk, { zigzag: causal && layout !== "contiguous", backward }),
    sent: all(sentBytes), room: all(roomBytes), methods: METHODS.filter(m => m !== "ulysses" || s.Hk % P === 0) };
}

const percent = (share: number) => int(100 * share);

export function ringHeadline({ s, runs, rival }: RingAnswer): string {
  const mine = runs[s.layout], fields = { gpus: s.P, layout: nameOf(s.layout), time: humanTime(mine.seconds), share: percent(mine.share) };
  const took = mine.share < 0.8
    ? say("{gpus} GPUs, {layout}: <b>{time}</b> a layer, <b class=\"fx-bad\">{share} %</b> of what they could do.", fields)
    : say("{gpus} GPUs, {layout}: <b>{time}</b> a layer, <b>{share} %</b> of what they could do.", fields);
  return join(took, say("They wait for <b>{idle} %</b> of their time; {layout}, for {other} %.",
    { idle: percent(mine.idle), layout: nameOf(rival), other: percent(runs[rival].idle) }));
}

export function ringReason({ s, one, hides }: RingAnswer): string {
  const why = !s.causal ? say("Without a mask all blocks are whole, and no layout matters.")
    : s.layout === "contiguous" ? say("The first GPU sees its own keys alone, the last one all: after the first step somebody always works on a whole block, and whoever sees none waits.")
    : s.layout === "zigzag" ? say("Each GPU has a chunk from either end of the sequence: after the first step every block is half, and all have the same work.")
    : say("Tokens are dealt out like cards: all blocks are triangles of nearly one size.");
  return join(why, say("A step hides its link from {hides} tokens a GPU on; here it has {tokens}. One GPU takes {one}.",
    { hides: int(hides), tokens: int(tokensOf(s)), one: humanTime(one) }));
}

/** Two layouts over the same time: a lane for each GPU, one for the links. */
export function lanesPicture({ s, runs, rival }: RingAnswer, width: number, id: string): string {
  const left = 62, high = s.P > 8 ? 9 : 13, gap = 3, w = width - left - 1, most = Math.max(runs[s.layout].seconds, runs[rival].seconds), scale = w / most;
  let y = 18, out = hatches(id) + text(0, 13, say("Who works and who waits"), "fx-title");
  for (const layout of [s.layout, rival]) {
    const { steps, seconds, idle } = runs[layout], look = layout === s.layout ? "fx-b" : "fx-dim", end = seconds * scale;
    let work = "", waits = "", sends = "", edges = "";
    out += text(0, y + 17, nameOf(layout), look) + text(width, y + 17, say("{time}, {idle} % idle", { time: humanTime(seconds), idle: percent(idle) }), look, "end");
    y += 25;
    const all = s.P * (high + gap), lane = (k: number) => y + k * (high + gap);
    for (let rank = 0; rank < s.P; rank++) {
      waits += box(left, lane(rank), end, high);
      for (const step of steps) if (step.work[rank]) work += box(left + step.start * scale, lane(rank), step.work[rank] * scale, high);
      if (rank === 0 || rank === s.P - 1 || s.P <= 8) out += text(left - 6, lane(rank) + high - 1.5, say("GPU {rank}", { rank }), "fx-small fx-dim", "end");
    }
    for (const step of steps) {
      if (step.link) sends += box(left + step.linkAt * scale, lane(s.P), step.link * scale, high);
      edges += `M${at(left + step.start * scale)} ${at(y)}v${at(all - gap)}`;
    }
    out += text(left - 6, lane(s.P) + high - 1.5, say("links"), "fx-small fx-dim", "end") + path(waits, "fx-skip") + `<path d="${waits}" fill="url(#${id}-s)"/>`
      + path(work, "fx-full") + path(edges, "fx-rule") + path(sends, "fx-t fx-K");
    y += all + high + 8;
  }
  out += keyLine(0, y + 12, [["fx-full", say("attention")], ["fx-skip", say("nothing to do")], ["fx-t fx-K", say("keys and values on their way")]], width);
  return svg(width, y + (width < 420 ? 40 : 22), [s.layout, rival].map(layout => say("{layout}: {time}, {idle} % idle",
    { layout: nameOf(layout), time: humanTime(runs[layout].seconds), idle: percent(runs[layout].idle) })).reduce((bars, bar) => say("{bars}; {bar}", { bars, bar })), out);
}

/** Which pairs of a query and a key each GPU computes of the shards of all: triangles, halves, wholes, nothing. */
export function shardsPicture({ s }: RingAnswer, width: number, id: string): string {
  const left = 62, top = 62, side = Math.min(width - left - 8, 300), cell = side / s.P, n = tokensOf(s);
  const count = { full: 0, part: 0, none: 0 };
  let whole = "", part = "", lines = "", out = hatches(id) + text(0, 13, say("Whose keys each GPU sees"), "fx-title");
  for (let rank = 0; rank < s.P; rank++) for (let source = 0; source < s.P; source++) {
    const found = blockOf(s.layout, rank, source, n, s.causal), x = left + source * cell, y = top + rank * cell;
    if (!found) { count.none++; continue; }
    const [y0, y1] = found.rows.map(r => y + r / n * cell), [x0, x1] = found.keys.map(k => x + k / n * cell);
    if (found.masked) { part += `M${at(x0)} ${at(y0)}V${at(y1)}H${at(x1)}z`; count.part++; }
    else if (x1 - x0 + y1 - y0 < 2 * cell - 0.01) { part += box(x0, y0, x1 - x0, y1 - y0); count.part++; }
    else { whole += box(x0, y0, cell, cell); count.full++; }
  }
  for (let k = 0; k <= s.P; k++) lines += `M${at(left + k * cell)} ${top}v${at(side)}M${left} ${at(top + k * cell)}h${at(side)}`;
  out += rect(left, top, side, side, "fx-skip") + `<path d="${box(left, top, side, side)}" fill="url(#${id}-s)"/>`
    + path(whole, "fx-full") + path(part, "fx-cut") + path(lines, "fx-edge");
  for (let k = 0; k < s.P; k++) if (s.P <= 8 || k === 0 || k === s.P - 1) {
    out += text(left - 6, top + (k + 0.5) * cell + 4, say("GPU {rank}", { rank: k }), "fx-small fx-dim", "end") + text(left + (k + 0.5) * cell, top - 5, String(k), "fx-small fx-dim", "middle");
  }
  out += text(left + side / 2, top - 21, say("K, V of GPU"), "fx-b", "middle");
  const foot = top + side + 18;
  out += keyLine(0, foot, [["fx-full", say("{blocks} whole", { blocks: count.full })], ["fx-cut", say("{blocks} in part", { blocks: count.part })],
    ["fx-skip", say("{blocks} unseen", { blocks: count.none })]], width);
  return svg(width, foot + 12, say("Blocks: {full} whole, {part} in part, {none} unseen", count), out);
}

const asMoved = (bytes: Record<string, number>) => Object.fromEntries(Object.entries(bytes).map(([name, n]) => [name, [n, 0] as Moved]));
/** What each GPU sends, or has room for beyond its shards, by method. */
export function methodsPicture(a: RingAnswer, what: "sent" | "room", width: number, id: string): string {
  const head = what === "sent" ? say("Bytes that each GPU sends") : say("Room beyond its own shards");
  return barsPicture(head, a.methods.map(method => ({ name: methodName(method), moved: asMoved(byTensor(a.s, method)[what]), sum: a[what][method],
    look: method === "ring" ? "fx-b" : "fx-dim" })), width, id, false);
}

/** Seconds of the three layouts and the two other methods. */
export function ringTimes(a: RingAnswer): [name: string, seconds: number, share: number, mine: boolean][] {
  const { s, rates, runs, one } = a;
  return [...LAYOUTS.map(layout => [nameOf(layout), runs[layout].seconds, runs[layout].share, layout === s.layout] as [string, number, number, boolean]),
    ...a.methods.slice(1).map(method => {
      const seconds = ringSeconds(s, rates, method);
      return [method === "gather" ? say("gather") : say("exchange"), seconds, one / (s.P * seconds), false] as [string, number, number, boolean];
    })];
}

export function layoutsPicture(a: RingAnswer, width: number): string {
  const rows = ringTimes(a), left = 92, y0 = 26, high = 22, scale = (width - left - 112) / Math.max(...rows.map(row => row[1]));
  let out = text(0, 13, say("Time of one layer on {gpus} × {gpu}", { gpus: a.s.P, gpu: a.state.gpu }), "fx-title");
  rows.forEach(([name, seconds, share, mine], k) => {
    const y = y0 + k * high, look = mine ? "fx-b" : "fx-dim";
    out += text(left - 8, y + 11, name, look, "end") + rect(left, y, seconds * scale, 14, mine ? "fx-long" : "fx-short")
      + text(left + seconds * scale + 6, y + 11.5, `${humanTime(seconds)}, ${percent(share)} %`, look);
  });
  return svg(width, y0 + rows.length * high, rows.map(([name, seconds]) => say("{name}: {time}", { name, time: humanTime(seconds) }))
    .reduce((bars, bar) => say("{bars}; {bar}", { bars, bar })), out);
}

export function ringTable(a: RingAnswer): string {
  const row = (name: string, cells: string[]) => `<tr><th scope="row">${name}</th>${cells.map(cell => `<td>${cell}</td>`).join("")}</tr>`;
  const ranks = Array.from({ length: a.s.P }, (_, rank) => rank);
  const flops = ranks.map(rank => ranks.reduce((sum, source) => sum + workOf(a.s, rank, source), 0));
  const head = (names: string[]) => `<thead><tr>${names.map(name => `<th scope="col">${name}</th>`).join("")}</tr></thead>`;
  return `<table>${head([say("method"), say("bytes sent"), say("bytes of room")])}<tbody>`
    + a.methods.map(m => row(methodName(m), [`<span data-number="sent-${m}">${int(a.sent[m])}</span>`, `<span data-number="room-${m}">${int(a.room[m])}</span>`])).join("")
    + `</tbody></table><table>${head([say("layout or method"), say("time"), say("of what they could do")])}<tbody>`
    + ringTimes(a).map(([name, seconds, share]) => row(name, [humanTime(seconds), `${percent(share)} %`])).join("") + "</tbody></table>"
    + `<p>${say("K and V of one GPU are {bytes}; the GPUs compute {least} to {most} each.", { bytes: humanBytes(hopBytes(a.s)),
      least: human(Math.min(...flops), "FLOP"), most: human(Math.max(...flops), "FLOP") })}</p>`;
}
