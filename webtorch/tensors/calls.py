"""The functions that users call, made of the entries: arguments, in-place and out= forms, gradients of
composites. Floor 4.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from webtorch.dispatch.call import (
    Args,
    Callee,
    Kwargs,
    Run,
    active,
    bind,
    call,
    dispatched,
    enter,
    install_again,
)
from webtorch.errors import DTypeError, ShapeError
from webtorch.ir.dtype import (
    DType,
    bool_,
    uint8,
)
from webtorch.ir.view import is_contiguous, memory_order, numel
from webtorch.ops import primitive
from webtorch.ops.layout import Layout, of_operands
from webtorch.ops.purity import warn
from webtorch.ops.record import Autocast, Elementwise, Op, Overlap
from webtorch.tensors import override
from webtorch.tensors.base import wraps
from webtorch.tensors.batching import one_by_one
from webtorch.tensors.binding import once_more, reordered
from webtorch.tensors.modes import mode, transforms
from webtorch.tensors.primitives import lay
from webtorch.tensors.promotion import Operand, can_cast
from webtorch.tensors.recorders import apply, apply_one, apply_two
from webtorch.tensors.remember import Memory, Views
from webtorch.tensors.rules import with_rule
from webtorch.tensors.storage import Storage
from webtorch.tensors.tape import SavedTensor, composed, geometry_of
from webtorch.tensors.tensor import Tensor
from webtorch.tensors.values import asking
from webtorch.tensors.writing import (
    check_overlap,
    check_places,
    check_writable,
    leave_hooks,
    written_once,
)


def check_out(name: str, out: object) -> None:
    """Raise TypeError, in PyTorch's words, where `out=` is no tensor."""
    if not isinstance(out, Tensor):
        raise TypeError(f"{name}(): argument 'out' must be Tensor, not {type(out).__name__}")


def store_in(out: Tensor, result: Tensor, name: str, cut: bool = False) -> Tensor:
    """Write `result` to the `out=` argument, resizing it if its shape differs; floats are `cut` off for integers."""
    check_out(name, out)
    if not (can_cast(result.dtype, out.dtype) or cut):
        raise RuntimeError(
            f"result type {result.dtype.legacy} can't be cast to the desired output type "
            f"{out.dtype.legacy}"
        )
    if transforms.count and any(t in level for level in mode.forward for t in (result, out)):
        raise RuntimeError(
            f"Trying to use forward AD with {name} (out= function) that does not support it because it is an out= "
            "function"
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
        strides = result._strides
        if out._whole and strides != out._strides and memory_order(out._shape, strides) is not None:
            # It lies in memory as the result does.
            out._strides, out._whole = strides, is_contiguous(out._shape, strides)
    if active.count and (wraps(out) or wraps(result)):
        # Their classes have the data.
        return out.copy_(result)
    return primitive.write(out, primitive.cast_to(result, out.dtype), fresh=False)


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
        if name == "float_power_":
            raise RuntimeError(
                f"the base given to float_power_ has dtype {x.dtype.legacy} but the operation's result requires dtype "
                f"{result.dtype.legacy}"
            )
        if not can_cast(result.dtype, x.dtype):
            raise RuntimeError(
                f"result type {result.dtype.legacy} can't be cast to the desired output "
                f"type {x.dtype.legacy}"
            )
        result = primitive.cast_to(result, x.dtype)
    return primitive.write(x, result, fresh=True)


install_again(once_more)
_EXPECTED = "expected tensors and numbers"


# What an operand may be: a tuple, which is asked faster than a union.
_OPERANDS = (Tensor, float, int, complex)


def bind_elementwise(op: Elementwise) -> Callable[..., Any]:
    """Return the public function of an elementwise entry."""
    run = _elementwise_run(op)
    callee = op.callee = Callee(op.name, run, autocast=op.autocast, like=op, scalars=True)
    count = len(op.tensors)
    # What stands in each place without being looked at; internal entries are called with what is right.
    other_too = _OPERANDS if not op.function_in or op.numbers_for != "none" else (Tensor,)
    input_too = _OPERANDS if not op.function_in or op.numbers_for == "both" else (Tensor,)

    # A user's kernel has its own name for what it is given.
    if op.tensors == ("input",) and not op.numbers:

        def function(input: Tensor, *, out: Tensor | None = None) -> Tensor:
            """Apply the operation to one tensor."""
            if not active.count and out is None and isinstance(input, Tensor):
                return apply_one(op, input)
            return enter(callee, (input,), {} if out is None else {"out": out})

    elif op.tensors == ("input", "other") and not op.numbers:

        def function(input: Operand, other: Operand, *, out: Tensor | None = None) -> Tensor:  # type: ignore[misc]
            """Apply the operation to two tensors, or to a tensor and a number."""
            if not active.count and out is None:
                if isinstance(input, Tensor):
                    if isinstance(other, other_too):
                        return apply_two(op, input, other)
                elif isinstance(other, Tensor) and isinstance(input, input_too):
                    return apply_two(op, input, other)
            return enter(callee, (input, other), {} if out is None else {"out": out})

    else:
        defaults = tuple([op.defaults.get(n) for n in op.numbers])
        # From so many arguments on the rest are numbers that have defaults.
        least = count + sum(n not in op.defaults for n in op.numbers)
        most = len(op.positional())

        def function(*args: Any, out: Tensor | None = None, **kwargs: object) -> Tensor:  # type: ignore[misc]
            """Apply the operation to tensors and numbers."""
            given = len(args)
            if not kwargs and least <= given <= most and not active.count and out is None:
                for x in args[:count]:
                    if not isinstance(x, Tensor):
                        break
                else:
                    numbers = args[count:] + defaults[given - count :]
                    if count == 1:
                        return apply_one(op, args[0], numbers)
                    return apply(op, args[:count], numbers)
                if given == 2 == count and isinstance(args[0], Tensor) and not defaults:
                    x, y = args
                    if isinstance(y, other_too):
                        return apply_two(op, x, y)
            return enter(callee, args, kwargs if out is None else {**kwargs, "out": out})

    function.__name__ = function.__qualname__ = op.name
    function.__doc__ = op.doc
    callee.publish(function)
    return function


def _elementwise_run(op: Elementwise) -> Run:
    """Return what a call of an elementwise entry does: it binds the arguments, records, and stores in `out=`."""
    names = (*op.tensors, *op.numbers)
    count = len(op.tensors)
    of_one = count == 1 and not op.numbers
    recorded = Callee(op.name, lambda args, _: apply(op, args[:count], args[count:]), op)

    def run(args: Args, kwargs: Kwargs) -> Tensor:
        """Record a call."""
        kwargs = dict(kwargs)
        out = kwargs.pop("out", None)
        values = _arguments(op, names, op.defaults, args, kwargs)
        if count == 2 and not (isinstance(values[0], Tensor) and isinstance(values[1], Tensor)):
            _check_numbers(op, values[0], values[1])
        if of_one and not isinstance(values[0], Tensor) and not override.is_foreign(values, {}):
            raise TypeError(
                f"{op.name}(): argument 'input' (position 1) must be Tensor, not "
                f"{type(values[0]).__name__}"
            )
        values[:count] = [_operand(op, v, i) for i, v in enumerate(values[:count])]
        result: Tensor = (
            call(recorded, tuple(values), {})
            if active.count
            else apply(op, values[:count], values[count:])
        )
        if out is None:
            return result
        check_out(op.name, out)
        if op.overlap == "whole":
            check_overlap(out, values)
        if (op.out(*values) if callable(op.out) else op.out) == "exact":
            _check_exact(op.name, (out,), (result,))
        return store_in(out, result, op.name)

    return run


def _check_numbers(op: Elementwise, input: object, other: object) -> None:
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


def _operand(op: Elementwise, value: object, number: int = 0) -> Operand:
    if isinstance(value, (Tensor, bool, int, float, complex)):
        return value
    if override.is_foreign((value,), {}):
        raise TypeError(f"{op.name}(): {_EXPECTED}")
    item = getattr(value, "item", None)
    if item is not None and getattr(value, "ndim", 0) == 0:
        return item()
    raise TypeError(
        f"{op.name.strip('_')}(): argument '{op.tensors[number]}' (position {number + 1}) must be "
        f"Tensor, not {type(value).__name__}"
    )


def _arguments(
    op: Op,
    names: tuple[str, ...],
    defaults: dict[str, Any],
    args: tuple[object, ...],
    kwargs: dict[str, Any],
) -> list[Any]:
    most = len(op.positional())
    if len(args) > most:
        raise TypeError(f"{op.name}() takes {most} positional arguments but {len(args)} were given")
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


def accept_inplace(op: Op, inplace: Callable[..., object]) -> Callable[..., Any]:
    """Return the nn.functional form of an entry, which takes `inplace` after its numbers."""
    function = op.function
    count = (
        len(op.numbers) + len(op.tensors)
        if isinstance(op, Elementwise)
        else len(inspect.signature(function).parameters)
    )

    def functional(*args: object, **kwargs: object) -> Any:
        """Call the function, or its form in place."""
        chosen = kwargs.pop("inplace", False)
        if len(args) > count:
            args, chosen = args[:-1], args[-1]
        return (inplace if chosen else function)(*args, **kwargs)

    functional.__name__ = functional.__qualname__ = op.name
    functional.__doc__ = op.doc
    return dispatched()(functional)


NUMPY_NAMES = {"axis": "dim", "keepdims": "keepdim"}


# Parameters of composites that are tensors, in PyTorch's words.
_TENSOR_NAMES = frozenset((
    "input", "other", "target", "weight", "bias", "indices", "index", "mat1", "mat2", "batch1",
    "batch2", "vec", "tensor", "query", "key", "value", "source", "src", "mask", "condition",
    "x1", "x2", "input1", "input2", "anchor", "positive", "negative", "grid",
))  # fmt: skip


def bind_composite(op: Op) -> Callable[..., Any]:
    """Return the function of a composite: the layers that a call goes through, from within."""
    written = op.function
    if op.layout is not None and op.layout is not of_operands:
        written = _laid(op, op.layout, written)
    if op.looks_at:
        written = one_by_one(op.looks_at, written)
    if not (op.function_in or op.vjp or op.refuses or op.gradient_name or op.autocast):
        # A part of other entries: its calls can be seen, and it is called as it is.
        parameters = inspect.signature(written) if op.written is None else op.parameters
        op.callee = Callee(
            op.name, lambda args, kwargs: op.function(*args, **kwargs), op, parameters=parameters
        )
        return written
    public, made = bool(op.function_in), bool(op.function_in) and op.family != "movement"
    # Below a gradient rule nothing records gradients: in training, too, its forward part is remembered.
    run: Run
    find: Run | None = None
    title = op.gradient_name or None
    # What moves elements and has no title gives views of its input.
    own_view = op.own_view or (title is None and not made)
    if public or op.vjp is not None:
        memory = Memory(written, op.factory, own_view)
        run, find = memory.run, memory.find
        if op.family == "movement":
            views = Views(run, memory, titled=bool(op.gradient_name))
            run, find = views.run, views.find
    else:
        run = lambda args, kwargs: written(*args, **kwargs)  # noqa: E731
    if op.values is not None:
        # Values are no part of the kind that a call is remembered by.
        run, find = asking(op.values, run), find and asking(op.values, find)
    if op.vjp is not None:
        run = with_rule(op, run)
    if op.refuses:
        run = refuse_types(op, run)
    names = NUMPY_NAMES if public and "dim" in op.signature else None
    if title is not None or made or names or op.once:
        run = composed(run, title, names, own_view, op.once)
    if op.alone is not None:
        run = _or_alone(op.alone, run)
    op.callee = Callee(
        op.name, run, op, parameters=op.parameters, autocast=op.autocast, find=find, scalars=op.alone is not None
    )  # fmt: skip
    function = bind(op.callee, written)
    if op.vjp is not None:
        function.__name__ = function.__qualname__ = op.name
        function.__doc__ = op.doc
    return function


def _laid(op: Op, layout: Layout, written: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose results lie in memory as the entry's rule says. What is elementwise does so by itself."""

    def lay_out(args: Args, kwargs: Kwargs, out: object) -> None:
        """Lay out the results that the call made."""
        named = op.parameters.bind(*args, **kwargs).arguments if kwargs else None
        operands = list(override.flat(args if named is None else named.values()))
        tensors = [x for x in operands if isinstance(x, Tensor)]
        forms = tuple([(x._shape, x._strides) for x in tensors])
        for x in out if isinstance(out, tuple) else (out,):
            made = not any(x._storage is y._storage for y in tensors)
            if made and not x._levels and not x.dtype.is_complex:
                strides = layout(forms, x._shape)
                if strides != x._strides:
                    lay(x, strides)

    @functools.wraps(written)
    def function(*args: Any, **kwargs: Any) -> Any:
        """Call, and lay out the results where an operand is not row-major."""
        out = written(*args, **kwargs)
        for x in args:
            kind = type(x)
            if kind is list or kind is tuple:
                if any(isinstance(y, Tensor) and not y._whole for y in x):
                    lay_out(args, kwargs, out)
                    break
            elif isinstance(x, Tensor) and not x._whole:
                lay_out(args, kwargs, out)
                break
        return out

    return function


def _or_alone(alone: Elementwise, run: Run) -> Run:
    """Return a call that is another entry's where two tensors are given and nothing else."""
    function = alone.function

    def called(args: Args, kwargs: Kwargs) -> Any:
        """Record one elementwise operation, or call."""
        if kwargs or len(args) != 2:
            return run(args, kwargs)
        x, y = args
        both = isinstance(x, Tensor) and isinstance(y, Tensor)
        return function(x, y) if both else run(args, kwargs)

    return called


def refuse_types(op: Op, run: Run) -> Run:
    """Return a call with PyTorch's error for types that the operation does not take."""
    refused = frozenset(op.refuses)

    def checked(args: Args, kwargs: Kwargs) -> Any:
        """Raise DTypeError if the first argument has a type that is refused, else call."""
        first = args[0] if args else next(iter(kwargs.values()), None)
        if isinstance(first, Tensor) and first.dtype in refused:
            raise DTypeError(f"\"{op.name.strip('_')}\" not implemented for '{first.dtype.legacy}'")
        return run(args, kwargs)

    return checked


def bind_public(op: Op, with_out: Run) -> Callable[..., Any]:
    """Return a composite's function in a library, with PyTorch's error for an argument that is no tensor.

    What is no tensor shows when it is used as one: calls with the right arguments pay nothing.
    `with_out` is called where `out=` is given.
    """
    run, looks = op.callee.run, not op.factory

    def checked(args: Args, kwargs: Kwargs) -> Any:
        """Call, and explain an error of a wrong argument."""
        if looks and args and not isinstance(args[0], Tensor) and override.is_foreign(args, kwargs):
            raise TypeError(f"{op.name}(): {_EXPECTED}")
        try:
            return with_out(args, kwargs) if kwargs and "out" in kwargs else run(args, kwargs)
        except (AttributeError, TypeError) as error:
            if isinstance(error, AttributeError):
                _explain(op, error, args, kwargs)
            raise

    callee = Callee(
        op.name, checked, op, parameters=op.parameters, autocast=op.autocast, find=op.callee.find,
        scalars=op.callee.scalars,
    )  # fmt: skip
    return bind(callee, op.function)


def _explain(op: Op, error: AttributeError, args: Args, kwargs: Kwargs) -> None:
    """Raise TypeError if an error comes of an argument of this call that is no tensor."""
    parameters = inspect.signature(op.function).parameters
    given = dict(zip(parameters, args, strict=False)) | kwargs
    for position, name in enumerate(parameters, 1):
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


def takes_out(op: Op, place: str) -> bool:
    """Whether the function of an entry takes `out=` there."""
    return place in ("torch", "linalg", "special", "fft") or op.takes_out


def check_stated(name: str, dtype: DType | None, out: Any) -> None:
    """Raise RuntimeError if `dtype=` is given beside an `out=` of another type."""
    if dtype is not None and dtype is not out.dtype:
        raise RuntimeError(
            f"{name}: Expected out tensor to have dtype {dtype}, but got {out.dtype} instead"
        )


def of_another_type(name: str, wanted: DType, given: DType) -> str:
    """Return what PyTorch's functions say, each in its own words, of an `out=` of another type than the result."""
    return (
        f"Found dtype {given.legacy} but expected {wanted.legacy}. "
        f"expected scalar_type {wanted.legacy} but found {given.legacy}. "
        f"{name}: Expected out tensor to have dtype {wanted.c_name}, but got {given.c_name} instead. "
        f"Expected object of scalar type {wanted.legacy} but got scalar type {given.legacy} for argument 'out'"
    )


def _check_exact(name: str, places: Sequence[Tensor], found: Sequence[Tensor]) -> None:
    """Raise RuntimeError if an `out=` has another type than the result."""
    for place, result in zip(places, found, strict=False):
        if place.dtype is not result.dtype:
            raise RuntimeError(of_another_type(name, result.dtype, place.dtype))


def _check_castable(op: Op, places: Sequence[Tensor], found: Sequence[Tensor]) -> None:
    """Raise RuntimeError if an `out=` has a type that the result cannot be cast to; say which result."""
    name, names = op.torch or op.name, getattr(found, "_fields", (op.result,))
    for place, result, part in zip(places, found, names, strict=False):
        if not can_cast(result.dtype, place.dtype):
            raise RuntimeError(
                f"{name}: Expected {part} to be safely castable from {result.dtype.legacy} dtype, but got {part} "
                f"with dtype {place.dtype.legacy}"
            )


def accept_out(op: Op) -> Run:
    """Return a composite's call with `out=`."""
    function = op.function
    if "out" in inspect.signature(function).parameters:
        return op.callee.run

    def run(args: Args, kwargs: Kwargs) -> Any:
        """Call, and store the results in `out=`."""
        kwargs = dict(kwargs)
        out = kwargs.pop("out")
        if out is None:
            return op.callee.run(args, kwargs)
        places = out if isinstance(out, (tuple, list)) else (out,)
        read = (*(args[1:] if op.overlap == "first" else args), *kwargs.values())
        for place in places:
            check_out(op.name, place)
            check_places(place)
            if op.overlap != "any":
                check_overlap(place, override.flat(read), op.overlap == "whole")
            if op.overlap == "first":
                check_overlap(place, args[:1], whole=True)
        rule = op.out(*args, **kwargs) if callable(op.out) else op.out
        if rule in ("into", "stated"):
            check_stated(op.name, kwargs.get("dtype"), out)
        if rule == "into" and kwargs.get("dtype") is None:
            if op.name.startswith("nan") and not out.dtype.has_gradient:
                raise DTypeError(
                    f"\"{op.name}\" not implemented for '{out.dtype.legacy}': give an out= of floats"
                )
            kwargs["dtype"] = out.dtype
        found = function(*args, **kwargs)
        if rule == "mask" and out.dtype not in (bool_, uint8):
            raise RuntimeError(
                f"{op.name} only supports bool tensor for result, got: {out.dtype.legacy}"
            )
        if rule == "kind" and out.dtype.is_complex != found.dtype.is_complex:
            kind = "complex" if found.dtype.is_complex else "floating point"
            raise RuntimeError(
                f"{op.name}: expects a {kind} output tensor, but got {out.dtype.legacy}"
            )
        if rule == "exact":
            _check_exact(op.name, places, found if isinstance(found, tuple) else (found,))
        if rule == "castable":
            results = found if isinstance(found, tuple) else (found,)
            _check_castable(op, places, results)
        if isinstance(found, tuple):
            stored = [
                store_in(o, f, op.name, rule == "truncate") for o, f in zip(out, found, strict=True)
            ]
            return type(found)(*stored) if hasattr(found, "_fields") else tuple(stored)
        return store_in(out, found, op.name, rule == "truncate")

    return run


def bind_inplace(
    name: str,
    function: Callable[..., Any],
    autocast: Autocast | None = None,
    overlap: Overlap = "any",
    once: Callable[..., tuple[Any, ...]] | None = None,
) -> Callable[..., Any]:
    """Return the in-place form of a function whose first argument is the tensor to overwrite.

    `autocast`: the rules of the function, which the in-place form does not follow: it keeps the type. `overlap`: what
    memory of the other arguments may be overwritten. `once`: what an expanded tensor takes instead of its arguments.
    """

    entry = getattr(getattr(function, "callee", None), "op", None)
    op = entry if isinstance(entry, Op) and entry.overloads else None

    def run(args: Args, kwargs: Kwargs) -> Tensor:
        """Call the function, and write its result to the first argument."""
        # Asked here: what `function` is given has another name.
        asked = len(args) > 1 and type(args[1]) not in override.plain
        if asked and override.is_foreign(args[1:], kwargs):
            raise TypeError(f"{name}(): {_EXPECTED}")
        if op is not None and len(args) > 2 and not isinstance(args[1], Tensor):
            for overload in op.overloads:
                args, kwargs = reordered(op, overload, args, kwargs, name) or (args, kwargs)
        x: Tensor = args[0]
        if once is not None and 0 in x._strides and (place := written_once(x, name)) is not None:
            run((place, *once(place, *args[1:], **kwargs)), {})
            return x
        check_writable(x)
        if overlap != "any":
            read = (*args[1:], *kwargs.values()) if kwargs else args[1:]
            if once is not None:
                # What fills is a number, also where it is a tensor without dims.
                read = tuple([v for v in read if not isinstance(v, Tensor) or v._shape])
            check_overlap(x, read, overlap == "whole")
        if not mode.grad:
            result = function(*args, **kwargs)
            return write_result(x, result, name) if result is not NotImplemented else result
        if x._base is not None:
            leave_hooks(x)
        # What is saved for backward meanwhile may be what is overwritten.
        previous, mode.overwriting = mode.overwriting, []
        saved = mode.overwriting
        try:
            result = function(*args, **kwargs)
        finally:
            mode.overwriting = previous
        if result is NotImplemented:
            return result
        return _write_and_keep(x, result, name, saved) if saved else write_result(x, result, name)

    scalars = getattr(getattr(function, "callee", None), "scalars", False)
    callee = Callee(name, run, autocast=autocast, writes=True, like=function, scalars=scalars)

    def inplace(self: Tensor, *args: object, **kwargs: object) -> Tensor:
        """Enter the call of the form in place."""
        return enter(callee, (self, *args), kwargs)

    inplace.__name__ = inplace.__qualname__ = name
    inplace.__doc__ = f"In-place form of {function.__name__}."
    callee.publish(inplace)
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
            s.move(x._storage, geometry_of(x))
    return x
