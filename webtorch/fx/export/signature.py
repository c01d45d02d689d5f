"""What the inputs and outputs of an exported graph are: parameters, buffers, constants, the user's own."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any


@dataclass
class TensorArgument:
    """A tensor: the name of its node."""

    name: str


@dataclass
class ConstantArgument:
    """A value of Python that is part of the program."""

    name: str
    value: Any


class InputKind(enum.Enum):
    """What an input is."""

    USER_INPUT = 1
    PARAMETER = 2
    BUFFER = 3
    CONSTANT_TENSOR = 4


class OutputKind(enum.Enum):
    """What an output is. What is written in place is written in the graph."""

    USER_OUTPUT = 1


@dataclass
class InputSpec:
    """One input; `target` is where the module has it."""

    kind: InputKind
    arg: TensorArgument | ConstantArgument
    target: str | None
    persistent: bool | None = None

    def __str__(self) -> str:
        target = "" if self.target is None else f" target='{self.target}'"
        kept = "" if self.persistent is None else f" persistent={self.persistent}"
        return f"{self.arg.name}: {self.kind.name}{target}{kept}"


@dataclass
class OutputSpec:
    """One output."""

    kind: OutputKind
    arg: TensorArgument | ConstantArgument
    target: str | None = None

    def __str__(self) -> str:
        return f"{self.arg.name}: {self.kind.name}"


@dataclass
class ExportGraphSignature:
    """The inputs and outputs of an exported graph, in order."""

    input_specs: list[InputSpec]
    output_specs: list[OutputSpec]

    def _inputs(self, *kinds: InputKind) -> list[InputSpec]:
        return [s for s in self.input_specs if s.kind in kinds]

    def _targets(self, *kinds: InputKind) -> tuple[str, ...]:
        return tuple([str(s.target) for s in self._inputs(*kinds)])

    def _by_name(self, *kinds: InputKind) -> dict[str, str]:
        return {s.arg.name: str(s.target) for s in self._inputs(*kinds)}

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters, as the module has them."""
        return self._targets(InputKind.PARAMETER)

    @property
    def buffers(self) -> tuple[str, ...]:
        """The names of the buffers, as the module has them."""
        return self._targets(InputKind.BUFFER)

    @property
    def non_persistent_buffers(self) -> set[str]:
        """The names of the buffers that are in no file."""
        return {str(s.target) for s in self._inputs(InputKind.BUFFER) if not s.persistent}

    @property
    def lifted_tensor_constants(self) -> tuple[str, ...]:
        """The names of tensors that are constants."""
        return self._targets(InputKind.CONSTANT_TENSOR)

    @property
    def user_inputs(self) -> tuple[Any, ...]:
        """The names of the inputs that the user gives; values of Python as they are."""
        return tuple([_shown(s.arg) for s in self._inputs(InputKind.USER_INPUT)])

    @property
    def user_outputs(self) -> tuple[Any, ...]:
        """The names of the outputs; values of Python as they are."""
        return tuple([_shown(s.arg) for s in self.output_specs])

    @property
    def inputs_to_parameters(self) -> dict[str, str]:
        """Name of a node -> name of a parameter."""
        return self._by_name(InputKind.PARAMETER)

    @property
    def inputs_to_buffers(self) -> dict[str, str]:
        """Name of a node -> name of a buffer."""
        return self._by_name(InputKind.BUFFER)

    @property
    def inputs_to_lifted_tensor_constants(self) -> dict[str, str]:
        """Name of a node -> name of a constant."""
        return self._by_name(InputKind.CONSTANT_TENSOR)

    @property
    def buffers_to_mutate(self) -> dict[str, str]:
        """Nothing: the graph writes to buffers itself."""
        return {}

    user_inputs_to_mutate = buffers_to_mutate

    def __str__(self) -> str:
        inputs = "\n".join(map(str, self.input_specs))
        outputs = "\n".join(map(str, self.output_specs))
        return f"\n# inputs\n{inputs}\n\n# outputs\n{outputs}\n"


def _shown(arg: TensorArgument | ConstantArgument) -> object:
    return arg.name if isinstance(arg, TensorArgument) else arg.value


@dataclass(frozen=True)
class ValueRange:
    """The sizes that a dimension may have."""

    lower: int
    upper: int | None

    def __repr__(self) -> str:
        return f"VR[{self.lower}, {'int_oo' if self.upper is None else self.upper}]"
