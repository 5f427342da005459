// The one bundle: on a page it mounts every [data-explorer]; JupyterLab's anywidget calls render().
import theme from "./theme.css";
import controls from "./controls.css";
import pictures from "./pictures.css";
import { mountBlocks } from "./blocks/mount";
import { mountLab } from "./lab/mount";
import { mountSoftmax } from "./softmax/mount";
import { mountWalk } from "./walk/mount";
import { expected } from "./ui";
import type { Changed, Mounted, Values } from "./ui";

const KINDS: Record<string, (el: HTMLElement, start: Values, heard: Changed) => Mounted> = {
  blocks: mountBlocks, walk: mountWalk, softmax: mountSoftmax, lab: mountLab };

/** Put an explorer into an element; `start` is any part of its state. */
export function mount(el: HTMLElement, kind: string, start: Values = {}, heard: Changed = () => {}): Mounted {
  const make = KINDS[expected("data-explorer", kind, Object.keys(KINDS))];
  if (!document.getElementById("fx-style")) {
    const style = document.createElement("style");
    style.id = "fx-style";
    style.textContent = theme + controls + pictures;
    document.head.append(style);
  }
  return make(el, start, heard);
}

/** Mount every <div data-explorer="blocks|walk|softmax|lab" data-state='{…}'> once; what it held is its fallback. */
export function mountAll(root: ParentNode = document) {
  for (const el of root.querySelectorAll<HTMLElement & { explorer?: Mounted }>("[data-explorer]")) {
    const fallback = el.innerHTML;
    try {
      el.explorer ??= mount(el, el.dataset.explorer!, JSON.parse(el.dataset.state || "{}") as Values);
    } catch (error) {
      // One wrong element keeps what it holds, and the others work.
      el.innerHTML = fallback;
      console.error(error);
    }
  }
}

interface Model {
  get(key: string): unknown;
  set(key: string, value: unknown): void;
  save_changes(): void;
  on(event: string, heard: () => void): void;
  off(event: string, heard: () => void): void;
}
/** anywidget's face: traits `kind` and `state`. */
export function render({ model, el }: { model: Model; el: HTMLElement }) {
  const mounted = mount(el, model.get("kind") as string, model.get("state") as Values, state => {
    model.set("state", state);
    model.save_changes();
  });
  const listen = () => {
    const next = model.get("state") as Values, now = mounted.get();
    if (Object.keys(next).some(key => next[key] !== now[key])) mounted.set(next);
  };
  model.on("change:state", listen);
  return () => {
    model.off("change:state", listen);
    mounted.destroy();
  };
}

if (typeof document !== "undefined") {
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", () => mountAll());
  else mountAll();
}
