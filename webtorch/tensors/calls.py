"""The functions that users call, made of the entries: arguments, in-place and out= forms, gradients of
composites. Floor 4.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from webtorch.errors import DTypeError, ShapeError
from webtorch.ir.dtype import (
    DType,
    bool_,
    legacy_name,
    uint8,
)
from webtorch.ir.view import numel
from webtorch.ops.purity import warn
from webtorch.ops.record import Elementwise, Op, in_old_order
from webtorch.tensors import override
from webtorch.tensors.autocast import without_autocast
from webtorch.tensors.primitives import (
    cast_to,
    check_places,
    check_writable,
    leave_hooks,
    write,
)
from webtorch.tensors.promotion import Operand, can_cast
from webtorch.tensors.recorders import apply, apply_two
from webtorch.tensors.rules import with_rule
from webtorch.tensors.storage import Storage
from webtorch.tensors.tape import SavedTensor, mode
from webtorch.tensors.tensor import Tensor


def store_in(out: Tensor, result: Tensor, name: str, cut: bool = False) -> Tensor:
    """Write `result` to the `out=` argument, resizing it if its shape differs; floats are `cut` off for integers."""
    if not (can_cast(result.dtype, out.dtype) or cut):
        raise RuntimeError(
            f"result type {legacy_name(result.dtype)} can't be cast to the desired output type "
            f"{legacy_name(out.dtype)}"
        )
    if result.requires_grad or (mode.grad and out.requires_grad):
        raise RuntimeError(
            f"{name}(): functions with out=... arguments don't support automatic differentiation, "
            "but one of the arguments requires grad."
        )
    if out._shape != result._shape:
        if numel(out._shape):
            warn(
                f"An output with one or more elements was resized since it had shape {list(out._shape)}, which "
                f"does not match the required output shape {list(result._shape)}. This behavior is deprecated, "
                "and in a future PyTorch release outputs will not be resized unless they have zero elements. "
                "You can explicitly reuse an out tensor t by resizing it, inplace, to zero elements with "
                "t.resize_(0)."
            )
        out.resize_(result._shape)
    return write(out, cast_to(result, out.dtype), fresh=False)


def write_result(x: Tensor, result: Tensor, name: str) -> Tensor:
    """Write the result of an in-place op to `x`. Raises RuntimeError where shape or dtype do not
    fit.
    """
    if result._shape != x._shape:
        raise ShapeError(
            f"{name}: output with shape {list(x._shape)} doesn't match the broadcast shape "
            f"{list(result._shape)}; use the form without "
            "underscore, which makes a new tensor"
        )
    if result.dtype is not x.dtype:
        if x.dtype.is_complex and name == "abs_":
            raise RuntimeError("In-place abs is not supported for complex tensors.")
        if not can_cast(result.dtype, x.dtype):
            raise RuntimeError(
                f"result type {legacy_name(result.dtype)} can't be cast to the desired output "
                f"type {legacy_name(x.dtype)}"
            )
        result = cast_to(result, x.dtype)
    return write(x, result, fresh=True)


def bind_elementwise(op: Elementwise) -> Callable[..., Any]:
    """Return the public function of an elementwise entry."""
    names = (*op.tensors, *op.numbers)
    count = len(op.tensors)
    defaults = op.defaults
    given_by_place = len(op.positional())
    exact = op.out == "exact"

    if count == 1 and not op.numbers:

        def function(input: Tensor, *, out: Tensor | None = None) -> Tensor:
            if not isinstance(input, Tensor):
                if override.is_foreign((input,), {}):
                    return override.meet(function, (input,), {} if out is None else {"out": out})
                raise TypeError(
                    f"{op.name}(): argument 'input' (position 1) must be Tensor, not "
                    f"{type(input).__name__}"
                )
            result = apply(op, (input,))
            if out is None:
                return result
            if exact:
                _check_exact(op.name, (out,), (result,))
            return store_in(out, result, op.name)

    elif count == 2 and not op.numbers and op.tensors == ("input", "other"):

        def function(input: Operand, other: Operand, *, out: Tensor | None = None) -> Tensor:  # type: ignore[misc]
            if not (isinstance(input, Tensor) and isinstance(other, Tensor)):
                _check_numbers(op, input, other)
            try:
                result = apply_two(op, _operand(op, input), _operand(op, other, 1))
            except override.Foreign:
                given = {} if out is None else {"out": out}
                return override.meet(function, (input, other), given)
            if out is None:
                return result
            if exact:
                _check_exact(op.name, (out,), (result,))
            return store_in(out, result, op.name)

    else:

        def function(*args: Any, out: Tensor | None = None, **kwargs: Any) -> Tensor:  # type: ignore[misc]
            if len(args) > given_by_place and given_by_place < len(names):
                args, kwargs = _in_old_order(op, args, kwargs)
            values = _arguments(op, names, defaults, args, kwargs)
            if count == 2 and not (isinstance(values[0], Tensor) and isinstance(values[1], Tensor)):
                _check_numbers(op, values[0], values[1])
            try:
                tensors = [_operand(op, v, i) for i, v in enumerate(values[:count])]
            except override.Foreign:
                given = {} if out is None else {"out": out}
                return override.meet(function, args, {**kwargs, **given})
            result = apply(op, tensors, values[count:])
            if out is None:
                return result
            if (op.out(*values) if callable(op.out) else op.out) == "exact":
                _check_exact(op.name, (out,), (result,))
            return store_in(out, result, op.name)

    function.__name__ = function.__qualname__ = op.name
    function.__doc__ = op.doc
    return function


def _check_numbers(op: Elementwise, input: Any, other: Any) -> None:
    """Raise TypeError where PyTorch's function of this name takes no number."""
    # Internal entries are called with what their public ones have checked.
    if not op.function_in:
        return
    given = [isinstance(x, (bool, int, float, complex)) for x in (input, other)]
    if (
        all(given)
        or (given[0] and op.numbers_for != "both")
        or (given[1] and op.numbers_for == "none")
    ):
        number = 0 if given[0] else 1
        raise TypeError(
            f"{op.name}(): argument '{op.tensors[number]}' (position {number + 1}) must be Tensor, "
            f"not {type((input, other)[number]).__name__}"
        )


def _operand(op: Elementwise, value: Any, number: int = 0) -> Operand:
    if isinstance(value, (Tensor, bool, int, float, complex)):
        return value
    if override.is_foreign((value,), {}):
        raise override.Foreign
    item = getattr(value, "item", None)
    if item is not None and getattr(value, "ndim", 0) == 0:
        return item()
    raise TypeError(
        f"{op.name.strip('_')}(): argument '{op.tensors[number]}' (position {number + 1}) must be "
        f"Tensor, not {type(value).__name__}"
    )


def _in_old_order(
    op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args, factor = in_old_order(op, args, op.factor in kwargs)
    return args, {**kwargs, op.factor: factor}


def _arguments(
    op: Op,
    names: tuple[str, ...],
    defaults: dict[str, Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> list[Any]:
    if len(args) > len(names):
        raise TypeError(
            f"{op.name}() takes {len(names)} positional arguments but {len(args)} were given"
        )
    values = list(args)
    for name in names[len(args) :]:
        if name in kwargs:
            values.append(kwargs.pop(name))
        elif name in defaults:
            values.append(defaults[name])
        else:
            raise TypeError(f"{op.name}(): missing required argument '{name}'")
    kwargs.pop("inplace", None)
    if kwargs:
        raise TypeError(f"{op.name}() got an unexpected keyword argument '{next(iter(kwargs))}'")
    return values


def accept_inplace(op: Op, inplace: Callable[..., Any]) -> Callable[..., Any]:
    """Return the nn.functional form of an entry, which takes `inplace` after its numbers."""
    function = op.function
    count = (
        len(op.numbers) + len(op.tensors)
        if isinstance(op, Elementwise)
        else len(inspect.signature(function).parameters)
    )

    def functional(*args: Any, **kwargs: Any) -> Any:
        chosen = kwargs.pop("inplace", False)
        if len(args) > count:
            args, chosen = args[:-1], args[-1]
        return (inplace if chosen else function)(*args, **kwargs)

    functional.__name__ = functional.__qualname__ = op.name
    functional.__doc__ = op.doc
    return functional


NUMPY_NAMES = {"axis": "dim", "keepdims": "keepdim"}


# Parameters of composites that are tensors, in PyTorch's words.
_TENSOR_NAMES = frozenset((
    "input", "other", "target", "weight", "bias", "indices", "index", "mat1", "mat2", "batch1",
    "batch2", "vec", "tensor", "query", "key", "value", "source", "src", "mask", "condition",
    "x1", "x2", "input1", "input2", "anchor", "positive", "negative", "grid",
))  # fmt: skip


def refuse_types(op: Op) -> Callable[..., Any]:
    """Return a composite's function with PyTorch's error for types that it does not take."""
    function, refused = op.function, frozenset(op.refuses)

    @functools.wraps(function)
    def public(*args: Any, **kwargs: Any) -> Any:
        first = args[0] if args else next(iter(kwargs.values()), None)
        if isinstance(first, Tensor) and first.dtype in refused:
            raise DTypeError(
                f"\"{op.name.strip('_')}\" not implemented for '{legacy_name(first.dtype)}'"
            )
        return function(*args, **kwargs)

    return public


def refuse_others(op: Op, with_out: Callable[..., Any]) -> Callable[..., Any]:
    """Return a composite's function with PyTorch's error for an argument that is no tensor.

    What is no tensor shows when it is used as one: calls with the right arguments pay nothing.
    `with_out` is called where `out=` is given.
    """
    function = op.function
    signature = inspect.signature(function)
    looks = not op.factory

    @functools.wraps(function)
    def public(*args: Any, **kwargs: Any) -> Any:
        if looks and args and not isinstance(args[0], Tensor) and override.is_foreign(args, kwargs):
            return override.meet(public, args, kwargs)
        try:
            if kwargs and "out" in kwargs:
                return with_out(*args, **kwargs)
            return function(*args, **kwargs)
        except (AttributeError, TypeError) as error:
            if override.is_foreign(args, kwargs):
                return override.meet(public, args, kwargs)
            if not isinstance(error, AttributeError):
                raise
            given = dict(zip(signature.parameters, args, strict=False)) | kwargs
            for position, name in enumerate(signature.parameters, 1):
                value = given.get(name)
                # The error may be another one's, of the right arguments.
                if (
                    name in _TENSOR_NAMES
                    and value is not None
                    and not isinstance(value, Tensor)
                    and f"'{type(value).__name__}' object" in str(error)
                ):
                    raise TypeError(
                        f"{op.name.strip('_')}(): argument '{name}' (position {position}) must be "
                        f"Tensor, not {type(value).__name__}"
                    ) from error
            raise

    return public


def takes_out(op: Op, place: str) -> bool:
    """Whether the function of an entry takes `out=` there."""
    return place in ("torch", "linalg", "special", "fft") or op.takes_out


def _check_apart(name: str, places: Sequence[Tensor], given: Sequence[Any]) -> None:
    """Raise RuntimeError if an `out=` shares memory with an input."""
    for place in places:
        for x in given:
            if isinstance(x, Tensor) and x._storage is place._storage and _meet(x, place):
                raise RuntimeError(
                    f"{name}: unsupported operation: the input tensor and the written-to tensor refer to "
                    "the same memory. Please clone() one of them before the operation."
                )


def _meet(x: Tensor, y: Tensor) -> bool:
    """Whether the memory from the first to the last element of two views overlaps."""
    if not (x.numel() and y.numel()):
        return False
    ends = [
        t._offset + sum((s - 1) * st for s, st in zip(t._shape, t._strides, strict=True))
        for t in (x, y)
    ]
    return x._offset <= ends[1] and y._offset <= ends[0]


def check_stated(name: str, dtype: DType | None, out: Any) -> None:
    """Raise RuntimeError if `dtype=` is given beside an `out=` of another type."""
    if dtype is not None and dtype is not out.dtype:
        raise RuntimeError(
            f"{name}: Expected out tensor to have dtype {dtype}, but got {out.dtype} instead"
        )


def _check_exact(name: str, places: Sequence[Tensor], found: Sequence[Tensor]) -> None:
    """Raise RuntimeError if an `out=` has another type than the result."""
    for place, result in zip(places, found, strict=False):
        if place.dtype is not result.dtype:
            raise RuntimeError(
                f"{name}: Expected out tensor to have dtype {result.dtype}, but got {place.dtype} instead"
            )


def accept_out(op: Op) -> Callable[..., Any]:
    """Return a composite's function with `out=`."""
    function = op.function
    if "out" in inspect.signature(function).parameters:
        return function
    plain = without_autocast(function)

    @functools.wraps(function)
    def public(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        if out is None:
            return function(*args, **kwargs)
        places = out if isinstance(out, (tuple, list)) else (out,)
        for place in places:
            check_places(place)
        if op.overlap in ("first", "none"):
            read = args if op.overlap == "none" else args[1:]
            _check_apart(op.name, places, (*read, *kwargs.values()))
        rule = op.out(*args, **kwargs) if callable(op.out) else op.out
        if rule in ("into", "stated"):
            check_stated(op.name, kwargs.get("dtype"), out)
        if rule == "into" and kwargs.get("dtype") is None:
            if op.name.startswith("nan") and not out.dtype.has_gradient:
                raise DTypeError(
                    f"\"{op.name}\" not implemented for '{legacy_name(out.dtype)}': give an out= of floats"
                )
            kwargs["dtype"] = out.dtype
        found = plain(*args, **kwargs)
        if rule == "mask" and out.dtype not in (bool_, uint8):
            raise RuntimeError(
                f"{op.name} only supports bool tensor for result, got: {legacy_name(out.dtype)}"
            )
        if rule == "exact":
            _check_exact(op.name, places, found if isinstance(found, tuple) else (found,))
        if isinstance(found, tuple):
            stored = [
                store_in(o, f, op.name, rule == "truncate") for o, f in zip(out, found, strict=True)
            ]
            return type(found)(*stored) if hasattr(found, "_fields") else tuple(stored)
        return store_in(out, found, op.name, rule == "truncate")

    return public


def bind_inplace(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the in-place form of a function whose first argument is the tensor to overwrite."""

    def inplace(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        # Asked here: what `function` is given has another name.
        if args and type(args[0]) not in override.plain and override.is_foreign(args, kwargs):
            return override.meet(inplace, (self, *args), kwargs)
        check_writable(self)
        if not mode.grad:
            return write_result(self, function(self, *args, **kwargs), name)
        if self._base is not None:
            leave_hooks(self)
        # What is saved for backward meanwhile may be what is overwritten.
        previous, mode.overwriting = mode.overwriting, []
        saved = mode.overwriting
        try:
            result = function(self, *args, **kwargs)
        finally:
            mode.overwriting = previous
        return (
            _write_and_keep(self, result, name, saved)
            if saved
            else write_result(self, result, name)
        )

    inplace.__name__ = inplace.__qualname__ = name
    inplace.__doc__ = f"In-place form of {function.__name__}."
    return inplace


def _write_and_keep(x: Tensor, result: Tensor, name: str, saved: list[SavedTensor]) -> Tensor:
    """Write the result of an in-place op whose gradient needs `saved`.

    A saved x is the value before the write, which is kept; a saved result is from now on x itself,
    so that overwriting x again is an error, as in PyTorch.
    """
    before = x._storage
    if any(s.storage is before for s in saved):
        kept = Storage(before.share(), before.runtime)
        for s in saved:
            if s.storage is before:
                s.move(kept, s.geometry)
    same_dtype = result.dtype is x.dtype
    made = result._storage
    write_result(x, result, name)
    for s in saved:
        if same_dtype and s.storage is made and s.output is not None:
            s.move(x._storage, (x._shape, x._strides, x._offset, x._whole, x.dtype, x._levels))
    return x


def bind_composite(op: Op) -> Callable[..., Any]:
    """Return the public function of a composite that carries its own gradient rule."""
    inner = op.function
    run = with_rule(op, lambda args, kwargs: inner(*args, **kwargs))

    def function(*args: Any, **kwargs: Any) -> Any:
        return run(args, kwargs)

    function.__name__ = function.__qualname__ = op.name
    function.__doc__ = op.doc
    function.__signature__ = inspect.signature(inner)  # type: ignore[attr-defined]
    return function
