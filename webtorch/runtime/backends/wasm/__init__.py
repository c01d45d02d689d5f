"""Programs for WebAssembly: written here, run by `web/cpu.js` in a page. No device of this process.

The kernels, products and convolutions are those of the CPU backend, compiled for another processor.
Imports NumPy, llvmlite lazily, floors 0-2 and the CPU backend.
"""

from webtorch.runtime.backends.on_processor import LIMITS
from webtorch.runtime.backends.wasm.link import with_section
from webtorch.runtime.backends.wasm.program import COPY, Page, available, lay_out

__all__ = ["COPY", "LIMITS", "Page", "available", "lay_out", "with_section"]
