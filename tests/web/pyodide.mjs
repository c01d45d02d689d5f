// Runs a Python file in Pyodide under Node.js, on the sources as they are: node pyodide.mjs PYODIDE ROOT FILE.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [pyodide, root, file] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(`${pyodide}/pyodide.mjs`));
const env = { WEBTORCH_CACHE: "0", WEBTORCH_DEVICE: "cpu", HOME: "/tmp", PYTHONDONTWRITEBYTECODE: "1" };
const python = await loadPyodide({ env });
python.FS.mkdirTree("/root");
python.FS.mount(python.FS.filesystems.NODEFS, { root }, "/root");
python.runPython("import sys; sys.path.insert(0, '/root')");
try {
  python.runPython(readFileSync(file, "utf8"), { filename: file });
} catch (error) {
  console.error(error.message);
  process.exit(1);
}
