"""The arguments of a captured call: as its program takes them, and what the caller's have to do with them.
Floor 6.
"""

from __future__ import annotations

import contextlib
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

from webtorch.capture.backward import leaf_of, stand_in
from webtorch.capture.outside import attributes, parts_of, rebuilt
from webtorch.nn import Module
from webtorch.ops import primitive
from webtorch.tensors.host import HostScalar, host_scalar
from webtorch.tensors.modes import no_grad
from webtorch.tensors.tape import continue_graph, end_of
from webtorch.tensors.tensor import Tensor
from webtorch.tensors.writing import rebase


def argument_names(function: Callable[..., object], args: tuple[object, ...]) -> list[str]:
    """Return the names of a call's positional arguments."""
    try:
        signature = inspect.signature(
            function.forward if isinstance(function, Module) else function
        )
    except (TypeError, ValueError):
        return [f"argument {i}" for i in range(len(args))]
    names = [
        p.name
        for p in signature.parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    rest = next((p.name for p in signature.parameters.values() if p.kind is p.VAR_POSITIONAL), "")
    return [names[i] if i < len(names) else f"{rest}[{i - len(names)}]" for i in range(len(args))]


class Arguments:
    """Makes the arguments that a function is captured with, and remembers what they were."""

    def __init__(self, tensors: Iterable[Tensor], live: dict[str, float]) -> None:
        self.tensors, self.live, self.names = iter(tensors), live, iter(list(live))
        # Containers, with the identities of their parts, and what was given in their place.
        self.made: list[tuple[object, list[int], Any]] = []
        self.objects: list[object] = []

    def __call__(self, x: Any) -> Any:
        if isinstance(x, Tensor):
            return next(self.tensors)
        if type(x) is float:
            return host_scalar(self.live, next(self.names))
        out = rebuilt(x, self)
        parts = parts_of(out)
        if parts is not None:
            self.made.append((out, [id(p) for p in parts], x))
        elif not isinstance(x, (int, str, bytes, type(None))):
            self.objects.append(x)
        return out

    def changed(self) -> str:
        """Return the name of the type of a container that the function has changed; "" for none."""
        return next(
            (
                type(x).__name__
                for x, before, _ in self.made
                if [id(p) for p in parts_of(x) or ()] != before
            ),
            "",
        )

    def given_back(self, result: object, taken: list[Tensor], given: list[Tensor]) -> object:
        """Return `result` with what was given in place of what the function got, and change the
        containers that were given as the function has changed its own.
        """
        known = {id(t): g for t, g in zip(taken, given, strict=True)}
        known |= {id(made): x for made, _, x in self.made}

        def back(x: Any) -> Any:
            """Return a value with the caller's own objects in it."""
            if id(x) in known:
                return known[id(x)]
            if type(x) is HostScalar:
                return float(x)
            parts = parts_of(x)
            if parts is None:
                return x
            # Each once; what contains itself is left as it is.
            known[id(x)] = x
            if any(back(p) is not p for p in parts):
                known[id(x)] = rebuilt(x, back)
            return known[id(x)]

        for made, before, x in self.made:
            parts = parts_of(made) or []
            if [id(p) for p in parts] == before or isinstance(made, tuple):
                continue
            if isinstance(made, dict):
                x.clear()
                x.update((k, back(v)) for k, v in made.items())
            elif isinstance(made, list):
                x[:] = map(back, parts)
            else:
                for name, value in attributes(made).items():
                    object.__setattr__(x, name, back(value))
        return back(result)


def taken_as(t: Tensor, in_place: bool, laid_out: bool) -> Tensor:
    """Return an argument as the program takes it: a leaf, with memory of its own, `laid_out` as the
    given one or else contiguous.
    """
    if not t._whole and not in_place:
        value = t.detach()
        return stand_in(t, value.clone() if laid_out else primitive.copy(value))
    return stand_in(t, t.detach()) if t.requires_grad and not t.is_leaf else t


class Joint:
    """What the arguments of a call, as `taken_as` gave them to a capture, have to do with the given ones,
    if the call turns out to be one that no program can repeat.
    """

    def __init__(self, taken: list[Tensor], given: list[Tensor]) -> None:
        apart = [(t, g) for t, g in zip(taken, given, strict=True) if t is not g]
        self.ends = [(end_of(leaf_of(t)), leaf_of(t), g) for t, g in apart if g.requires_grad]
        self.apart = [(t, g, t._storage.version, t._history) for t, g in apart]
        self.closed = False

    def close(self) -> None:
        """Let gradients go on to what the given tensors were computed from."""
        if self.closed:
            return
        self.closed = True
        for end, leaf, g in self.ends:
            passed, leaf._grad = leaf._grad, None
            continue_graph(end, g)
            if passed is not None:
                g.backward(passed, retain_graph=True)

    def write_back(self) -> None:
        """Write what the call wrote into copies of parts of tensors, and give the given tensors the
        history of what was written.
        """
        if not self.closed:
            return
        for t, g, version, history in self.apart:
            _move_hooks(t, g)
            if t._storage is g._storage:
                if t._history != history:
                    rebase(g, t)
                elif g.requires_grad and not t.requires_grad:
                    g.detach_()
            elif t._storage.version != version:
                with contextlib.nullcontext() if t._history != history else no_grad():
                    g.copy_(t)


def _move_hooks(t: Tensor, g: Tensor) -> None:
    """Give tensor `g` the hooks of `t`, which stood for it: they see its whole gradient."""
    if t._retains and not g.is_leaf:
        g.retain_grad()
    fn, own = t._grad_fn, g._grad_fn
    if g.is_leaf:
        if t._hooks:
            g._hooks = _joined(g._hooks, t._hooks)
        if t._post_accumulate:
            g._post_accumulate = _joined(g._post_accumulate, t._post_accumulate)
        t._hooks = t._post_accumulate = None
    elif fn is not None and fn is not own and own is not None:
        outputs = t._output_nr, g._output_nr
        if fn.tensor_hooks:
            own.tensor_hooks = _joined(own.tensor_hooks, fn.tensor_hooks, outputs)
        if fn.pre_hooks:
            own.pre_hooks = _joined(own.pre_hooks, fn.pre_hooks, outputs)
        fn.tensor_hooks = fn.pre_hooks = None


def _joined(
    hooks: OrderedDict[int, Callable[..., object]] | None,
    more: OrderedDict[int, Callable[..., Any]],
    outputs: tuple[int, int] = (0, 0),
) -> OrderedDict[int, Callable[..., object]]:
    """Return `hooks` with `more`, which can still be removed; `outputs`: the number of the output that
    these have known as theirs, and the one that it is now.
    """
    before, after = outputs
    if not hooks and before == after:
        return more

    def moved(number: int) -> Callable[..., Any]:
        """Return the hook with its output at the number that it knows."""

        def hook(given: Any) -> object:
            """Call the hook with the gradients where it expects them."""
            if number not in more:
                return None
            if before == after:
                return more[number](given)
            seen: list[object] = [None] * (before + 1)
            seen[before] = given[after]
            found = more[number](tuple(seen))
            return found and (*given[:after], found[before], *given[after + 1 :])

        return hook

    joined = OrderedDict(hooks or ())
    joined.update({number: moved(number) for number in more})
    return joined
