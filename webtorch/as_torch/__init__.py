"""PyTorch programs unchanged: while installed, `import torch` and `torch.*` mean webtorch. Floor 6.

    webtorch.install_as_torch()      # or: webtorch run program.py
    import torch, einops
    ...
    webtorch.uninstall_as_torch()

Packages written for PyTorch that are imported meanwhile compute with webtorch as well.
"""

from __future__ import annotations

import sys

from webtorch.as_torch.finder import Finder
from webtorch.as_torch.room import Room
from webtorch.tensors.tensor import Tensor

_finder = Finder()


def install_as_torch() -> None:
    """Let `import torch` mean webtorch from now on, in this process. Twice is as once.

    Compiled functions that read a value of what they compute run as usual meanwhile, as PyTorch's do.

    Raises RuntimeError where the real PyTorch has been imported: two libraries cannot have one name,
    and its tensors would meet ours.
    """
    if _finder in sys.meta_path:
        return
    real = sys.modules.get("torch")
    if real is not None and not isinstance(real, Room):
        raise RuntimeError(
            f"install_as_torch: PyTorch itself is imported already (from {getattr(real, '__file__', '?')}). "
            "Call webtorch.install_as_torch() before anything imports torch, or start the program with "
            "`webtorch run`"
        )
    sys.meta_path.insert(0, _finder)
    # Loggers and plotting libraries know tensors by this name, so as not to import PyTorch.
    Tensor.__module__ = "torch"


def uninstall_as_torch() -> None:
    """Let `import torch` mean PyTorch again, where it is installed.

    What has been imported meanwhile keeps the webtorch that it has, so packages that hold it should
    be imported anew.
    """
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
        Tensor.__module__ = "webtorch"
    for name in [n for n, m in sys.modules.items() if isinstance(m, Room)]:
        del sys.modules[name]


__all__ = ["install_as_torch", "uninstall_as_torch"]
