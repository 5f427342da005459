// node build.mjs [FOLDER]: bundles the explorers into ../static/explorer.js, or into a folder of yours,
// and the models alone into models.mjs for the tests when a folder is given.
import { createHash } from "node:crypto";
import { mkdirSync, readdirSync, readFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { build, transform } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const folder = process.argv[2];

/** A digest of all that the bundle is made of: tests/site/explorer/test_built.py computes the same. */
function sources() {
  const files = readdirSync(join(here, "src"), { recursive: true, withFileTypes: true })
    .filter(entry => entry.isFile()).map(entry => join(entry.parentPath ?? entry.path, entry.name));
  const names = [...files, join(here, "build.mjs"), join(here, "package.json")]
    .map(file => relative(here, file).replaceAll("\\", "/")).sort();
  const digest = createHash("sha256");
  for (const name of names) digest.update(name).update("\0").update(readFileSync(join(here, name))).update("\0");
  return digest.digest("hex");
}

/** Styles come as text, small. */
const styles = { name: "styles", setup: ({ onLoad }) => onLoad({ filter: /\.css$/ }, async ({ path }) => ({
  contents: (await transform(readFileSync(path, "utf8"), { loader: "css", minify: true })).code, loader: "text" })) };
const common = { bundle: true, minify: true, target: "es2020", charset: "utf8", legalComments: "none", plugins: [styles],
  logLevel: "warning" };
const out = folder ?? join(here, "..", "static");
mkdirSync(out, { recursive: true });
await build({ ...common, entryPoints: [join(here, "src/page.ts")], outfile: join(out, "explorer.js"), format: "iife",
  globalName: "flashExplorer", banner: { js: `/* built by site/explorer/build.mjs; sources ${sources()} */` } });
if (folder) await build({ ...common, entryPoints: [join(here, "src/tested.ts")], outfile: join(out, "tested.mjs"),
  format: "esm", platform: "node" });
