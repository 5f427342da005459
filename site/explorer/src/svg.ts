// SVG by string.
import { say } from "./say";
import { escape } from "./ui";

export const at = (x: number) => String(Math.round(x * 10) / 10);
export const rect = (x: number, y: number, w: number, h: number, look: string, title = "") =>
  `<rect x="${at(x)}" y="${at(y)}" width="${at(Math.max(w, 0))}" height="${at(Math.max(h, 0))}" class="${look}"`
  + (title ? `><title>${escape(title)}</title></rect>` : "/>");
export const text = (x: number, y: number, words: string, look = "", anchor = "start") =>
  `<text x="${at(x)}" y="${at(y)}" class="${look}"${anchor === "start" ? "" : ` text-anchor="${anchor}"`}>${words}</text>`;
export const path = (d: string, look: string) => `<path d="${d}" class="${look}"/>`;
/** A rectangle as part of a path. */
export const box = (x: number, y: number, w: number, h: number) => `M${at(x)} ${at(y)}h${at(w)}v${at(h)}h${at(-w)}z`;

/** A picture at its own size: no scaled letters. */
export function svg(width: number, height: number, name: string, body: string): string {
  return `<svg width="${at(width)}" height="${at(height)}" viewBox="0 0 ${at(width)} ${at(height)}" role="img" aria-label="${escape(name)}">${body}</svg>`;
}
/** Diagonal lines for what is written, and for what is left out; ids are the explorer's own. */
export const hatches = (id: string) => `<defs><pattern id="${id}-w" width="5" height="5" patternUnits="userSpaceOnUse" `
  + `patternTransform="rotate(45)"><rect width="1.7" height="5" class="fx-hatch"/></pattern><pattern id="${id}-s" width="7" `
  + `height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="1" height="7" class="fx-skiphatch"/>`
  + `</pattern></defs>`;

/** How a tensor is written, and the class of its hue: a gradient has that of its tensor. */
export const named = (tensor: string) => tensor === "l" ? "ℓ" : tensor === "delta" ? "δ" : tensor === "scales" ? say("scales") : tensor === "parts" ? say("parts")
  : tensor.startsWith("scale_") ? say("scale {tensor}", { tensor: tensor.slice(6) }) : tensor;
/** The length of a text in Latin letters: a Chinese one is as wide as two. */
export const letters = (words: string) => words.length + (words.match(/[\u2e80-\uffef]/g)?.length ?? 0);
export const hue = (tensor: string) => tensor.startsWith("scale") || tensor === "parts" ? "fx-other" : `fx-${tensor}`;
/** What a part of a bar of bytes is, for the pointer. */
export function wayOf(way: number, name: string, bytes: string): string {
  const tensor = named(name);
  return way ? say("{tensor} written: {bytes}", { tensor, bytes }) : say("{tensor} read: {bytes}", { tensor, bytes });
}
