// node run.mjs BUNDLE < calls.jsonl > answers.jsonl: one [function, ...arguments] a line.
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const bundle = await import(pathToFileURL(process.argv[2]).href);
const answers = [];
for await (const line of createInterface({ input: process.stdin })) {
  const [name, ...args] = JSON.parse(line);
  answers.push(JSON.stringify(bundle[name](...args)));
}
process.stdout.write(answers.join("\n") + "\n");
