// What the numbers say, in sentences; and the numbers themselves, to the byte.
import { humanBytes, humanRoom, humanTime, int, ratio } from "../format";
import type { Time } from "../models/roofline";
import { bytesOf, type Cost } from "../models/traffic";
import { join, say } from "../say";
import { named } from "../svg";
import type { Answer, State } from "./answer";
import { decodeHeadline, decodeReason } from "./decode";

const NAMES = { v1: "FlashAttention v1", v2: "FlashAttention v2", v3: "FlashAttention v3", v4: "FlashAttention v4" };
const backward = (s: State) => s.algorithm === "backward" || s.algorithm === "backward_q";
export const short = (s: State) => backward(s) ? say("backward") : s.algorithm === "standard" ? say("in tiles")
  : s.algorithm === "decode" ? say("in groups") : s.algorithm;
/** What an algorithm is held against, in a word. */
export const other = (s: State) => s.algorithm === "decode" ? say("alone") : say("standard");
function title(s: State): string {
  if (s.algorithm === "standard") return say("standard attention");
  if (s.algorithm === "backward" || s.algorithm === "backward_q") return say("FlashAttention’s backward");
  const name = NAMES[s.algorithm as keyof typeof NAMES];
  return s.precision === "fp8" ? say("{name} in FP8", { name }) : name;
}

const inParts = (parts: number) => parts === 1 ? say("a group of heads together, in one part")
  : say("a group of heads together, in {parts} parts", { parts: int(parts) });

/** The bars of the bytes: what is compared, and the algorithm itself last; [name, cost, name where it is narrow]. */
export function compared(a: Answer): [string, Cost, string][] {
  const s = a.state, Br = int(s.Br), Bc = int(s.Bc);
  if (a.decode) {
    const { parts } = a.decode, short = parts === 1 ? say("a group, one part") : say("a group, {parts} parts", { parts: int(parts) });
    return [[say("every query head reads its keys alone"), a.ideal, say("every head alone")],
      ...(parts > 1 ? [[inParts(1), a.same, say("a group, one part")] as [string, Cost, string]] : []), [inParts(parts), a.cost, short]];
  }
  if (backward(s)) {
    const orders = [say("backward, K/V outside"), say("backward, Q outside")], [mine, theirs] = s.algorithm === "backward" ? orders : orders.reverse();
    return [[say("standard backward, every matrix moves once"), a.ideal, say("standard backward, ideal")], [theirs, a.same, theirs], [mine, a.cost, mine]];
  }
  return [[say("standard attention, every matrix moves once"), a.ideal, say("standard attention, ideal")],
    [say("standard attention in {Br} × {Bc} tiles", { Br, Bc }), a.same, say("standard in {Br} × {Bc} tiles", { Br, Bc })],
    ...(s.algorithm === "standard" ? [] : [[title(s), a.cost, title(s)] as [string, Cost, string]])];
}

function boundBy(time: Time): string {
  switch (time.bound) {
    case "memory": return say("bound by memory");
    case "matmul": return say("bound by matmul");
    case "exp": return say("bound by exponentials");
    case "vector": return say("bound by other math");
    default: return say("with nothing to do");
  }
}
/** The name of the longest part alone, for the picture's description. */
export const partOf = (time: Time) => ({ memory: say("memory"), matmul: say("matmul"), exp: say("exp"), vector: say("vector"),
  nothing: say("nothing") })[time.bound];

/** The headline, as HTML: bytes, SRAM, time. */
export function headline(a: Answer): string {
  if (a.decode) return decodeHeadline(a, a.decode);
  const share = ratio(bytesOf(a.cost) / Math.max(bytesOf(a.ideal), 1)), bytes = humanBytes(bytesOf(a.cost)), name = title(a.state);
  const moves = a.state.algorithm === "standard" ? say("Standard attention in these tiles moves <b>{bytes}</b> a head, <b>{share} ×</b> its ideal, which moves every matrix once.", { bytes, share })
    : backward(a.state) ? say("{name} moves <b>{bytes}</b> a head, <b>{share} ×</b> what the standard backward moves.", { name, bytes, share })
    : say("{name} moves <b>{bytes}</b> a head, <b>{share} ×</b> what standard attention moves.", { name, bytes, share });
  const used = humanRoom(a.cost.sramPeakBytes), all = humanRoom(a.gpu.sramBytes);
  const fits = a.room < 0 ? say("Its tiles <b class=\"fx-bad\">do not fit</b>: {used} of {all}.", { used, all })
    : say("Its tiles fit: {used} of {all}.", { used, all });
  const time = a.time ? say("The roofline predicts <b>{time}</b>, {bound}.", { time: humanTime(a.time.timeS), bound: boundBy(a.time) })
    : say("{gpu} has no FP8.", { gpu: a.gpu.name });
  return join(join(moves, fits), time);
}

/** What makes the bytes what they are: the one idea of this algorithm, with this state's numbers. */
export function reason(a: Answer): string {
  if (a.decode) return decodeReason(a, a.decode);
  const s = a.state, Tr = Math.ceil(s.Nq / s.Br), times = int(Math.ceil(s.Nk / s.Bc));
  const matrices = ["S", "P", "dP", "dS"].filter(n => n in a.ideal.byTensor);
  const square = matrices.reduce((sum, n) => sum + a.ideal.byTensor[n][0] + a.ideal.byTensor[n][1], 0);
  const share = Math.round(100 * square / Math.max(bytesOf(a.ideal), 1)), queries = int(s.Nq), keys = int(s.Nk);
  const which = matrices.length > 2 ? say("P, dP and dS") : say("S and P");
  switch (s.algorithm) {
    case "standard": return say("{share} % of the ideal’s bytes are {which}, {queries} × {keys} each: written, and read again. A mask saves nothing.", { share, which, queries, keys });
    case "v1": return say("The outer loop walks over K and V, so O, m and ℓ come and go with every tile: up to {times} times. S and P never leave SRAM. Taller tiles of K mean fewer trips.", { times });
    case "backward": return say("P is computed again instead of being kept. dQ is the tensor that travels: every visited tile adds to it, up to {times} times.", { times });
    case "backward_q": return say("A second pass with Q outside needs no updates of dQ in HBM, and computes the weights twice.");
    case "v3": return s.precision === "fp8" ? say("Eight-bit elements halve the bytes of Q, K and V; O stays in 16 bits, and every tile brings a scale.")
      : say("In 16 bits v3 moves what v2 moves: it overlaps better, which no byte count shows.");
    case "v4": return join(say("The bytes are those of v2."), s.share
      ? say("{share} % of the exponentials run as polynomials of degree 3 beside the others.", { share: Math.round(100 * s.share) })
      : say("Move exponentials to software and watch their bar."));
    default: return Tr <= 1 ? join(say("All {queries} queries are in one tile: K and V are read once, and no block size saves a byte.", { queries }),
      s.Nq === 1 ? say("This is decoding: hardly a FLOP for each byte.") : "")
      : say("{share} % of standard attention’s bytes are {which}, which v2 never moves. Each of {tiles} tiles of Q reads the K and V that it sees anew: a taller B<sub>r</sub> means fewer trips.", { share, which, tiles: int(Tr) });
  }
}

export function table(a: Answer): string {
  const rows = Object.entries(a.cost.byTensor).map(([name, [read, write]]) =>
    `<tr><th scope="row">${named(name)}</th><td>${int(read)}</td><td>${int(write)}</td></tr>`).join("");
  const line = (name: string, key: string, n: number, unit: string) =>
    `<tr><th scope="row">${name}</th><td colspan="2" data-number="${key}">${int(n)} ${unit}</td></tr>`;
  const heads = [say("tensor"), say("bytes read"), say("bytes written")].map(name => `<th scope="col">${name}</th>`).join("");
  return `<table><thead><tr>${heads}</tr></thead><tbody>${rows}`
    + `<tr><th scope="row">${say("all")}</th><td data-number="read">${int(a.cost.readBytes)}</td><td data-number="written">${int(a.cost.writeBytes)}</td></tr>`
    + line(say("matmul"), "matmul", a.cost.matmulFlops, "FLOP") + line(say("other math"), "vector", a.cost.vectorFlops, "FLOP")
    + line(say("exponentials"), "exps", a.cost.exps, "") + line(say("peak SRAM"), "sram", a.cost.sramPeakBytes, "B")
    + line(a.decode ? say("every head alone moves") : say("standard attention moves"), "ideal", bytesOf(a.ideal), "B") + "</tbody></table>";
}
export const plainText = (html: string) => html.replace(/<[^>]*>/g, "");
