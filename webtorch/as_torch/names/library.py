"""torch.library: operators by name, each a Python function, and `torch.ops`, where they are called."""

from __future__ import annotations

import contextlib
import enum
import functools
import inspect
from collections.abc import Callable, Generator, Iterable
from typing import Any, NoReturn, TypeVar

from webtorch import autograd
from webtorch.as_torch.names.core import _below_autograd
from webtorch.aten.dispatch import OpOverload, OpOverloadPacket, state
from webtorch.aten.schema import Schema, infer_schema, parsed
from webtorch.dispatch.call import Args, Kwargs
from webtorch.functions import public as webtorch
from webtorch.tensors.override import flat
from webtorch.utils._pytree import tree_flatten, tree_leaves, tree_structure, tree_unflatten

__all__ = [
    "CustomOpDef", "Library", "custom_op", "define", "get_ctx", "impl", "impl_abstract", "infer_schema", "opcheck",
    "register_autocast", "register_autograd", "register_fake", "register_kernel", "register_vmap",
    "triton_op", "wrap_triton",
]  # fmt: skip

_F = TypeVar("_F", bound=Callable[..., object])

# What an operator may be said to be, as torch.Tag: a compiler's hints, which nothing here looks at.
Tag = enum.Enum(
    "Tag",
    """core cudagraph_unsafe data_dependent_output dynamic_output_shape flexible_layout generated inplace inplace_view
    maybe_aliasing_or_mutating needs_contiguous_strides needs_exact_strides needs_fixed_stride_order
    nondeterministic_bitwise nondeterministic_seeded out out_variant pointwise pt2_compliant_tag reduction view_copy""",
    start=0,
    module="torch",
)
# "namespace::name" -> its operator.
_OPERATORS: dict[str, CustomOpDef] = {}


class _Overload(OpOverload):
    """An operator's only overload, which modes with a `__torch_dispatch__` are handed."""

    def __init__(self, of: CustomOpDef) -> None:
        namespace, _, name = of._name.partition("::")
        super().__init__(OpOverloadPacket(name), "default", of._stated)
        self.namespace, self._of = namespace, of
        self.__module__ = f"torch._ops.{namespace}"
        self.__qualname__ = f"{namespace}.{self.__name__}"

    def name(self) -> str:
        """Return the name that the operator was given."""
        return self._of._name

    def __repr__(self) -> str:
        return f"<OpOverload(op='{self._of._name.replace('::', '.')}', overload='default')>"

    def __reduce__(self) -> tuple[object, ...]:
        return _overload, (self._of._name,)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        frame = state.frame
        if frame is not None and frame.stands_for(self, args, kwargs):
            return super().__call__(*args, **kwargs)
        return self._of._call(*args, **kwargs)

    def below(self, args: Args, kwargs: Kwargs) -> Any:
        """Call the operator below autograd, where modes see it."""
        return super().__call__(*args, **kwargs)

    def _compute(self, args: Args, kwargs: Kwargs) -> object:
        return self._of._run(*args, **kwargs)


def _overload(name: str) -> OpOverload:
    return _OPERATORS[name].default


class CustomOpDef:
    """An operator: a function with a name, and perhaps a gradient of its own."""

    def __init__(
        self,
        name: str,
        function: Callable[..., object] | None = None,
        schema: str | None = None,
        own: bool = False,
    ) -> None:
        """Name the operator. `schema`: what it takes and gives, "(Tensor x) -> Tensor", if that is known. `own`: it has
        the gradient that is registered, and none of its parts.
        """
        self._name = self._qualname = name
        self._own = own
        self._stated: Schema | None = None
        self.state(schema)
        self._function = function
        self._kernels: dict[str, Callable[..., object]] = {}
        # Kind of device ("": any) -> what is called in the operator's place where autograd is.
        self._above: dict[str, Callable[..., object]] = {}
        self._backward: Callable[..., object] | None = None
        self._setup_context: Callable[..., object] | None = None
        self._vmap: Callable[..., Any] | None = None
        # What autograd calls, made when it is first called.
        self._differentiated: Any = None
        if function is not None:
            functools.update_wrapper(self, function)
        _OPERATORS[name] = self

    def __repr__(self) -> str:
        return f"<CustomOpDef({self._name})>"

    def state(self, schema: str | None) -> None:
        """Say what the operator takes and gives, unless the schema is of a kind that is not read here."""
        namespace, _, name = self._name.partition("::")
        if schema is not None and schema.strip().startswith("("):
            self._stated = parsed(name + schema.strip(), namespace)

    @functools.cached_property
    def default(self) -> _Overload:
        """The operator's only overload."""
        return _Overload(self)

    @property
    def _opoverload(self) -> OpOverload:
        return self.default

    @property
    def _schema(self) -> Schema:
        return self.default._schema

    def overloads(self) -> list[str]:
        """Return the names of the overloads."""
        return ["default"]

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Call the operator."""
        if self._stated is not None:
            self._stated.check(args, kwargs)
        return self._call(*args, **kwargs)

    def _below(self, args: Args, kwargs: Kwargs) -> Any:
        """Call the operator below autograd."""
        if self._stated is None:
            return self._run(*args, **kwargs)
        return self.default.below(args, kwargs)

    def _call(self, *args: object, **kwargs: object) -> Any:
        """Call the function; its gradient is the one registered, or that of what it computes."""
        if self._above and not _below_autograd.get():
            above = _for_device(self._above, args, kwargs) or self._above.get("")
            if above is not None:
                return above(*args, **kwargs)
        if self._backward is None and self._vmap is None and not self._own:
            return self._below(args, kwargs)
        # The gradient sees every argument, also those that were left to their defaults.
        bound = inspect.signature(self._run_of(args, kwargs)).bind(*args, **kwargs)
        bound.apply_defaults()
        leaves: list[object] = []
        lengths: list[int | None] = []
        for x in bound.args:
            many = isinstance(x, (list, tuple)) and any(isinstance(y, webtorch.Tensor) for y in x)
            lengths.append(len(x) if many else None)
            leaves += x if many else [x]
        call = _Call(lengths, bound.kwargs)
        if self._differentiated is None:
            self._differentiated = _differentiated(self)
        out = self._differentiated.apply(*leaves, call)
        return call.whole(out)

    def _run_of(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Callable[..., object]:
        found = _for_device(self._kernels, args, kwargs) or self._function
        if found is None:
            raise NotImplementedError(
                f"torch.ops.{self._name.replace('::', '.')}: no function of it has been registered for these arguments"
            )
        return found

    def _run(self, *args: object, **kwargs: object) -> Any:
        return self._run_of(args, kwargs)(*args, **kwargs)

    def register_kernel(self, device_types: Any, func: Any = None, /) -> Any:
        """Give the function for devices of some kinds ("cpu"); None is all of them."""

        def register(function: _F) -> _F:
            """Note the function for the kinds of devices; return it."""
            if device_types in (None, "default"):
                self._function = function
            for kind in [device_types] if isinstance(device_types, str) else device_types or ():
                self._kernels[kind] = function
            return function

        return register if func is None else register(func)

    def register_fake(self, func: object = None, /) -> Any:
        """Do nothing: shapes are known as soon as the function is recorded."""
        return (lambda f: f) if func is None else func

    def register_vmap(self, func: Any = None, /) -> Any:
        """Take the rule of vmap: `func(info, in_dims, *args)` returns (results, their batch dimensions)."""

        def register(function: _F) -> _F:
            """Note the rule; return it."""
            self._vmap, self._differentiated = function, None
            return function

        return register if func is None else register(func)

    def register_autocast(self, device_type: str, cast_inputs: object) -> None:
        """Do nothing: autocast acts on the operations inside."""

    def register_autograd(
        self,
        backward: Callable[..., object],
        /,
        *,
        setup_context: Callable[..., object] | None = None,
    ) -> None:
        """Take the gradient: `backward(ctx, *grads)`, after `setup_context(ctx, inputs, output)`."""
        self._backward, self._setup_context = backward, setup_context


def _for_device(
    given: dict[str, Callable[..., object]], args: tuple[object, ...], kwargs: dict[str, object]
) -> Callable[..., object] | None:
    """Return what is given for the kind of device that one of the tensors is on, or None."""
    if given:
        for x in (*args, *kwargs.values()):
            if isinstance(x, webtorch.Tensor) and x.device.type in given:
                return given[x.device.type]
    return None


def _with_dims(out: Any, where: Any) -> list[tuple[Any, Any]]:
    """Return the results of a rule of vmap with their dims: one dim stands for a nest."""
    if where is None or isinstance(where, int):
        return [(out, where)]
    return [pair for x, d in zip(out, where, strict=True) for pair in _with_dims(x, d)]


class _Call:
    """How the arguments and results of a call stand, whose tensors are given to autograd one by one."""

    def __init__(self, lengths: list[int | None], named: dict[str, object]) -> None:
        """`lengths`: of arguments that are lists; `named`: what has only names."""
        self.lengths, self.named = lengths, named
        self.results = tree_structure(None)

    def apart(self, out: object) -> object:
        """Return all results of the operator, as one tuple if they are not one."""
        leaves, self.results = tree_flatten(out)
        return leaves[0] if self.results.is_leaf() else tuple(leaves)

    def whole(self, leaves: object) -> Any:
        """Return results, or what belongs to each, as the operator gives them."""
        return tree_unflatten(leaves if isinstance(leaves, tuple) else (leaves,), self.results)

    def gathered(self, leaves: Iterable[object]) -> tuple[object, ...]:
        """Return the arguments by place."""
        rest = iter(leaves)
        return tuple(
            [next(rest) if n is None else [next(rest) for _ in range(n)] for n in self.lengths]
        )

    def spread(self, grads: Iterable[Any]) -> Iterable[object]:
        """Give the gradients of all tensors, of those of arguments."""
        for n, g in zip(self.lengths, grads, strict=True):
            yield from [g] if n is None else [None] * n if g is None else g


def _differentiated(operator: CustomOpDef) -> Any:
    """Return the function of autograd's that an operator is."""

    class Operator(autograd.Function):
        """The operator with the gradient, and the rule of vmap, that were registered for it."""

        # A rule of vmap is asked for as users' functions are; without one vmap sees the operations inside.
        __module__ = __name__ if operator._vmap is None else "torch.library"

        @staticmethod
        def forward(*given: Any) -> object:
            """Run the operator."""
            call: _Call = given[-1]
            args = call.gathered(given[:-1])
            out = operator._below(args, call.named)
            if operator._own:
                _check_fresh(operator, args, out)
            return call.apart(out)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            """Run its setup_context if it has one."""
            call: _Call = inputs[-1]
            ctx.of_call = call
            if operator._setup_context is not None:
                more = {"keyword_only_inputs": call.named} if call.named else {}
                args = call.gathered(inputs[:-1])
                operator._setup_context(ctx=ctx, inputs=args, output=call.whole(output), **more)

        @staticmethod
        def backward(ctx: Any, *grads: object) -> object:
            """Return the gradients that the registered function gives. Raises RuntimeError if there is none."""
            if operator._backward is None:
                raise RuntimeError(
                    f"Trying to backward through {operator._name}.default but no autograd formula was registered. "
                    "Please use register_autograd to add one."
                )
            call: _Call = ctx.of_call
            given = call.whole(grads)
            found = operator._backward(ctx, *(given if isinstance(given, tuple) else (given,)))
            return (*call.spread(found if isinstance(found, tuple) else (found,)), None)

        @staticmethod
        def vmap(info: object, in_dims: Any, *given: Any) -> Any:
            """Return what the registered rule gives for all examples, and where they stand in it."""
            assert operator._vmap is not None
            call: _Call = given[-1]
            args, dims = call.gathered(given[:-1]), call.gathered(in_dims[:-1])
            out, where = operator._vmap(info, dims, *args, **call.named)
            spread = [d for x, d in _with_dims(out, where) for _ in tree_leaves(x)]
            leaves = call.apart(out)
            return leaves, tuple(spread) if isinstance(leaves, tuple) else spread[0]

    return Operator


def _check_fresh(operator: CustomOpDef, args: Args, out: object) -> None:
    """Raise RuntimeError for a result that is an argument or shares memory with one, or with another result."""
    seen = [x._storage for x in flat(args) if isinstance(x, webtorch.Tensor)]
    for x in flat((out,)):
        if isinstance(x, webtorch.Tensor):
            if any(x._storage is storage for storage in seen):
                where = getattr(operator, "__module__", "???")
                raise RuntimeError(
                    f"{operator._name} (with implementation in {where}): The output of this custom operator (1) must "
                    "not also be an input to this custom operator and (2) may not alias any inputs to this custom "
                    "operator or other returns. The most common way to trigger this error is if we have y = "
                    "custom_op(x) and y and x are the same Tensor. Please instead return a clone of the offending "
                    "output tensor(s) (e.g. return x.clone()) or refactor the custom operator to not return y."
                )
            seen.append(x._storage)


def custom_op(
    name: str,
    fn: Callable[..., object] | None = None,
    /,
    *,
    mutates_args: str | Iterable[str] = (),
    device_types: object = None,
    schema: str | None = None,
    tags: object = None,
) -> Any:
    """Make a function an operator called "namespace::name", found at torch.ops.namespace.name.

    Its schema is inferred from the function's annotations, unless it is given. Without `register_autograd` it has no
    gradient.
    """

    def make(function: Callable[..., object]) -> CustomOpDef:
        """Return the function as an operator."""
        stated = schema or infer_schema(function, mutates_args=mutates_args)
        given = function if device_types is None else None
        operator = CustomOpDef(name, given, stated, own=True)
        if device_types is not None:
            operator.register_kernel(device_types, function)
            functools.update_wrapper(operator, function)
        return operator

    return make if fn is None else make(fn)


triton_op = custom_op


def wrap_triton(triton_kernel: object, /) -> NoReturn:
    """Raise: kernels of Triton do not run here."""
    raise RuntimeError("torch.library.wrap_triton: webtorch does not run kernels of Triton")


def _operator(op: object) -> CustomOpDef:
    return _named(op) or CustomOpDef(str(op))


def _named(op: object) -> CustomOpDef | None:
    if isinstance(op, _Overload):
        return op._of
    return op if isinstance(op, CustomOpDef) else _OPERATORS.get(str(op))


def define(qualname: str, schema: object = None, *, lib: object = None, tags: object = ()) -> None:
    """Say that an operator exists, and what it takes and gives: `define("mine::twice", "(Tensor x) -> Tensor")`."""
    _operator(qualname).state(schema if isinstance(schema, str) else None)


def impl(qualname: object, types: object, func: object = None, *, lib: object = None) -> Any:
    """Give the function of an operator for devices of some kinds; or of one of a library, as in its own `impl`."""
    if isinstance(qualname, Library):

        def given(function: _F) -> _F:
            """Give the function to the library's operator."""
            key = func if isinstance(func, str) else ""
            qualname.impl(types, function, key)
            return function

        return given
    return _operator(qualname).register_kernel(types, func)


def register_kernel(
    op: object, device_types: object, func: object = None, /, *, lib: object = None
) -> Any:
    """Give the function of an operator for devices of some kinds."""
    return _operator(op).register_kernel(device_types, func)


def register_fake(
    op: object, func: object = None, /, *, lib: object = None, _stacklevel: int = 1, allow_override: bool = False
) -> Any:  # fmt: skip
    """Do nothing: shapes are known as soon as a function is recorded."""
    return (lambda f: f) if func is None else func


impl_abstract = register_fake


def register_vmap(op: object, func: object = None, /, *, lib: object = None) -> Any:
    """Take the rule of vmap of an operator; without one vmap sees the operations inside."""
    return _operator(op).register_vmap(func)


def register_autocast(
    op: object, device_type: str, cast_inputs: object, /, *, lib: object = None
) -> None:
    """Do nothing: autocast acts on the operations inside."""


def register_autograd(
    op: object,
    backward: Callable[..., object],
    /,
    *,
    setup_context: Callable[..., object] | None = None,
    lib: object = None,
) -> None:
    """Take the gradient of an operator."""
    _operator(op).register_autograd(backward, setup_context=setup_context)


def opcheck(op: object, *args: object, **kwargs: object) -> NoReturn:
    """Raise: there is no dispatcher whose rules could be checked."""
    raise RuntimeError(
        "torch.library.opcheck: webtorch has no dispatcher to check an operator against"
    )


def get_ctx() -> NoReturn:
    """Raise: functions for fake tensors are not called."""
    raise RuntimeError("torch.library.get_ctx: webtorch calls no functions for fake tensors")


class Library:
    """Operators of one namespace."""

    def __init__(self, ns: str, kind: str, dispatch_key: str = "") -> None:
        """Name the namespace."""
        self.ns, self.kind, self.dispatch_key = ns, kind, dispatch_key

    def define(self, schema: str, alias_analysis: str = "", *, tags: object = ()) -> str:
        """Say that an operator exists, and return its name."""
        name, bracket, rest = schema.partition("(")
        _operator(f"{self.ns}::{name.strip()}").state(bracket + rest)
        return name.strip()

    def impl(
        self,
        op_name: Any,
        fn: Callable[..., object],
        dispatch_key: str = "",
        *,
        with_keyset: bool = False,
        allow_override: bool = False,
    ) -> None:
        """Give the function of an operator for a key: a kind of device, autograd of one or of all, "" for the rest."""
        key = dispatch_key or self.dispatch_key
        if key == "Meta" or key.startswith("Autocast"):
            return
        named = _named(op_name)
        name = op_name if named is None else named._name
        operator = _operator(name if "::" in name else f"{self.ns}::{name}")
        kind = key.removeprefix("Autograd").lower()
        kind = "webgpu" if kind == "privateuse1" else kind
        if key.startswith("Autograd"):
            operator._above[kind] = fn
        else:
            operator.register_kernel(None if kind.startswith("composite") else kind or None, fn)


@contextlib.contextmanager
def _scoped_library(ns: str, kind: str, dispatch_key: str = "") -> Generator[Library, None, None]:
    """A block with a `Library`; its operators stay."""
    yield Library(ns, kind, dispatch_key)
