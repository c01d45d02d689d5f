"""Layouts of the weights of convolutions within a module. May import nn's base files."""

from __future__ import annotations

from typing import TypeVar

from webtorch.nn.conv import Conv2d, Conv3d, ConvTranspose2d, ConvTranspose3d
from webtorch.nn.module import Module
from webtorch.tensors.formats import memory_format as MemoryFormat

__all__ = ["convert_conv2d_weight_memory_format", "convert_conv3d_weight_memory_format"]
M = TypeVar("M", bound=Module)


def _convert(module: M, format: MemoryFormat, kinds: tuple[type[Module], ...]) -> M:
    for one in module.modules():
        if isinstance(one, kinds):
            one.weight.data = one.weight.detach().clone(memory_format=format)
    return module


def convert_conv2d_weight_memory_format(module: M, memory_format: MemoryFormat) -> M:
    """Let the weights of all 2-d convolutions of a module lie in a memory format, and return the module."""
    return _convert(module, memory_format, (Conv2d, ConvTranspose2d))


def convert_conv3d_weight_memory_format(module: M, memory_format: MemoryFormat) -> M:
    """Let the weights of all 3-d convolutions of a module lie in a memory format, and return the module."""
    return _convert(module, memory_format, (Conv3d, ConvTranspose3d))
