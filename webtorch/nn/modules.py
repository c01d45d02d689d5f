"""`nn.modules`: PyTorch's files of layers by their names, for programs that import from them.

`from webtorch.nn.modules.batchnorm import _BatchNorm` finds what is in `webtorch.nn`. May import nn's files only.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable
from types import ModuleType

__all__: list[str] = []
# PyTorch's file -> ours, whose classes it has.
_FILES: dict[str, tuple[str, ...]] = {
    "activation": ("activation", "attention"),
    "adaptive": ("adaptive",),
    "batchnorm": ("norm", "lazy"),
    "container": ("container",),
    "conv": ("conv", "lazy"),
    "distance": ("distance",),
    "dropout": ("dropout",),
    "flatten": ("vision",),
    "fold": ("vision",),
    "instancenorm": ("norm", "lazy"),
    "lazy": ("lazy",),
    "linear": ("linear", "lazy"),
    "loss": ("loss",),
    "module": ("module", "module_hooks", "state_dict"),
    "normalization": ("norm",),
    "padding": ("vision",),
    "pixelshuffle": ("vision",),
    "pooling": ("pooling",),
    "rnn": ("rnn",),
    "sparse": ("embedding",),
    "transformer": ("transformer",),
    "upsampling": ("vision",),
}


def _ntuple(count: int) -> Callable[[object], tuple[object, ...]]:
    """Return the function that makes one number, or an iterable, a tuple of `count`."""

    def parse(value: object) -> tuple[object, ...]:
        """Return an iterable as a tuple, or one value `count` times."""
        return tuple(value) if isinstance(value, Iterable) else (value,) * count

    return parse


def _fill() -> None:
    """Make the modules, and let `import` find them."""
    # A package is a module with a path; there are no files below it.
    globals()["__path__"] = []
    for name, sources in _FILES.items():
        made = ModuleType(f"{__name__}.{name}", f"The layers of torch.nn.modules.{name}.")
        for source in sources:
            for key, value in vars(importlib.import_module(f"webtorch.nn.{source}")).items():
                if not getattr(value, "__module__", "").startswith("webtorch.nn."):
                    continue
                if inspect.isclass(value) or inspect.isfunction(value):
                    setattr(made, key, value)
                if inspect.isclass(value) and not key.startswith("_"):
                    globals()[key] = value
        sys.modules[made.__name__] = globals()[name] = made
    tools = ModuleType(f"{__name__}.utils", "Sizes as tuples.")
    for count, title in enumerate(("_single", "_pair", "_triple", "_quadruple"), 1):
        setattr(tools, title, _ntuple(count))
    tools._ntuple = _ntuple  # type: ignore[attr-defined]
    sys.modules[tools.__name__] = globals()["utils"] = tools


_fill()
