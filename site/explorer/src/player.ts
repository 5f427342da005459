// Buttons, a slider and keys that walk through steps; nothing moves until it is asked to.
import { Clock, prefersStill } from "./ui";
import { int } from "./format";
import { say } from "./say";

export interface Steps {
  count(): number;
  at(): number;
  go(step: number): void;
  /** The next or the previous place worth a stop; undefined where there are only single steps. */
  jump?(way: 1 | -1): number;
  /** How long a step stands while playing, in ms, and whether playing jumps. */
  pace(): { ms: number; jumps: boolean };
}
const STILL = 2;

export class Player {
  private clock: Clock;
  private slider!: HTMLInputElement;
  private out!: HTMLElement;
  private button!: HTMLElement;

  constructor(private steps: Steps, private stopped: () => void) {
    this.clock = new Clock(() => {
      this.next();
      return steps.at() < steps.count() - 1;
    }, runs => {
      this.button.textContent = runs ? say("pause") : say("play");
      if (!runs) this.stopped();
    });
  }

  get runs() { return this.clock.runs; }

  /** What the buttons are called that go back and on, by steps and by jumps. */
  static html(step: [back: string, on: string], jump?: [back: string, on: string]): string {
    const button = (name: string, sign: string, label: string) =>
      `<button type="button" data-go="${name}" aria-label="${label}" title="${label}">${sign}</button>`;
    return `<div class="fx-player">${jump ? button("jump-", "«", jump[0]) : ""}${button("step-", "‹", step[0])}`
      + `<button type="button" data-go="play" class="fx-play">${say("play")}</button>${button("step+", "›", step[1])}`
      + `${jump ? button("jump+", "»", jump[1]) : ""}<input type="range" min="0" step="1" aria-label="${say("step")}"><output></output></div>`;
  }

  attach(root: HTMLElement, keyed: Element[] = []) {
    const bar = root.querySelector<HTMLElement>(".fx-player")!;
    this.slider = bar.querySelector("input")!;
    this.out = bar.querySelector("output")!;
    this.button = bar.querySelector(".fx-play")!;
    this.slider.addEventListener("input", () => this.steps.go(+this.slider.value));
    bar.addEventListener("click", event => {
      const name = (event.target as Element).closest<HTMLElement>("[data-go]")?.dataset.go;
      if (name === "play") this.toggle();
      else if (name) {
        this.stop();
        this.move(name.startsWith("jump"), name.endsWith("+") ? 1 : -1);
      }
    });
    root.addEventListener("keydown", event => {
      event.stopPropagation();                              // JupyterLab takes arrow keys away otherwise
      const target = event.target as Element, beside = keyed.includes(target);
      if (target !== this.slider && !beside) return;
      const keys: Record<string, () => void> = { " ": () => this.toggle() };
      if (this.steps.jump) Object.assign(keys, { PageDown: () => this.move(true, 1), PageUp: () => this.move(true, -1) });
      if (beside) Object.assign(keys, { ArrowRight: () => this.move(false, 1), ArrowLeft: () => this.move(false, -1) });
      if (!keys[event.key] || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      keys[event.key]();
    });
  }

  private move(jumps: boolean, way: 1 | -1) {
    this.steps.go(jumps && this.steps.jump ? this.steps.jump(way) : this.steps.at() + way);
  }
  private next() { this.move(this.steps.pace().jumps, 1); }
  toggle() {
    if (this.clock.runs) return this.stop();
    if (this.steps.at() >= this.steps.count() - 1) this.steps.go(0);
    return this.clock.start(this.steps.pace().ms * (prefersStill() ? STILL : 1));
  }
  /** Take up a new pace. */
  again() { if (this.clock.runs) this.clock.start(this.steps.pace().ms * (prefersStill() ? STILL : 1)); }
  stop() { this.clock.stop(); }

  show(words: string) {
    const [at, count] = [this.steps.at(), this.steps.count()];
    this.slider.max = String(count - 1);
    this.slider.value = String(at);
    this.slider.setAttribute("aria-valuetext", words);
    this.out.textContent = say("{step} of {steps}", { step: int(at + 1), steps: int(count) });
  }
}
