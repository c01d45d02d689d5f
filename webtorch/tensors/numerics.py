"""Finds the operation in which NaN or infinity began. Floor 4.

While a check is on, whatever is about to be computed is first asked whether its results are finite.
Only if they are not is every intermediate step asked too: the first one whose inputs are all finite
is where it began.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

from webtorch.dispatch.call import looking
from webtorch.errors import NonFiniteError
from webtorch.ir.graph import Node
from webtorch.ir.lines import line_text, source_text
from webtorch.ops.record import TABLE, Op
from webtorch.runtime.realize import Owner, Runtime, open_runtimes
from webtorch.runtime.watch import watch
from webtorch.tensors.modes import no_grad
from webtorch.tensors.tensor import Tensor

# Steps that are asked about by one program.
_CHUNK = 128


def _look_at_nothing(_runtime: Runtime, _owners: list[Owner]) -> None:
    """What is computed while values are looked at is not looked at itself."""


class check_numerics(contextlib.ContextDecorator):
    """Inside, computing NaN raises NonFiniteError, which names the operation, its line and its inputs.

    A context manager and a decorator. `nan`, `inf`: what to look for; infinities are left alone
    unless asked for, since attention masks are made of them. Values are looked at when they are
    computed, at the latest where the block ends; each graph is computed twice meanwhile, and
    compiled functions run as they are written. What was computed before is not looked at, but is
    named where NaN came from there.
    """

    def __init__(self, nan: bool = True, inf: bool = False) -> None:
        if not (nan or inf):
            raise ValueError("check_numerics: there is nothing to look for: give nan or inf")
        self.nan, self.inf = nan, inf
        self._before: list[Any] = []

    def __enter__(self) -> check_numerics:
        for runtime in open_runtimes():
            runtime.flush()
        self._before.append(watch.before)
        watch.before = self._check
        looking.add(1)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                for runtime in open_runtimes():
                    runtime.flush()
        finally:
            watch.before = self._before.pop()
            looking.add(-1)

    def _recreate_cm(self) -> check_numerics:
        return type(self)(self.nan, self.inf)

    # -- looking

    def _check(self, runtime: Runtime, owners: list[Owner]) -> None:
        # Not None: somebody looks at each operation all the same, so that no script may answer one.
        watch.before, mine = _look_at_nothing, watch.before
        try:
            results = [o.node for o in owners if _is_float(o.node)]
            # An infinity may have become NaN on its way to a result.
            if any(self._bad(runtime, results, self.nan or self.inf)):
                self._report(runtime, owners)
        finally:
            watch.before = mine

    def _bad(self, runtime: Runtime, nodes: Sequence[Node], nan: bool) -> list[bool]:
        """Return for each node whether it has NaN, if asked, or infinity, if that is looked for."""
        out: list[bool] = []
        for start in range(0, len(nodes), _CHUNK):
            part = [self._flag(_tensor(n, runtime), nan) for n in nodes[start : start + _CHUNK]]
            out += [bool(value) for value in _values(runtime, part)]
        return out

    def _flag(self, x: Tensor, nan: bool) -> Tensor:
        """Return, as a pending 0-d tensor, whether x has NaN, if asked, or infinity, if looked for."""
        with no_grad():
            if nan and self.inf:
                found = ~TABLE["isfinite"](x)
            else:
                found = TABLE["isnan" if nan else "isinf"](x)
            flag: Tensor = found.any()
            return flag

    def _report(self, runtime: Runtime, owners: Iterable[Owner]) -> None:
        """Raise, naming the first step that has what is looked for while its inputs have not."""
        nodes = [n for n in _ordered([o.node for o in owners]) if _is_float(n)]
        bad = dict(zip(nodes, self._bad(runtime, nodes, self.nan), strict=True))
        for node in nodes:
            if bad[node] and not any(bad.get(s, False) for s in node.srcs):
                raise NonFiniteError(self._story(runtime, node))

    def _story(self, runtime: Runtime, node: Node) -> str:
        x = _tensor(node, runtime)
        with no_grad():
            nans, infs = TABLE["isnan"](x).sum(), TABLE["isinf"](x).sum()
        counts = [int(v) for v in _values(runtime, [nans, infs])]
        found = " and ".join(
            f"{count} {name}" for count, name in zip(counts, ("nan", "inf"), strict=True) if count
        )
        shape = "x".join(map(str, node.shape)) or "0-d"
        if node.kind == "buffer":
            return (
                f"check_numerics: {found} in data that was computed before the check began: "
                f"{node.dtype} of shape {tuple(node.shape)}. Begin the check earlier, or look where "
                "this data comes from."
            )
        place = line_text(node.line)
        code = source_text(place)
        where = f" at {place}" + (f": {code}" if code else "") if place else ""
        text = (
            f"check_numerics: {_name(node)} gave {found} among {x.numel()} numbers "
            f"({node.dtype}, {shape}){where}."
        )
        inputs = [s for s in node.srcs if _is_float(s) and s.shape and 0 not in s.shape]
        inputs += [s for s in node.srcs if _is_float(s) and not s.shape]
        ends: list[Tensor] = []
        with no_grad():
            for s in inputs:
                source = _tensor(s, runtime)
                ends += [source.amin(), source.amax()]
        values = [float(v) for v in _values(runtime, ends)]
        ranges = [f"{low:g} to {high:g}" for low, high in zip(values[::2], values[1::2])]
        numbers = [f"{v:g}" for v in node.scalars if isinstance(v, float)]
        if ranges:
            text += f" Its inputs were {', '.join(ranges)}"
            text += f"; its numbers {', '.join(numbers)}." if numbers else "."
        return text + " Clamp its input, or add an epsilon, where it can leave the range."


def _is_float(node: Node) -> bool:
    return node.dtype.kind == "float" and node.kind != "empty" and 0 not in node.shape


def _tensor(node: Node, runtime: Runtime) -> Tensor:
    return Tensor._from_node(node, runtime)


def _values(runtime: Runtime, tensors: Sequence[Tensor]) -> list[Any]:
    """Compute small tensors by themselves, and return their values."""
    if not tensors:
        return []
    storages = [t._storage for t in tensors]
    runtime._run([s for s in storages if s.node.kind != "buffer"])
    return [t.item() for t in tensors]


def _ordered(roots: Iterable[Node]) -> list[Node]:
    """Return the nodes that the roots stand on, sources first."""
    order: dict[Node, None] = {}
    stack = [(root, False) for root in reversed(list(roots))]
    while stack:
        node, done = stack.pop()
        if done:
            order.setdefault(node)
        elif node not in order:
            stack.append((node, True))
            stack.extend((s, False) for s in reversed(node.srcs) if s not in order)
    return list(order)


def _name(node: Node) -> str:
    """Return what a user calls an operation."""
    match node.kind:
        case "map":
            op: Op = node.attrs[0]
            name = op.name.strip("_")
            base, found, slot = name.rpartition("_grad")
            return f"the gradient of {base}" if found and slot.isdigit() else name
        case "reduce" | "scan" | "host":
            return str(node.attrs[0])
        case _:
            return {"update": "a write in place", "view": "a view"}.get(node.kind, node.kind)
