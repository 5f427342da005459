// What the explorers share: controls with names, a spoken summary, a width of their own, and cleaning up.

export interface Control {
  key: string;
  label: string;                                   // HTML
  kind: "range" | "pick" | "check" | "select";
  options?: [label: string, value: unknown][];     // of all but a check
  hint?: string;
}
export type Values = Record<string, unknown>;
/** What mount returns: a page, the notebook's widget and the tests hold it. */
export interface Mounted { get(): Values; set(next: Values): void; destroy(): void }
export type Changed = (state: Values) => void;

let count = 0;
export const freshId = () => `fx${++count}`;
export const escape = (text: string) =>
  text.replace(/[&<>"]/g, c => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]!);

function controlHtml(id: string, { key, label, kind, options = [], hint }: Control): string {
  const own = `${id}-${key}`, title = hint ? ` title="${escape(hint)}"` : "";
  if (kind === "check")
    return `<label class="fx-check"${title}><input type="checkbox" data-key="${key}"> ${label}</label>`;
  if (kind === "select") {
    const list = options.map(([text], k) => `<option value="${k}">${escape(text)}</option>`).join("");
    return `<div class="fx-row fx-select"${title}><label for="${own}">${label}</label><select id="${own}" data-key="${key}">${list}</select></div>`;
  }
  if (kind === "pick") {
    const all = options.map(([text], k) =>
      `<label class="fx-pill"><input type="radio" name="${own}" value="${k}" data-key="${key}"><span>${text}</span></label>`).join("");
    return `<fieldset class="fx-pick"${title}><legend>${label}</legend><div>${all}</div></fieldset>`;
  }
  return `<div class="fx-row fx-range" data-row="${key}"${title}><label for="${own}">${label}</label><output for="${own}"></output>`
    + `<input id="${own}" type="range" min="0" max="${options.length - 1}" step="1" data-key="${key}"></div>`;
}

const plain = (html: string) => html.replace(/<[^>]*>/g, "");

/** A form of controls over a state; `changed` hears a key and its new value. */
export class Form {
  readonly html: string;
  private inputs: (HTMLInputElement | HTMLSelectElement)[] = [];

  constructor(id: string, private controls: Control[], private heard: (key: string, value: unknown) => void) {
    this.html = controls.map(control => controlHtml(id, control)).join("");
  }

  attach(root: HTMLElement) {
    this.inputs = [...root.querySelectorAll<HTMLInputElement | HTMLSelectElement>(`[data-key]`)];
    root.addEventListener("input", event => {
      const input = event.target as HTMLInputElement, control = this.controls.find(c => c.key === input.dataset?.key);
      if (!control) return;
      this.heard(control.key, control.kind === "check" ? input.checked : control.options![+input.value][1]);
    });
    root.addEventListener("submit", event => event.preventDefault());
    root.addEventListener("keydown", event => event.stopPropagation());      // JupyterLab takes arrow keys away
  }

  /** Show a state: `off` names the keys, or "key:option", that it leaves no use for. */
  show(state: Values, off: Set<string> = new Set()) {
    for (const input of this.inputs) {
      const key = input.dataset.key!, control = this.controls.find(c => c.key === key)!, value = state[key];
      const at = control.options ? control.options.findIndex(([, v]) => v === value) : -1;
      const disabled = off.has(key) || (input.type === "radio" && off.has(`${key}:${control.options![+input.value][1]}`));
      if (input.disabled !== disabled) input.disabled = disabled;
      const place = input.closest<HTMLElement>(".fx-row, .fx-pick, .fx-check")!, unused = off.has(key);
      if (place.hidden !== unused) place.hidden = unused;
      if (control.kind === "check") (input as HTMLInputElement).checked = value as boolean;
      else if (control.kind === "pick") (input as HTMLInputElement).checked = +input.value === at;
      else if (input.value !== String(at)) input.value = String(at);
      if (control.kind !== "range") continue;
      const text = plain(control.options![at]?.[0] ?? String(value)), out = input.previousElementSibling as HTMLElement;
      if (out.textContent === text) continue;
      out.textContent = text;
      input.setAttribute("aria-valuetext", text);
    }
  }
}

/** Return a value that is one of those, or throw with what they are. */
export function expected<T>(name: string, value: T, options: readonly T[]): T {
  if (!options.includes(value)) throw new Error(`${name}: expected one of ${options.join(", ")}, got ${String(value)}`);
  return value;
}

/** Options with a number of the reader's own among them, in order; null is the last. */
export function including(options: [string, unknown][], value: unknown, label: (n: number) => string): [string, unknown][] {
  if (value === null || typeof value !== "number" || options.some(([, v]) => v === value)) return options;
  const all: [string, unknown][] = [...options, [label(value), value]];
  return all.sort(([, a], [, b]) => (a === null ? Infinity : a as number) - (b === null ? Infinity : b as number));
}

/** Write HTML into an element where it has changed: what stays is not drawn anew. */
export class Writer {
  private last = new Map<Element, string>();
  put(el: Element, html: string) {
    if (this.last.get(el) === html) return;
    this.last.set(el, html);
    el.innerHTML = html;
  }
}

/** Say a sentence to a screen reader once the reader's hand rests. */
export class Voice {
  private timer: ReturnType<typeof setTimeout> | undefined;
  constructor(private el: HTMLElement) {}
  say(text: string, quiet = false) {
    clearTimeout(this.timer);
    if (!quiet) this.timer = setTimeout(() => { this.el.textContent = text; }, 500);
  }
  stop() { clearTimeout(this.timer); }
}

/** Call back with the width of an element, now and when it changes. */
export function watchWidth(el: HTMLElement, heard: (width: number) => void) {
  let width = Math.round(el.clientWidth);
  const sees = new ResizeObserver(entries => {
    const next = Math.round(entries[entries.length - 1].contentRect.width);
    if (next && next !== width) heard(width = next);
  });
  sees.observe(el);
  return { first: width, stop: () => sees.disconnect() };
}

export const prefersStill = () => typeof matchMedia === "function" && matchMedia("(prefers-reduced-motion: reduce)").matches;

/** A clock that a button starts and stops. */
export class Clock {
  private timer: ReturnType<typeof setInterval> | undefined;
  constructor(private tick: () => boolean, private changed: (runs: boolean) => void) {}
  get runs() { return this.timer !== undefined; }
  start(ms: number) {
    clearInterval(this.timer);
    this.timer = setInterval(() => { if (!this.tick()) this.stop(); }, ms);
    this.changed(true);
  }
  stop() {
    if (this.timer === undefined) return;
    clearInterval(this.timer);
    this.timer = undefined;
    this.changed(false);
  }
}
