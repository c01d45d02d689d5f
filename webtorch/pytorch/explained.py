"""`webtorch.pytorch.explain`: what a function under `torch.compile(backend="webgpu")` is made of, and why. Floor 6."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType

from torch._dynamo.eval_frame import innermost_fn

from webtorch.capture.explanation import Explanation
from webtorch.capture.memory import memory_plan
from webtorch.pytorch.origin import Origin, origins
from webtorch.pytorch.programs import Programs
from webtorch.runtime.compilations import Compilation, counted


@dataclass(frozen=True, slots=True)
class GraphsExplained:
    """What a function was compiled to; printed, it is text for people.

    `compilations` say why each program was made; `graphs` has one explanation for each program that the graphs
    ran last, with that of its backward pass.
    """

    title: str
    compilations: tuple[Compilation, ...]
    graphs: tuple[Explanation, ...]

    def __str__(self) -> str:
        lines = [f"{self.title}: {counted(len(self.compilations), 'program')} compiled"]
        lines += [f"  {c.what}, {c.text}" for c in self.compilations]
        return "\n".join([*lines, *map(str, self.graphs)])


def explain(compiled: Callable[..., object]) -> GraphsExplained:
    """Return what a function or module that `torch.compile(..., backend="webgpu")` returned was compiled to.

    It tells which graphs Dynamo found and which guard made it look again, of each graph the kernels and what
    keeps them apart, what holds the memory, and the same of its backward pass. Raises RuntimeError before the
    first call.
    """
    module = getattr(compiled, "_orig_mod", None)
    codes = _codes(compiled) if module is None else []
    found = origins(codes, module)
    if not found:
        name = getattr(compiled, "__qualname__", type(compiled).__name__)
        raise RuntimeError(
            f"explain: {name} has no programs for webgpu yet: compile it with "
            'torch.compile(..., backend="webgpu"), and call it once with arguments like those that it will get'
        )
    entries = tuple(c for origin in found for c in origin.compilations)
    return GraphsExplained(found[0].title, entries, tuple(e for o in found for e in _explained(o)))


def _codes(compiled: Callable[..., object]) -> list[CodeType]:
    function: object = innermost_fn(compiled)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return [] if code is None else [code]


def _explained(origin: Origin) -> Iterator[Explanation]:
    """Yield the explanations of a graph: several where operators are called between its programs."""
    parts = _living(origin.forward)
    backward = [
        _explanation(p, f"the backward pass of {origin.title}", None)
        for p in _living(origin.backward)
    ]
    for n, programs in enumerate(parts):
        last = n == len(parts) - 1
        second = next((b for b in backward if b is not None), None) if last else None
        found = _explanation(programs, origin.title, second)
        if found is not None:
            yield found


def _living(references: Sequence[weakref.ref[Programs]]) -> list[Programs]:
    return [p for r in references if (p := r()) is not None]


def _explanation(
    programs: Programs, title: str, backward: Explanation | None
) -> Explanation | None:
    captured = programs.latest()
    if captured is None:
        return None
    names = {
        i: programs.names[programs.tensors[s]]
        for i, s in enumerate(captured.sources)
        if isinstance(s, int)
    }
    executable = captured.executable
    plan = memory_plan(executable.program, names, executable.scratch_bytes)
    return Explanation(title, "webgpu", executable.program, plan, (), backward)
