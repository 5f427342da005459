// The block explorer: controls, pictures and sentences that answer at once.
import { Form, freshId, including, Voice, watchWidth, Writer, type Changed, type Control, type Mounted, type Values } from "../ui";
import { human, int } from "../format";
import { join, say } from "../say";
import { answer, changed, DEFAULT, GPUS, type State } from "./answer";
import { partsPicture, smsPicture } from "./decode";
import { bytesPicture, rooflinePicture, sramPicture, timePicture } from "./picture";
import { HEADS, lanesPicture, layoutsPicture, LINKS, methodsPicture, ringAnswer, ringHeadline, ringReason, ringTable, shardsPicture } from "./ring";
import { tilesPicture } from "./tiles";
import { headline, plainText, reason, table } from "./words";

const numbers = (list: number[]): [string, unknown][] => list.map(n => [int(n), n]);
const LENGTHS = [1, 16, 64, 128, 197, 256, 512, 1000, 1024, 2048, 4096, 8192, 16384, 32768, 65536];
const SIZES = [8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256, 384, 512];
const WINDOWS = [0, 64, 128, 256, 512, 1024, 2048, 4096];
const powers = (from: number, upto: number) => numbers(Array.from({ length: upto - from + 1 }, (_, k) => 2 ** (from + k)));

function controls(s: State): Control[] {
  const own = (list: number[], value: number) => including(numbers(list), value, int);
  const power = (from: number, upto: number, value: number) => including(powers(from, upto), value, int);
  const window = (value: number | null): [string, unknown][] => [...including(numbers(WINDOWS), value, int), [say("all"), null]];
  return [
    { key: "algorithm", label: say("algorithm"), kind: "pick", options: [[say("standard"), "standard"], ["v1", "v1"], ["v2", "v2"],
      ["v3", "v3"], ["v4", "v4"], [say("backward, K/V outside"), "backward"], [say("backward, Q outside"), "backward_q"],
      [say("decoding"), "decode"], [say("ring"), "ring"]] },
    { key: "layout", label: say("layout"), kind: "pick", options: [[say("contiguous"), "contiguous"], [say("zigzag"), "zigzag"], [say("stripe"), "stripe"]],
      hint: say("which tokens a GPU holds") },
    { key: "causal", label: say("mask"), kind: "pick", options: [[say("none"), false], [say("causal"), true]],
      hint: say("whether later keys are hidden") },
    { key: "backward", label: say("direction"), kind: "pick", options: [[say("forward"), false], [say("backward"), true]] },
    { key: "precision", label: say("elements"), kind: "pick", options: [[say("16 bits"), "16"], [say("32 bits"), "32"], ["FP8", "fp8"]],
      hint: say("FP8 is v3’s") },
    { key: "gpu", label: "GPU", kind: "select", options: GPUS.map(g => [g.name, g.name]) },
    { key: "link", label: say("link"), kind: "select", options: Object.entries(LINKS).map(([name, rate]) =>
      [`${name === "NVLink" ? "NVLink" : name === "PCIe 5" ? "PCIe 5" : say("network")}, ${human(rate, "B/s")}`, name]) },
    { key: "Br", label: say("<i>B<sub>r</sub></i>, rows of Q"), kind: "range", options: own(SIZES, s.Br) },
    { key: "Bc", label: say("<i>B<sub>c</sub></i>, rows of K, V"), kind: "range", options: own(SIZES, s.Bc) },
    { key: "Nq", label: say("<i>N<sub>q</sub></i>, queries"), kind: "range", options: own(LENGTHS, s.Nq) },
    { key: "Nk", label: say("<i>N<sub>k</sub></i>, keys"), kind: "range", options: own(LENGTHS, s.Nk) },
    { key: "parts", label: say("parts of the keys"), kind: "range", options: power(0, 8, s.parts) },
    { key: "B", label: say("sequences"), kind: "range", options: power(0, 6, s.B) },
    { key: "cache", label: say("<i>N<sub>k</sub></i>, keys"), kind: "range", options: power(10, 17, s.cache) },
    { key: "Hk", label: say("key heads"), kind: "range", options: power(0, 5, s.Hk) },
    { key: "P", label: say("GPUs"), kind: "range", options: power(1, 4, s.P) },
    { key: "N", label: say("<i>N</i>, tokens"), kind: "range", options: power(14, 22, s.N) },
    { key: "group", label: say("query heads a key head"), kind: "range", options: power(0, 4, s.group) },
    { key: "d", label: say("<i>d</i>, head dimension"), kind: "range",
      options: own([16, 32, 64, 80, 96, 128, 192, 256], s.d) },
    { key: "page", label: say("keys of a page"), kind: "range", options: power(4, 8, s.page) },
    { key: "left", label: say("window, keys before"), kind: "range", options: window(s.left) },
    { key: "right", label: say("window, keys after"), kind: "range", options: window(s.right), hint: say("a causal mask hides all of them") },
    { key: "share", label: say("exp in software"), kind: "range",
      options: [0, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5].map(x => [`${Math.round(100 * x)} %`, x]) },
    { key: "same", label: say("as many queries as keys"), kind: "check" },
    { key: "hidden", label: say("messages travel while GPUs work"), kind: "check" },
  ];
}

// Which controls mean something, beside the algorithm and the GPU.
const OF_RING = ["layout", "causal", "backward", "link", "P", "N", "group", "d", "hidden"];
const OF_DECODING = ["parts", "B", "cache", "Hk", "group", "d", "page"];
const OF_TILES = ["causal", "precision", "Br", "Bc", "Nq", "Nk", "d", "left", "right", "share", "same"];
const ALL = [...new Set([...OF_RING, ...OF_DECODING, ...OF_TILES])];
/** The controls, and single options, that a state leaves no use for. */
function idle(s: State): Set<string> {
  const used = s.algorithm === "ring" ? OF_RING : s.algorithm === "decode" ? OF_DECODING : OF_TILES;
  const off = new Set(ALL.filter(key => !used.includes(key)));
  if (s.algorithm === "standard" || s.algorithm.startsWith("backward")) off.add("precision:fp8");
  if (s.algorithm !== "v4") off.add("share");
  if (s.causal) off.add("right");
  return off;
}

function fine(s: State): string {
  if (s.algorithm === "ring") return join(say("One layer of {heads} query heads, 16 bits, in closed form: all GPUs begin a step together.", { heads: HEADS }),
    say("Rates as recorded on one H200, forward, and brought to other GPUs by the data sheets."));
  if (s.algorithm === "decode") return join(say("One layer, one query a head, 16 bits: the paper machine’s bytes, and a model of the SMs that read them."),
    say("Start, an SM’s rate, the memory’s and a merge as recorded on one H200, and brought to other GPUs by the data sheets."));
  return join(say("The paper machine: one head, 4-byte statistics and accumulator, everything overlaps, no L2 cache."),
    say("A GPU whose L2 holds K and V reads less from HBM than is counted here."));
}

export function mountBlocks(el: HTMLElement, start: Values, heard: Changed): Mounted {
  const initial = { ...DEFAULT, ...start } as State;
  let state: State = initial;
  if (start.same === undefined) state.same = state.Nq === state.Nk;
  const id = freshId(), form = new Form(id, controls(initial), (key, value) => {
    state = changed(state, key, value);
    show();
    heard({ ...state });
  });
  const panel = (name: string) => `<div class="fx-panel" data-panel="${name}"></div>`;
  el.innerHTML = `<div class="fx fx-blocks" role="group" aria-label="${say("Block explorer")}">
    <p class="fx-head"></p><form class="fx-form" autocomplete="off">${form.html}</form>
    ${panel("lanes")}${panel("bytes")}<p class="fx-why"></p><div class="fx-two fx-three"><div>${panel("tiles")}${panel("parts")}</div><div>${panel("sram")}${panel("time")}</div><div>${panel("roof")}</div></div>
    <p class="fx-fine fx-basis"></p>
    <details class="fx-more"><summary>${say("All numbers")}</summary><div tabindex="0" role="region" aria-label="${say("All numbers")}"></div></details>
    <p class="fx-sr" role="status"></p></div>`;
  const root = el.firstElementChild as HTMLElement, find = (name: string) => root.querySelector<HTMLElement>(name)!;
  const head = find(".fx-head"), why = find(".fx-why"), basis = find(".fx-basis"), more = find("details"), numbersAt = find("details div");
  const panels = Object.fromEntries([...root.querySelectorAll<HTMLElement>(".fx-panel")].map(p => [p.dataset.panel, p]));
  const voice = new Voice(find(".fx-sr"));
  form.attach(find("form"));
  const writer = new Writer();
  let width = 0, first = true;

  function show() {
    // Two columns, or three: then all of it is in view at once.
    const wide = width >= 640, three = width >= 760, half = three ? Math.floor((width - 48) / 3) : wide ? Math.floor((width - 32) / 2) : width;
    root.classList.toggle("fx-wide", wide);
    root.classList.toggle("fx-wider", three);
    form.show(state as unknown as Values, idle(state));
    const said = state.algorithm === "ring" ? showRing(half) : showTiles(half);
    writer.put(basis, fine(state));
    voice.say(plainText(said), first);
    first = false;
  }
  /** Draw, and return the headline. */
  function showRing(half: number): string {
    const a = ringAnswer(state), said = ringHeadline(a);
    writer.put(head, said);
    writer.put(why, ringReason(a));
    writer.put(panels.lanes, lanesPicture(a, width, id));
    writer.put(panels.bytes, "");
    writer.put(panels.tiles, shardsPicture(a, half, id + "t"));
    writer.put(panels.parts, "");
    writer.put(panels.sram, layoutsPicture(a, half));
    writer.put(panels.time, methodsPicture(a, "sent", half, id + "s"));
    writer.put(panels.roof, methodsPicture(a, "room", half, id + "r"));
    if ((more as HTMLDetailsElement).open) writer.put(numbersAt, ringTable(a));
    return said;
  }

  function showTiles(half: number): string {
    const a = answer(state), said = headline(a);
    writer.put(head, said);
    writer.put(why, reason(a));
    writer.put(panels.lanes, "");
    writer.put(panels.bytes, bytesPicture(a, width, id));
    writer.put(panels.tiles, a.decode ? smsPicture(a, a.decode, half, id + "t") : tilesPicture(a, half, id + "t"));
    writer.put(panels.parts, a.decode ? partsPicture(a.decode, half) : "");
    writer.put(panels.sram, sramPicture(a, half));
    writer.put(panels.time, timePicture(a, half));
    writer.put(panels.roof, rooflinePicture(a, half));
    if ((more as HTMLDetailsElement).open) writer.put(numbersAt, table(a));
    return said;
  }
  more.addEventListener("toggle", show);
  const sees = watchWidth(why, next => { width = next; show(); });
  width = sees.first || 640;
  show();
  return {
    get: () => ({ ...state }),
    set(next) { state = { ...state, ...next } as State; show(); },
    destroy() { sees.stop(); voice.stop(); el.innerHTML = ""; },
  };
}
