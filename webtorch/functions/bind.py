"""Turns the op table into functions and methods. The one place where entries meet the
Tensor class.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import FunctionType
from typing import Any

from webtorch.functions import show
from webtorch.functions import subscript as indexing
from webtorch.functions.assign import CONVERSIONS
from webtorch.functions.movement import PROPERTIES
from webtorch.ops.record import TABLE, Elementwise, Op, public_name
from webtorch.tensors import (
    attention,
    calls,
    complex_numbers,
    lapack,
    override,
    primitives,
    recorders,
)
from webtorch.tensors.absent import MissingName
from webtorch.tensors.autocast import follow, without_autocast
from webtorch.tensors.remember import remembered
from webtorch.tensors.tape import composed
from webtorch.tensors.tensor import Tensor

# The files of entries. A new file is named here once.
_FORMULAS = (
    "elementwise", "special", "activation", "optimize", "bessel", "gamma", "integer",
    "floats", "reduction", "loss", "grid", "packed", "samplers",
)  # fmt: skip
_FUNCTIONS = (
    "pointwise", "reduce", "movement", "indexing", "ordering", "creation", "random",
    "assign", "contract", "convolution", "pooling", "resize",
    "norm", "loss", "attention", "composite", "statistics",
    "quantize",
    "linalg", "decomposition", "lobpcg", "polynomial", "window", "copying", "complex", "fft",
    "spectrum", "segment", "masked", "native", "sampling", "oldnames",
)  # fmt: skip
# namespace -> name -> function; the modules of the public surface take their names from here.
NAMESPACES: dict[str, dict[str, Callable[..., Any]]] = {
    "torch": {},
    "nn.functional": {},
    "linalg": {},
    "special": {},
    "fft": {},
}


def load_table() -> None:
    """Import the table, bind every entry, and hang the methods on Tensor."""
    assert primitives.as_view is not None
    assert attention.suits is not None
    assert lapack.host is not None
    assert complex_numbers.apply_form is not None
    assert show.show_tensor is not None
    for name in _FORMULAS:
        importlib.import_module(f"webtorch.ops.{name}")
    for name in _FUNCTIONS:
        importlib.import_module(f"webtorch.functions.{name}")
    for op in TABLE.values():
        _bind(op)
    for op in TABLE.values():
        _publish(op)
    for op in TABLE.values():
        _publish_elsewhere(op)
    _operators()
    _place_functions()


def _place_functions() -> None:
    """Say of every function where it is found, so that it pickles by name (a Module may keep one)."""
    seen: set[int] = set()
    for place, found in NAMESPACES.items():
        for name, function in found.items():
            if id(function) in seen or not isinstance(function, FunctionType):
                continue
            seen.add(id(function))
            function.__module__ = "webtorch" if place == "torch" else f"webtorch.{place}"
            function.__qualname__ = name


def _bind(op: Op) -> None:
    # Below a gradient rule nothing records gradients: in training, too, its forward part is remembered.
    if (op.function_in or op.vjp is not None) and not isinstance(op, Elementwise):
        op.function = remembered(op.function)
    if isinstance(op, Elementwise) and op.function is None:
        op.function = calls.bind_elementwise(op)
    elif op.vjp is not None and not isinstance(op, Elementwise):
        op.function = calls.bind_composite(op)
    if op.refuses:
        op.function = calls.refuse_types(op)
    named = "dim" in op.signature and op.function_in and not isinstance(op, Elementwise)
    title = (None if isinstance(op, Elementwise) else op.gradient_name) or None
    names = calls.NUMPY_NAMES if named else None
    # What moves elements and has no title gives views of its input.
    makes = bool(op.function_in) and op.family != "movement" and not isinstance(op, Elementwise)
    if title is not None or makes or named:
        own_view = op.own_view or (title is None and not makes)
        op.function = composed(op.function, title, names, own_view)
    if op.autocast is not None:
        op.function = follow(op.autocast, op.name, op.function)


def _publish(op: Op) -> None:
    plain = without_autocast(op.function)
    for name in (op.name, *op.aliases):
        inplace = calls.bind_inplace(f"{name}_", plain) if op.inplace else None
        for place in op.function_in:
            if place == "Tensor":
                method = _as_method(op.function)
                setattr(Tensor, name, property(method) if name in PROPERTIES else method)
            else:
                public = public_name(name, place)
                function = op.function
                if not isinstance(op, Elementwise):
                    with_out = calls.accept_out(op) if calls.takes_out(op, place) else function
                    function = calls.refuse_others(op, with_out)
                if (
                    place == "nn.functional"
                    and inplace is not None
                    and "inplace" not in op.signature
                ):
                    function = calls.accept_inplace(op, inplace)
                NAMESPACES.setdefault(place, {})[public] = function
        if inplace is not None:
            if "Tensor" in op.function_in:
                setattr(Tensor, f"{name}_", inplace)
            for place in op.function_in:
                if f"{place}.{name}_" in op.inplace_functions:
                    NAMESPACES[place][f"{name}_"] = inplace


def _publish_elsewhere(op: Op) -> None:
    for name in op.also:
        place, _, public = name.rpartition(".")
        NAMESPACES[place][public] = NAMESPACES["torch"][op.name]


def _as_method(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    method.__name__ = getattr(function, "__name__", "method")
    method.__doc__ = function.__doc__
    # A plain function is its own method; only callables without the descriptor protocol need
    # wrapping.
    return function if hasattr(function, "__get__") else method


def _operators() -> None:
    def forward(name: str, entry: str) -> None:
        op = TABLE[entry]
        fast = op if isinstance(op, Elementwise) and op.autocast is None else None
        function = op.function

        def operator(self: Tensor, other: Any) -> Any:
            if isinstance(other, (Tensor, float, int, complex)):
                return recorders.apply_two(fast, self, other) if fast else function(self, other)
            if override.is_foreign((other,), {}):
                return override.meet(operator, (self, other), {})
            return function(self, other) if _is_number_like(other) else NotImplemented

        operator.__name__ = name
        setattr(Tensor, name, operator)

    def reflected(name: str, entry: str) -> None:
        op = TABLE[entry]
        fast = op if isinstance(op, Elementwise) and op.autocast is None else None
        function = op.function

        def operator(self: Tensor, other: Any) -> Any:
            if not isinstance(self, Tensor):
                raise TypeError(
                    f"descriptor '{name}' requires a Tensor, but received a {type(self).__name__}"
                )
            if isinstance(other, (Tensor, float, int, complex)):
                return recorders.apply_two(fast, other, self) if fast else function(other, self)
            if override.is_foreign((other,), {}):
                return override.meet(operator, (self, other), {})
            return function(other, self) if _is_number_like(other) else NotImplemented

        operator.__name__ = name
        setattr(Tensor, name, operator)

    for op in TABLE.values():
        count = len(op.positional()) if op.operator else 0
        if count == 1:
            setattr(Tensor, f"__{op.operator}__", op.function)
        elif count == 2:
            forward(f"__{op.operator}__", op.name)
        # A comparison has no form in place, and turned around it is another one.
        if count == 2 and not (isinstance(op, Elementwise) and op.promotion == "bool"):
            reflected(f"__r{op.operator}__", op.name)
            inplace = calls.bind_inplace(
                f"__i{op.operator}__", getattr(Tensor, f"__{op.operator}__")
            )
            setattr(Tensor, f"__i{op.operator}__", inplace)
    Tensor.__rtruediv__.__name__ = "__rdiv__"
    Tensor.__rdiv__ = Tensor.__rtruediv__  # type: ignore[attr-defined]
    for name, op in CONVERSIONS.items():
        setattr(Tensor, name, op.function)
    choose = TABLE["where"].function
    Tensor.polygamma_ = calls.bind_inplace(  # type: ignore[attr-defined]
        "polygamma_", lambda self, n: TABLE["polygamma"].function(n, self)
    )
    for name in ("real", "imag"):
        setattr(Tensor, name, _part_property(name))
    for name, method in {
        "where": lambda self, condition, other: choose(condition, self, other),
        "polygamma": lambda self, n: TABLE["polygamma"].function(n, self),
        "__getattr__": _no_attribute,
        "__getitem__": indexing.getitem,
        "__setitem__": indexing.setitem,
    }.items():
        method.__name__ = name
        setattr(Tensor, name, method)


def _part_property(name: str) -> property:
    part = TABLE[name].function

    def put(self: Tensor, value: Any) -> None:
        part(self).copy_(value if isinstance(value, Tensor) else torch_tensor(value))

    torch_tensor = TABLE["tensor"].function
    return property(lambda self: part(self), put, doc=TABLE[name].doc)


def _no_attribute(self: Tensor, name: str) -> Any:
    """Say what is known of a name that tensors do not have."""
    raise MissingName(type(self), "Tensor", name)


def _is_number_like(value: Any) -> bool:
    return getattr(value, "ndim", None) == 0 and hasattr(value, "item")
