"""How a symbolic trace sees calls of modules, and looks at what they have.

A trace is one of the interpreters that calls go through (`webtorch.dispatch.call`), the outermost. Calls of functions
with a proxy ask its class, as they ask all classes with a `__torch_function__`; calls of modules ask the tracer. Names
that modules have in their tables are looked up by `Module.__getattr__`: while a trace is on, that asks the tracer too.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from webtorch.dispatch.call import Args, Callee, Kwargs, Run, active, install
from webtorch.nn.module import CALL_OF_MODULE, GLOBAL, Module, look_up
from webtorch.tensors.override import override

if TYPE_CHECKING:
    from webtorch.fx._symbolic_trace import Tracer
    from webtorch.fx.proxy import Proxy


class _Traces(threading.local):
    # The tracers at work in this thread, innermost last, each with the proxies of parameters that it has made.
    open: tuple[tuple[Tracer, dict[str, Proxy]], ...] = ()


class Trace:
    """The interpreter that hands calls of modules to the tracer at work."""

    def __init__(self) -> None:
        self.traces = _Traces()
        self._counting = threading.Lock()

    @property
    def on(self) -> bool:
        """Whether a tracer is at work in this thread."""
        return bool(self.traces.open)

    @property
    def inside(self) -> bool:
        """Whether it wants the calls that a call is made of: a function of a proxy is not run."""
        return False

    watches = on

    def call(self, callee: Callee, run: Run, args: Args, kwargs: Kwargs) -> Any:
        """Let the tracer call a module; pass all else on."""
        if callee is not CALL_OF_MODULE:
            return run(args, kwargs)
        module, *given = args
        tracer = self.traces.open[-1][0]

        def forward(*args: object, **kwargs: object) -> Any:
            """Return what the module's own call gives."""
            return run((module, *args), kwargs)

        tracer.before_module(module)
        return tracer.call_module(module, forward, tuple(given), kwargs)

    @contextlib.contextmanager
    def by(self, tracer: Tracer) -> Iterator[None]:
        """A block whose calls a tracer sees."""
        before = self.traces.open
        self.traces.open = (*before, (tracer, {}))
        active.add(1)
        self._count(1)
        try:
            with override.asking():
                yield
        finally:
            self._count(-1)
            active.add(-1)
            self.traces.open = before

    def _count(self, number: int) -> None:
        with self._counting:
            GLOBAL.traces += number
            type.__setattr__(Module, "__getattr__", _look if GLOBAL.traces else look_up)


trace = Trace()
install("trace", trace)


def _look(self: Module, name: str) -> object:
    """Look a name up among parameters, buffers and submodules, as the tracer at work sees it."""
    found = look_up(self, name)
    if not trace.traces.open:
        return found
    tracer, proxies = trace.traces.open[-1]
    return tracer.getattr(name, found, proxies)
