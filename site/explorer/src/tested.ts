// What the tests call from node; no page loads it.
import { answer, DEFAULT, tally, type State } from "./blocks/answer";
import { parse, steps } from "./softmax/steps";

export * from "./models/traffic";
export * from "./models/decode";
export * from "./models/ring";
export { gridOf, keysOf, windowOf } from "./models/grid";
export { rateName, ridge, timeOf } from "./models/roofline";
export { human, humanBytes, humanRoom } from "./format";
export { parse, steps };

export const tallyOf = (state: Partial<State>) => tally(answer({ ...DEFAULT, ...state }));
export const decodeOf = (state: Partial<State>) => {
  const { parts, best, seconds, bestSeconds } = answer({ ...DEFAULT, ...state }).decode!;
  return { parts, best, seconds, bestSeconds };
};
export const stepsOf = (typed: string) => steps("1", parse(typed) as number[], [1, 2, 3, 4]);
