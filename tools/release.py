"""What a release is made of: its number, its part of the changelog, the npm package of the pages' runtime.

    python -m tools.release --npm build/npm     # writes the folder that `npm pack` packs
    python -m tools.release --tag v0.2.0        # checks the number; prints what changed

The number stands in webtorch/version/__init__.py (PACKAGE) and nowhere else. Imports the standard library only.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WEB = ROOT / "webtorch" / "web"
# What replays exported programs in a page: its types, and the engine for tabs without WebGPU.
RUNTIME = ("runtime.js", "runtime.d.ts", "cpu.js")
README = """# webtorch

Runs in a page what `webtorch.export` of the Python package wrote: training steps and models, on WebGPU or, where there
is none, on the processor by WebAssembly. No dependencies, no eval. The folder of an export has a copy of this file; the
package is for bundlers, and for its types.

```js
import { load } from "webtorch";

const m = await load("./site/"); // the folder that webtorch.export wrote
const { loss } = await m.train({ x, y });
```

`webtorch/cpu` is the engine of WebAssembly, for Node: `openCpu(..., { library })`.
"""


def version() -> str:
    """Return the number of this release."""
    text = (ROOT / "webtorch" / "version" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^PACKAGE = "([^"]+)"$', text, re.M)
    assert found is not None
    return found[1]


def changes(number: str) -> str:
    """Return what the changelog says of a release; nothing where it does not have it."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(rf"^## \[{re.escape(number)}\][^\n]*\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    return found[1].strip() if found else ""


def write_npm(folder: Path) -> None:
    """Write the npm package of the runtime, made of the files that exports get."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in RUNTIME:
        shutil.copyfile(WEB / name, folder / name)
    shutil.copyfile(ROOT / "LICENSE", folder / "LICENSE")
    (folder / "README.md").write_text(README, encoding="utf-8")
    package = {
        "name": "webtorch",
        "version": version(),
        "description": "Runs in a page what webtorch.export wrote: training and inference on WebGPU, or WebAssembly.",
        "license": "MIT",
        "type": "module",
        "sideEffects": False,
        "main": "./runtime.js",
        "types": "./runtime.d.ts",
        "exports": {
            ".": {"types": "./runtime.d.ts", "default": "./runtime.js"},
            "./cpu": "./cpu.js",
        },
        "files": list(RUNTIME),
        "keywords": ["webgpu", "pytorch", "training", "machine learning", "wgsl", "webassembly"],
    }
    (folder / "package.json").write_text(json.dumps(package, indent=2) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Do what is asked; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--npm", type=Path, metavar="FOLDER")
    parser.add_argument("--tag")
    chosen = parser.parse_args(argv)
    if chosen.npm:
        write_npm(chosen.npm)
    if chosen.tag:
        notes = changes(version())
        if chosen.tag != f"v{version()}" or not notes:
            print(
                f"release: the tag is {chosen.tag}, PACKAGE in webtorch/version says {version()}, and CHANGELOG.md "
                f"has {'a part' if notes else 'no part'} for that: all three must agree",
                file=sys.stderr,
            )
            return 1
        print(notes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
