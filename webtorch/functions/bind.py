"""Turns the op table into functions and methods. The one place where entries meet the
Tensor class.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import FunctionType
from typing import Any

from webtorch.dispatch.call import (
    Args,
    Callee,
    Kwargs,
    active,
    bind,
    call,
    dispatched,
    enter,
)
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
from webtorch.tensors.absent import Absent, pytorch_names
from webtorch.tensors.tensor import Tensor

# The files of entries. A new file is named here once.
_FORMULAS = (
    "elementwise", "circular", "comparison", "special", "activation", "optimize", "bessel", "gamma", "integer",
    "floats", "reduction", "loss", "grid", "packed", "samplers",
)  # fmt: skip
_FUNCTIONS = (
    "pointwise", "reduce", "variance", "cumulative", "movement", "slicing", "joining", "repeating", "padding",
    "indexing", "gather_scatter", "lookup", "ordering", "creation", "ranges", "random", "assign",
    "contract", "grouped", "products", "einsum", "convolution", "unfolding", "pooling", "resize", "norm", "loss",
    "attention", "composite", "statistics", "quantize", "packed", "linalg", "cholesky", "orthogonal", "decomposition",
    "factors", "lobpcg", "polynomial", "window", "copying", "complex", "fft", "spectrum", "segment", "masked", "native",
    "sampling", "oldnames",
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
    assert attention.attention is not None
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
    if not isinstance(op, Elementwise):
        op.function = calls.bind_composite(op)
    elif op.function is None:
        op.function = calls.bind_elementwise(op)


def _publish(op: Op) -> None:
    for name in (op.name, *op.aliases):
        inplace = (
            calls.bind_inplace(f"{name}_", op.function, op.autocast, op.overlap, op.once_in_place)
            if op.inplace
            else None
        )
        for place in op.function_in:
            if place == "Tensor":
                setattr(Tensor, name, property(op.function) if name in PROPERTIES else op.function)
            else:
                public = public_name(name, place)
                function = op.function
                if not isinstance(op, Elementwise):
                    takes_out = calls.takes_out(op, place)
                    with_out = calls.accept_out(op) if takes_out else op.callee.run
                    function = calls.bind_public(op, with_out)
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


def _operator(name: str, op: Op, reflected: bool = False) -> Callable[..., Any]:
    """Return an operator of two operands: another one's class may know the answer, and then Python asks it."""

    def compute(args: Args, kwargs: Kwargs) -> Any:
        """Record the operation; of an elementwise entry both operands may be numbers."""
        return recorders.apply_two(op, *args) if isinstance(op, Elementwise) else op(*args)

    function = op.function
    inner = Callee(op.name, compute, op, autocast=op.autocast)
    turned = -1 if reflected else 1
    direct = isinstance(op, Elementwise)
    numbers_first = reflected and op.reflects_numbers

    def run(args: Args, kwargs: Kwargs) -> Any:
        """Record the operation, or leave it to the other operand."""
        if not (isinstance(args[0], Tensor) or (numbers_first and isinstance(args[1], Tensor))):
            raise TypeError(
                f"descriptor '{name}' requires a Tensor, but received a {type(args[0]).__name__}"
            )
        other = args[1]
        if not isinstance(other, (Tensor, float, int, complex)):
            if override.is_foreign((other,), {}):
                raise TypeError(f"{name}: expected a tensor or a number")
            if _is_number_like(other):
                args = (args[0], other.item()) if direct else args
            elif op.operator == "eq" and hasattr(other, "__array_interface__"):
                # Python would compare the objects, and say that they differ.
                args = args[0], TABLE["from_numpy"].function(other)
            elif reflected and op.operator == "truediv":
                # As PyTorch's: what knows how to multiply by a tensor may be divided by one.
                return args[0].reciprocal() * other
            else:
                return NotImplemented
        args = args[::turned]
        return call(inner, args, {}) if active.count and direct else compute(args, {})

    callee = Callee(name, run, scalars=direct or op.alone is not None)

    if not direct:

        def operator(self: Tensor, other: object) -> Any:
            """Return what the operator gives."""
            if not active.count and not reflected and isinstance(other, Tensor):
                return function(self, other)
            return enter(callee, (self, other), {})

    elif not reflected:

        def operator(self: Tensor, other: object) -> Any:
            """Return what the operator gives."""
            if not active.count and isinstance(other, (Tensor, float, int, complex)):
                return recorders.apply_two(op, self, other)  # type: ignore[arg-type]
            return enter(callee, (self, other), {})

    else:

        def operator(self: Tensor, other: object) -> Any:
            """Return what the operator gives."""
            numbers = isinstance(other, (float, int, complex)) and isinstance(self, Tensor)
            if not active.count and numbers:
                return recorders.apply_two(op, other, self)  # type: ignore[arg-type]
            return enter(callee, (self, other), {})

    operator.__name__ = name
    callee.publish(operator)
    return operator


def _operators() -> None:
    for op in TABLE.values():
        count = len(op.positional()) if op.operator else 0
        if count == 1:
            setattr(Tensor, f"__{op.operator}__", op.function)
        elif count == 2:
            setattr(Tensor, f"__{op.operator}__", _operator(f"__{op.operator}__", op))
        # A comparison has no form in place, and turned around it is another one.
        if count == 2 and not (isinstance(op, Elementwise) and op.promotion == "bool"):
            name = f"__r{op.operator}__"
            setattr(Tensor, name, _operator(name, op, reflected=True))
            inplace = calls.bind_inplace(
                f"__i{op.operator}__", getattr(Tensor, f"__{op.operator}__"), None, op.overlap
            )
            setattr(Tensor, f"__i{op.operator}__", inplace)
    Tensor.__rtruediv__.__name__ = "__rdiv__"
    # Python 2's names.
    for turned in ("", "r", "i"):
        setattr(Tensor, f"__{turned}div__", getattr(Tensor, f"__{turned}truediv__"))
    for name, op in CONVERSIONS.items():
        setattr(Tensor, name, bind(op.callee, op.function))
    choose = TABLE["where"].function
    Tensor.polygamma_ = calls.bind_inplace(  # type: ignore[method-assign]
        "polygamma_", lambda self, n: TABLE["polygamma"].function(n, self)
    )
    for name in ("real", "imag"):
        setattr(Tensor, name, _part_property(name))
    methods: dict[str, Callable[..., object]] = {
        "where": lambda self, condition, other: choose(condition, self, other),
        "polygamma": lambda self, n: TABLE["polygamma"].function(n, self),
        "__getitem__": indexing.getitem,
        "__setitem__": indexing.setitem,
    }
    for name, method in methods.items():
        method.__name__ = name
        setattr(
            Tensor,
            name,
            dispatched("getitem" * (name == "__getitem__"), positional=True, role="operation")(
                method
            ),
        )
    Tensor.__delitem__ = _no_deletion  # type: ignore[attr-defined]
    for name in pytorch_names()["Tensor"]:
        if not hasattr(Tensor, name):
            setattr(Tensor, name, Absent("Tensor", name))


def _part_property(name: str) -> property:
    part = TABLE[name].function

    def put(self: Tensor, value: object) -> None:
        """Overwrite the part."""
        part(self).copy_(value if isinstance(value, Tensor) else torch_tensor(value))

    torch_tensor = TABLE["tensor"].function

    def get(self: Tensor) -> Tensor:
        """Return the part, a view."""
        found: Tensor = part(self)
        return found

    return property(dispatched(role="operation")(get), dispatched()(put), doc=TABLE[name].doc)


def _no_deletion(self: Tensor, index: object) -> None:
    raise TypeError("Tensor does not support deleting items")


def _is_number_like(value: object) -> bool:
    """Whether a value is a number of NumPy's; an array without dims is an array."""
    return (
        getattr(value, "ndim", None) == 0
        and hasattr(value, "item")
        and not hasattr(value, "__setitem__")
    )
