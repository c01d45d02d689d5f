"""Every public name is PyTorch's, or stands in the list of ours."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

# Names that PyTorch does not have at this place.
OURS: dict[str, set[str]] = {
    "": {
        "debug",
        "errors",
        "get_printoptions",
        "kernel",
        "mark_dynamic",
        "printoptions",
        "profile",
        "realize",
        "synchronize",
        "webgpu",
    },
    "nn.functional": {"snake", "style_affine", "swiglu"},
    # In PyTorch: torch.autograd.function.FunctionCtx, torch.utils.data._utils.worker.WorkerInfo.
    "autograd": {"FunctionCtx"},
    "utils.data": {"WorkerInfo"},
}
MODULES = [
    "", "amp", "autograd", "autograd.graph", "linalg", "nn", "nn.functional", "nn.init", "nn.parameter", "nn.utils",
    "nn.utils.rnn", "optim", "optim.lr_scheduler", "optim.swa_utils", "random", "special", "utils",
    "utils.checkpoint", "utils.data",
]  # fmt: skip


def public(module: ModuleType, path: str) -> set[str]:
    """Return the names that `from module import *` or completion in an editor gives."""
    names = {n for n in vars(module) if not n.startswith("_")}
    folder = Path(str(module.__file__)).parent
    if not hasattr(module, "__path__") or len(list(folder.glob("*.py"))) == 1:
        # A file imports what it works with; what it offers stands in __all__.
        return set(getattr(module, "__all__", names))
    if path == "nn.functional":
        return names
    # The files of a package are its rooms.
    rooms = {
        n
        for n in names
        if getattr(getattr(module, n), "__name__", "") == f"{module.__name__}.{n}"
        and isinstance(getattr(module, n), ModuleType)
    }
    return names - rooms


@pytest.mark.parametrize("path", MODULES)
def test_public_names_are_pytorchs_or_ours(path: str) -> None:
    module = importlib.import_module(f"webtorch.{path}".rstrip("."))
    theirs = importlib.import_module(f"torch.{path}".rstrip("."))
    ours = OURS.get(path, set())
    names = public(module, path)
    assert {n for n in names - ours if not hasattr(theirs, n)} == set()
    # The list of ours holds nothing that is gone or that PyTorch has; `torch.webgpu` is there where our device is
    # registered with it.
    known = {n for n in ours if hasattr(theirs, n)} - {"webgpu"}
    assert known == {n for n in ours if not hasattr(module, n)} == set()
