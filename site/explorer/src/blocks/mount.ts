// The block explorer: controls, pictures and sentences that answer at once.
import { Form, freshId, including, Voice, watchWidth, Writer, type Changed, type Control, type Mounted, type Values } from "../ui";
import { int } from "../format";
import { join, say } from "../say";
import { answer, changed, DEFAULT, GPUS, type State } from "./answer";
import { bytesPicture, rooflinePicture, sramPicture, timePicture } from "./picture";
import { tilesPicture } from "./tiles";
import { headline, plainText, reason, table } from "./words";

const numbers = (list: number[]): [string, unknown][] => list.map(n => [int(n), n]);
const LENGTHS = [1, 16, 64, 128, 197, 256, 512, 1000, 1024, 2048, 4096, 8192, 16384, 32768, 65536];
const SIZES = [8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256, 384, 512];
const WINDOWS = [0, 64, 128, 256, 512, 1024, 2048, 4096];

function controls(s: State): Control[] {
  const own = (list: number[], value: number) => including(numbers(list), value, int);
  return [
    { key: "algorithm", label: say("algorithm"), kind: "pick", options: [[say("standard"), "standard"], ["v1", "v1"], ["v2", "v2"],
      ["v3", "v3"], ["v4", "v4"], [say("backward, K/V outside"), "backward"], [say("backward, Q outside"), "backward_q"]] },
    { key: "causal", label: say("mask"), kind: "pick", options: [[say("none"), false], [say("causal"), true]],
      hint: say("whether later keys are hidden") },
    { key: "precision", label: say("elements"), kind: "pick", options: [[say("16 bits"), "16"], [say("32 bits"), "32"], ["FP8", "fp8"]],
      hint: say("FP8 is v3’s") },
    { key: "gpu", label: "GPU", kind: "select", options: GPUS.map(g => [g.name, g.name]) },
    { key: "Br", label: say("<i>B<sub>r</sub></i>, rows of Q"), kind: "range", options: own(SIZES, s.Br) },
    { key: "Bc", label: say("<i>B<sub>c</sub></i>, rows of K, V"), kind: "range", options: own(SIZES, s.Bc) },
    { key: "Nq", label: say("<i>N<sub>q</sub></i>, queries"), kind: "range", options: own(LENGTHS, s.Nq) },
    { key: "Nk", label: say("<i>N<sub>k</sub></i>, keys"), kind: "range", options: own(LENGTHS, s.Nk) },
    { key: "d", label: say("<i>d</i>, head dimension"), kind: "range",
      options: own([16, 32, 64, 80, 96, 128, 192, 256], s.d) },
    { key: "window", label: say("window, each side"), kind: "range",
      options: [...including(numbers(WINDOWS), s.window, int), [say("all"), null]], hint: say("causal keeps the left side alone") },
    { key: "share", label: say("exp in software"), kind: "range",
      options: [0, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5].map(x => [`${Math.round(100 * x)} %`, x]) },
    { key: "same", label: say("as many queries as keys"), kind: "check" },
  ];
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
  const fine = join(say("The paper machine: one head, 4-byte statistics and accumulator, everything overlaps, no L2 cache."),
    say("A GPU whose L2 holds K and V reads less from HBM than is counted here."));
  const panel = (name: string) => `<div class="fx-panel" data-panel="${name}"></div>`;
  el.innerHTML = `<div class="fx fx-blocks" role="group" aria-label="${say("Block explorer")}">
    <p class="fx-head"></p><form class="fx-form" autocomplete="off">${form.html}</form>
    ${panel("bytes")}<p class="fx-why"></p><div class="fx-two">${panel("tiles")}<div>${panel("sram")}${panel("time")}${panel("roof")}</div></div>
    <p class="fx-fine">${fine}</p>
    <details class="fx-more"><summary>${say("All numbers")}</summary><div tabindex="0" role="region" aria-label="${say("All numbers")}"></div></details>
    <p class="fx-sr" role="status"></p></div>`;
  const root = el.firstElementChild as HTMLElement, find = (name: string) => root.querySelector<HTMLElement>(name)!;
  const head = find(".fx-head"), why = find(".fx-why"), more = find("details"), numbersAt = find("details div");
  const panels = Object.fromEntries([...root.querySelectorAll<HTMLElement>(".fx-panel")].map(p => [p.dataset.panel, p]));
  const voice = new Voice(find(".fx-sr"));
  form.attach(find("form"));
  const writer = new Writer();
  let width = 0, first = true;

  function show() {
    const a = answer(state), wide = width >= 640, half = wide ? Math.floor((width - 32) / 2) : width;
    const off = new Set<string>();
    if (state.algorithm === "standard" || state.algorithm.startsWith("backward")) off.add("precision:fp8");
    if (state.algorithm !== "v4") off.add("share");
    root.classList.toggle("fx-wide", wide);
    form.show(state as unknown as Values, off);
    const said = headline(a);
    writer.put(head, said);
    writer.put(why, reason(a));
    writer.put(panels.bytes, bytesPicture(a, width, id));
    writer.put(panels.tiles, tilesPicture(a, half, id + "t"));
    writer.put(panels.sram, sramPicture(a, half));
    writer.put(panels.time, timePicture(a, half));
    writer.put(panels.roof, rooflinePicture(a, half));
    if ((more as HTMLDetailsElement).open) writer.put(numbersAt, table(a));
    voice.say(plainText(said), first);
    first = false;
  }
  more.addEventListener("toggle", show);
  const sees = watchWidth(panels.bytes, next => { width = next; show(); });
  width = sees.first || 640;
  show();
  return {
    get: () => ({ ...state }),
    set(next) { state = { ...state, ...next } as State; show(); },
    destroy() { sees.stop(); voice.stop(); el.innerHTML = ""; },
  };
}
