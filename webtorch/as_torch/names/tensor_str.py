"""torch._tensor_str: the options of printing, and the text of a tensor's elements."""

from __future__ import annotations

from typing import Any

from webtorch.tensors.printing import elements_text, get_options
from webtorch.tensors.printing import printoptions as printoptions
from webtorch.tensors.tensor import Tensor


class _Options:
    """The options of now, by attribute."""

    def __getattr__(self, name: str) -> Any:
        return getattr(get_options(), name)


PRINT_OPTS = _Options()


def _tensor_str(self: Tensor, indent: int) -> str:
    return elements_text(self.tolist(), tuple(self.shape), self.dtype.name, indent, get_options())


def _str(self: Tensor, *, tensor_contents: object = None) -> str:
    return Tensor.__repr__(self, tensor_contents=tensor_contents)  # type: ignore[call-arg]


_str_intern = _str
