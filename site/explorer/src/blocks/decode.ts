// Decoding: who works on the SMs, how time falls with the number of parts, and the sentences for it.
import { humanBytes, humanTime, int } from "../format";
import { join, say } from "../say";
import { at, box, hatches, path, svg, text } from "../svg";
import type { Answer, Decode } from "./answer";
import { keyLine } from "./tiles";

export function decodeHeadline(a: Answer, { waves, seconds, best, bestSeconds, floor, parts }: Decode): string {
  const { sms, idle } = waves, programs = int(waves.programs), gpu = a.gpu.name, time = humanTime(seconds), busy = sms - idle;
  const work = waves.waves === 1 ? say("{programs} programs on {gpu}: <b>{busy} of {sms} SMs</b> work.", { programs, gpu, busy, sms })
    : say("{programs} programs on {gpu}: <b>{busy} of {sms} SMs</b> have {most}, {idle} have {less}.",
      { programs, gpu, busy, sms, most: int(waves.waves), idle, less: int(waves.waves - 1) });
  const late = seconds > 1.25 * bestSeconds ? say("Predicted: <b class=\"fx-bad\">{time}</b>.", { time }) : say("Predicted: <b>{time}</b>.", { time });
  const better = best === parts ? say("No other number of parts is faster; to read the keys alone takes {floor}.", { floor: humanTime(floor) })
    : best === 1 ? say("Best is one part, with {best}; to read the keys alone takes {floor}.", { best: humanTime(bestSeconds), floor: humanTime(floor) })
    : say("Best are {parts} parts, with {best}; to read the keys alone takes {floor}.", { parts: best, best: humanTime(bestSeconds), floor: humanTime(floor) });
  return join(join(work, late), better);
}

export function decodeReason(a: Answer, { parts, keys, cacheBytes, partBytes, emptyBytes }: Decode): string {
  const cut = parts === 1 ? say("A head of keys has one program, and one SM cannot read as fast as the memory delivers.")
    : say("Each program reads {keys} keys. What the parts leave, O, m and ℓ, costs {bytes} more, and a merge.", { keys: int(Math.min(keys, a.state.cache)), bytes: humanBytes(partBytes) });
  const flops = int(a.cost.matmulFlops / cacheBytes);
  const shared = say("{bytes} of K and V serve {group} query heads a key head: {flops} FLOP a byte. Pages of {page} keys leave at most {empty} empty.",
    { bytes: humanBytes(cacheBytes), group: a.state.group, flops, page: a.state.page, empty: humanBytes(emptyBytes) });
  return join(cut, shared);
}

/** The SMs as squares: those with most programs, with one fewer, with none. */
export function smsPicture(a: Answer, { waves }: Decode, width: number, id: string): string {
  const { sms, programs, idle } = waves, columns = 18, pitch = Math.min(Math.floor(width / columns), 19), size = pitch - 3, top = 26;
  const rows = Math.ceil(sms / columns), busy = sms - idle, less = waves.waves - 1;
  let most = "", rest = "";
  for (let k = 0; k < sms; k++) {
    const square = box(k % columns * pitch + 0.5, top + Math.floor(k / columns) * pitch + 0.5, size, size);
    if (k < busy) most += square; else rest += square;
  }
  let out = hatches(id) + text(0, 13, say("Programs on the {sms} SMs of {gpu}", { sms, gpu: a.gpu.name }), "fx-title");
  out += path(most, "fx-full") + path(rest, less ? "fx-cut" : "fx-skip");
  if (!less) out += `<path d="${rest}" fill="url(#${id}-s)"/>`;
  const foot = top + rows * pitch + 16, below = foot + (width < 330 ? 41 : 22), items: [string, string][] = [["fx-full", waves.waves === 1
    ? say("{sms} SMs with one program", { sms: busy }) : say("{sms} SMs with {programs} programs", { sms: busy, programs: int(waves.waves) })]];
  if (idle) items.push(less ? ["fx-cut", less === 1 ? say("{sms} SMs with one program", { sms: idle })
    : say("{sms} SMs with {programs} programs", { sms: idle, programs: int(less) })] : ["fx-skip", say("{sms} SMs without", { sms: idle })]);
  out += keyLine(0, foot, items, width) + text(0, below, say("{tiles} tiles of 64 keys, each visited once", { tiles: int(a.grid.visits * a.state.B * a.state.Hk) }), "fx-dim");
  return svg(width, below + 8, say("{programs} programs on {sms} SMs: {busy} have {most}, {idle} have {less}",
    { programs: int(programs), sms, busy, most: int(waves.waves), idle, less: int(less) }), out);
}

/** Predicted time over the number of parts. */
export function partsPicture({ parts, seconds, times, best, bestSeconds, floor }: Decode, width: number): string {
  const left = 66, top = 30, w = width - left - 12, h = 170, bottom = top + h, most = Math.max(seconds, ...times.map(one => one[1]));
  const px = (n: number) => left + w * Math.log2(n) / 8, py = (s: number) => bottom - h * s / most;
  let grid = "", out = text(0, 13, say("Time over the number of parts"), "fx-title");
  for (let e = 0; e <= 8; e += width < 420 ? 2 : 1) {
    grid += `M${at(px(2 ** e))} ${top}v${h}`;
    out += text(px(2 ** e), bottom + 15, int(2 ** e), "fx-small", "middle");
  }
  for (const share of [0, 0.5, 1]) {
    grid += `M${left} ${at(py(share * most))}h${at(w)}`;
    out += text(left - 11, py(share * most) + 4, share ? humanTime(share * most) : "0", "fx-small", "end");
  }
  out += path(grid, "fx-grid") + path(`M${left} ${at(py(floor))}h${at(w)}M${left} ${bottom + 32}h22`, "fx-limit")
    + text(left + 28, bottom + 36, say("to read the keys alone: {time}", { time: humanTime(floor) }), "fx-small fx-dim");
  out += path("M" + times.map(([n, s]) => `${at(px(n))} ${at(py(s))}`).join("L"), "fx-curve");
  const dot = (n: number, s: number, look: string) => `<circle cx="${at(px(n))}" cy="${at(py(s))}" r="5" class="${look}"/>`;
  const close = Math.abs(px(best) - px(parts)) < 90 && Math.abs(py(bestSeconds) - py(seconds)) < 18;
  const label = (n: number, s: number, words: string, look: string, up = 0) => {
    const onLeft = px(n) > left + w * 0.72;
    return text(px(n) + (onLeft ? -4 : 9), py(s) + (py(s) < top + 20 ? 5 : -10 - up), words, look, onLeft ? "end" : "start");
  };
  if (best !== parts) out += dot(best, bestSeconds, "fx-dot-other") + label(best, bestSeconds, say("best: {time}", { time: humanTime(bestSeconds) }), "fx-small fx-halo");
  out += dot(parts, seconds, "fx-dot") + label(parts, seconds, humanTime(seconds), "fx-small fx-b fx-halo", best !== parts && close ? 16 : 0);
  return svg(width, bottom + 42, say("Time over parts: {time} now, {best} with {parts}, the best", { time: humanTime(seconds), best: humanTime(bestSeconds), parts: best }), out);
}
