"""The files of an export: a folder that any static server serves, or one HTML file. Floor 6; may import io.

Neither runs text as code: the content security policy of both allows the page's own scripts only. In
the one file the scripts and data are blocks of the page; a few lines, allowed by their hash, make
them modules.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import io
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from webtorch.io.safetensors import RawTensor, dump, save_file
from webtorch.runtime.backends import webassembly
from webtorch.show.theme import style
from webtorch.web.program_json import Json

HERE = Path(__file__).parent
PAGE_FILES = ("runtime.d.ts", "page/widgets.js")
# The name of the stamp in safetensors files and in cpu.wasm.
_STAMP = "webtorch.export"
_RUNTIME = 'const RUNTIME = "{}";'
# Without this word a policy forbids WebAssembly; it allows no text to become script.
_WASM = " 'wasm-unsafe-eval'"
# Turns the page's blocks into modules: the worker of runtime.js needs an address too.
_START = """
const text = (id) => document.getElementById(id).textContent.replaceAll("<\\\\/script", "</script");
const module = (code) => URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
const runtime = module(text("runtime.js"));
// A page opened as a file may start classic workers only: one is the module without its exports.
const plain = (id) => text(id).replace(/^export /gm, "").replaceAll("import.meta.url", "location.href");
const cpu = document.getElementById("cpu.js") !== null;
// Nor may those import a module: the processor's engine comes with them.
const engine = cpu ? `;(() => { ${plain("cpu.js")}\nglobalThis.webtorchEngine = { openEngine }; })();` : "";
globalThis.webtorchWorker = module(engine + plain("runtime.js"));
globalThis.webtorchCpu = cpu ? module(text("cpu.js")) : null;
const beside = (id, name, address) => text(id).replaceAll(`"./${name}"`, JSON.stringify(address));
const widgets = module(beside("widgets.js", "runtime.js", runtime));
const page = beside("page.js", "widgets.js", widgets);
import(module(page.replaceAll('"./runtime.js"', JSON.stringify(runtime))));
"""
_PART = re.compile(r"<(style|script)(?: [^>]*)?>\n?(.*?)</\1>\n?", re.S)


class PageParts(NamedTuple):
    """What a page has of its own: what stands in it, its script (a module) and its style."""

    body: str
    script: str
    style: str


def page_parts(page: str | None) -> PageParts:
    """Return the parts of a page that is given as HTML, or of the usual one."""
    folder = HERE / "page"
    if page is None:
        script = (folder / "page.js").read_text(encoding="utf-8")
        return PageParts((folder / "usual.html").read_text(encoding="utf-8"), script, page_style())
    parts = {"script": "", "style": ""}
    for match in _PART.finditer(page):
        parts[match[1]] += match[2]
    style_sheet = f"{page_style()}\n{parts['style']}"
    return PageParts(_PART.sub("", page), parts["script"], style_sheet)


def write_site(
    path: Path,
    program: Json,
    weights: Mapping[str, RawTensor],
    examples: Mapping[str, RawTensor],
    native: Mapping[str, object],
    software: Mapping[str, object],
    *,
    initial: Mapping[str, RawTensor],
    code: bytes = b"",
    constants: bytes = b"",
    single_file: bool,
    own_page: str | None = None,
) -> Path:
    """Write an export to the folder `path`, or with `single_file` as one page; return where it is."""
    parts = page_parts(own_page)
    runtime = (HERE / "runtime.js").read_text(encoding="utf-8")
    # What ties the files to each other: a page must not meet weights or code of another export.
    known = {key: value for key, value in program.items() if key not in ("stamp", "runtime")}
    text = _text(known)
    stamp = _digest(text.encode(), _text(software).encode(), code, constants)
    version = _digest(runtime.encode())
    text = _text({**known, "stamp": stamp, "runtime": version})
    runtime = runtime.replace(_RUNTIME.format(""), _RUNTIME.format(version))
    page = (HERE / "page" / "index.html").read_text(encoding="utf-8")
    page = page.replace("{{title}}", html.escape(program["title"])).replace("{{body}}", parts.body)
    page = unserved(page, f"script-src 'self'{_WASM if code else ''}")
    if single_file:
        if path.suffix.lower() not in (".html", ".htm"):
            path = path / "index.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        page = _single(page, parts, text, runtime, weights, examples, initial, code, constants)
        path.write_text(page, encoding="utf-8")
        return path
    path.mkdir(parents=True, exist_ok=True)
    (path / "program.json").write_text(text + "\n", encoding="utf-8")
    (path / "software.json").write_text(
        _text({**software, "stamp": stamp}) + "\n", encoding="utf-8"
    )
    stamped = {_STAMP: stamp}
    save_file(weights, path / "weights.safetensors", stamped)
    for name, tensors in (("examples", examples), ("initial", initial)):
        if tensors:
            save_file(tensors, path / f"{name}.safetensors", stamped)
        else:
            (path / f"{name}.safetensors").unlink(missing_ok=True)
    engine = (HERE / "cpu.js").read_bytes()
    module = webassembly().with_section(code, _STAMP, stamp.encode()) if code else b""
    numbers = constants + stamp.encode()
    for name, data in (("cpu.wasm", module), ("cpu.bin", numbers), ("cpu.js", engine)):
        if code:
            (path / name).write_bytes(data)
        else:
            (path / name).unlink(missing_ok=True)
    (path / "native.json").write_text(json.dumps(native) + "\n", encoding="utf-8")
    for file in PAGE_FILES:
        shutil.copyfile(HERE / file, path / Path(file).name)
    (path / "page.css").write_text(parts.style, encoding="utf-8")
    (path / "page.js").write_text(parts.script, encoding="utf-8")
    (path / "runtime.js").write_text(runtime, encoding="utf-8")
    (path / "index.html").write_text(page, encoding="utf-8")
    return path


# A page of several files that is opened as a file may load none of them, and would wait for ever.
_UNSERVED = """
if (location.protocol === "file:") document.getElementById("status").textContent =
  "A page that is opened as a file may not load its other files. Any web server shows it, on this machine: " +
  "webtorch serve FOLDER";
"""


def unserved(page: str, scripts: str) -> str:
    """Return a page that says so where it was opened as a file; `scripts` are those that its policy allows."""
    page = page.replace("</body>", f"<script>{_UNSERVED}</script>\n</body>")
    return page.replace("script-src 'self'", f"{scripts} {_hash(_UNSERVED)}", 1)


def copy_runtime(folder: Path) -> None:
    """Copy what replays programs, and its types, to a folder."""
    for file in ("runtime.js", "runtime.d.ts"):
        shutil.copyfile(HERE / file, folder / file)


def page_style() -> str:
    """Return the style sheet of exported pages and of the page of tests."""
    return style((HERE / "page" / "page.css").read_text(encoding="utf-8"))


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _text(data: Mapping[str, object]) -> str:
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _single(
    page: str,
    parts: PageParts,
    program: str,
    runtime: str,
    weights: Mapping[str, RawTensor],
    examples: Mapping[str, RawTensor],
    initial: Mapping[str, RawTensor],
    code: bytes,
    constants: bytes,
) -> str:
    """Return the page with everything in it."""
    css = parts.style
    policy = (
        f"default-src 'none'; script-src {_hash(_START)} blob:{_WASM if code else ''}; worker-src blob:; "
        f"style-src {_hash(css)}; img-src data:"
    )
    blocks = [
        _packed("program.json", program.encode()),
        _packed("weights.safetensors", _encoded(weights)),
        _packed("examples.safetensors", _encoded(examples)),
        *([_packed("initial.safetensors", _encoded(initial))] if initial else []),
        _block("runtime.js", runtime),
        _block("widgets.js", (HERE / "page" / "widgets.js").read_text(encoding="utf-8")),
        _block("page.js", parts.script),
    ]
    if code:
        blocks += [
            _block("cpu.js", (HERE / "cpu.js").read_text(encoding="utf-8")),
            _packed("cpu.wasm", code),
            _packed("cpu.bin", constants),
        ]
    page = re.sub(r'(Content-Security-Policy" content=")[^"]*', lambda m: m.group(1) + policy, page)
    page = page.replace('<link rel="stylesheet" href="page.css">', f"<style>{css}</style>")
    page = page.replace('<script type="module" src="page.js"></script>\n', "")
    page = page.replace(f"<script>{_UNSERVED}</script>\n", "")
    script = f'<script type="module">{_START}</script>'
    return page.replace("</body>", "\n".join([*blocks, script]) + "\n</body>")


def _encoded(tensors: Mapping[str, RawTensor]) -> bytes:
    stream = io.BytesIO()
    dump(tensors, stream)
    return stream.getvalue()


def _packed(name: str, data: bytes) -> str:
    """Return a block of bytes. The state before training is mostly zeros, and programs are text."""
    return _block(name, base64.b64encode(gzip.compress(data, mtime=0)).decode("ascii"))


def _block(name: str, text: str) -> str:
    # In data blocks only the end tag and the start of a comment mean anything to a browser.
    text = text.replace("</script", "<\\/script").replace("<!--", "<\\u0021--")
    return f'<script type="text/plain" id="{name}">{text}</script>'


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
