// The tile walk: a line of code, the tile it works on, the bytes it moves; played step by step.
import { int } from "../format";
import { hue } from "../svg";
import { Player } from "../player";
import { join, say } from "../say";
import { escape, Form, freshId, Voice, watchWidth, Writer, type Changed, type Control, type Mounted, type Values } from "../ui";
import { bytesBar, matrixPicture, sramBar } from "./picture";
import { facts, gloss, moment, run, RUNS, runTitle, SHEET, type Run } from "./replay";

interface State { run: string; step: number; by: "line" | "tile" }
const LINE_MS = 700, TILE_MS = 1000;

/** Where a run opens: some tiles behind it, in the middle of the next one. */
export const opening = (r: Run) => Math.min((r.stops[Math.floor(r.stops.length * 0.4)] ?? 0) + 5, r.steps.length - 1);

const WORD = /("[^"]*")|\b(for|in|if|is|not|with|as|continue|and|or|None)\b|\b([QKVOSP])(?:ij|i|j)?\b|\b(mi?|li?|lse)\b(?!\w)/g;
/** A line of Python with its tensors in their hues and its comment quiet. */
function colored(line: string): string {
  const cut = line.search(/\s{2,}#/), code = cut < 0 ? line : line.slice(0, cut), comment = cut < 0 ? "" : line.slice(cut);
  const body = code.replace(/^ */, "").replace(WORD, (word, quoted, keyword, tensor, statistic) => quoted ? word
    : keyword ? `<b>${word}</b>` : `<u class="${hue(tensor ?? (statistic[0] === "m" ? "m" : "l"))}">${word}</u>`);
  return body + (comment && `<i> ${escape(comment.trim())}</i>`);
}

function listing(r: Run): string {
  return r.code.map((line, n) => {
    const deep = line.length - line.trimStart().length;
    return `<li value="${r.firstLine + n}" data-line="${n}" style="--deep:${deep / 4}">${line.trim() ? colored(line) : "&nbsp;"}</li>`;
  }).join("");
}

/** The words of a tile's side, first and last. */
function words([from, to]: [number, number]): string {
  const [a, z] = [SHEET.words[from], SHEET.words[to - 1]];
  return to - from > 1 ? say("“{first} … {last}” ({from}–{upto})", { first: escape(a), last: escape(z), from, upto: to - 1 })
    : say("“{word}” ({at})", { word: escape(a), at: from });
}

export function mountWalk(el: HTMLElement, start: Values, heard: Changed): Mounted {
  let state: State = { run: RUNS[0], step: -1, by: "line", ...start } as State;
  let current = run(state.run);
  if (state.step < 0) state.step = opening(current);
  const id = freshId();
  const controls: Control[] = [
    { key: "run", label: say("algorithm"), kind: "pick", options: RUNS.map(name => [runTitle(name), name]) },
    { key: "by", label: say("play by"), kind: "pick", options: [[say("line"), "line"], [say("tile"), "tile"]] },
  ];
  const form = new Form(id, controls, (key, value) => {
    if (key === "run") {
      player.stop();
      current = run(value as string);
      go({ run: current.name, step: opening(current) });
    } else {
      state = { ...state, by: value as State["by"] };
      player.again();
      show();
    }
  });
  const fine = join(say("One head of the course’s sentence, {N} words, <i>d</i> = {d}, tiles of {B}: the last ones are ragged. Every number is the machine’s own.", SHEET),
    join(`<span class="fx-keys">${say("Keys on the slider: ← → a line, Page Up and Page Down a tile, space plays.")}</span>`,
      say("A click on a tile or on a line goes there.")));
  el.innerHTML = `<div class="fx fx-walk" role="group" aria-label="${say("Tile walk")}"><form class="fx-form" autocomplete="off">${form.html}</form>
    ${Player.html([say("previous line"), say("next line")], [say("previous tile"), say("next tile")])}
    <p class="fx-head"></p>
    <div class="fx-two fx-code-first"><div><p class="fx-file"></p><ol class="fx-code" tabindex="0" aria-label="${say("code")}"></ol></div>
    <div><p class="fx-where"></p><div data-panel="matrix"></div><div data-panel="sram"></div><div data-panel="bytes"></div></div></div>
    <p class="fx-fine">${fine}</p>
    <p class="fx-sr" role="status"></p></div>`;
  const root = el.firstElementChild as HTMLElement, find = <T extends Element = HTMLElement>(name: string) => root.querySelector<T>(name)!;
  const head = find(".fx-head"), code = find(".fx-code");
  const [matrixAt, sramAt, bytesAt] = ["matrix", "sram", "bytes"].map(name => find(`[data-panel=${name}]`));
  const writer = new Writer(), where = find(".fx-where"), voice = new Voice(find(".fx-sr"));
  let width = 0, shown = "", first = true;
  const player = new Player({
    count: () => current.steps.length,
    at: () => state.step,
    go: step => go({ step }),
    jump: way => (way > 0 ? current.stops.find(k => k > state.step) ?? current.steps.length - 1
      : [...current.stops].reverse().find(k => k < state.step) ?? 0),
    pace: () => ({ ms: state.by === "line" ? LINE_MS : TILE_MS, jumps: state.by === "tile" }),
  }, () => show());

  function go(next: Partial<State>) {
    state = { ...state, ...next };
    state.step = Math.min(Math.max(state.step, 0), current.steps.length - 1);
    show();
    heard({ ...state });
  }
  function show() {
    const m = moment(current, state.step), wide = width >= 640, half = wide ? Math.floor((width - 24) * 0.47) : width;
    root.classList.toggle("fx-wide", wide);
    if (shown !== current.name) {
      shown = current.name;
      code.innerHTML = listing(current);
      find(".fx-file").textContent = say("{file}, from line {line}", { file: current.file, line: current.firstLine });
    }
    form.show(state as unknown as Values);
    const line = current.firstLine + m.step.line, said = join(gloss(m.code), facts(m));
    head.innerHTML = join(say("<b>Line {line}.</b>", { line }), escape(said));
    player.show(say("step {step} of {steps}, line {line}", { step: state.step + 1, steps: current.steps.length, line }));
    code.querySelector("[aria-current]")?.removeAttribute("aria-current");
    const row = code.children[m.step.line] as HTMLElement;
    row.setAttribute("aria-current", "step");
    const top = row.offsetTop, room = code.clientHeight;
    if (top < code.scrollTop + 20 || top + row.offsetHeight > code.scrollTop + room - 20) code.scrollTop = top - room / 2;
    where.innerHTML = m.current ? say("{queries} <b>meet</b> {keys}", { queries: words(m.current.rows), keys: words(m.current.cols) })
      : say("kernel: {kernel}", { kernel: escape(m.kernel) });
    writer.put(matrixAt, matrixPicture(m, half, id));
    writer.put(sramAt, sramBar(m, current, half));
    writer.put(bytesAt, bytesBar(m, current, half, id + "b"));
    voice.say(join(join(say("Line {line}.", { line }), said), say("{sram} bytes in SRAM, {moved} bytes moved.", { sram: int(m.sramBytes), moved: int(m.bytes) })), first || player.runs);
    first = false;
  }

  form.attach(find("form"));
  player.attach(root, [code]);
  root.addEventListener("click", event => {
    const line = (event.target as Element).closest<HTMLElement>("[data-line]");
    if (line) {
      const wanted = +line.dataset.line!, later = current.steps.findIndex((s, k) => k > state.step && s.line === wanted);
      const found = later >= 0 ? later : current.steps.findIndex(s => s.line === wanted);
      if (found >= 0) go({ step: found });
    }
  });
  matrixAt.addEventListener("click", event => {
    const picture = matrixAt.querySelector(".fx-edge")!.getBoundingClientRect();
    const i = (event.clientY - picture.top) / picture.height * SHEET.N, j = (event.clientX - picture.left) / picture.width * SHEET.N;
    const stop = current.stops.find(k => {
      const now = moment(current, k).current;
      return now && now.rows[0] <= i && i < now.rows[1] && now.cols[0] <= j && j < now.cols[1];
    });
    if (stop !== undefined) go({ step: stop });
  });
  const sees = watchWidth(find(".fx-player"), next => { width = next; show(); });
  width = sees.first || 640;
  show();
  return {
    get: () => ({ ...state }),
    set(next) {
      if (typeof next.run === "string" && next.run !== state.run) current = run(next.run);
      state = { ...state, ...next } as State;
      state.step = Math.min(Math.max(state.step, 0), current.steps.length - 1);
      show();
    },
    destroy() { player.stop(); sees.stop(); voice.stop(); el.innerHTML = ""; },
  };
}
