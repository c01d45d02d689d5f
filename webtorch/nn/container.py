"""Containers: Sequential, ModuleList, ModuleDict, ParameterList, ParameterDict.

May import the tensor floor, and `module` and `parameter` beside it.
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Self, cast, overload

from webtorch.functions.legacy import typename
from webtorch.nn.module import Module
from webtorch.nn.parameter import Parameter
from webtorch.tensors.tensor import Tensor

__all__ = ["ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential"]


def _position(index: Any, length: int) -> int:
    """Return `index`, negative from the end, as a position; raise IndexError outside."""
    position = operator.index(index)
    if not -length <= position < length:
        raise IndexError(f"index {position} is out of range")
    return position % length


class Sequential(Module):
    """Call modules one after the other, each with the result of the one before.

    Takes the modules as arguments, or one OrderedDict of names to modules.
    """

    def __init__(self, *args: Any) -> None:
        """Register the given modules under "0", "1", ... or under their names."""
        super().__init__()
        if len(args) == 1 and isinstance(args[0], OrderedDict):
            for name, module in args[0].items():
                self.add_module(name, module)
        else:
            for position, module in enumerate(args):
                self.add_module(str(position), module)

    def _rebuild(self, modules: Iterable[Module | None]) -> None:
        """Register `modules` under fresh numbers in place of what is there."""
        self._modules = {str(i): module for i, module in enumerate(modules)}

    def _name_at(self, index: object) -> str:
        """Return the name of the module at `index`."""
        return list(self._modules)[_position(index, len(self))]

    @overload
    def __getitem__(self, index: slice) -> Self: ...
    @overload
    def __getitem__(self, index: int) -> Module: ...
    def __getitem__(self, index: slice | int) -> Module:
        """Return one module, or a Sequential of a slice."""
        if isinstance(index, slice):
            return type(self)(OrderedDict(list(self._modules.items())[index]))
        return cast(Module, self._modules[self._name_at(index)])

    def __setitem__(self, index: int, module: Module) -> None:
        """Replace the module at `index`."""
        setattr(self, self._name_at(index), module)

    def __delitem__(self, index: slice | int) -> None:
        """Remove one module or a slice; the rest is numbered anew."""
        if isinstance(index, slice):
            for name in list(self._modules)[index]:
                delattr(self, name)
        else:
            delattr(self, self._name_at(index))
        self._rebuild(self._modules.values())

    def __len__(self) -> int:
        """Return how many modules there are."""
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the modules in order."""
        return iter(self._modules.values())

    def __add__(self, other: Sequential) -> Sequential:
        """Return a Sequential of the modules of both."""
        if not isinstance(other, Sequential):
            raise ValueError(
                "add operator supports only objects of Sequential class, but "
                f"{type(other)} is given."
            )
        return Sequential(*self, *other)

    def __iadd__(self, other: Sequential) -> Sequential:
        """Append the modules of `other`."""
        if not isinstance(other, Sequential):
            raise ValueError(
                "add operator supports only objects of Sequential class, but "
                f"{type(other)} is given."
            )
        return self.extend(list(other))

    def __mul__(self, other: int) -> Sequential:
        """Return a Sequential that runs the same modules `other` times."""
        if not isinstance(other, int):
            raise TypeError(f"unsupported operand type(s) for *: {type(self)} and {type(other)}")
        if other <= 0:
            raise ValueError(f"Non-positive multiplication factor {other} for {type(self)}")
        return Sequential(*list(self) * other)

    def __rmul__(self, other: int) -> Sequential:
        """Return a Sequential that runs the same modules `other` times."""
        return self * other

    def __imul__(self, other: int) -> Sequential:
        """Append the same modules until they run `other` times."""
        self._rebuild((self * other)._modules.values())
        return self

    def append(self, module: Module) -> Sequential:
        """Add a module at the end."""
        self.add_module(str(len(self)), module)
        return self

    def insert(self, index: int, module: Module) -> Sequential:
        """Add a module before `index`; those behind are numbered anew."""
        if not isinstance(module, Module):
            raise AssertionError(f"module should be of type: {Module}")
        if not -len(self) <= index <= len(self):
            raise IndexError(f"Index out of range: {index}")
        modules = list(self._modules.values())
        modules.insert(index % len(self) if index < 0 else index, module)
        self._rebuild(modules)
        return self

    def extend(self, sequential: Iterable[Module]) -> Sequential:
        """Add modules at the end."""
        for module in sequential:
            self.append(module)
        return self

    def pop(self, key: int | slice) -> Any:
        """Remove and return the module at `key`."""
        value = self[key]
        del self[key]
        return value

    def forward(self, input: Any) -> Tensor:
        """Return what the last module makes of what the others made of `input`: nearly always a tensor."""
        for module in self:
            input = module(input)
        out: Tensor = input
        return out


class ModuleList(Module):
    """A list of modules; it has no forward."""

    def __init__(self, modules: Iterable[Module | None] | None = None) -> None:
        """Register the given modules under "0", "1", ..."""
        super().__init__()
        if modules is not None:
            self.extend(modules)

    def _rebuild(self, modules: Iterable[Module | None]) -> None:
        """Register `modules` under fresh numbers in place of what is there."""
        self._modules = {str(i): module for i, module in enumerate(modules)}

    @overload
    def __getitem__(self, index: slice) -> Self: ...
    @overload
    def __getitem__(self, index: int) -> Module: ...
    def __getitem__(self, index: int | slice) -> Module:
        """Return one module, or a ModuleList of a slice."""
        if isinstance(index, slice):
            return type(self)(list(self._modules.values())[index])
        return cast(Module, self._modules[str(_position(index, len(self)))])

    def __setitem__(self, index: int, module: Module) -> None:
        """Replace the module at `index`."""
        setattr(self, str(_position(index, len(self))), module)

    def __delitem__(self, index: int | slice) -> None:
        """Remove one module or a slice; the rest is numbered anew."""
        modules = list(self._modules.values())
        del modules[index]
        self._rebuild(modules)

    def __len__(self) -> int:
        """Return how many modules there are."""
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the modules in order."""
        return iter(self._modules.values())

    def __iadd__(self, modules: Iterable[Module]) -> ModuleList:
        """Append modules."""
        return self.extend(modules)

    def __add__(self, other: Iterable[Module]) -> ModuleList:
        """Return a ModuleList of the modules of both."""
        return ModuleList([*self, *other])

    def __dir__(self) -> list[str]:
        """List attributes, without the numbers of the modules."""
        return [name for name in super().__dir__() if not name.isdigit()]

    def insert(self, index: int, module: Module) -> None:
        """Add a module before `index`; those behind are numbered anew."""
        modules = list(self._modules.values())
        modules.insert(index, module)
        self._rebuild(modules)

    def append(self, module: Module | None) -> ModuleList:
        """Add a module at the end."""
        self.add_module(str(len(self)), module)
        return self

    def pop(self, key: int | slice) -> Any:
        """Remove and return the module at `key`."""
        value = self[key]
        del self[key]
        return value

    def extend(self, modules: object) -> ModuleList:
        """Add modules at the end."""
        if not isinstance(modules, Iterable):
            raise TypeError(
                "ModuleList.extend should be called with an iterable, but got "
                + type(modules).__name__
            )
        for module in list(modules):
            self.append(module)
        return self

    def __repr__(self) -> str:
        """Return the list with runs of equal modules folded: `(0-3): 4 x Linear(...)`."""
        if len(self) == 0:
            return f"{self._get_name()}()"
        runs: list[tuple[int, int, str]] = []
        for position, text in enumerate(repr(module) for module in self):
            if runs and runs[-1][2] == text:
                runs[-1] = (runs[-1][0], position, text)
            else:
                runs.append((position, position, text))
        lines = []
        for first, last, text in runs:
            line = f"({first}): {text}"
            if first != last:
                line = f"({first}-{last}): {last - first + 1} x {text}"
            lines.append(line.replace("\n", "\n  "))
        body = "\n  ".join(lines)
        return f"{self._get_name()}(\n  {body}\n)"


class ModuleDict(Module):
    """A dict of names to modules, in order of insertion; it has no forward."""

    def __init__(self, modules: Mapping[str, Module] | Iterable[object] | None = None) -> None:
        """Register the given modules under their names."""
        super().__init__()
        if modules is not None:
            self.update(modules)

    def __getitem__(self, key: str) -> Module:
        """Return the module called `key`."""
        return cast(Module, self._modules[key])

    def __setitem__(self, key: str, module: Module) -> None:
        """Add or replace the module called `key`."""
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        """Remove the module called `key`."""
        del self._modules[key]

    def __len__(self) -> int:
        """Return how many modules there are."""
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._modules)

    def __contains__(self, key: str) -> bool:
        """Return whether there is a module called `key`."""
        return key in self._modules

    def clear(self) -> None:
        """Remove all modules."""
        self._modules.clear()

    def pop(self, key: str) -> Any:
        """Remove and return the module called `key`."""
        return self._modules.pop(key)

    def keys(self) -> Any:
        """Return the names."""
        return self._modules.keys()

    def items(self) -> Any:
        """Return the (name, module) pairs."""
        return self._modules.items()

    def values(self) -> Any:
        """Return the modules."""
        return self._modules.values()

    def update(self, modules: Mapping[str, Module] | Iterable[object]) -> None:
        """Add or replace modules from a mapping or from (name, module) pairs."""
        for key, module in _pairs("ModuleDict", modules):
            self[key] = module


class ParameterList(Module):
    """A list of parameters (a plain tensor becomes one) and other values; it has no forward."""

    def __init__(self, values: Iterable[object] | None = None) -> None:
        """Hold the given values."""
        super().__init__()
        self._size = 0
        if values is not None:
            self.extend(values)

    def __getitem__(self, index: int | slice) -> Any:
        """Return one value, or a ParameterList of a slice."""
        if isinstance(index, slice):
            out = type(self)()
            for i in range(*index.indices(len(self))):
                out.append(self[i])
            return out
        return getattr(self, str(_position(index, len(self))))

    def __setitem__(self, index: int, value: object) -> None:
        """Replace the value at `index`."""
        if isinstance(value, Tensor) and not isinstance(value, Parameter):
            value = Parameter(value)
        setattr(self, str(_position(index, len(self))), value)

    def __len__(self) -> int:
        """Return how many values there are."""
        return self._size

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the values in order."""
        return iter([self[i] for i in range(len(self))])

    def __iadd__(self, values: Iterable[object]) -> ParameterList:
        """Append values."""
        return self.extend(values)

    def __dir__(self) -> list[str]:
        """List attributes, without the numbers of the values."""
        return [name for name in super().__dir__() if not name.isdigit()]

    def append(self, value: object) -> ParameterList:
        """Add a value at the end."""
        self._size += 1
        self[-1] = value
        return self

    def extend(self, values: object) -> ParameterList:
        """Add values at the end."""
        if not isinstance(values, Iterable) or isinstance(values, Tensor):
            raise TypeError(
                "ParameterList.extend should be called with an iterable, but got "
                + type(values).__name__
            )
        for value in values:
            self.append(value)
        return self

    def extra_repr(self) -> str:
        """Return one line for each value."""
        return "\n".join(
            f"  ({i}): {_described(value, _dtype_name)}" for i, value in enumerate(self)
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raise: a list has no forward."""
        raise RuntimeError("ParameterList should not be called.")


class ParameterDict(Module):
    """A dict of names to parameters (a plain tensor becomes one) and other values."""

    def __init__(self, parameters: object = None) -> None:
        """Hold the given values under their names."""
        super().__init__()
        self._keys: dict[str, None] = {}
        if parameters is not None:
            self.update(parameters)

    @staticmethod
    def _attribute(key: object) -> str:
        """Return the attribute that holds `key`: a name of the class must not be shadowed."""
        if not isinstance(key, str):
            raise TypeError(
                "Index given to ParameterDict cannot be used as a key as it is not a string "
                f"(type is '{type(key).__name__}'). Open an issue on github if you need "
                "non-string keys."
            )
        return key

    def __getitem__(self, key: str) -> Any:
        """Return the value called `key`."""
        return getattr(self, self._attribute(key))

    def __setitem__(self, key: str, value: object) -> None:
        """Add or replace the value called `key`."""
        self._keys[self._attribute(key)] = None
        if isinstance(value, Tensor) and not isinstance(value, Parameter):
            value = Parameter(value)
        setattr(self, key, value)

    def __delitem__(self, key: str) -> None:
        """Remove the value called `key`."""
        del self._keys[key]
        delattr(self, key)

    def __len__(self) -> int:
        """Return how many values there are."""
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._keys)

    def __reversed__(self) -> Iterator[str]:
        """Iterate over the names, last first."""
        return reversed(list(self._keys))

    def __contains__(self, key: str) -> bool:
        """Return whether there is a value called `key`."""
        return key in self._keys

    def __or__(self, other: ParameterDict) -> ParameterDict:
        """Return a dict of both; where names meet, `other` wins."""
        out = self.copy()
        out.update(other)
        return out

    def __ror__(self, other: ParameterDict) -> ParameterDict:
        """Return a dict of both; where names meet, this one wins."""
        out = other.copy()
        out.update(self)
        return out

    def __ior__(self, other: ParameterDict) -> ParameterDict:
        """Take over what `other` holds."""
        self.update(other)
        return self

    def copy(self) -> ParameterDict:
        """Return a new dict of the same values."""
        return ParameterDict(OrderedDict((key, self[key]) for key in self._keys))

    def setdefault(self, key: str, default: object = None) -> Any:
        """Return the value called `key`, which becomes `default` if there is none."""
        if key not in self:
            self[key] = default
        return self[key]

    def get(self, key: str, default: object = None) -> Any:
        """Return the value called `key`, or `default`."""
        return getattr(self, key) if key in self._keys else default

    def clear(self) -> None:
        """Remove all values."""
        for key in list(self._keys):
            del self[key]

    def pop(self, key: str) -> Any:
        """Remove and return the value called `key`."""
        value = self[key]
        del self[key]
        return value

    def popitem(self) -> tuple[str, Any]:
        """Remove and return the last (name, value) pair."""
        key = next(reversed(self._keys))
        return key, self.pop(key)

    def fromkeys(self, keys: Iterable[str], default: object = None) -> ParameterDict:
        """Return a dict in which all `keys` hold `default`."""
        return ParameterDict((key, default) for key in keys)

    def keys(self) -> Any:
        """Return the names."""
        return self._keys.keys()

    def items(self) -> Iterable[tuple[str, Any]]:
        """Return the (name, value) pairs."""
        return ((key, self[key]) for key in self._keys)

    def values(self) -> Iterable[Any]:
        """Return the values."""
        return (self[key] for key in self._keys)

    def update(self, parameters: object) -> None:
        """Add or replace values from a mapping or from (name, value) pairs."""
        pairs = _pairs("ParametersDict", parameters)
        if isinstance(parameters, Mapping) and not isinstance(parameters, OrderedDict):
            # PyTorch takes the names of a plain dict in alphabetical order.
            pairs = sorted(pairs)
        for key, value in pairs:
            self[key] = value

    def extra_repr(self) -> str:
        """Return one line for each value."""
        return "\n".join(f"  ({key}): {_described(value, typename)}" for key, value in self.items())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raise: a dict has no forward."""
        raise RuntimeError("ParameterDict should not be called.")


def _pairs(who: str, source: object) -> Iterable[tuple[str, Any]]:
    """Return the (key, value) pairs of a mapping or of an iterable of pairs."""
    if not isinstance(source, Iterable):
        raise TypeError(
            f"{who}.update should be called with an iterable of key/value pairs, but got "
            + type(source).__name__
        )
    if isinstance(source, (Mapping, ModuleDict, ParameterDict)):
        return chain(source.items())
    pairs = []
    for position, item in enumerate(source):
        if not isinstance(item, Iterable):
            raise TypeError(
                f"{who} update sequence element #{position} should be Iterable; is"
                + type(item).__name__
            )
        pair = tuple(item)
        if len(pair) != 2:
            raise ValueError(
                f"{who} update sequence element #{position} has length {len(pair)}; 2 is required"
            )
        pairs.append(pair)
    return pairs


def _described(value: object, element: Callable[[Tensor], str]) -> str:
    """Return the line printed for a value; `element` names the type of a tensor's elements."""
    if not isinstance(value, Tensor):
        return f"Object of type: {type(value).__name__}"
    size = "x".join(str(n) for n in value.shape)
    where = f" ({value.device})" if value.device.type == "webgpu" else ""
    kind = "Parameter" if isinstance(value, Parameter) else "Tensor"
    return f"{kind} containing: [{element(value)} of size {size}{where}]"


def _dtype_name(value: Tensor) -> str:
    """Return the dtype's name, which ParameterList prints where ParameterDict prints the type's."""
    return "torch." + str(value.dtype).rpartition(".")[2]
