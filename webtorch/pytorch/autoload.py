"""What `import torch` calls. Floor 6."""

from __future__ import annotations


def autoload() -> None:
    """Register the "webgpu" device with PyTorch."""
