// Compiles the wheel's Python files with Pyodide's own Python, so that the page need not: node bytecode.mjs PYODIDE WHEEL OUT

import { readFile, writeFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";

const [folder, wheel, out] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(`${folder}/pyodide.mjs`).href);
const python = await loadPyodide({ indexURL: folder });
const home = python.runPython("import site; site.getsitepackages()[0]");
python.unpackArchive(new Uint8Array(await readFile(wheel)), "wheel", { extractDir: home });
python.runPython(`
import compileall, pathlib, py_compile, site, zipfile
home = pathlib.Path(site.getsitepackages()[0])
# Unchecked: the page unpacks both, and a comparison of times would only cost time.
mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
# What few programs in a page enter is compiled there.
RARE = {"onnx", "pytorch", "distributions", "profiler", "cpu"}
compileall.compile_dir(home / "webtorch", quiet=2, invalidation_mode=mode)
with zipfile.ZipFile("/bytecode.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
    for file in sorted(home.rglob("*.pyc")):
        if RARE & set(file.parts):
            continue
        archive.writestr(zipfile.ZipInfo(str(file.relative_to(home)), (1980, 1, 1, 0, 0, 0)), file.read_bytes(), zipfile.ZIP_DEFLATED)
`);
await writeFile(out, python.FS.readFile("/bytecode.zip"));
process.exit(0);
