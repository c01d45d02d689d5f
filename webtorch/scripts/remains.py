"""What backward passes leave of the graphs of a script's results: functions that save nothing are not used up.

After a backward pass from `(x @ w + b).sum()` the product cannot run again, but the sum's way to `b` is still there. A
step that was followed makes such functions anew for the results that are alive.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

from webtorch.tensors.engine import graph_of
from webtorch.tensors.tape import AccumulateGrad, GradFn, gradient_edge

# A function as data: its place after those that it leads to, as ("leaf", what `number` says), ("gone", title, metas) or
# ("function", title, rule, static, metas, edges); an edge is None or (place, number of the output).
Part = tuple[Any, ...]


def left_of(starts: Iterable[GradFn], gone: Container[GradFn]) -> dict[GradFn, bool | None]:
    """Return what backward passes have left of the graphs of functions: True, all of it; False, nothing, since each way
    comes to a function that is gone; None, a part.
    """
    left: dict[GradFn, bool | None] = {}
    for fn in _oldest_first(starts):
        ways = {left.get(e[0], True) for e in fn.edges if e is not None}
        if fn in gone or ways == {False}:
            left[fn] = False
        else:
            left[fn] = None if ways & {False, None} else True
    return left


def _oldest_first(starts: Iterable[GradFn]) -> list[GradFn]:
    # What is made later leads to what was there before.
    return sorted(graph_of(starts), key=lambda f: f.sequence)


def parts_of(
    starts: Sequence[GradFn],
    left: dict[GradFn, bool | None],
    number: Callable[[AccumulateGrad], int | None],
) -> tuple[Part, ...] | None:
    """Return the functions of which a part is left, and what they lead to, with the places of `starts` at the end; None
    where they are not made of plain functions that save nothing. `number` says which leaf one is.
    """
    parts: list[Part] = []
    places: dict[GradFn, int] = {}
    for fn in _oldest_first(starts):
        if left[fn] is False:
            part: Part = "gone", fn.title, tuple(fn.metas)
        elif isinstance(fn, AccumulateGrad):
            leaf = number(fn)
            if leaf is None:
                return None
            part = "leaf", leaf
        elif (
            fn.rule is None
            or fn.saved is None
            or len(fn.saved)
            or fn.is_watched
            or hasattr(fn, "ctx")
        ):
            return None
        else:
            # What a function that is gone leads to is not here.
            edges = tuple([None if e is None else (places[e[0]], e[1]) for e in fn.edges])
            part = "function", fn.title, fn.rule, fn.static, tuple(fn.metas), edges
        places[fn] = len(parts)
        parts.append(part)
    return (*parts, tuple([places[fn] for fn in starts]))


def made_anew(parts: tuple[Part, ...], leaf: Callable[[int], Any]) -> list[GradFn]:
    """Return the functions of the starts that `parts_of` was given; `leaf` returns the leaf of a number."""
    made: list[GradFn] = []
    for kind, *facts in parts[:-1]:
        if kind == "gone":
            gone = GradFn(facts[0], (), None)
            gone.metas = facts[1]
            made.append(gone)
        elif kind == "leaf":
            edge = gradient_edge(leaf(facts[0]))
            assert edge is not None
            made.append(edge[0])
        else:
            title, rule, static, metas, edges = facts
            fn = GradFn(title, tuple([e and (made[e[0]], e[1]) for e in edges]), rule, (), static)
            fn.metas = metas
            made.append(fn)
    return [made[place] for place in parts[-1]]
