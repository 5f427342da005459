// A lab of a notebook as a table: what its own code answers to every choice, in a sentence and as bars.
// site/labs.py writes it, its words in the page's language; nothing is computed here.
import { humanBytes, humanTime, int } from "../format";
import { at, letters, path, rect, svg, text } from "../svg";
import { Form, freshId, Voice, watchWidth, Writer, type Changed, type Control, type Mounted, type Values } from "../ui";

interface Lab {
  name: string;
  controls: [label: string, kind: "pick" | "range" | "select", options: string[]][];
  at: number[];                               // the options that it opens with
  title: string;
  unit: string;
  most?: number;                              // where the axis ends; else at the longest bar
  bars: string[];
  lines: string[];                            // sentences, with {0}, {1}, … for what a row says
  rows: (number | string | null)[][];         // a length for each bar, then the sentence, then its words
  of?: number[];                              // which row is whose, where many are alike
}

function said(value: number, unit: string): string {
  if (unit === "B") return humanBytes(value);
  if (unit === "s") return humanTime(value);
  return `${Math.abs(value) >= 100 || value === 0 ? int(value) : +value.toPrecision(3)}${unit && ` ${unit}`}`;
}

export function mountLab(el: HTMLElement, start: Values, heard: Changed): Mounted {
  const lab = start as unknown as Lab, id = freshId(), { bars, controls } = lab;
  let chosen = [...lab.at], width = 0, first = true;
  const form = new Form(id, controls.map(([label, kind, options], k): Control =>
    ({ key: String(k), label, kind, options: options.map((option, n) => [option, n]) })), (key, value) => {
    chosen[+key] = value as number;
    show();
    heard({ at: [...chosen] });
  });
  el.innerHTML = `<div class="fx fx-lab" role="group" aria-label="${lab.name}"><form class="fx-form" autocomplete="off">${form.html}</form>
    <p class="fx-head"></p><p><b>${lab.title}</b></p><div class="fx-panel"></div><p class="fx-sr" role="status"></p></div>`;
  const root = el.firstElementChild!, find = (name: string) => root.querySelector<HTMLElement>(name)!;
  const voice = new Voice(find(".fx-sr")), writer = new Writer(), head = find(".fx-head"), panel = find(".fx-panel");
  form.attach(find("form"));

  function picture(lengths: (number | null)[]): string {
    const left = Math.min(9 + 7.3 * Math.max(...bars.map(letters)), width / 2.2), most = lab.most ?? Math.max(...lengths.map(n => n ?? 0), 1e-12);
    const longest = Math.max(...lengths.map(n => n ?? 0)), scale = (width - left - 76) / most;
    let out = "";
    bars.forEach((name, k) => {
      const y = 24 * k, n = lengths[k], look = n === longest ? "fx-b" : "fx-dim";
      out += text(left - 8, y + 12, name, look, "end");
      if (n !== null) out += rect(left, y, Math.max(n * scale, 1), 16, n === longest ? "fx-long" : "fx-short") + text(left + n * scale + 6, y + 12.5, said(n, lab.unit), look);
    });
    out += path(`M${at(left)} 0v${24 * bars.length}`, "fx-axis");
    return svg(width, 24 * bars.length, bars.map((name, k) => `${name}: ${lengths[k] === null ? "–" : said(lengths[k]!, lab.unit)}`).join("; "), out);
  }
  function show() {
    root.classList.toggle("fx-wide", width >= 640);
    form.show(Object.fromEntries(chosen.map((n, k) => [k, n])));
    const place = chosen.reduce((all, n, k) => all * controls[k][2].length + n, 0), row = lab.rows[lab.of?.[place] ?? place], rest = row.slice(bars.length);
    const words = lab.lines[rest[0] as number].replace(/\{(\d)\}/g, (_, n) => String(rest[+n + 1]));
    writer.put(head, words);
    writer.put(panel, picture(row.slice(0, bars.length) as (number | null)[]));
    voice.say(words.replace(/<[^>]*>/g, ""), first);
    first = false;
  }
  const sees = watchWidth(panel, next => { width = next; show(); });
  width = sees.first || 640;
  show();
  return {
    get: () => ({ at: [...chosen] }),
    set(next) { chosen = [...next.at as number[]]; show(); },
    destroy() { sees.stop(); voice.stop(); el.innerHTML = ""; },
  };
}
