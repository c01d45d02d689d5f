"""Composites that carry a gradient rule of their own: what a call saves, and how the rule is called. Floor 4.

What the rules read follows from the entry and from which operands need gradients, and is worked out once for each
of these. Where nothing differentiates it again, the rule itself is remembered like any composite
(`tensors/remember.py`): a backward pass records one node for each cotangent.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, cast

from webtorch.dispatch.call import Args, Run
from webtorch.ops import primitive
from webtorch.ops.layout import ChannelsLastAs, channels_last
from webtorch.ops.record import Anew, Op, gradient_title, used_arguments
from webtorch.tensors.engine import run_backward
from webtorch.tensors.forward import transposed
from webtorch.tensors.modes import enable_grad, enable_hooks, mode, transforms, unrecorded
from webtorch.tensors.primitives import conjugate, lay
from webtorch.tensors.recorders import sum_to
from webtorch.tensors.remember import remembered
from webtorch.tensors.tape import (
    Called,
    Cotangents,
    Edge,
    GradFn,
    SavedTensor,
    gradient_edge,
    looks_at_each,
    meta_of,
    set_history,
    start_at,
)
from webtorch.tensors.tensor import Tensor


def with_rule(op: Op, inner: Run) -> Run:
    """Return the call of a composite that carries its own gradient rule: `inner` records no gradient."""
    assert op.vjp is not None
    signature = inspect.signature(op.function)
    place, by_names = _by_place(signature, op.function), _by_names(signature)
    anew, rule = isinstance(op.vjp, Anew), _Rule(op, signature)

    def run(args: Args, kwargs: dict[str, Any]) -> Any:
        """Call, and give the results their gradient function and tangents."""
        moves = transforms.count and mode.forward
        recorded = mode.grad and (
            _one_requires_grad(args) or (kwargs and _one_requires_grad(kwargs.values()))
        )
        if not (recorded or moves) or (anew and looks_at_each(hooks=False)):
            return inner(args, kwargs)
        args = place(args, kwargs)
        with unrecorded():
            out = inner(*by_names(args))
        results = out[: op.outputs] if isinstance(out, tuple) else (out,)
        if recorded:
            rule.attach(args, results)
            if anew and len(results) > 0 and isinstance(out, tuple):
                rule.save_too(results[0], out[op.outputs :])
        if moves:
            rule.move(args, results)
        return out

    return run


def _one_requires_grad(values: Iterable[object]) -> bool:
    for x in values:  # noqa: SIM110  (a generator costs as much again)
        # What has no base says it itself.
        if isinstance(x, Tensor) and (
            x._requires_grad or (x._base is not None and x.requires_grad)
        ):
            return True
    return False


def _by_place(
    signature: inspect.Signature, function: Callable[..., object]
) -> Callable[[Args, dict[str, Any]], Args]:
    """Return what puts the arguments of a call in the order of the parameters, with the defaults."""
    parameters = signature.parameters.values()
    defaults = tuple([p.default for p in parameters])
    most = sum(p.kind is not p.KEYWORD_ONLY for p in parameters)
    required = sum(d is inspect.Parameter.empty for d in defaults)

    def place(args: Args, kwargs: dict[str, object]) -> Args:
        """Return all arguments by position, those that have only names last."""
        if not kwargs and required <= len(args) <= most:
            return args + defaults[len(args) :]
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            # Python says it in the words of a call.
            function(*args, **kwargs)
            raise
        bound.apply_defaults()
        return (*bound.args, *bound.kwargs.values())

    return place


def _by_names(signature: inspect.Signature) -> Callable[[Args], tuple[Args, dict[str, Any]]]:
    """Return what gives those parameters their names again that have only names."""
    named = [n for n, p in signature.parameters.items() if p.kind is p.KEYWORD_ONLY]
    most = len(signature.parameters) - len(named)
    if not named:
        return lambda args: (args, {})
    return lambda args: (args[:most], dict(zip(named, args[most:], strict=True)))


class _Rule:
    """The gradient rule of an entry, or its rules for single operands, and what is saved for them."""

    __slots__ = (
        "chosen", "function", "is_real", "layout", "leads", "many", "op", "signature", "title",
    )  # fmt: skip

    def __init__(self, op: Op, signature: inspect.Signature) -> None:
        self.op, self.function, self.signature = op, op.function, signature
        self.many, self.leads = op.outputs > 1, op.leads
        # Whether it means another one for complex numbers.
        self.is_real = not (op.complex_rule or isinstance(op.vjp, Anew))
        self.title = gradient_title(op.name)
        self.layout = op.layout if isinstance(op.layout, ChannelsLastAs) else None
        # By the places of the operands that need gradients.
        self.chosen: dict[tuple[int, ...], _Chosen] = {}

    def _choose(self, needs: tuple[int, ...]) -> _Chosen:
        found = self.chosen.get(needs)
        if found is None:
            found = self.chosen[needs] = _Chosen(self.op, self.function, self.signature, needs)
        return found

    def attach(self, args: Args, results: Sequence[Tensor]) -> None:
        """Give the results of a call their gradient function."""
        edges: list[Edge | None] = []
        tensors: list[tuple[int, Tensor]] = []
        needs: list[int] = []
        has_complex = False
        for i, a in enumerate(args):
            if isinstance(a, Tensor):
                tensors.append((i, a))
                has_complex = has_complex or a.dtype.is_complex
                if a._requires_grad or (a._base is not None and a.requires_grad):
                    needs.append(i)
                    edges.append(gradient_edge(a))
                else:
                    edges.append(None)
        chosen = self._choose(tuple(needs))
        values, saved, apart = list(args), [], self.op.saves_values
        for i, a in tensors:
            values[i] = None if chosen.reads[i] else chosen.known_of(a)
            if chosen.reads[i]:
                saved.append(SavedTensor(a, None, apart))
        if chosen.reads_out:
            saved += [SavedTensor(r, number) for number, r in enumerate(results)]
        turns = self.is_real and (has_complex or any(r.dtype.is_complex for r in results))
        gaps = None if len(needs) == len(edges) else tuple([e is not None for e in edges])
        places = tuple([i for i, _ in tensors if chosen.reads[i]])
        # Whether their gradients have their channels innermost, as the results.
        inner = False
        if self.layout is not None:
            for _, a in tensors:
                if not a._whole:
                    inner = self.layout.wanted(tuple([(x._shape, x._strides) for _, x in tensors]))
                    break
        order = None if self.leads is None else self.leads(*args)
        static = _Static(chosen, tuple(values), places, gaps, turns, inner, order)
        if order is not None:
            edges = [edges[i] for i in order]
        fn = GradFn(self.title, tuple(edges), self._run, saved, static)
        for number, result in enumerate(results):
            set_history(result, fn, number)

    def save_too(self, result: Tensor, rest: Sequence[Tensor]) -> None:
        """Save results that have no gradient, such as places: that one of them is written in place is an error."""
        fn = result._grad_fn
        if fn is not None and rest:
            more = [SavedTensor(r, None, self.op.saves_values) for r in rest]
            fn.saved = [*(fn.saved or ()), *more]

    def _run(self, gs: Cotangents, saved: Sequence[SavedTensor], static: _Static) -> Cotangents:
        """Return the cotangents of the tensors among the arguments, None between those that are needed."""
        chosen, values, gaps = static.chosen, list(static.values), static.gaps
        results = tuple([s.unpack() for s in saved[len(static.places) :]])
        for i, s in zip(static.places, saved, strict=False):
            values[i] = s.unpack()
        rule = _turned(chosen.rule) if static.turns else chosen.again
        if self.many:
            found = rule(tuple(gs), results, *values)
        else:
            found = rule(gs[0], results[0] if results else None, *values)
        if static.inner:
            _lay_channels_inside(found)
        if gaps is not None:
            rest = iter(found)
            found = [next(rest) if there else None for there in gaps]
        if static.order is not None:
            found = [found[i] for i in static.order]
        return cast("Cotangents", found)

    def show_turned(self, fn: GradFn) -> None:
        """Let a function that is looked at lead to the one that turns the weight, as PyTorch's graph does."""
        edge = fn.edges[-1]
        if (
            self.leads is None
            or fn.title not in _TURNED
            or edge is None
            or fn.first is None
            or isinstance(fn.rule, _Turning)
            or mode.task is not None
        ):
            return
        shape, *rest = meta_of(edge)
        turn = GradFn("TBackward0", (edge,), _turned_back)
        turn.sequence, turn.metas = fn.first, ((shape[::-1], *rest),)
        assert fn.rule is not None
        fn.edges, fn.rule = (*fn.edges[:-1], (turn, 0)), _Turning(fn.rule)

    def called(self, static: _Static) -> Called:
        """Return what is known of a call, by its parameters."""
        names = tuple(self.signature.parameters)
        saved = [names[i] for i in static.places]
        results = [f"out{i}" for i in range(self.op.outputs)] if self.many else ["out"]
        known: dict[str, object] = {}
        for name, value in zip(names, static.values, strict=True):
            if not str(self.signature.parameters[name].annotation).startswith("Tensor"):
                known[name] = value
            elif value is not None and name not in saved:
                shape = value[0] if static.chosen.anew else value
                known["self_sym_sizes" if name == "input" else f"{name}_sym_sizes"] = shape
        return Called([*saved, *(results if static.chosen.reads_out else ())], known)

    def move(self, args: Args, results: Sequence[Tensor]) -> None:
        """Give the results of a call their tangents, by the transpose of the rule."""
        places = tuple([i for i, a in enumerate(args) if isinstance(a, Tensor)])
        chosen = self._choose(places)
        tensors, out = [args[i] for i in places], tuple(results) if self.many else results[0]
        has_complex = any(t.dtype.is_complex for t in (*tensors, *results))
        rule = _turned(chosen.rule) if has_complex and self.is_real else chosen.rule
        values = [
            chosen.known_of(a) if isinstance(a, Tensor) and not read else a
            for a, read in zip(args, chosen.reads, strict=True)
        ]
        transposed(
            results, tensors, lambda gs: rule(tuple(gs) if self.many else gs[0], out, *values)
        )


# Products with a weight whose rows are outputs: PyTorch turns it first.
_TURNED = ("AddmmBackward0", "MmBackward0")


class _Turning:
    """A rule whose last cotangent is turned, as the function that it goes to takes it."""

    def __init__(self, rule: Any) -> None:
        self.rule, self.__self__ = rule, rule.__self__

    def __call__(self, gs: Cotangents, saved: Sequence[SavedTensor], static: Any) -> Cotangents:
        *others, last = self.rule(gs, saved, static)
        return (*others, None if last is None else last.t())


def _turned_back(gs: Cotangents, _saved: object, _static: object) -> Cotangents:
    """The rule of what turns a matrix."""
    return (gs[0].t(),)


class _Static(NamedTuple):
    """What the rule of a call knows of it, beside what is saved."""

    chosen: _Chosen
    # The arguments by position: what is known of tensors that are not saved, None for those that are.
    values: tuple[Any, ...]
    # Where those stand.
    places: tuple[int, ...]
    # Which tensors among the arguments need gradients, unless all do.
    gaps: tuple[bool, ...] | None
    # Whether the rule is one of real numbers, and the operands are complex.
    turns: bool
    # Whether images and volumes among the cotangents have their channels innermost.
    inner: bool
    # Where the edges stand among the tensors, if that is not as these.
    order: tuple[int, ...] | None


def _lay_channels_inside(found: Iterable[Tensor | None]) -> None:
    """Have the channels of new cotangents lie innermost."""
    for g in found:
        if g is not None and len(g._shape) in (4, 5) and not (g._levels or g.dtype.is_complex):
            strides = channels_last(g._shape)
            if g._strides != strides:
                lay(g, strides)


class _Chosen:
    """The rules of an entry for the operands at the places `needs`, as one: it gives their cotangents."""

    __slots__ = ("again", "anew", "reads", "reads_out", "rule")

    def __init__(
        self,
        op: Op,
        function: Callable[..., Any],
        signature: inspect.Signature,
        needs: tuple[int, ...],
    ) -> None:
        vjp, names = op.vjp, tuple(signature.parameters)
        self.anew = isinstance(vjp, Anew)
        if isinstance(vjp, Anew):
            without = vjp.unread_for({names[i] for i in needs})
            used = set(names).difference(without)
            unread = tuple([names.index(n) for n in without])
            self.rule = functools.partial(
                _anew, function, _by_names(signature), needs, unread, op.outputs
            )
        elif isinstance(vjp, tuple):
            parts = [(i, vjp[i] if i < len(vjp) else None) for i in needs]
            read = [used_arguments(r, ("g", "out", *names)) for _, r in parts if r is not None]
            used = set().union(*read)
            self.rule = functools.partial(_each, parts)
        else:
            assert vjp is not None
            used = set(used_arguments(vjp, ("g", "out", *names)))
            self.rule = functools.partial(_all, vjp, needs)
        self.reads = tuple([n in used for n in names])
        self.reads_out = "out" in used
        # The same where nothing differentiates it again.
        self.again = remembered(self.rule)

    def known_of(self, tensor: Tensor) -> tuple[object, ...]:
        """Return what the rule is given of a tensor that is not saved."""
        return (tensor._shape, tensor.dtype) if self.anew else tensor._shape


def _all(
    rule: Callable[..., Any], needs: tuple[int, ...], g: object, out: object, *values: object
) -> tuple[Any, ...]:
    """Return the cotangents by one rule for all arguments."""
    found = rule(g, out, *values)
    return tuple([found[i] if i < len(found) else None for i in needs])


def _each(
    parts: Sequence[tuple[int, Callable[..., Tensor] | None]], g: object, out: Any, *values: Any
) -> tuple[Any, ...]:
    """Return the cotangents by rules for single operands."""
    found: list[Any] = []
    for i, part in parts:
        shape = values[i] if type(values[i]) is tuple else values[i]._shape
        found.append(None if part is None else sum_to(part(g, out, *values), shape))
    return tuple(found)


def _anew(
    function: Callable[..., Any],
    by_names: Callable[[Args], tuple[Args, dict[str, Any]]],
    needs: tuple[int, ...],
    unread: tuple[int, ...],
    outputs: int,
    g: Any,
    _out: Any,
    *values: Any,
) -> tuple[Any, ...]:
    """Return the cotangents by computing the results again. Of what is `unread` shape and type are known, which is all
    that counts.
    """
    create_graph, given = mode.grad, list(values)
    gs = g if outputs > 1 else (g,)
    with enable_grad(), enable_hooks(create_graph):
        for i in unread:
            if given[i] is not None:
                cotangent = next(c for c in gs if c is not None)
                shape, dtype = given[i]
                given[i] = primitive.fill(shape, 0, dtype, cotangent.device)
        for i in needs:
            if create_graph and i not in unread:
                given[i] = start_at(given[i])
            else:
                given[i] = given[i].detach()
                given[i]._requires_grad = True
        args, kwargs = by_names(tuple(given))
        out = function(*args, **kwargs)
        results = out[:outputs] if isinstance(out, tuple) else (out,)
        reached = [(r, c) for r, c in zip(results, gs, strict=True) if c is not None]
        found = run_backward(
            [r for r, _ in reached],
            [c for _, c in reached],
            retain_graph=create_graph,
            create_graph=create_graph,
            inputs=[given[i] for i in needs],
            accumulate=False,
        )
    return tuple(found)


def _turned(vjp: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rule for complex numbers that a rule of real ones stands for.

    PyTorch's cotangent of a complex number is that of its two parts, as one number; for a holomorphic
    function it is conj(f'(x)) * g: the rule for conj(g), conjugated.
    """

    def rule(g: object, *rest: object) -> Any:
        """Return the conjugated cotangents of a conjugated one."""
        given = g if isinstance(g, tuple) else (g,)
        turned = tuple([c if c is None else conjugate(c) for c in given])
        found = vjp(turned if isinstance(g, tuple) else turned[0], *rest)
        return tuple([conjugate(c) if isinstance(c, Tensor) else c for c in found])

    return rule
