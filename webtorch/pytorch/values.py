"""What is known of the inputs and results of a compiled graph: in the trace, and in its programs. Floor 6."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch

from webtorch.pytorch.geometry import Geometry
from webtorch.tensors.storage import Storage

# What PyTorch calls a graph with, or gets from it: tensors, numbers, None, and what a forward graph saved.
Arguments: TypeAlias = Sequence[Any]
# Python's numbers are traced as tensors of these types, which the device lacks; it computes with those.
NUMBERS = {torch.float64: torch.float32, torch.complex128: torch.complex64}


@dataclass(frozen=True, slots=True)
class Value:
    """What a trace knows of an input or a result of a graph."""

    # A tensor, as PyTorch traced it; or a number, which may be a symbol; or None.
    fake: Any
    # The number of the input that a result is.
    origin: int | None
    # Whether a float reaches tensors only, as a value.
    is_free: bool = False
    # Whether it must not be overwritten before a backward graph has used it.
    is_watched: bool = True
    # The number of the result that it is a second time.
    again: int | None = None

    @staticmethod
    def of(node: object, origin: int | None, again: int | None = None) -> Value:
        """Return what there is to know of a node, or of a constant result."""
        if not isinstance(node, torch.fx.Node):
            return Value(node, origin)
        makes_tensor = torch.ops.aten.scalar_tensor.default
        value = node.meta.get("val")
        free = isinstance(value, (float, torch.SymFloat)) and node.op == "placeholder"
        free = free and all(u.target is makes_tensor for u in node.users)
        watched = not node.meta.get("saved_tensor_with_no_vc_check")
        return Value(value, origin, free, watched, again)

    @property
    def is_tensor(self) -> bool:
        """Whether it is a tensor."""
        return isinstance(self.fake, torch.Tensor)

    @property
    def is_on_cpu(self) -> bool:
        """Whether the trace has it in the CPU's memory."""
        return self.is_tensor and self.fake.device.type == "cpu"

    @property
    def is_lazy(self) -> bool:
        """Whether its memory holds its conjugate, or its negative."""
        return self.is_tensor and (self.fake.is_conj() or self.fake.is_neg())


class Evaluates(Protocol):
    """A graph that can be run on webtorch tensors."""

    inputs: list[Value]
    # What people call them; a number: as the input of that number of the forward graph.
    titles: list[str | int]
    results: list[Value]
    written: frozenset[int]
    # Inputs that one `Saved` brings, and results that one takes.
    taken: range
    packed: range

    def evaluate(self, inputs: Arguments) -> list[object]:
        """Return the graph's results."""


class OfInput(NamedTuple):
    """A result that is a view of the storage of input `number`: what a forward saves for its backward often is."""

    number: int
    geometry: Geometry


class Itself(NamedTuple):
    """A result that is argument `number`."""

    number: int


class Again(NamedTuple):
    """A result that is result `number`, the same tensor: autograd, and later writes, see one."""

    number: int


class Fresh(NamedTuple):
    """A result that the program computes, as output `number`, or that only the capture holds."""

    number: int | None
    storage: Storage | None
    geometry: Geometry
