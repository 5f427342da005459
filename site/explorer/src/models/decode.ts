// Split-KV decoding in time: Case, Rates and waves of flashlib.course.ch15.plan, number for number.
import { ceilDiv } from "./grid";

const TILE = 64;                              // keys that a program loads at a time

/** B sequences of Nk keys in Hk heads of d columns, each with `group` query heads of one query. */
export interface Call { B: number; Nk: number; Hk: number; group: number; d: number }
/** A start, the memory's rate, what one SM gets of it at most, a merge; scripts/explorer_data.py writes them. */
export interface DecodeRates { startS: number; bytesPerS: number; smBytesPerS: number; mergeS: number }

export const headsOf = (c: Call) => c.B * c.Hk;
export const kvBytes = (c: Call) => 4 * headsOf(c) * c.Nk * c.d;
export const partBytes = (c: Call, parts: number) => parts === 1 ? 0 : 2 * parts * headsOf(c) * c.group * (c.d + 2) * 4;
/** Keys of a part if about so many parts are wanted: whole tiles. */
export const keysOfPart = (c: Call, parts: number) => TILE * ceilDiv(c.Nk, TILE * Math.min(parts, c.Nk));
export const cut = (c: Call, parts: number) => ceilDiv(c.Nk, keysOfPart(c, parts));

export interface Waves { programs: number; sms: number; waves: number; idle: number; efficiency: number }
/** How equal programs fill the SMs, one on each at a time. */
export function wavesOf(programs: number, sms: number): Waves {
  const waves = ceilDiv(programs, sms), last = programs - (waves - 1) * sms;
  return { programs, sms, waves, idle: Math.max(0, sms - last), efficiency: programs / (waves * sms) };
}

/** The busiest SM reads at its own rate, and nobody is done before the memory has delivered all. */
export function decodeSeconds(c: Call, parts: number, sms: number, r: DecodeRates): number {
  const programs = headsOf(c) * parts, mine = Math.ceil(programs / sms) * kvBytes(c) / programs / r.smBytesPerS;
  const reading = Math.max(kvBytes(c) / r.bytesPerS, mine);
  return r.startS + reading + (parts > 1 ? r.mergeS + partBytes(c, parts) / r.bytesPerS : 0);
}

/** Every number of parts up to `most`, rising, with its time. */
export function byParts(c: Call, sms: number, r: DecodeRates, most = 256): [parts: number, seconds: number][] {
  const found = new Set(Array.from({ length: most }, (_, k) => cut(c, k + 1)));
  return [...found].sort((a, b) => a - b).map(parts => [parts, decodeSeconds(c, parts, sms, r)]);
}
export const bestOf = (times: [parts: number, seconds: number][]) => times.reduce((best, one) => one[1] < best[1] ? one : best);
