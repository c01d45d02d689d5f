"""What PyTorch's compiler found in a user's function, and why it had to compile. Floor 6.

Dynamo guards a graph by what it has assumed (sizes, numbers, flags); where a guard fails it makes another graph,
and knows which guard it was. A graph's own programs differ in how its inputs lie.
"""

from __future__ import annotations

import re
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.resume_execution import ContinueExecutionCache
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.utils import get_metrics_context

from webtorch.runtime.compilations import FIRST, Compilation, note
from webtorch.runtime.trace import debug_level

if TYPE_CHECKING:
    from webtorch.pytorch.programs import Programs

CACHE = "torch.compile"
# Compilations of one graph of which it remembers why.
_REMEMBERED = 64
_SIZE = re.compile(r"tensor '(.+)' size mismatch at index (\d+)\. expected (\d+), actual (\d+)")
_PART = re.compile(r"\._(?:modules|parameters|buffers)\['([^']+)'\]")


@dataclass(eq=False, slots=True, weakref_slot=True)
class Origin:
    """One graph that Dynamo found in a function: the function's code, or the module that it belongs to, the names
    of the graph's inputs, and why it was compiled.
    """

    title: str
    code: CodeType | None
    module: weakref.ref[torch.nn.Module] | None
    names: list[str]
    reason: str
    number: int
    forward: list[weakref.ref[Programs]] = field(default_factory=list)
    backward: list[weakref.ref[Programs]] = field(default_factory=list)
    compilations: deque[Compilation] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    count: int = 0

    def note(self, reason: str, steps: int, seconds: float, is_backward: bool) -> None:
        """Log that a program was made for the graph."""
        self.count += 1
        what = f"the backward pass of {self.title}" if is_backward else self.title
        entry = Compilation(CACHE, what, self.count, reason, steps, seconds)
        self.compilations.append(entry)
        note(entry, debug_level() > 0)


_origins: weakref.WeakSet[Origin] = weakref.WeakSet()
_count = 0


def origin_of(gm: torch.fx.GraphModule) -> Origin:
    """Return what is known of the graph that Dynamo is compiling."""
    global _count
    _count += 1
    code, module = None, None
    try:
        translator = InstructionTranslator.current_tx()
    except AttributeError:
        # The graph was not found by Dynamo: it is compiled by hand.
        translator = None
    if translator is not None:
        code = translator.f_code
        holders = (v for v in translator.f_locals.values() if isinstance(v, torch.nn.Module))
        first = next(holders, None)
        module = None if first is None else weakref.ref(first)
        code = _whole(code)
    names = [_name(n) for n in gm.graph.nodes if n.op == "placeholder"]
    context: object = get_metrics_context()
    reason = getattr(context, "_metrics", {}).get("recompile_reason")
    title = "a graph" if code is None else code.co_qualname.rpartition("<locals>.")[2]
    if module is not None and code is not None and code.co_name == "inner":
        # How Dynamo enters the forward of a module of PyTorch's own.
        title = type(module()).__name__
        names = [n.removeprefix("fn.") for n in names]
    earlier = origins([code] if code is not None else [], None if module is None else module())
    if earlier:
        title += f", graph {len(earlier) + 1}"
    origin = Origin(title, code, module, names, plain(reason) if reason else FIRST, _count)
    _origins.add(origin)
    return origin


def origins(codes: Sequence[CodeType], module: torch.nn.Module | None) -> list[Origin]:
    """Return the graphs that were found in functions with these codes, or in calls of a module."""
    if module is None:
        found = [o for o in _origins if o.code in codes]
    else:
        found = [o for o in _origins if o.module is not None and o.module() is module]
    return sorted(found, key=lambda o: o.number)


def plain(reason: str) -> str:
    """Return Dynamo's reason for compiling once more in plain words.

    >>> plain("0/0: tensor 'x' size mismatch at index 0. expected 4, actual 5").partition(":")[0]
    'argument `x` changed size of dimension 0 from 4 to 5'
    >>> plain("0/1: n == 2    # y = x.sin() * n  # program.py:18 in f")
    'the guard `n == 2` does not hold any more'
    """
    first = re.sub(r"^\d+/\d+(?:_\d+)?: ", "", reason.strip().splitlines()[0])
    size = _SIZE.search(first)
    if size is not None:
        name, dim, before, now = size.groups()
        name = shown(name)
        return (
            f"argument `{name}` changed size of dimension {dim} from {before} to {now}: "
            f"torch._dynamo.mark_dynamic({name}, {dim}) before the call, or torch.compile(dynamic=True), "
            "lets one graph serve every size"
        )
    return f"the guard `{shown(first.partition('  #')[0].strip())}` does not hold any more"


def shown(source: str) -> str:
    """Return the name of a value as the user writes it.

    >>> shown("L['self']._modules['l']._parameters['weight']")
    'self.l.weight'
    """
    return re.sub(r"\bL\['(\w+)'\]", r"\1", _PART.sub(r".\1", source))


def _name(placeholder: torch.fx.Node) -> str:
    source = getattr(placeholder.meta.get("grapharg"), "source", None)
    name = getattr(source, "name", None)
    if callable(name):
        name = name()
    return shown(name) if isinstance(name, str) else placeholder.name


def _whole(code: CodeType) -> CodeType:
    """Return the code of the user's function that a piece after a graph break belongs to."""
    known: Any = ContinueExecutionCache.generated_code_metadata
    while code in known:
        code = known[code].code
    return code
