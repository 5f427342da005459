// Renders formulas with KaTeX: a JSON object {tex, display} a line in, {html} or {error} a line out.
const katex = require("katex");
const lines = require("readline").createInterface({ input: process.stdin });

lines.on("line", (line) => {
  const { tex, display } = JSON.parse(line);
  let answer;
  try {
    answer = { html: katex.renderToString(tex, {
      displayMode: display, throwOnError: true, strict: "ignore", trust: true }) };
  } catch (error) {
    answer = { error: String(error.message) };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
});
