"""`torch.ops.aten`: PyTorch's operators as objects, and `__torch_dispatch__`, which is handed their calls. Floor 6.

Modes and classes with a `__torch_dispatch__` see calls of operators below autograd, autocast and `__torch_function__`.
Here too: they are asked by an interpreter (`webtorch.dispatch.call`) behind the others. The call of a function is that
of the operator of its name, of the overload that takes the arguments (`schema`); what PyTorch writes otherwise stands
in `parts`. Where PyTorch writes an operator with others, these are handed over if `parts` says which, or if they are
products; else the operator itself is.

What a mode returns gets the gradient function of the call that it stands for, as in PyTorch. If a mode calls what it
is given with the same arguments, that goes on with the call of the user, so that nothing is done twice.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from webtorch import nn
from webtorch.aten.schema import Argument, Schema, known, overloads
from webtorch.aten.table import REDUCTIONS, load, meaning
from webtorch.dispatch.call import Args, Callee, Kwargs, Living, Run, active, install
from webtorch.ops.record import RETURN_TYPES, TABLE, Elementwise, gradient_title
from webtorch.tensors import above
from webtorch.tensors.base import wraps
from webtorch.tensors.engine import grad
from webtorch.tensors.modes import enable_grad, mode, unrecorded
from webtorch.tensors.override import asking_entries, dispatches, flat, override
from webtorch.tensors.tape import (
    Cotangents,
    GradFn,
    SavedTensor,
    geometry_of,
    gradient_edge,
    pass_on,
    set_edge,
    set_history,
)
from webtorch.tensors.tensor import Tensor
from webtorch.tensors.writing import check_writable, write

Function = Callable[..., Any]
# Filled by `parts` and `derivatives`: functions of Python as calls of operators, operators of others, and those that
# autograd calls.
WRITTEN: dict[str, Function] = {}
COMPOSED: dict[str, Function] = {}
COMPUTED: dict[str, Function] = {}
BACKWARD: dict[str, Function] = {}


class OpOverload:
    """One overload of an operator: `torch.ops.aten.add.Tensor`."""

    def __init__(self, packet: OpOverloadPacket, overload: str, schema: Schema | None) -> None:
        self._overloadpacket = self.overloadpacket = packet
        self._overloadname, self._opname, self.namespace = overload, packet.__name__, "aten"
        self.__name__ = f"{packet.__name__}.{overload}"
        self.__module__ = "torch._ops.aten"
        self.__qualname__ = f"aten.{self.__name__}"
        self._stated = schema
        self.tags: list[object] = []

    @property
    def _schema(self) -> Schema:
        if self._stated is None:
            raise AttributeError(f"{self}: webtorch does not know its schema")
        return self._stated

    @property
    def is_view(self) -> bool:
        """Whether its results are views of an argument."""
        return self._schema.is_view

    @functools.cached_property
    def pullback(self) -> Pullback:
        """The gradient as an operator."""
        return Pullback(self)

    def name(self) -> str:
        """Return PyTorch's name of it: "aten::add.Tensor"."""
        overload = "" if self._overloadname == "default" else f".{self._overloadname}"
        return f"aten::{self._opname}{overload}"

    def __str__(self) -> str:
        return self.__qualname__

    def __repr__(self) -> str:
        return f"<OpOverload(op='aten.{self._opname}', overload='{self._overloadname}')>"

    def __deepcopy__(self, memo: object) -> OpOverload:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return _named, (self._opname, self._overloadname)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        frame = state.frame
        if frame is not None and frame.stands_for(self, args, kwargs):
            run = frame.run
        else:
            run = functools.partial(self._compute, args, kwargs)
        return enter(self, args, kwargs, run) if dispatching.on else run()

    def decompose(self, *args: object, **kwargs: object) -> Any:
        """Call what PyTorch writes the operator with; NotImplemented if it has kernels."""
        if not self._schema.composite or self._opname not in COMPOSED:
            return NotImplemented
        return COMPOSED[self._opname](*args, **kwargs)

    def _compute(self, args: Args, kwargs: Kwargs) -> object:
        name = self._opname
        function = COMPUTED.get(name)
        writes = name.endswith("_") and not name.startswith("__")
        if "out" in kwargs:
            if self._stated is not None:
                raise RuntimeError(
                    f"Unknown keyword argument 'out' for operator 'aten::{name}'. Schema: {self._stated}"
                )
        elif function is None and not writes:
            function = _meaning(name, self._overloadname)
        for place in (sys.modules["webtorch"], Tensor, nn.functional):
            function = function or getattr(place, name, None)
        function = function or _library(name) or _meaning(name, self._overloadname)
        if function is None:
            raise NotImplementedError(
                f"torch.ops.aten.{name}: webtorch has no public function of this name"
            )
        if not override.tensors.count:
            return function(*args, **kwargs)
        # What it is made of may be no public function: classes of tensors are asked all the same.
        with asking_entries():
            return function(*args, **kwargs)


def _library(name: str) -> Function | None:
    """Return a function that stands in a library: "linalg_norm", "special_erf"."""
    library, _, rest = name.partition("_")
    if library not in ("linalg", "special", "fft"):
        return None
    return getattr(getattr(sys.modules["webtorch"], library), rest, None)


@functools.cache
def _meaning(name: str, overload: str) -> Function | None:
    load()
    return meaning(name, overload)


class OpOverloadPacket:
    """An operator with all of its overloads: `torch.ops.aten.add`."""

    def __init__(self, name: str) -> None:
        self.__name__, self._qualified_op_name = name, f"aten::{name}"

    def __str__(self) -> str:
        return f"aten.{self.__name__}"

    def __repr__(self) -> str:
        return f"<OpOverloadPacket(op='aten.{self.__name__}')>"

    def __deepcopy__(self, memo: object) -> OpOverloadPacket:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return _packet, (self.__name__,)

    def __getattr__(self, overload: str) -> OpOverload:
        schemas = overloads(self.__name__)
        # Those that take `out`, and operators that are not known here, can be named.
        if overload.startswith("__") or (
            schemas and overload not in schemas and not overload.endswith("out")
        ):
            raise AttributeError(
                f"The underlying op of 'aten.{self.__name__}' has no overload name '{overload}'"
            )
        found = OpOverload(self, overload, schemas.get(overload))
        setattr(self, overload, found)
        return found

    @property
    def op(self) -> OpOverloadPacket:
        """What is called: the operator itself."""
        return self

    def overloads(self) -> list[str]:
        """Return the names of the overloads."""
        return list(overloads(self.__name__))

    def resolve(self, args: Args, kwargs: Kwargs) -> tuple[OpOverload, Args, Kwargs] | None:
        """Return the overload that takes the arguments of a call, and these as it is given them."""
        for overload, schema in overloads(self.__name__).items():
            bound = schema.bind(args, kwargs)
            if bound is not None:
                return getattr(self, overload), *bound
        return None

    def __call__(self, *args: object, **kwargs: object) -> Any:
        if "out" in kwargs:
            return self.out(*args, **kwargs)
        found = self.resolve(args, kwargs)
        return self.default(*args, **kwargs) if found is None else found[0](*args, **kwargs)


@functools.cache
def _packet(name: str) -> OpOverloadPacket:
    return OpOverloadPacket(name)


def _named(name: str, overload: str) -> OpOverload:
    found: OpOverload = getattr(_packet(name), overload)
    return found


class _Aten:
    """PyTorch's own operators by name."""

    def __getattr__(self, name: str) -> OpOverloadPacket:
        if not known(name) and (not name.startswith("_") or name.startswith("__")):
            raise AttributeError(
                f"'_OpNamespace' 'aten' object has no attribute '{name}': PyTorch has no operator of this name, or one "
                "of layouts, types and devices that webtorch does not have"
            )
        setattr(self, name, _packet(name))
        return _packet(name)


aten = _Aten()


# ---- calls
# ------------------------------------------------------------------------------------------------------------


class _State(threading.local):
    # The modes that are on, innermost last.
    modes: tuple[Any, ...] = ()
    # Whether classes are asked.
    classes = True
    # The call that the innermost `__torch_dispatch__` at work was given.
    frame: _Frame | None = None


state = _State()


class Dispatching:
    """The interpreter that hands calls of operators to modes, or else to the classes of their tensors."""

    def __init__(self) -> None:
        # The tensors whose classes are to be asked.
        self.tensors = Living(active)

    @property
    def on(self) -> bool:
        """Whether this thread has modes or classes to ask."""
        return bool(state.modes or (self.tensors.count and state.classes))

    inside = watches = on

    def call(self, callee: Callee, run: Run, args: Args, kwargs: Kwargs) -> Any:
        """Return what modes and classes make of a call, and what it gives where there are none."""
        if not state.modes and not any(_classes((args, kwargs))):
            return run(args, kwargs)
        name = callee.name
        written = WRITTEN.get(name)
        if written is not None:
            found = written(*args, **kwargs)
            if found is not NotImplemented:
                return found
        if callee.role not in ("operation", "parts"):
            return run(args, kwargs)
        if name.startswith("__i"):
            name = f"{name[3:-2]}_"
        entry = callee.op
        if entry is not None and entry.aten:
            name = entry.aten[0]
        elif isinstance(entry, Elementwise) and not known(name):
            # What adds two tensors is a part of what adds with a factor.
            name = name.strip("_")
        call = _packet(name).resolve(*_as_stated(callee, args, kwargs)) if known(name) else None
        if call is None:
            out = run(args, kwargs)
            # What is written to `out=` was copied there by the classes.
            made = type(out) is Tensor and kwargs.get("out") is None
            if entry is not None and made and _wrapped(args):
                raise NotImplementedError(
                    f"{callee.name}: webtorch has no operator of PyTorch's for this part of a call, and a tensor that "
                    "wraps others has no data. Write __torch_function__, or differentiate what is wrapped."
                )
            return out
        out = enter(*call, functools.partial(run, args, kwargs))
        # What a class or a mode gives has the names of PyTorch's results.
        named = RETURN_TYPES.get(name) if type(out) is tuple else None
        return out if named is None else named(out)


dispatching = Dispatching()
install("dispatch", dispatching)
above.give(asked_for_kernels=lambda: dispatching.tensors)
# Parameters here, and in schemas.
_NAMES = {"input": "self", "axis": "dim", "keepdims": "keepdim"}


def _as_stated(callee: Callee, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """Return the arguments of a call with their names in schemas."""
    if callee.parameters is not None and "reduction" in callee.parameters.parameters:
        # Of a loss: its reduction is a number to the operator, and has other places.
        kwargs = dict(callee.parameters.bind(*args, **kwargs).arguments)
        args = ()
        reduction = kwargs.get("reduction", "mean")
        if reduction in REDUCTIONS and kwargs.get("size_average") is kwargs.get("reduce") is None:
            kwargs["reduction"] = REDUCTIONS.index(reduction)
    return args, {_NAMES.get(k, k): v for k, v in kwargs.items()} if kwargs else kwargs


def _tensors(values: Any) -> Iterator[Any]:
    args, kwargs = values
    return (x for x in flat((*args, *kwargs.values())) if isinstance(x, Tensor))


# Stands where a tensor was.
_HOLE: object = object()


def _with_tensors(values: tuple[Any, Kwargs], new: Sequence[object]) -> tuple[Any, Kwargs]:
    """Return arguments with others in the places of their tensors, in order."""
    rest = iter(new)

    def changed(x: Any) -> Any:
        """Return an argument with other tensors."""
        if type(x) in (list, tuple):
            return type(x)([changed(part) for part in x])
        return next(rest) if x is _HOLE or isinstance(x, Tensor) else x

    args, kwargs = values
    return changed(args), {name: changed(x) for name, x in kwargs.items()}


def _classes(values: object) -> Iterator[type[object]]:
    """Give the classes of tensors in arguments that are asked for kernels."""
    return (type(x) for x in _tensors(values) if type(x) is not Tensor and dispatches(type(x)))


def _wrapped(args: Args) -> bool:
    """Whether tensors in arguments wrap others."""
    return any(map(wraps, _tensors((args, {}))))


def enter(operator: OpOverload, args: Args, kwargs: Kwargs, run: Callable[[], object]) -> Any:
    """Call an operator while somebody is asked; `run` is the call as the user made it."""
    # A mode that is `whole` sees operators as users call them: `torch.export` does.
    whole = bool(state.modes) and getattr(state.modes[-1], "whole", False)
    if operator._schema.composite and not whole:
        composed = COMPOSED.get(operator._opname)
        if composed is not None:
            found = composed(*args, **kwargs)
            if found is not NotImplemented:
                return found
        entry = TABLE.get(operator._opname)
        if entry is not None and entry.family == "contract":
            # Products, which are seen.
            return run()
    rule = None if whole or not mode.grad else BACKWARD.get(str(operator)) or _derivative(operator)
    # A view is differentiated by what it is a view of, unless only its class knows what that is.
    classes = list(_classes((args, kwargs)))
    if operator.is_view and not classes:
        rule = None
    if any(getattr(kind, "_pullbacks", False) for kind in classes):
        # These know the gradients of all operators.
        rule = None
    wanted = [x.requires_grad for x in _tensors((args, kwargs))]
    # What is derived by name knows the first operand's gradient only.
    if rule is not None and any(wanted) and (str(operator) in BACKWARD or not any(wanted[1:])):
        return _differentiated(operator, rule, args, kwargs, run)
    return _ask(operator, args, kwargs, run)


@functools.cache
def _derivative(operator: OpOverload) -> Function | None:
    """Return the derivative of an operator of which PyTorch has another one with the same arguments, that reads the
    first operand or the result: `gelu_backward`, `tanh_backward`.
    """
    name = f"{operator._opname}_backward"
    schema = overloads(name).get("default")
    if schema is None or operator._overloadname != "default" or operator._schema.is_mutable:
        return None
    mine, theirs = ([a.name for a in s.arguments] for s in (operator._schema, schema))
    if mine[1:] != theirs[2:]:
        return None
    reads_result = theirs[1] in ("output", "result")

    def rule(
        needs: Any, g: object, out: object, x: object, *rest: object, **options: object
    ) -> Any:
        """Return the gradient of the first operand, and None for the others."""
        found = getattr(aten, name)(g, out if reads_result else x, *rest, **options)
        return (found, *[None] * (len(needs) - 1))

    return rule


def _differentiated(
    operator: OpOverload, rule: Function, args: Args, kwargs: Kwargs, run: Callable[[], object]
) -> Any:
    """Call an operator, the gradient of which another operator computes: `rule(needs, gradients, results, *args)`
    returns the cotangents of the tensors among the arguments, `needs` says for which of them.
    """
    with unrecorded():
        out = _ask(operator, args, kwargs, run)
    results = list(_results(out))
    rest_of = [a for a in operator._schema.arguments if not a.kwarg_only][len(args) :]
    args = (*args, *[a.default_value for a in rest_of])
    tensors = list(_tensors((args, {})))
    needs = tuple([x.requires_grad for x in tensors])
    edges = tuple([gradient_edge(x) if x.requires_grad else None for x in tensors])
    with _kept((*tensors, *results)):
        saved = [*map(SavedTensor, tensors), *(SavedTensor(x, i) for i, x in enumerate(results))]
    places = tuple([isinstance(x, Tensor) for x in args])
    rest = tuple([None if p else x for p, x in zip(places, args, strict=True)])
    fn = GradFn(
        gradient_title(operator._opname),
        edges,
        _cotangents,
        saved,
        (rule, needs, places, rest, kwargs),
    )
    for i, x in enumerate(results):
        if x.dtype.has_gradient:
            set_history(x, fn, i)
    return out


@functools.cache
def _unread(rule: Function) -> Callable[[int], bool]:
    """Tell which arguments of a rule, by position, it does not read: their names begin with an underscore."""
    stated = list(inspect.signature(rule).parameters.values())
    marks = [p.name.startswith("_") for p in stated if p.kind is not p.KEYWORD_ONLY]
    return lambda at: marks[min(at, len(marks) - 1)]


def _cotangents(gs: Cotangents, saved: Any, static: Any) -> Cotangents:
    rule, needs, places, rest, kwargs = static
    # What is not read may have been overwritten since.
    unread = _unread(rule)
    tensors = iter(saved)
    args = [
        x if not place else _value_of(next(tensors), unread(at))
        for at, (place, x) in enumerate(zip(places, rest, strict=True), 3)
    ]
    results = [_value_of(s, unread(2)) for s in tensors]
    many = len(results) > 1
    found = rule(needs, gs if many else gs[0], results if many else results[0], *args, **kwargs)
    return found if isinstance(found, (tuple, list)) else (found,)


def _value_of(saved: SavedTensor, unread: bool) -> Tensor | None:
    return None if unread else saved.unpack()


# ---- gradients of what wraps other tensors
# ------------------------------------------------------------------------------------------------------------


def _of_pullback(name: str, overload: str) -> Schema:
    stated = [("grads", "Tensor?[]"), ("needs", "bool[]")]
    arguments = tuple([Argument(n, t, inspect.Parameter.empty, False, None) for n, t in stated])
    returns = (Argument("", "Tensor?[]", inspect.Parameter.empty, False, None),)
    text = f"{name}.{overload}(Tensor?[] grads, bool[] needs, ...) -> Tensor?[]"
    return Schema(name, overload, arguments, returns, text, False, False)


class Pullback(OpOverload):
    """The gradient of an operator, as one: `(cotangents of the results, which tensors among the arguments need one,
    *arguments)` gives the cotangents of these tensors. PyTorch has no such operators: where it writes a gradient with
    others, a tensor that wraps others and has no data is handed this one.
    """

    def __init__(self, operator: OpOverload) -> None:
        packet, overload = _packet(f"{operator._opname}_pullback"), operator._overloadname
        super().__init__(packet, overload, _of_pullback(packet.__name__, overload))
        self.operator = operator

    def __reduce__(self) -> tuple[object, ...]:
        return _pullback_of, (self.operator,)

    def _compute(self, args: Args, kwargs: Kwargs) -> object:
        grads, needs, *rest = args
        create_graph = mode.grad
        wanted: list[Tensor] = []
        with enable_grad():
            operands = list(_tensors((rest, kwargs)))
            for i, (x, need) in enumerate(zip(operands, needs, strict=True)):
                if need:
                    # A gradient of this gradient goes to what the argument is made of.
                    recorded = create_graph and x.requires_grad
                    operands[i] = aten.alias(x) if recorded else x.detach().requires_grad_(True)
                    wanted.append(operands[i])
            given, kwargs = _with_tensors((rest, kwargs), operands)
            if self.operator._schema.is_mutable:
                given = [given[0].clone(), *given[1:]]
            out = list(_results(self.operator(*given, **kwargs)))
        # The last results may have no gradients, as indices have none.
        sent = [
            (x, g) for x, g in zip(out, grads, strict=False) if g is not None and x.requires_grad
        ]
        roots, cotangents = [x for x, _ in sent], [g for _, g in sent]
        found = iter(
            grad(roots, wanted, cotangents, create_graph=create_graph, allow_unused=True)
            if sent
            else ()
        )
        return [next(found, None) if need else None for need in needs]


def _pullback_of(operator: OpOverload) -> Pullback:
    return operator.pullback


class _Step(OpOverload):
    """The rule of a gradient function as an operator: `(cotangents, *what is saved)`. A cotangent that wraps other
    tensors has come to a function of which the operands do not.
    """

    def __init__(self, fn: GradFn) -> None:
        name = fn.title
        super().__init__(_packet(name), "default", _of_pullback(name, "default"))
        self._rule, self._static = fn.rule, fn.static

    def _compute(self, args: Args, kwargs: Kwargs) -> object:
        assert self._rule is not None
        grads, *saved = args
        return list(self._rule(grads, [_Held(x) for x in saved], self._static))


def run_rule(fn: GradFn, grads: list[Tensor | None]) -> Cotangents:
    """Return what a gradient function gives for cotangents that wrap other tensors."""
    assert fn.rule is not None and fn.saved is not None
    # These call operators, and so do users' functions.
    is_seen = fn.rule in (_by_pullback, _cotangents, pass_on) or "ctx" in fn.__dict__
    if is_seen:
        return fn.rule(grads, fn.saved, fn.static)
    found: Cotangents = _Step(fn)(list(grads), *[s.unpack() for s in fn.saved])
    return found


class _Held(SavedTensor):
    """A tensor that wraps others, saved as it is: what it holds is its class's concern."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.counter, self.version = tensor, tensor._counter, tensor._counter.version
        self.output, self.storage, self.geometry = None, tensor._storage, geometry_of(tensor)

    def unpack(self) -> Tensor:
        """Return the tensor. Raises RuntimeError if it has been overwritten since."""
        self.check()
        return self.tensor


def _saved(x: Tensor) -> SavedTensor:
    return SavedTensor(x) if mode.saved_hooks or not wraps(x) else _Held(x)


def pulled_back(
    operator: OpOverload, args: Args, kwargs: Kwargs, results: Sequence[Tensor]
) -> None:
    """Give results of an operator, of which somebody else has computed the values, their gradient function."""
    entry = TABLE.get(operator._opname)
    if operator._opname == "detach" or (entry and (entry.factory or entry.family == "creation")):
        return
    tensors = list(_tensors((args, kwargs)))
    needs = [x.requires_grad and x.dtype.has_gradient for x in tensors]
    holes = _with_tensors((args, kwargs), [_HOLE] * len(tensors))
    fn = GradFn(
        gradient_title(operator._opname.rstrip("_")),
        tuple([gradient_edge(x) if need else None for x, need in zip(tensors, needs, strict=True)]),
        _by_pullback,
        [_saved(x) for x in tensors],
        (operator, holes, needs),
    )
    for i, x in enumerate(results):
        if x.dtype.has_gradient and not x.requires_grad:
            set_history(x, fn, i)


def _by_pullback(gs: Cotangents, saved: Sequence[SavedTensor], static: Any) -> Cotangents:
    """The rule of `pulled_back`."""
    operator, holes, needs = static
    args, kwargs = _with_tensors(holes, [s.unpack() for s in saved])
    found: Cotangents = operator.pullback(list(gs), list(needs), *args, **kwargs)
    return found


class _Frame:
    """A call that a `__torch_dispatch__` is asked about."""

    def __init__(
        self, operator: OpOverload, args: Args, kwargs: Kwargs, run: Callable[[], object]
    ) -> None:
        self.operator, self.args, self.kwargs, self._run = operator, args, kwargs, run
        self.grad = mode.grad
        self.out: object = None
        # The arguments, where the first one is written and its value is needed.
        self.before: Args | None = None

    def stands_for(self, operator: OpOverload, args: Args, kwargs: Kwargs) -> bool:
        """Whether an operator is called as the user called it, for the first time."""
        return (
            operator is self.operator
            and self.out is None
            and len(args) == len(self.args)
            and kwargs.keys() == self.kwargs.keys()
            and all(_same(a, b) for a, b in zip(args, self.args, strict=True))
            and all(_same(kwargs[k], v) for k, v in self.kwargs.items())
        )

    def run(self) -> object:
        """Make the call as the user did, who may record gradients."""
        before = state.frame, mode.grad
        state.frame, mode.grad = None, self.grad
        try:
            self.out = self._run()
        finally:
            state.frame, mode.grad = before
        return self.out

    def settle(self, result: object) -> Any:
        """Return a result with the gradient functions of the call."""
        schema = self.operator._schema
        if schema.is_mutable and self.operator._opname.endswith("_"):
            if self.out is None and wraps(self.args[0]):
                self._write(self.args[0])
            return self.args[0]
        if result is self.out or not self.grad or schema.is_mutable:
            return result
        tensors = list(_tensors((self.args, self.kwargs)))
        if self.out is None and any(map(wraps, tensors)):
            # Memory of what wraps others holds nothing that the call as usual could compute with.
            if any(x.requires_grad for x in tensors):
                pulled_back(self.operator, self.args, self.kwargs, list(_results(result)))
            return result
        with _kept(tensors) as kept:
            if self.out is None and any(x.requires_grad for x in tensors):
                with _below():
                    self.run()
        made = [x for x in flat((self.out,)) if isinstance(x, Tensor)]
        for mine, given in zip(made, flat((result,)), strict=False):
            other = mine is not given and isinstance(given, Tensor) and not given.requires_grad
            if other and mine._grad_fn is not None and given._base is None:
                set_history(given, mine._grad_fn, mine._output_nr)
                for saved in mine._grad_fn.saved or ():
                    # A rule that reads the result reads this one.
                    if saved.output == mine._output_nr and saved.storage is mine._storage:
                        saved.move(given._storage, geometry_of(given))
                kept[id(mine._storage)] = given
        return result

    def _write(self, x: Tensor) -> None:
        """Count that the class of a tensor has written to it, which has the gradient function of the call from now
        on.
        """
        with _below():
            new = TABLE["empty_strided"](x._shape, x._strides, dtype=x.dtype, device="meta")
            mode.grad = self.grad
            if self.grad and any(t.requires_grad for t in _tensors((self.args, self.kwargs))):
                pulled_back(self.operator, self.before or self.args, self.kwargs, [new])
            write(x, new, fresh=True)

    def keep(self) -> None:
        """Before a class writes to a tensor that wraps others: keep what the gradient is computed with."""
        x = self.args[0]
        if not self.grad or not wraps(x):
            return
        mode.grad = self.grad
        check_writable(x)
        if any(t.requires_grad for t in _tensors((self.args, self.kwargs))):
            with unrecorded():
                old = aten.clone(x)
            edge = gradient_edge(x)
            if edge is not None:
                set_edge(old, edge)
            self.before = (old, *self.args[1:])


@contextlib.contextmanager
def _kept(tensors: Iterable[Tensor]) -> Iterator[dict[int, Tensor]]:
    """A block in which tensors whose classes compute are saved as they are: their memory holds nothing. Gives them by
    their storages; results join them.
    """
    found = {id(x._storage): x for x in tensors if dispatches(type(x))}
    if not found:
        yield {}
        return
    before = mode.saved_hooks
    mode.saved_hooks = (*before, (lambda x: x, lambda x: found.get(id(x._storage), x)))
    try:
        yield found
    finally:
        mode.saved_hooks = before


@contextlib.contextmanager
def _below() -> Iterator[None]:
    """A block in which no mode and no class is asked for kernels."""
    before = state.modes, state.classes, mode.grad
    state.modes, state.classes = (), False
    try:
        yield
    finally:
        state.modes, state.classes, mode.grad = before


@contextlib.contextmanager
def as_called() -> Iterator[None]:
    """A block within a `__torch_dispatch__` where gradients are recorded as where the call was made."""
    frame = state.frame
    before = frame, mode.grad
    if frame is not None:
        state.frame, mode.grad = None, frame.grad
    try:
        yield
    finally:
        state.frame, mode.grad = before


def _results(out: object) -> Iterator[Tensor]:
    return (x for x in flat((out,)) if isinstance(x, Tensor))


def _same(a: object, b: object) -> bool:
    """Whether two arguments are one: modes hand on copies of the lists that they were given."""
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return a is b or (not isinstance(a, Tensor) and not isinstance(b, Tensor) and bool(a == b))


def _ask(operator: OpOverload, args: Args, kwargs: Kwargs, run: Callable[[], object]) -> object:
    """Return what the innermost mode, or else the first class that accepts, makes of a call."""
    modes, before = state.modes, (state.frame, mode.grad)
    asked: Iterable[Any] = dict.fromkeys(_classes((args, kwargs))) if state.classes else ()
    types = tuple(asked)
    frame = _Frame(operator, args, kwargs, run)
    if not modes and not types:
        return run()
    if operator._schema.is_mutable and operator._opname.endswith("_"):
        frame.keep()
    try:
        state.frame, mode.grad = frame, False
        if modes:
            state.modes = modes[:-1]
            result = modes[-1].__torch_dispatch__(operator, types, args, kwargs)
            if result is not NotImplemented:
                return frame.settle(result)
        for kind in types:
            result = kind.__torch_dispatch__(operator, types, args, kwargs)
            if result is not NotImplemented:
                return frame.settle(result)
    finally:
        state.modes = modes
        state.frame, mode.grad = before
    raise TypeError(
        f"Multiple dispatch failed for 'torch._ops.{operator}'; all __torch_dispatch__ handlers returned "
        "NotImplemented:\n\n"
        + "\n".join(
            f"  - {x}" for x in (*[f"mode object {m}" for m in modes[-1:]], *map(str, types))
        )
    )


above.give(run_rule=run_rule, alias=lambda x: aten.alias(x), as_called=as_called)
