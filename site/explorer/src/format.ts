// Quantities for people, letter for letter as flashlib.hardware.human writes them.

/** Round half to even, as Python and NumPy do. */
export function rint(x: number) {
  const low = Math.floor(x), rest = x - low;
  if (rest !== 0.5) return rest < 0.5 ? low : low + 1;
  return low % 2 === 0 ? low : low + 1;
}
const english = new Intl.NumberFormat("en-US");            // toLocaleString would make one each time
export const int = (n: number) => english.format(rint(n));

/** Three significant digits as Python's `:.3g`: an exact tie, such as 42.25, goes to the even digit. */
function three(x: number) {
  const shift = Math.abs(x) >= 10 ? 10 : 100;
  const tie = Math.abs(x) >= 1 && /^-?\d{3}50*$/.test(x.toPrecision(60).replace(".", ""));
  return String(tie ? rint(x * shift) / shift : +x.toPrecision(3));
}

export function human(value: number, unit: string, binary = false): string {
  const steps: [number, string][] = binary ? [[2 ** 20, "Mi"], [2 ** 10, "Ki"]]
    : [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
  const [size, prefix] = steps.find(([s]) => Math.abs(value) >= s) ?? [1, ""], scaled = value / size;
  return `${Math.abs(scaled) >= 99.95 ? int(scaled) : three(scaled)} ${prefix}${unit}`;
}
export const humanBytes = (n: number) => human(n, "B");
export const humanRoom = (n: number) => human(n, "B", true);

export function humanTime(s: number): string {
  const [size, unit] = s >= 1 ? [1, "s"] : s >= 1e-3 ? [1e-3, "ms"] : s >= 1e-6 ? [1e-6, "µs"] : [1e-9, "ns"];
  const scaled = s / size;
  return `${scaled >= 99.95 ? int(scaled) : three(scaled)} ${unit}`;
}
/** A ratio with the digits that one compares. */
export const ratio = (x: number) => x >= 9.95 ? int(x) : x >= 0.095 ? x.toFixed(2) : String(+x.toPrecision(2));
export const times = (n: number, word: string) => `${int(n)} ${word}${n === 1 ? "" : "s"}`;
