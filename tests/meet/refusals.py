"""What webtorch refuses in words: these patterns and no others. Each is documented where its comment says."""

from __future__ import annotations

import re

REFUSALS: dict[str, tuple[str, str]] = {
    # name: (type of the error, pattern of its text)
    # docs/compile.md, "What is refused": an export whose shapes depend on values (`x[x > 0]`, nonzero).
    "an exported function reads values": ("CaptureError", r"cannot read values"),
    # docs/compile.md, "What is refused": x[i] of a 0-d tensor i on the device is a copy there.
    "as_strided of what a number on the device picked": (
        "CaptureError",
        r"as_strided: in a captured",
    ),
    # docs of webtorch.export: the page has its own copy of the arguments.
    "an exported function writes to its arguments": (
        "CaptureError",
        r"export: the function writes into one of its arguments",
    ),
    # docs of webtorch.export: an argument that comes back is no value of the page.
    "an exported function returns an argument": (
        "CaptureError",
        r"export: the function returns one of its arguments",
    ),
    # docs/compile.md, "What is refused": third derivatives take a step that is compiled as a whole.
    "create_graph through a compiled function": ("RuntimeError", r"create_graph"),
    # docs of webtorch.export: pages have no complex numbers.
    "an exported function of complex numbers": ("DTypeError", r"export: .* is complex"),
    # PyTorch's fused kernels keep the result for the backward pass, too.
    "an attention's result was overwritten": (
        "RuntimeError",
        r"modified by an inplace operation: .* output 0 of _Attention",
    ),
    # docs/differences.md: what LAPACK computes is computed on the CPU alone.
    "no WebGPU kernel": (
        "DeviceError",
        r"no WebGPU kernel computes this|only the CPU computes this",
    ),
}


def refused(error: BaseException, face: str) -> str | None:
    """The name of the refusal that this error is, or None."""
    for name, (kind, pattern) in REFUSALS.items():
        types = {c.__name__ for c in type(error).__mro__}
        if kind in types and re.search(pattern, str(error)):
            return name
    return None
