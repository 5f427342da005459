// What the tests call from node; no page loads it.
export * from "./models/traffic";
export { gridOf, keysOf, windowOf } from "./models/grid";
export { rateName, ridge, timeOf } from "./models/roofline";
export { human, humanBytes, humanRoom } from "./format";
export { answer, DEFAULT, tally } from "./blocks/answer";
export { parse, steps } from "./softmax/steps";
