"""Tensors that change places. May import floors 0 to 4."""

from __future__ import annotations

import copyreg
from typing import Any

from webtorch.dispatch.call import settle_scripts
from webtorch.tensors.base import is_referred_to


def _poisoned(_grads: object) -> None:
    raise RuntimeError(
        "Trying to execute AccumulateGrad node that was poisoned by swap_tensors. This can happen when you try to run "
        "backward on a tensor that was swapped: swap tensors before the graph is recorded"
    )


def swap_tensors(t1: Any, t2: Any) -> None:
    """Let two tensors change places: each becomes what the other was, for all that hold them."""
    settle_scripts("tensors change places")
    for t in (t1, t2):
        if is_referred_to(t):
            raise RuntimeError("Cannot swap tensors: one of them has weakref associated with it")
    slots = [set(copyreg._slotnames(type(t))) - {"__dict__", "__weakref__"} for t in (t1, t2)]  # type: ignore[attr-defined]
    if slots[0] != slots[1]:
        raise RuntimeError("Cannot swap t1 and t2 if they have different slots")
    if t1._grad_fn is not None or t2._grad_fn is not None:
        raise RuntimeError("Cannot swap tensors that are a part of a graph: detach() them first")
    for t in (t1, t2):
        end = t._accumulate() if t._accumulate is not None else None
        if end is not None:
            end.register_prehook(_poisoned)
    first, second = ({n: getattr(t, n) for n in slots[0] if hasattr(t, n)} for t in (t1, t2))
    t1.__class__, t2.__class__ = type(t2), type(t1)
    t1.__dict__, t2.__dict__ = t2.__dict__, t1.__dict__
    for t, values in ((t1, second), (t2, first)):
        for name in slots[0]:
            if name in values:
                setattr(t, name, values[name])
            elif hasattr(t, name):
                delattr(t, name)
