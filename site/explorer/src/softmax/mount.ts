// Softmax steps: a row of logits that the reader types, in three passes, two or one.
import { Player } from "../player";
import { join, say } from "../say";
import { Form, freshId, Voice, watchWidth, Writer, type Changed, type Control, type Mounted, type Values } from "../ui";
import { num, outputPicture, rowPicture } from "./picture";
import { isLowest, parse, steps, type Method, type Step } from "./steps";

interface State { x: string; v: string; method: Method; step: number }
// Row 0 of the course's toy: a new maximum four times in turn. Its first column of V.
const DEFAULT: State = { x: "-1.5 1.5 2.5 3 3.5 -1.5", v: "1 0 2 0 1 0", method: "1", step: 3 };
const STEP_MS = 1100;
const power = (a: string, b: string) => `e<sup>${a} ${b.startsWith("−") ? `+ ${b.slice(1)}` : `− ${b}`}</sup>`;

/** What a step does, one line for m, one for ℓ, one for o; HTML. */
function formulas(s: Step, x: number[], v: number[], method: Method): string[] {
  if (s.j === x.length) return [`<i>o</i> / ℓ = ${num(s.oBefore)} / ${num(s.l)} = <b>${num(s.o!)}</b>`];
  const [m, before, xj] = [num(s.m), num(s.before), num(x[s.j])], rises = s.m > s.before;
  const maximum = `<i>m</i> = max(${before}, ${xj}) = <b>${m}</b>`;
  if (s.alpha === null) {
    if (s.p === null) return [maximum];
    if (s.o === null) return [`ℓ = ${num(s.lBefore)} + ${power(xj, m)} = <b>${num(s.l)}</b>`];
    return [`<i>p</i> = ${power(xj, m)} / ℓ = ${num(s.p)}`, `<i>o</i> = ${num(s.oBefore)} + ${num(s.p)} · ${num(v[s.j])} = <b>${num(s.o)}</b>`];
  }
  const factor = isLowest(s.before) ? say("factor: nothing to rescale yet") : rises
    ? say("factor = {power} = <b>{alpha}</b>", { power: power(before, m), alpha: num(s.alpha) }) : say("factor = 1: the maximum stays");
  const scaled = (old: number) => (rises ? `${num(old)} · ${num(s.alpha!)}` : num(old));
  const list = [maximum, factor, `ℓ = ${scaled(s.lBefore)} + ${num(s.p!)} = <b>${num(s.l)}</b>`];
  if (method === "1") list.push(`<i>o</i> = ${scaled(s.oBefore)} + ${num(s.p!)} · ${num(v[s.j])} = <b>${num(s.o!)}</b>`);
  return list;
}

function sentence(s: Step, x: number[]): string {
  if (s.j === x.length) return say("The row has been read once. One late division gives the output.");
  return join(say("Pass {pass}, logit {j} of {n}: <b>{x}</b>.", { pass: s.pass, j: s.j + 1, n: x.length, x: num(x[s.j]) }), effect(s));
}
function effect(s: Step): string {
  if (s.alpha === null) return s.p === null ? s.m > s.before ? say("A new maximum.") : say("The maximum stays.")
    : s.o === null ? say("Its term joins the sum.") : say("Its weight, times its value, joins the output.");
  if (isLowest(s.before)) return say("The first maximum.");
  return s.m > s.before ? say("A new maximum: all that was summed shrinks to {percent} %.", { percent: num(Math.round(1000 * s.alpha) / 10) })
    : say("No new maximum: nothing is rescaled.");
}
function readings(method: Method, reads: number, n: number): string {
  return method === "3" ? say("In three passes every logit is read three times: {reads} of {all} reads so far.", { reads, all: 3 * n })
    : method === "2" ? say("In two passes every logit is read twice: {reads} of {all} reads so far.", { reads, all: 2 * n })
    : say("In one pass every logit is read once: {reads} of {all} reads so far.", { reads, all: n });
}

function table(all: Step[], x: number[]): string {
  const cell = (value: number | null) => `<td>${value === null ? "" : num(value)}</td>`;
  return `<table><thead><tr>${[say("pass"), "<i>x</i>", "<i>m</i>", say("factor"), "ℓ", "<i>o</i>"].map(h => `<th scope="col">${h}</th>`).join("")}</tr></thead><tbody>`
    + all.map(s => `<tr><td>${s.pass}</td>${s.j < x.length ? cell(x[s.j]) : "<td>÷ ℓ</td>"}${cell(s.m)}${cell(s.alpha)}${cell(s.l)}${cell(s.o)}</tr>`).join("") + "</tbody></table>";
}

export function mountSoftmax(el: HTMLElement, start: Values, heard: Changed): Mounted {
  let state: State = { ...DEFAULT, ...start } as State, x: number[] = [], v: number[] = [], all: Step[] = [];
  const id = freshId();
  const controls: Control[] = [{ key: "method", label: say("softmax in"), kind: "pick",
    options: [[say("3 passes"), "3"], [say("2 passes"), "2"], [say("1 pass"), "1"]] }];
  const form = new Form(id, controls, (_, value) => {
    player.stop();
    // The same logit in the other algorithm, as far as it has one.
    const j = all[state.step]?.j ?? 0;
    read({ method: value as Method });
    go(Math.max(all.findIndex(s => s.j === j && (s.l > 0 || s.pass > 1)), 0));
  });
  const field = (key: string, label: string) => `<div class="fx-field"><label for="${id}${key}">${label}</label>`
    + `<input id="${id}${key}" type="text" inputmode="text" spellcheck="false" autocomplete="off" data-text="${key}" aria-describedby="${id}wrong"></div>`;
  el.innerHTML = `<div class="fx fx-softmax" role="group" aria-label="${say("Softmax steps")}"><form class="fx-form" autocomplete="off">${form.html}
    ${field("x", say("logits <i>x</i>: type your own"))}${field("v", say("their values <i>v</i>"))}<p class="fx-wrong fx-bad" id="${id}wrong" role="alert"></p></form>
    ${Player.html([say("previous step"), say("next step")])}
    <p class="fx-head"></p><div class="fx-two"><div data-panel="row"></div><div><ul class="fx-formulas"></ul><div data-panel="output"></div><p class="fx-why"></p></div></div>
    <details class="fx-more"><summary>${say("All steps")}</summary><div tabindex="0" role="region" aria-label="${say("All steps")}"></div></details>
    <p class="fx-sr" role="status"></p></div>`;
  const root = el.firstElementChild as HTMLElement, find = (name: string) => root.querySelector<HTMLElement>(name)!;
  const fields = [...root.querySelectorAll<HTMLInputElement>("[data-text]")], wrong = find(".fx-wrong"), head = find(".fx-head");
  const list = find(".fx-formulas"), why = find(".fx-why"), rowAt = find("[data-panel=row]"), outAt = find("[data-panel=output]");
  const more = find("details") as HTMLDetailsElement, voice = new Voice(find(".fx-sr")), writer = new Writer();
  let width = 0, first = true;
  const player = new Player({ count: () => all.length, at: () => state.step, go, pace: () => ({ ms: STEP_MS, jumps: false }) }, () => show());

  /** Take a state; what is no row of numbers is said, and the last good row stays. */
  function read(next: Partial<State>) {
    state = { ...state, ...next };
    const [xs, vs] = [parse(state.x), parse(state.v)];
    const bad = typeof xs === "string" ? say("Logits: {wrong}", { wrong: xs }) : typeof vs === "string" ? say("Values: {wrong}", { wrong: vs })
      : vs.some(n => !Number.isFinite(n)) ? say("Values: every value is finite.") : "";
    wrong.textContent = bad;
    if (!bad) {
      x = xs as number[];
      const given = vs as number[];
      v = x.map((_, j) => given[j % given.length]);         // too few values are repeated
    }
    all = steps(state.method, x, v);
    state.step = Math.min(Math.max(state.step, 0), all.length - 1);
  }
  function go(step: number) {
    state = { ...state, step: Math.min(Math.max(step, 0), all.length - 1) };
    show();
    heard({ ...state });
  }
  function show() {
    const s = all[state.step], wide = width >= 640, half = wide ? Math.floor(width * 0.56) : width;
    root.classList.toggle("fx-wide", wide);
    form.show(state as unknown as Values);
    for (const input of fields) {
      const value = state[input.dataset.text as "x" | "v"];
      if (input.value !== value && document.activeElement !== input) input.value = value;
    }
    const said = sentence(s, x);
    head.innerHTML = said;
    list.innerHTML = formulas(s, x, v, state.method).map(line => `<li>${line}</li>`).join("");
    writer.put(rowAt, rowPicture(x, all, state.step, state.method, half));
    writer.put(outAt, outputPicture(v, all, state.step, state.method, wide ? width - half - 24 : width));
    why.innerHTML = join(readings(state.method, s.loads, x.length),
      say("In attention a logit that is not kept must be computed again, from a row of K."));
    if (more.open) writer.put(more.querySelector("div")!, table(all, x));
    const plain = (html: string) => html.replace(/e<sup>(.*?)<\/sup>/g, (_, power: string) => say("e to the {power}", { power }))
      .replace(/<[^>]*>/g, "");
    player.show(plain(said));
    const spoken = formulas(s, x, v, state.method).reduce((formulas, formula) => say("{formulas}. {formula}", { formulas, formula }));
    voice.say(plain(join(said, spoken)), first || player.runs);
    first = false;
  }
  form.attach(find("form"));
  player.attach(root);
  more.addEventListener("toggle", show);
  for (const input of fields) input.addEventListener("input", () => {
    player.stop();
    read({ [input.dataset.text!]: input.value });
    show();
    heard({ ...state });
  });
  read({});
  const sees = watchWidth(rowAt.parentElement!, next => { width = next; show(); });
  width = sees.first || 640;
  show();
  return {
    get: () => ({ ...state }),
    set(next) { read(next as Partial<State>); show(); },
    destroy() { player.stop(); sees.stop(); voice.stop(); el.innerHTML = ""; },
  };
}
