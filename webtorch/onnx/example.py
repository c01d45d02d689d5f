"""The call that an export is given as an example: its tensors, their names, and the dims that may vary. Floor 6."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from webtorch.capture.dynamic import MAX_VARIABLES, Point, placeholder
from webtorch.tensors.tensor import Tensor

# The symbol of each dynamic dim: (number of the tensor, dim) -> name.
Axes = dict[tuple[int, int], str]
# A size that is fixed, the symbol of one that varies, or None where it varies without a name.
Dim = int | str | None
# The argument that a tensor is found in, and its place inside it.
Path = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Example:
    """The tensors of a call, in order, and which of their dims may vary."""

    tensors: list[Tensor]
    names: list[str]
    axes: Axes
    # The symbols, the size of each in the example, and an input and dim that has it.
    symbols: list[str]
    sizes: Point
    places: list[tuple[str, int]]
    # Builds (args, kwargs) with other tensors in their places.
    rebuild: Callable[[list[Tensor]], Any]

    def placeholders(self, point: Point) -> list[Tensor]:
        """Return tensors without data that stand for the inputs at sizes of the symbols."""
        sizes = dict(zip(self.symbols, point, strict=True))
        made = []
        for i, t in enumerate(self.tensors):
            shape = tuple(sizes.get(self.axes.get((i, d), ""), s) for d, s in enumerate(t.shape))
            made.append(placeholder(t, shape).requires_grad_(False))
        return made

    def shapes(self) -> list[list[Dim]]:
        """Return the shape of each input, with the symbols of dims that vary."""
        return [
            [self.axes.get((i, d), int(s)) for d, s in enumerate(t.shape)]
            for i, t in enumerate(self.tensors)
        ]

    def symbolic(self, rows: Sequence[Sequence[int]], points: Sequence[Point]) -> list[Dim]:
        """Return a result's shape, as recorded at the points, with the symbols that sizes follow."""
        shape: list[Dim] = []
        for d, size in enumerate(rows[0]):
            sizes = [r[d] for r in rows]
            if len(set(sizes)) == 1:
                shape.append(size)
                continue
            same = [s for k, s in enumerate(self.symbols) if [p[k] for p in points] == sizes]
            shape.append(same[0] if same else None)
        return shape


def example_of(
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    input_names: Sequence[str] | None,
    dynamic_axes: Mapping[str, Dims] | None,
    dynamic_shapes: object,
) -> Example:
    """Return the example of a call. Raises ValueError for names and axes that do not fit it."""
    tensors, rebuild = take_apart((args, kwargs))
    paths = _paths(function, args, kwargs)
    names = _input_names(paths, input_names)
    dims = _from_dynamic_axes(names, dynamic_axes)
    dims += _from_dynamic_shapes(names, paths, dynamic_shapes)
    axes = _axes(names, tensors, dims)
    owner = _owners(tensors, names, axes)
    # A size of 1 would look like one that is broadcast.
    sizes = tuple(max(int(tensors[i].shape[d]), 2) for i, d in owner.values())
    places = [(names[i], d) for i, d in owner.values()]
    return Example(tensors, names, axes, list(owner), sizes, places, rebuild)


def arguments_of(args: object, kwargs: object) -> tuple[tuple[object, ...], dict[str, object]]:
    """Return the positional and keyword arguments that `args` and `kwargs` of an export stand for."""
    given = tuple(args) if isinstance(args, (tuple, list)) else (args,)
    keywords: dict[str, object] = dict(kwargs) if isinstance(kwargs, Mapping) else {}
    if given and isinstance(given[-1], dict) and not keywords and _is_keywords(given[-1]):
        return given[:-1], dict(given[-1])
    return given, keywords


def _is_keywords(given: dict[object, object]) -> bool:
    return all(isinstance(k, str) for k in given)


def take_apart(structure: object) -> tuple[list[Tensor], Callable[[list[Tensor]], Any]]:
    """Return the tensors in nested arguments, and a function that puts others in their place."""
    found: list[Tensor] = []

    def walk(x: object) -> Callable[[list[Tensor]], object]:
        """Note the tensors in x; return the function that builds x with others."""
        if isinstance(x, Tensor):
            index = len(found)
            found.append(x)
            return lambda new: new[index]
        if isinstance(x, (tuple, list)):
            parts = [walk(y) for y in x]
            if hasattr(x, "_fields"):
                named: Callable[..., object] = type(x)
                return lambda new: named(*(p(new) for p in parts))
            return lambda new: type(x)(p(new) for p in parts)
        if isinstance(x, dict):
            items = {k: walk(v) for k, v in x.items()}
            return lambda new: {k: p(new) for k, p in items.items()}
        return lambda new: x

    return found, walk(structure)


def _signature_names(function: Callable[..., object], count: int) -> list[str]:
    """Return the names of a function's first positional parameters."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [named[i] if i < len(named) else f"input_{i}" for i in range(count)]


def _paths(
    function: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> list[Path]:
    """Return for each tensor its argument and its place inside it."""

    def walk(x: object, path: Path) -> Iterator[Path]:
        """Yield where the tensors in x are."""
        if isinstance(x, Tensor):
            yield path
        elif isinstance(x, (tuple, list)):
            for i, y in enumerate(x):
                yield from walk(y, (*path, i))
        elif isinstance(x, dict):
            for k, y in x.items():
                yield from walk(y, (*path, k))

    named = [*zip(_signature_names(function, len(args)), args, strict=True), *kwargs.items()]
    return [path for name, value in named for path in walk(value, (name,))]


def _input_names(paths: list[Path], given: Sequence[str] | None) -> list[str]:
    made = ["_".join(map(str, path)) for path in paths]
    names = list(given or ())
    if len(names) > len(made):
        raise ValueError(
            f"export: {len(names)} input_names for {len(made)} tensors in the arguments: {names}"
        )
    names += made[len(names) :]
    if len(set(names)) != len(names):
        raise ValueError(f"export: input_names must differ, got {names}")
    return names


# What may stand for the dims of one tensor that vary: by dim, or one entry for each dim.
Dims: TypeAlias = Mapping[int, object] | Sequence[Any]
_Dims = tuple[int, Dims | None]


def _from_dynamic_axes(names: list[str], dynamic_axes: Mapping[str, Dims] | None) -> list[_Dims]:
    """Return what `dynamic_axes` says, by the number of the tensor."""
    dims: list[_Dims] = []
    for key, given in (dynamic_axes or {}).items():
        if key not in names:
            continue  # an output's axes follow from the inputs'
        if not isinstance(given, Mapping):
            given = {int(d): f"{key}_dim_{d}" for d in given}
        dims.append((names.index(key), given))
    return dims


def _from_dynamic_shapes(names: list[str], paths: list[Path], dynamic_shapes: Any) -> list[_Dims]:
    """Return what `dynamic_shapes` says, which is nested as the arguments are."""
    if dynamic_shapes is None:
        return []
    order = list(dict.fromkeys(p[0] for p in paths))
    dims: list[_Dims] = []
    for i, path in enumerate(paths):
        given = dynamic_shapes
        if isinstance(given, (tuple, list)):
            place = order.index(path[0])
            given = given[place] if place < len(given) else None
        else:
            given = given.get(path[0], given.get(names[i]))
        for part in path[1:]:
            if given is None:
                break
            given = given[part] if not isinstance(given, Mapping) or part in given else None
        dims.append((i, given))
    return dims


def _axes(names: list[str], tensors: list[Tensor], dims: list[_Dims]) -> Axes:
    """Return the symbol of each dynamic (tensor, dim)."""
    axes: Axes = {}
    for i, given in dims:
        if given is None:
            continue
        rank = len(tensors[i].shape)
        for d, symbol in given.items() if isinstance(given, Mapping) else enumerate(given):
            if symbol is None or isinstance(symbol, int):
                continue
            if not -rank <= d < rank:
                raise ValueError(
                    f"export: dynamic axis {d} of {names[i]!r}, which has {rank} dimensions"
                )
            name = getattr(symbol, "__name__", None) or str(symbol)
            if not isinstance(symbol, str) and not name.isidentifier():
                name = f"{names[i]}_dim_{d % rank}"
            axes[i, d % rank] = name
    return axes


def _owners(tensors: list[Tensor], names: list[str], axes: Axes) -> dict[str, tuple[int, int]]:
    """Return the first tensor and dim of each symbol, whose dims must have one size."""
    owner: dict[str, tuple[int, int]] = {}
    for (i, d), symbol in axes.items():
        first = owner.setdefault(symbol, (i, d))
        size, other = tensors[first[0]].shape[first[1]], tensors[i].shape[d]
        if size != other:
            raise ValueError(
                f"export: the dynamic dimension {symbol!r} is {size} in {names[first[0]]!r} and {other} in "
                f"{names[i]!r}: give them different names"
            )
    if len(owner) > MAX_VARIABLES + 1:
        raise ValueError(
            f"export: {len(owner)} dynamic dimensions {list(owner)}: at most {MAX_VARIABLES + 1} may vary on "
            "their own; give those that are equal one name"
        )
    return owner
