// What the numbers say, in sentences; and the numbers themselves, to the byte.
import { humanBytes, humanRoom, humanTime, int, ratio } from "../format";
import { bytesOf } from "../models/traffic";
import { named } from "../svg";
import type { Answer, State } from "./answer";

const TITLES = { standard: "standard attention", v1: "FlashAttention v1", v2: "FlashAttention v2", v3: "FlashAttention v3",
  v4: "FlashAttention v4", backward: "FlashAttention’s backward", backward_q: "FlashAttention’s backward" };
export const short = (s: State) => (s.algorithm.startsWith("backward") ? "backward" : s.algorithm === "standard" ? "in tiles" : s.algorithm);
export const title = (s: State) => TITLES[s.algorithm] + (s.precision === "fp8" ? " in FP8" : "");
const BOUND = { memory: "bound by memory", matmul: "bound by matmul", exp: "bound by exponentials", vector: "bound by other math",
  nothing: "with nothing to do" };

/** The headline, as HTML: bytes, SRAM, time. */
export function headline(a: Answer): string {
  const share = bytesOf(a.cost) / Math.max(bytesOf(a.ideal), 1), tiled = a.state.algorithm === "standard";
  const bytes = `${tiled ? "Standard attention in these tiles" : title(a.state)} moves <b>${humanBytes(bytesOf(a.cost))}</b> a head, `
    + `<b>${ratio(share)} ×</b> ${tiled ? "its ideal, which moves every matrix once" : a.state.algorithm.startsWith("backward") ? "what the standard backward moves" : "what standard attention moves"}.`;
  const room = a.room < 0 ? ` Its tiles <b class="fx-bad">do not fit</b>: ${humanRoom(a.cost.sramPeakBytes)} of ${humanRoom(a.gpu.sramBytes)}.`
    : ` Its tiles fit: ${humanRoom(a.cost.sramPeakBytes)} of ${humanRoom(a.gpu.sramBytes)}.`;
  const time = a.time ? ` The roofline predicts <b>${humanTime(a.time.timeS)}</b>, ${BOUND[a.time.bound]}.` : ` ${a.gpu.name} has no FP8.`;
  return bytes + room + time;
}

/** What makes the bytes what they are: the one idea of this algorithm, with this state's numbers. */
export function reason(a: Answer): string {
  const s = a.state, Tr = Math.ceil(s.Nq / s.Br), Tc = Math.ceil(s.Nk / s.Bc);
  const matrices = ["S", "P", "dP", "dS"].filter(n => n in a.ideal.byTensor);
  const square = matrices.reduce((sum, n) => sum + a.ideal.byTensor[n][0] + a.ideal.byTensor[n][1], 0);
  const share = Math.round(100 * square / Math.max(bytesOf(a.ideal), 1));
  const which = matrices.length > 2 ? "P, dP and dS" : "S and P";
  switch (s.algorithm) {
    case "standard": return `${share} % of the ideal’s bytes are ${which}, ${int(s.Nq)} × ${int(s.Nk)} each: written, and read again. A mask saves nothing.`;
    case "v1": return `The outer loop walks over K and V, so O, m and ℓ come and go with every tile: up to ${int(Tc)} times. S and P never leave SRAM. Taller tiles of K mean fewer trips.`;
    case "backward": return `P is computed again instead of being kept. dQ is the tensor that travels: every visited tile adds to it, up to ${int(Tc)} times.`;
    case "backward_q": return "A second pass with Q outside needs no updates of dQ in HBM, and computes the weights twice.";
    case "v3": return s.precision === "fp8" ? "Eight-bit elements halve the bytes of Q, K and V; O stays in 16 bits, and every tile brings a scale."
      : "In 16 bits v3 moves what v2 moves: it overlaps better, which no byte count shows.";
    case "v4": return `The bytes are those of v2. ${s.share ? `${Math.round(100 * s.share)} % of the exponentials run as polynomials of degree 3 beside the others.` : "Move exponentials to software and watch their bar."}`;
    default: return Tr <= 1 ? `All ${int(s.Nq)} queries are in one tile: K and V are read once, and no block size saves a byte.${s.Nq === 1 ? " This is decoding: hardly a FLOP for each byte." : ""}`
      : `${share} % of standard attention’s bytes are ${which}, which v2 never moves. Each of ${int(Tr)} tiles of Q reads the K and V that it sees anew: a taller B<sub>r</sub> means fewer trips.`;
  }
}

export function table(a: Answer): string {
  const rows = Object.entries(a.cost.byTensor).map(([name, [read, write]]) =>
    `<tr><th scope="row">${named(name)}</th><td>${int(read)}</td><td>${int(write)}</td></tr>`).join("");
  const line = (name: string, key: string, n: number, unit: string) =>
    `<tr><th scope="row">${name}</th><td colspan="2" data-number="${key}">${int(n)} ${unit}</td></tr>`;
  return `<table><thead><tr><th scope="col">tensor</th><th scope="col">bytes read</th><th scope="col">bytes written</th></tr></thead><tbody>${rows}`
    + `<tr><th scope="row">all</th><td data-number="read">${int(a.cost.readBytes)}</td><td data-number="written">${int(a.cost.writeBytes)}</td></tr>`
    + line("matmul", "matmul", a.cost.matmulFlops, "FLOP") + line("other math", "vector", a.cost.vectorFlops, "FLOP")
    + line("exponentials", "exps", a.cost.exps, "") + line("peak SRAM", "sram", a.cost.sramPeakBytes, "B")
    + line("standard attention moves", "ideal", bytesOf(a.ideal), "B") + "</tbody></table>";
}
export const plainText = (html: string) => html.replace(/<[^>]*>/g, "");
