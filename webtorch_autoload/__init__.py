"""What `import torch` calls: the "webgpu" device gets its names, and nothing else happens yet.

Beside webtorch and not in it, because every program that imports PyTorch imports this: webtorch itself comes with the
first tensor on "webgpu" (`_engine`), so that programs which never use it pay next to nothing and may still fork.
"""

from __future__ import annotations

import re
import sys
import warnings
from typing import Any

from webtorch_autoload.device import NAME

# The PyTorch that the tests run with, and the oldest with which the device was tried as a whole.
TESTED, OLDEST = "2.13", "2.11"

_state: dict[str, object] = {"loaded": False}


def unfit(version: str) -> str | None:
    """Return what to say of a PyTorch that is too old for the device, or None of one that is not."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or tuple(map(int, found.groups())) >= tuple(map(int, OLDEST.split("."))):
        return None
    return (
        f"webtorch: the 'webgpu' device needs PyTorch {OLDEST} or later, and this is {version}. It is tested with "
        f"{TESTED}: pip install --upgrade 'torch>={TESTED}'"
    )


def check_version() -> None:
    """Raise ImportError if PyTorch is not installed, or is too old for the device."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(
            f"webtorch.pytorch: PyTorch is not installed: pip install 'torch>={TESTED}'. "
            "`import webtorch as torch` needs none",
            name="torch",
        ) from None
    reason = unfit(str(torch.__version__))
    if reason is not None:
        raise ImportError(reason, name="torch")


def autoload(asked: bool = False) -> None:
    """Register the "webgpu" device with PyTorch. May be called again; never raises.

    Not `asked` (`import torch` calls it), a GPU that PyTorch itself drives comes first: see `own_gpu`.
    """
    if _state["loaded"] or ("torch" not in sys.modules and not _importable()):
        return
    try:
        import torch

        reason = unfit(str(torch.__version__))
        if reason is not None:
            warnings.warn(f"{reason}. PyTorch works without it.", RuntimeWarning, stacklevel=2)
            return
        # `import torch` may itself have called this function, through the entry point.
        if not _state["loaded"] and (asked or own_gpu(torch) is None):
            _state["loaded"] = True
            from webtorch_autoload.device.registration import register

            register(torch)
    except Exception as error:
        # `import torch` must work whatever happens here: a new PyTorch may have changed what this stands on.
        warnings.warn(
            f"webtorch: the 'webgpu' device could not be registered with PyTorch "
            f"({type(error).__name__}: {error}). PyTorch "
            f"works without it; webtorch is made for PyTorch {TESTED}.",
            RuntimeWarning,
            stacklevel=2,
        )


def own_gpu(torch: Any) -> str | None:
    """Return the kind of GPU of this machine that PyTorch drives without us ("cuda", "mps", ...), or None.

    PyTorch's autograd knows one kind a process: from the registration of an outside device on, a backward on any
    other stops with an internal error (pytorch/pytorch#161129). Programs that only import PyTorch must train there as
    ever, so on such a machine the device comes with `import webtorch.pytorch`. Opens no device.
    """
    found = torch.accelerator.current_accelerator()
    if found is None:
        return None
    kind = str(found.type)
    if kind in ("cuda", "xpu"):
        # Both count without opening a device, so that the program may still fork.
        return kind if getattr(torch, kind).device_count() else None
    module = getattr(torch, kind, None)
    return None if kind == NAME or not module or not module.device_count() else kind


def _importable() -> bool:
    import importlib.util

    return importlib.util.find_spec("torch") is not None
