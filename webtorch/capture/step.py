"""`webtorch.compile`: one program for each signature of a function, replayed with no Python per
operation. Floor 5.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from webtorch.capture.trace import Capture, NotReplayable, capture, replay
from webtorch.ir.program import Program
from webtorch.runtime.realize import Runtime, open_runtimes
from webtorch.tensors.host import bindings, host_scalar
from webtorch.tensors.tape import mode
from webtorch.tensors.tensor import Tensor

# Signatures that one function keeps; the oldest is dropped beyond this.
_MAX_SIGNATURES = 16
# Captures of one signature, for modules that train or not and gradients that are there or not.
_MAX_STATES = 8


class CompiledFunction:
    """A function that is captured once per signature and then replayed.

    The first call of a signature runs as usual, so that what is created on first use (optimizer
    state, caches) exists. The second
    is captured. From then on a call binds its arguments to the program and runs it. Parameters and
    state stay on the device and are
    updated in place; learning rates and other options of an optimizer, random numbers and number
    arguments may change freely.

    A function that a program cannot repeat runs as usual every time: one that returns what its
    caller differentiates, or that binds a name of the outside to what it computed from its old
    value. Attributes are those of the function or Module.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.seen: set[Any] = set()
        self.captures: OrderedDict[Any, list[tuple[Capture, dict[str, Any]]]] = OrderedDict()
        # Where a signature without tensors computes.
        self.runtimes: dict[Any, Runtime] = {}
        # Signatures that cannot be replayed.
        self.usual: set[Any] = set()
        functools.update_wrapper(self, getattr(function, "forward", function), updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tensors: list[Tensor] = []
        numbers: dict[str, Any] = {}
        key = (self._flatten((args, kwargs), tensors, numbers), mode.grad, _training(self.function))
        if key not in self.seen or key in self.usual:
            if tensors or key in self.seen:
                self.seen.add(key)
                return self.function(*args, **kwargs)
            return self._find_runtime(key, args, kwargs)
        if mode.grad and any(t.requires_grad and not t.is_leaf for t in tensors):
            # Their gradients go on outside.
            return self.function(*args, **kwargs)
        tensors = [t if t._whole else t.detach().clone() for t in tensors]
        states = self.captures.get(key, [])
        states = [s for s in states if s[0].epoch == bindings.epoch]
        found = next((s for s in states if s[0].fits()), None)
        if found is None and len(states) >= _MAX_STATES:
            # It changes what it depends on at every call.
            self.usual.add(key)
            return self.function(*args, **kwargs)
        if found is None:
            live = dict(numbers)
            rest = iter(tensors)
            replaced_args, replaced_kwargs = _replace((args, kwargs), rest, live, iter(live))
            try:
                captured = capture(
                    self.function, replaced_args, replaced_kwargs, tensors,
                    careful=True, runtime=self.runtimes.get(key)
                )  # fmt: skip
            except NotReplayable as usual:
                self.usual.add(key)
                return usual.result
            found = (captured, live)
            self.captures[key] = [found, *states]
            self.captures.move_to_end(key)
            if len(self.captures) > _MAX_SIGNATURES:
                self.captures.popitem(last=False)
        captured, live = found
        live.update(numbers)
        return replay(captured, tensors)

    def _find_runtime(self, key: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the function as usual; note the device it used, which no argument says."""

        def work() -> dict[Runtime, tuple[int, int]]:
            return {r: (r.counters.realized, len(r.pending)) for r in open_runtimes()}

        before = work()
        result = self.function(*args, **kwargs)
        self.seen.add(key)
        used = [r for r, state in work().items() if before.get(r) != state]
        if len(used) == 1:
            self.runtimes[key] = used[0]
        else:
            self.usual.add(key)
        return result

    def __getattr__(self, name: str) -> Any:
        if name == "function":
            raise AttributeError(name)
        return getattr(self.function, name)

    def _flatten(self, x: Any, tensors: list[Tensor], numbers: dict[str, Any]) -> Any:
        """Return the signature of arguments, collecting tensors and floats, which may change
        without another capture.
        """
        if isinstance(x, Tensor):
            tensors.append(x)
            return ("tensor", x._shape, x.dtype, str(x.device), x.requires_grad)
        if isinstance(x, float):
            numbers[f"n{len(numbers)}"] = x
            return "float"
        if isinstance(x, (list, tuple)):
            return (type(x), *(self._flatten(v, tensors, numbers) for v in x))
        if isinstance(x, dict):
            return (dict, *((k, self._flatten(v, tensors, numbers)) for k, v in x.items()))
        try:
            hash(x)
        except TypeError:
            return id(x)
        return x

    def program(self) -> Program:
        """Return the program of the latest signature. Raises RuntimeError before the second call."""
        if not self.captures:
            raise RuntimeError(
                "compile: nothing has been captured yet: call the function twice (the first call "
                "runs as usual)"
            )
        return next(reversed(self.captures.values()))[0][0].executable.program

    def latest(self) -> Capture:
        """Return the capture of the latest signature."""
        self.program()
        return next(reversed(self.captures.values()))[0][0]


def _training(function: Any) -> Any:
    return getattr(function, "training", None)


def _replace(x: Any, tensors: Any, live: dict[str, Any], names: Any) -> Any:
    if isinstance(x, Tensor):
        return next(tensors)
    if isinstance(x, float):
        return host_scalar(live, next(names))
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*(_replace(v, tensors, live, names) for v in x))
    if isinstance(x, (list, tuple)):
        return type(x)(_replace(v, tensors, live, names) for v in x)
    if isinstance(x, dict):
        return {k: _replace(v, tensors, live, names) for k, v in x.items()}
    return x


def compile(model: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Return `model` (a function or Module) compiled; also a decorator, with or without arguments.

    PyTorch's options (fullgraph, dynamic, backend, mode) are accepted; there is one compiler and
    one mode.
    """
    if model is None:
        return lambda function: compile(function, **options)
    unknown = set(options) - {"fullgraph", "dynamic", "backend", "mode", "options", "disable"}
    if unknown:
        raise TypeError(f"compile() got an unexpected keyword argument {sorted(unknown)[0]!r}")
    return model if options.get("disable") else CompiledFunction(model)
