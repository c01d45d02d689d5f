"""torch._tensor_str: the options of printing, and the text of a tensor's elements."""

from __future__ import annotations

from typing import Any

from webtorch.tensors.printing import element_style, elements_text, get_options, join_suffixes
from webtorch.tensors.printing import printoptions as printoptions
from webtorch.tensors.tensor import Tensor


class _Options:
    """The options of now, by attribute."""

    def __getattr__(self, name: str) -> Any:
        return getattr(get_options(), name)


PRINT_OPTS = _Options()


def _tensor_str(self: Tensor, indent: int) -> str:
    return elements_text(self.tolist(), tuple(self.shape), self.dtype.name, indent, get_options())


class _Formatter:
    """How the elements of a tensor are written, and how wide each is."""

    def __init__(self, tensor: Tensor) -> None:
        self._style = element_style(tensor.reshape(-1).tolist(), tensor.dtype.name, get_options())

    def width(self) -> int:
        """Return the width of an element's text."""
        return self._style.width

    def format(self, value: Any) -> str:
        """Return an element's text, aligned to the right."""
        return self._style.write(value)


def _str(self: Tensor, *, tensor_contents: object = None) -> str:
    return Tensor.__repr__(self, tensor_contents=tensor_contents)  # type: ignore[call-arg]


_str_intern = _str


def _add_suffixes(tensor_str: str, suffixes: list[str], indent: int, force_newline: bool) -> str:
    return join_suffixes(tensor_str, suffixes, indent, get_options().linewidth, force_newline)
