"""Why a call is captured once more, in plain words. Floor 5."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from webtorch.capture.captured import Capture
from webtorch.capture.outside import attributes, is_record
from webtorch.ir.view import is_contiguous
from webtorch.runtime.compilations import FIRST, Input, changes, grown, nearest, told
from webtorch.tensors import autocast
from webtorch.tensors.device import device_of, get_default_device
from webtorch.tensors.modes import mode
from webtorch.tensors.promotion import get_default_dtype
from webtorch.tensors.tensor import Tensor

# Of a number it is found out from two captures whether it decides anything.
_UNPROVEN = "; that is captured once, to see whether the number decides what is computed"


def inputs_of(
    names: Sequence[str],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    tensors: Sequence[Tensor],
) -> list[Input]:
    """Return what a call's signature is made of: every leaf of the arguments, and what is around the call.
    `tensors` are those among the arguments.
    """
    found = [
        leaf
        for name, x in (*zip(names, args, strict=True), *kwargs.items())
        for leaf in _leaves(name, x)
    ]
    holders: dict[int, int] = {}
    shared = [holders.setdefault(id(t._storage), i) for i, t in enumerate(tensors)]
    shown = [leaf.name for leaf in found if "shape" in leaf.facts]
    around = {
        "torch.is_grad_enabled()": mode.grad,
        "torch.is_inference_mode_enabled()": mode.inference,
        "autocast": autocast.signature(),
        "the default type": get_default_dtype().name,
        "the default device": get_default_device(),
        "which arguments share memory": [
            (shown[first], shown[i]) for i, first in enumerate(shared) if i != first
        ],
    }
    return [*found, Input("", around)]


def _leaves(name: str, x: object) -> Iterator[Input]:
    if isinstance(x, Tensor):
        yield Input(name, _facts(x))
    elif isinstance(x, dict):
        for k, v in x.items():
            yield from _leaves(f"{name}[{k!r}]", v)
    elif isinstance(x, (list, tuple)):
        yield Input(f"len({name})", {"value": len(x)})
        for i, v in enumerate(x):
            yield from _leaves(f"{name}[{i}]", v)
    elif is_record(x):
        for k, v in attributes(x).items():
            yield from _leaves(f"{name}.{k}", v)
    elif type(x) is float:
        yield Input(name, {"number": x})
    else:
        yield Input(name, {"value": repr(x)})


def _facts(t: Tensor) -> dict[str, object]:
    facts: dict[str, object] = {
        "shape": t._shape,
        "dtype": t.dtype.name,
        "device": str(device_of(t._storage.runtime)),
        "requires_grad": t.requires_grad,
        "strides": "contiguous" if is_contiguous(t._shape, t._strides) else t._strides,
        "memory": "its own" if t._whole else "a part of another tensor's",
    }
    if t.requires_grad:
        facts["is_leaf"] = t.is_leaf
    if type(t) is not Tensor:
        facts["class"] = type(t).__name__
    return facts


def number_names(inputs: Sequence[Input]) -> dict[str, str]:
    """Return the names of a call's number arguments by the keys that a capture knows them by."""
    names = [i.name for i in inputs if "number" in i.facts]
    return {f"n{i}": name for i, name in enumerate(names)}


def why_new(
    earlier: Iterable[Sequence[Input]], now: Sequence[Input], may_vary: bool, otherwise: str
) -> str:
    """Say how a signature differs from the nearest of those that are captured; `otherwise` where nothing
    does. `may_vary`: whether dimensions can be marked.
    """
    before, differences = nearest(earlier, now)
    if not before:
        return FIRST
    if not differences:
        return otherwise
    advice = ""
    sizes = grown(before, now)
    if sizes and may_vary:
        marks = [f"webtorch.mark_dynamic({name}, {d})" for name, ds in sizes.items() for d in ds]
        advice = f": {' and '.join(marks[:2])} before the call lets one program serve every size"
    elif differences == _of(before, now, "value"):
        advice = ": as a float or a tensor it may change freely"
    elif differences == _of(before, now, "number"):
        advice = ", which decides what is computed: a tensor may change freely"
    return told(differences) + advice


def _of(before: Sequence[Input], now: Sequence[Input], fact: str) -> list[str]:
    """Return what differs in one fact of inputs that both calls have."""
    known = {i.name for i in before}
    mine = [i for i in now if fact in i.facts and i.name in known]
    names = {i.name for i in mine}
    return changes([i for i in before if i.name in names], mine)


def why_again(
    captured: Capture,
    live: Mapping[str, object],
    numbers: Mapping[str, object],
    free: Iterable[str],
    names: Mapping[str, str],
    given: list[Tensor],
) -> str:
    """Say what keeps a capture of the very same signature from being replayed. `live` are the numbers that
    it was captured with, `free` those that are known to decide nothing.
    """
    known = set(free)
    for key, value in numbers.items():
        before = live[key]
        if key not in known and not (before == value or (before != before and value != value)):
            name = names.get(key, key)
            return f"argument `{name}` changed from {before} to {value}" + _UNPROVEN
    watched = captured.watched
    if watched is not None and not watched.holds():
        return watched.difference
    for d in captured.decisions:
        if not d.holds():
            name = names.get(d.number.key, d.number.key)
            return f"the function decides by the number `{name}`, and what was {d.outcome} is not any more"
    for g in captured.looked_at:
        if not g.fits(given):
            owner = g.owner(given)
            name = "a tensor" if owner is None else _name_of(captured, owner, given)
            there = owner is not None and owner._grad is not None
            if g.form is None:
                return f"`{name}.grad` was None, and is there"
            return f"`{name}.grad` was there, and is {'another' if there else 'None'}"
    return "what the program depends on has changed"


def _name_of(captured: Capture, owner: Tensor, given: list[Tensor]) -> str:
    for i, t in enumerate(given):
        if t is owner and i < len(captured.names):
            return captured.names[i]
    known = captured.watched.names() if captured.watched is not None else {}
    return known.get(id(owner._storage), "a tensor")
