"""What a call differs in from those of a script, in words."""

from __future__ import annotations

from typing import Any

from webtorch.dispatch.call import Args, Callee, Kwargs
from webtorch.scripts.run import Run, facts_of
from webtorch.scripts.script import (
    KNOWN,
    NEW,
    NUMBER,
    OPAQUE,
    PRIOR,
    SEQUENCE,
    SLOT,
    STATIC,
    VARYING,
    ZERO,
    Pattern,
    Step,
)
from webtorch.tensors.tensor import Tensor

# What `facts_of` says, in order; None: what is no word of a user's.
_FACTS = (
    "class", "a graph", None, "shape", "strides", None, "dtype", "requires_grad", "inference mode", "storage size",
    "storage's dtype", "device", None,
)  # fmt: skip


def difference(run: Run, callee: Callee, args: Args, kwargs: Kwargs) -> str:
    """Say how a call differs from what was called here before. Looks at no tensor that is promised."""
    name = callee.name.strip("_")
    steps = run.at.following
    if not steps:
        return f"{name} is called where nothing was called before"
    same = [s for s in steps if s.callee is callee]
    if not same:
        return f"{name} is called where {_names(steps)} was called before"
    found = [_of_step(run, s, name, args, kwargs) for s in same]
    # The call that is most alike differs in one thing.
    return min(found, key=len)[0] if all(found) else f"what follows {name} is not known well yet"


def _names(steps: list[Step]) -> str:
    names = [s.callee.name.strip("_") for s in steps if s.callee is not None]
    return " or ".join(dict.fromkeys(names))


def _of_step(run: Run, s: Step, name: str, args: Args, kwargs: Kwargs) -> list[str]:
    found = []
    modes = run.modes()
    if s.modes[0] != modes[0]:
        found.append(f"{name} is called {'with' if modes[0] else 'without'} gradients")
    elif s.modes != modes:
        found.append(f"{name} is called under another autocast or inference mode")
    if len(args) != len(s.args) or set(kwargs) != set(s.names):
        return [*found, f"{name} is called with other arguments"]
    for i, (p, value) in enumerate(zip(s.args, args, strict=True)):
        if text := _of_value(run, p, value):
            found.append(f"argument {i + 1} of {name} {text}")
    for key, p in zip(s.names, s.kwargs, strict=True):
        if text := _of_value(run, p, kwargs[key]):
            found.append(f"argument {key} of {name} {text}")
    if s.kind == "backward":
        found += _of_others(run, s, run.watched_of(s), "a gradient, or how many hooks there are,")
    elif s.kind == "step" and s.callee is not None and s.callee.watch is not None:
        watched = s.callee.watch(*args, **kwargs)
        if watched is None:
            found.append("the optimizer's step does more than changing parameters")
        else:
            what = "a parameter, gradient, state or option"
            found += _of_others(run, s, [*watched.values(), *watched.state], what)
    return found


def _of_others(run: Run, s: Step, values: list[object], what: str) -> list[str]:
    if len(values) != len(s.watched):
        return [f"{what} is new or gone"]
    texts = [_of_value(run, p, v) for p, v in zip(s.watched, values, strict=True)]
    return [f"{what} {text}" for text in texts if text]


def _of_value(run: Run, p: Pattern, value: Any) -> str:
    """Say how a value differs from what a pattern says; "" if it does not."""
    if isinstance(value, Tensor):
        return _of_tensor(run, p, value)
    if p.form in (SLOT, KNOWN, NEW, PRIOR):
        return f"was a tensor and is {_short(value)}"
    if p.form == OPAQUE:
        return ""
    if p.form == SEQUENCE:
        if type(value) is not p.value or len(value) != len(p.parts):
            return "is another sequence"
        texts = [_of_value(run, q, v) for q, v in zip(p.parts, value, strict=True)]
        return next((f"[{i}] {text}" for i, text in enumerate(texts) if text), "")
    if p.form == NUMBER:
        return "" if type(value) is type(p.value) else f"was {p.value!r} and is {_short(value)}"
    if p.form == VARYING:
        number = getattr(value, "number", value)
        return "" if number == p.value or p.loose else f"was {p.value!r} and is {_short(number)}"
    if p.form in (STATIC, ZERO):
        before = p.value if p.form == STATIC else float(p.value)
        same = type(value) is type(before) and repr(value) == repr(before)
        return "" if same else f"was {_short(before)} and is {_short(value)}"
    return "" if p.value() is value else "is another object"


def _of_tensor(run: Run, p: Pattern, t: Tensor) -> str:
    slot, number, known = run.slot_of(t), run.external_of(t), len(run.externals)
    if p.form in (SLOT, PRIOR):
        before = p.number if p.form == SLOT else p.value
        return "" if slot == before else "is the result of another call"
    if p.form == KNOWN:
        # What is seen first by this call has no number yet.
        return "" if number == p.number or p.number >= known else "is another tensor"
    if p.form != NEW:
        return f"was {_short(p.value)} and is a tensor"
    if slot is not None or number is not None:
        return "was a tensor of its own and is one that is known"
    if t._storage in run.undo:
        return "is a view of a tensor that was written"
    facts = facts_of(t)
    if facts is None:
        return "is not computed yet, or has hooks"
    for name, before, now in zip(_FACTS, p.facts, facts, strict=True):
        if before != now and name is not None:
            return f"has {name} {_short(now)} instead of {_short(before)}"
    if facts != p.facts:
        return "lies in its memory in another way"
    if t._offset != p.value and not (p.loose and t._offset and p.value):
        return "begins elsewhere in its memory"
    holder = run.holder_of(t._storage.node)
    alias = run.storages.get(t._storage, p.number), holder if holder >= 0 else p.number
    alike = alias == p.alias or any(k >= known and k != p.number for k in p.alias)
    return "" if alike else "shares its memory with other tensors than before"


def _short(value: object) -> str:
    text = getattr(value, "name", None) or getattr(value, "kind", None) or repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
