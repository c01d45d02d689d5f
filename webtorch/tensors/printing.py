"""The text of a tensor, character for character as PyTorch 2.13 prints it, and the options for it.

Formatting happens in float64: PyTorch formats what `Tensor.item` returns, so a float32 or bfloat16
value arrives here already rounded to its type and nothing else depends on the type. The oracle for
every rule, odd ones included, is `repr(torch.Tensor)`; tests compare with it.

May import the standard library only, so that a tensor can be printed in Pyodide.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, TypeAlias

Number: TypeAlias = float | int | bool
# What `Tensor.tolist` returns: a number for 0-d, else lists of lists down to numbers.
Nested: TypeAlias = Number | Sequence["Nested"]
Fetch: TypeAlias = Callable[[int | None], Nested]


@dataclasses.dataclass(frozen=True, slots=True)
class PrintOptions:
    """How tensors are printed; the fields are the arguments of `set_printoptions`."""

    precision: int = 4
    threshold: float = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


_PROFILES = {
    "default": PrintOptions(),
    "short": PrintOptions(precision=2, edgeitems=2),
    "full": PrintOptions(threshold=math.inf),
}

_lock = threading.Lock()
_global = _PROFILES["default"]
# Set inside `with printoptions(...)`: seen by this thread or task alone, so that two threads that
# print in different styles cannot restore each other's options in the wrong order.
_local: ContextVar[PrintOptions | None] = ContextVar("webtorch_print_options", default=None)


def set_printoptions(
    precision: int | None = None,
    threshold: float | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    profile: str | None = None,
    sci_mode: bool | None = None,
) -> None:
    """Set how tensors are printed; see torch.set_printoptions.

    precision: digits after the point. threshold: elements above which only the edges are shown.
    edgeitems: elements shown at each end of a dimension then. linewidth: characters per line.
    profile: "default", "short" or "full", on which the other arguments build. sci_mode: scientific
    notation always, never, or (None) where the values ask for it; every call sets it anew.

    Raises ValueError for a negative number or an unknown profile.
    """
    global _global
    with _lock:
        options = _changed(
            get_options(), precision, threshold, edgeitems, linewidth, profile, sci_mode
        )
        if _local.get() is None:
            _global = options
        else:
            _local.set(options)


def get_printoptions() -> dict[str, Any]:
    """Return the options in force as a dictionary of `set_printoptions` arguments."""
    return dataclasses.asdict(get_options())


def get_options() -> PrintOptions:
    """Return the options in force, as one value that no other thread changes."""
    return _local.get() or _global


@contextlib.contextmanager
def printoptions(
    precision: int | None = None,
    threshold: float | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    profile: str | None = None,
    sci_mode: bool | None = None,
) -> Iterator[None]:
    """Change the options inside a `with` block, in this thread; arguments as `set_printoptions`."""
    options = _changed(get_options(), precision, threshold, edgeitems, linewidth, profile, sci_mode)
    token = _local.set(options)
    try:
        yield
    finally:
        _local.reset(token)


def _changed(
    options: PrintOptions,
    precision: int | None,
    threshold: float | None,
    edgeitems: int | None,
    linewidth: int | None,
    profile: str | None,
    sci_mode: bool | None,
) -> PrintOptions:
    if profile is not None:
        if profile not in _PROFILES:
            raise ValueError(
                f"set_printoptions: unknown profile {profile!r}; use one of {', '.join(_PROFILES)}"
            )
        options = _PROFILES[profile]
    given = {
        "precision": precision,
        "threshold": threshold,
        "edgeitems": edgeitems,
        "linewidth": linewidth,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    for name, value in changes.items():
        if not value >= 0:
            raise ValueError(f"set_printoptions: {name} must be 0 or more, not {value}")
    return dataclasses.replace(options, **changes, sci_mode=sci_mode)  # type: ignore[arg-type]


def format_tensor(
    values: Nested | Fetch | str | None,
    shape: Sequence[int],
    dtype_name: str,
    *,
    device: str | None = None,
    requires_grad: bool = False,
    grad_fn: str | None = None,
    tangent: str | None = None,
    class_name: str = "tensor",
    default_dtype_name: str = "float32",
    options: PrintOptions | None = None,
) -> str:
    """Return the text that PyTorch's `repr` gives a tensor.

    values: the nested list of all elements; or a function of `edgeitems` that returns them, called
    once, which for a number returns only the first and last `edgeitems` along every dimension
    longer than twice that (None asks for all), so that a large tensor is not read whole; or None
    for a tensor without values (on the meta device, or while being traced); or their text.
    dtype_name: such as "float32".
    device: such as "webgpu:0"; "cpu" and None are not shown, as in PyTorch.
    grad_fn: the name of the backward node's class, such as "AddBackward0".
    tangent: the text of the tangent of forward-mode differentiation.
    class_name: what stands before the parenthesis, for subclasses.
    default_dtype_name: the default float type, which needs no suffix.
    """
    options = options or get_options()
    shape = tuple(shape)
    count = math.prod(shape)
    indent = len(class_name) + 1
    # PyTorch names the size where the text does not show it, and the type where it cannot be told.
    show_size = values is None or (count == 0 and len(shape) != 1)
    show_dtype = dtype_name != default_dtype_name
    if values is None:
        body = "..."
    elif count == 0:
        body = values if isinstance(values, str) else "[]"
    else:
        show_size = options.edgeitems == 0
        complex_name = "complex128" if default_dtype_name == "float64" else "complex64"
        show_dtype = show_dtype and dtype_name not in ("int64", "bool", complex_name)
        body = (
            values
            if isinstance(values, str)
            else elements_text(values, shape, dtype_name, indent, options)
        )

    suffixes = []
    if device not in (None, "cpu"):
        suffixes.append(f"device='{device}'")
    if show_size:
        suffixes.append(f"size={shape}")
    if show_dtype:
        suffixes.append(f"dtype=torch.{dtype_name}")
    if grad_fn is not None:
        suffixes.append(f"grad_fn=<{grad_fn}>")
    elif requires_grad:
        suffixes.append("requires_grad=True")
    if tangent is not None:
        suffixes.append(f"tangent={tangent}")
    return join_suffixes(f"{class_name}({body}", suffixes, indent, options.linewidth)


def format_sparse(
    parts: Sequence[tuple[str, Nested | Fetch | None, Sequence[int], str]],
    suffixes: list[str],
    *,
    new_line: bool,
) -> str:
    """Return the text that PyTorch's `repr` gives a sparse tensor of parts (name, values, shape, name of the type).

    Values are as `format_tensor` takes them. `new_line`: whether what follows them has lines of its own.
    """
    options = get_options()
    indent = len("tensor(")
    texts = []
    for name, values, shape, dtype_name in parts:
        head, sizes = f"{name}=tensor(", tuple(shape)
        count = math.prod(sizes)
        if values is None:
            body = "..."
        elif not count:
            body = "[]"
        else:
            body = elements_text(values, sizes, dtype_name, indent + len(head), options)
        size = "" if values is not None and count else f", size={sizes}"
        texts.append(f"{head}{body}{size})")
    text = "tensor(" + (",\n" + " " * indent).join(texts)
    return join_suffixes(text, suffixes, indent, options.linewidth, new_line)


def elements_text(
    values: Nested | Fetch,
    shape: tuple[int, ...],
    dtype_name: str,
    indent: int,
    options: PrintOptions,
) -> str:
    """Return the text of a tensor's elements, in brackets, without a name; see `format_tensor`."""
    edge: int | None = options.edgeitems if math.prod(shape) > options.threshold else None
    if edge == 0 and shape:
        return "[...]"
    if callable(values):
        shown = values(edge)
    else:
        shown = values if edge is None else _edges(values, edge)
    flat = list(_flatten(shown, len(shape)))
    style = element_style(flat, dtype_name, options)
    # Elements are cut by their place: a tensor's own size decides, not that of the part fetched.
    cut = [edge is not None and size > 2 * edge for size in shape]
    return _Layout(style, cut, edge or 0, options.linewidth).text(shown, 0, indent)


def _edges(values: Nested, edge: int) -> Nested:
    if not isinstance(values, Sequence):
        return values
    kept = [*values[:edge], *values[-edge:]] if len(values) > 2 * edge else values
    return [_edges(item, edge) for item in kept]


def _flatten(values: Nested, depth: int) -> Iterator[Number]:
    if depth == 0:
        assert not isinstance(values, Sequence)
        yield values
    else:
        assert isinstance(values, Sequence)
        for item in values:
            yield from _flatten(item, depth - 1)


@dataclasses.dataclass(frozen=True, slots=True)
class _Style:
    """How every element of one tensor is written: a format, and a width to align to."""

    spec: str
    # A whole float shows its point and no digits after it: "2."
    point: bool
    width: int

    def write(self, value: Number) -> str:
        """Return an element's text, aligned to the right."""
        text = format(value, self.spec)
        if self.point and math.isfinite(value):
            text += "."
        return text.rjust(self.width)


@dataclasses.dataclass(frozen=True, slots=True)
class _ComplexStyle:
    """How every element of one complex tensor is written: each part in the style of all such parts."""

    real: _Style
    imag: _Style

    @property
    def width(self) -> int:
        """The width of an element's text."""
        return self.real.width + self.imag.width + 1

    def write(self, value: complex) -> str:
        """Return an element's text: both parts and "j"."""
        imag = (self.imag.write(value.imag) + "j").lstrip()
        return self.real.write(value.real) + ("" if imag[0] in "+-" else "+") + imag


def element_style(
    values: list[Any], dtype_name: str, options: PrintOptions
) -> _Style | _ComplexStyle:
    """Return how each of a tensor's elements is written."""
    if dtype_name.startswith("complex"):
        return _ComplexStyle(
            _real_style([z.real for z in values], "float", options),
            _real_style([z.imag for z in values], "float", options),
        )
    return _real_style(values, dtype_name, options)


def _real_style(values: list[Number], dtype_name: str, options: PrintOptions) -> _Style:
    if "float" not in dtype_name:
        # `format(True, "")` is "True".
        return _Style("", False, max((len(str(value)) for value in values), default=1))

    # Only these decide, width included: PyTorch lets zeros, inf and nan run over it.
    ordinary = [value for value in values if value != 0 and math.isfinite(value)]
    if not ordinary:
        return _Style(".0f", True, 1)
    smallest = min(abs(value) for value in ordinary)
    largest = max(abs(value) for value in ordinary)
    whole = all(value == math.floor(value) for value in ordinary)
    scientific = options.sci_mode
    if scientific is None:
        scientific = largest / smallest > 1000.0 or largest > 1.0e8 or smallest < 1.0e-4
    if scientific:
        draft = _Style(f".{options.precision}e", False, 0)
    elif whole:
        draft = _Style(".0f", True, 0)
    else:
        draft = _Style(f".{options.precision}f", False, 0)
    width = max(len(draft.write(value)) for value in ordinary)
    return dataclasses.replace(draft, width=max(width, 1))


@dataclasses.dataclass(frozen=True, slots=True)
class _Layout:
    """Puts written elements into brackets and lines."""

    style: _Style | _ComplexStyle
    # Per dimension: is its middle left out?
    cut: list[bool]
    edge: int
    linewidth: int

    def text(self, values: Nested, dim: int, indent: int) -> str:
        """Lay out the part of the tensor below `dim`, whose bracket stands in column `indent`."""
        if not isinstance(values, Sequence):
            return self.style.write(values)
        last = dim == len(self.cut) - 1
        items = [self.text(item, dim + 1, indent + 1) for item in values]
        if self.cut[dim]:
            items.insert(self.edge, " ..." if last else "...")
        margin = " " * (indent + 1)
        if not last:
            # One empty line more between the blocks of each further dimension.
            newlines = "\n" * (len(self.cut) - dim - 1)
            return "[" + f",{newlines}{margin}".join(items) + "]"
        room = (self.linewidth - indent) / (self.style.width + 2)
        per_line = max(1, math.floor(min(room, len(items))))
        lines = [", ".join(items[i : i + per_line]) for i in range(0, len(items), per_line)]
        return "[" + f",\n{margin}".join(lines) + "]"


def join_suffixes(
    text: str, suffixes: list[str], indent: int, linewidth: int, new_line: bool = False
) -> str:
    """Return a text with what stands behind it, on lines of their own where they are too long."""
    # PyTorch counts the last line two characters longer than it is.
    column = len(text) - (text.rfind("\n") + 1) + 2
    for suffix in suffixes:
        if new_line or column + len(suffix) + 2 > linewidth:
            text += ",\n" + " " * indent + suffix
            column, new_line = indent + len(suffix), False
        else:
            text += ", " + suffix
            column += len(suffix) + 2
    return text + ")"
