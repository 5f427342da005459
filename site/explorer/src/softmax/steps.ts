// Softmax of one row of logits and its weighted sum of values, in three passes, two and one.
import { say } from "../say";
import { expected } from "../ui";

export type Method = "3" | "2" | "1";
export interface Step {
  pass: number;
  j: number;                // the logit that is read; n for the division at the end
  m: number;
  before: number;           // the maximum before this step
  alpha: number | null;     // the rescale factor; null where nothing is rescaled
  l: number;
  lBefore: number;
  p: number | null;         // the weight of this logit, as it is added
  o: number | null;
  oBefore: number;
  loads: number;            // of logits, so far
}

// float64's lowest and smallest normal numbers: −∞ but for its arithmetic, and what an empty row is divided by.
const LOWEST = -Number.MAX_VALUE, TINY = 2.2250738585072014e-308;
export const isLowest = (m: number) => m === LOWEST;

export function steps(method: Method, x: number[], v: number[]): Step[] {
  const found: Step[] = [];
  expected("method", method, ["3", "2", "1"]);
  let m = LOWEST, l = 0, o = 0, loads = 0;
  const add = (pass: number, j: number, now: Partial<Step>) =>
    found.push({ pass, j, m, before: m, alpha: null, l, lBefore: l, p: null, o: null, oBefore: o, loads, ...now });
  const online = (pass: number, withOutput: boolean) => x.forEach((xj, j) => {
    const [before, lBefore, oBefore] = [m, l, o], next = Math.max(m, xj);
    const alpha = Math.exp(m - next), p = Math.exp(xj - next);
    l = l * alpha + p;
    if (withOutput) o = o * alpha + p * v[j];
    m = next;
    loads += 1;
    add(pass, j, { before, lBefore, oBefore, alpha, p, o: withOutput ? o : null });
  });
  const values = (pass: number) => x.forEach((xj, j) => {
    const oBefore = o, p = Math.exp(xj - m) / Math.max(l, TINY);
    o += p * v[j];
    loads += 1;
    add(pass, j, { p, oBefore, o });
  });
  if (method === "3") {
    x.forEach((xj, j) => {
      const before = m;
      m = Math.max(m, xj);
      loads += 1;
      add(1, j, { before });
    });
    x.forEach((xj, j) => {
      const lBefore = l, p = Math.exp(xj - m);
      l += p;
      loads += 1;
      add(2, j, { lBefore, p });
    });
    values(3);
  } else if (method === "2") {
    online(1, false);
    values(2);
  } else {
    online(1, true);
    const oBefore = o;
    o /= Math.max(l, TINY);
    add(1, x.length, { oBefore, o });
  }
  return found;
}

export const MOST = 16;
/** Numbers that a reader typed: apart by spaces, commas or semicolons; "-inf" hides a key. */
export function parse(typed: string): number[] | string {
  const words = typed.replaceAll("−", "-").replaceAll("∞", "inf").split(/[\s,;]+/).filter(Boolean);
  if (!words.length) return say("Type at least one number.");
  if (words.length > MOST) return say("At most {most} numbers, please: {typed} were typed.", { most: MOST, typed: words.length });
  const numbers = words.map(word => (/^-inf(inity)?$/i.test(word) ? -Infinity : /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(word) ? +word : NaN));
  const wrong = numbers.findIndex(n => Number.isNaN(n) || n === Infinity);
  return wrong < 0 ? numbers : say("“{word}” is no number.", { word: words[wrong] });
}
