"""Write the reference of the public interface as a static site, from signatures and docstrings.

Run it with `make reference`. Imports webtorch and pdoc, which lays the pages out.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import types
import warnings
from collections.abc import Sequence
from pathlib import Path

import webtorch

ROOT = Path(__file__).resolve().parent.parent
# What users import; how the engine is made is told in docs/ARCHITECTURE.md.
MODULES = [
    "webtorch",
    "webtorch.accelerator",
    "webtorch.amp",
    "webtorch.autograd",
    "webtorch.autograd.forward_ad",
    "webtorch.autograd.functional",
    "webtorch.autograd.graph",
    "webtorch.compiler",
    "webtorch.data",
    "webtorch.debug",
    "webtorch.distributions",
    "webtorch.distributions.constraints",
    "webtorch.distributions.transforms",
    "webtorch.errors",
    "webtorch.fft",
    "webtorch.func",
    "webtorch.io",
    "webtorch.linalg",
    "webtorch.masked",
    "webtorch.nn",
    "webtorch.nn.functional",
    "webtorch.nn.init",
    "webtorch.nn.utils",
    "webtorch.nn.utils.parametrizations",
    "webtorch.nn.utils.parametrize",
    "webtorch.nn.utils.rnn",
    "webtorch.onnx",
    "webtorch.optim",
    "webtorch.optim.lr_scheduler",
    "webtorch.optim.swa_utils",
    "webtorch.overrides",
    "webtorch.profiler",
    "webtorch.random",
    "webtorch.signal.windows",
    "webtorch.special",
    "webtorch.testing",
    "webtorch.utils.checkpoint",
    "webtorch.utils.data",
    "webtorch.web",
    "webtorch.webgpu",
]


def gathered(module: types.ModuleType) -> list[str]:
    """Return the names that a module without `__all__` offers: what it defines, and what it gathers
    from other modules of webtorch.
    """
    return [
        name
        for name in dir(module)
        if not name.startswith("_")
        and not isinstance(value := getattr(module, name), types.ModuleType)
        and str(getattr(value, "__module__", "")).startswith("webtorch")
    ]


def write(out: Path, modules: Sequence[str]) -> None:
    """Write a page for each of `modules` into the folder `out`."""
    import pdoc.doc
    import pdoc.render

    pdoc.render.configure(
        docformat="markdown",
        show_source=False,
        footer_text=f"webtorch {webtorch.__version__}",
    )
    for name in modules:
        module = importlib.import_module(name)
        if not hasattr(module, "__all__"):
            vars(module)["__all__"] = gathered(module)
    pages = {}
    with warnings.catch_warnings():
        # Names that only type checkers import stay as they are written.
        warnings.filterwarnings("ignore", message="Error parsing", category=UserWarning)
        described = {name: pdoc.doc.Module.from_name(name) for name in modules}
        for name, page in described.items():
            pages[f"{name.replace('.', '/')}.html"] = pdoc.render.html_module(page, described)
        pages["index.html"] = pdoc.render.html_index(described)
        pages["search.js"] = pdoc.render.search_index(described)
    for path, text in pages.items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_text(text, encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Write the site; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "reference")
    parser.add_argument("modules", nargs="*", help="only these (all that are public)")
    chosen = parser.parse_args(argv)
    write(chosen.out, chosen.modules or MODULES)
    print(f"{chosen.out / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
