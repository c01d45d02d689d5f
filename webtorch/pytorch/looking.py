"""Looks at calls of one form: a function a form, printed as a person would write it for these arguments. Floor 6.

What `known.Kinds.find` asks of arguments of any kind, this asks of as many tensors and numbers as the form has, one
after the other, and without a list of what it found: half the time. Whatever it does not expect it leaves to `find`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from webtorch.pytorch.device import offset_of
from webtorch.pytorch.nativelook import Free, native_look
from webtorch.pytorch.near import Near
from webtorch.tensors.storage import Storage

if TYPE_CHECKING:
    from webtorch.pytorch.known import Plan

# The types of a call's arguments and options: see `form_of`.
Form = tuple[object, ...]
# Finds the plan of a call of its form, and adds its nodes to a list; keeps where to look for it, where that is given.
Look = Callable[..., "Plan | None"]
# Lists of more values are data.
_LONGEST = 4
# As many kinds of calls of one form are found by looks; a program that makes kinds without end starts anew.
_MOST_FOUND = 1024
# Types of what is neither a number, a tensor nor a list.
OTHERS = frozenset((
    type(None), str, torch.dtype, torch.device, torch.layout, torch.memory_format,
))  # fmt: skip
LISTS = frozenset((tuple, list, torch.Size))
_CONSTANTS = OTHERS | {bool, int, float}
_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))


def form_of(values: Sequence[object], free: bool) -> Form | None:
    """Return the types of values, None where one is neither a tensor nor a constant, nor a short list of such.

    `free`: floats are no part of the kind of a call, but the call's own.
    """
    found: list[object] = []
    for x in values:
        kind = type(x)
        if kind in _TENSORS:
            found.append(torch.Tensor)
        elif kind in _CONSTANTS:
            found.append(Free if free and kind is float else kind)
        elif kind in LISTS and len(x) <= _LONGEST:  # type: ignore[arg-type]
            inner = form_of(x, free)  # type: ignore[arg-type]
            if inner is None:
                return None
            found.append((kind, *inner))
        else:
            return None
    return tuple(found)


class _Text:
    """What is printed for a form."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.key: list[str] = []
        self.tensors: list[str] = []
        self.numbers: list[str] = []
        self.scope: dict[str, Any] = {
            "Tensor": torch.Tensor,
            "Parameter": torch.nn.Parameter,
            "Storage": Storage,
            "memory_of": torch._C.TensorBase.untyped_storage,
            "offset_of": offset_of,
        }

    def values(self, form: Sequence[object], names: Sequence[str]) -> None:
        """Print what is asked of values."""
        for kind, name in zip(form, names, strict=True):
            if kind is torch.Tensor:
                self._tensor(name)
            elif kind is type(None):
                self._expect(f"{name} is None")
            elif isinstance(kind, tuple):
                inner = [f"{name}_{n}" for n in range(len(kind) - 1)]
                self._expect(
                    f"type({name}) is {self._type(kind[0])} and len({name}) == {len(inner)}"
                )
                if inner:
                    self.lines.append(f"{', '.join(inner)}, = {name}")
                self.values(kind[1:], inner)
            elif kind is Free:
                self._expect(f"type({name}) is float and {name} != 1.0")
                self.numbers.append(name)
            else:
                self._expect(f"type({name}) is {self._type(kind)}")
                # Zeros are told apart by their signs.
                self.key.append(f"{name} or str({name})" if kind is float else name)

    def _expect(self, condition: str) -> None:
        self.lines.append(f"if not ({condition}): return None")

    def _type(self, kind: object) -> str:
        name = f"type{len(self.scope)}"
        self.scope[name] = kind
        return name

    def _tensor(self, name: str) -> None:
        node = f"{name}n"
        self._expect(f"(kind := type({name})) is Tensor or kind is Parameter")
        self.lines += [
            f"home = memory_of({name})._webgpu",
            "if type(home) is not Storage:",
            "    if home.is_cut or home.laid is not None: return None",
            "    nbytes, home = home.nbytes, home.storage",
            f"{node} = home.node",
        ]
        self.key += [f"{node}.dtype", f"{node}.shape", f"{node}.kind"]
        self.tensors.append(name)


@functools.lru_cache(maxsize=512)
def _printed(
    form: Form, options: tuple[tuple[str, object], ...], writes: bool
) -> Callable[[dict[Any, list[Near]]], Look]:
    """Return what makes the function for a form of a dictionary of what is known. `writes`: the first tensor is
    overwritten.
    """
    text = _Text()
    names = [f"a{n}" for n in range(len(form))]
    given = [f"k{n}" for n in range(len(options))]
    if writes:
        text.lines.append("nbytes = None")
    text._expect(f"len(args) == {len(form)} and len(kwargs) == {len(options)}")
    if names:
        text.lines.append(f"{', '.join(names)}, = args")
    text.lines += [f"{k} = kwargs[{o!r}]" for k, (o, _) in zip(given, options, strict=True)]
    text.values(form[:1], names[:1])
    if writes:
        # How long memory is that does not say so by its values.
        text.lines.append("length = nbytes")
        text.key.append("length")
    text.values(form[1:], names[1:])
    text.values([kind for _, kind in options], given)
    nodes = [f"{x}n" for x in text.tensors]
    if len(nodes) == 2:
        text._expect(f"{nodes[0]} is not {nodes[1]}")
    elif len(nodes) > 2:
        text._expect(f"len({{{', '.join(nodes)}}}) == {len(nodes)}")
    tensors = ", ".join(text.tensors)
    offsets = ", ".join([f"offset_of({x})" for x in text.tensors])
    body = [
        *text.lines,
        f"key = ({', '.join(text.key)},)",
        "if near is not None:",
        f"    if len(found) >= {_MOST_FOUND}: found.clear()",
        "    found[key] = near",
        "    return None",
        "for each in found.get(key, ()):",
        f"    if each.check({tensors}):",
        "        offsets = each.offsets",
        f"        if offsets is None or offsets == [{offsets}]:",
        f"            nodes += ({', '.join(nodes)},)",
        *[f"            numbers += ({', '.join(text.numbers)},)"] * bool(text.numbers),
        "            return each.plan",
    ]
    lines = [
        "def make(found):",
        "    def look(args, kwargs, nodes, numbers, near=None):",
        "        try:",
        *[f"            {line}" for line in body],
        "        except (AttributeError, KeyError):",
        "            pass",
        "        return None",
        "    return look",
    ]
    exec("\n".join(lines), text.scope)
    make: Callable[[dict[Any, list[Near]]], Look] = text.scope["make"]
    return make


class Looks:
    """The looks of an operator, one for each form that its calls have."""

    __slots__ = ("all", "found", "patience")

    # Calls of an operator have few forms. After so many that have none, whether one has a form is asked no more.
    _MOST, _PATIENCE = 4, 32

    def __init__(self) -> None:
        # By form, the look that also keeps, and the one that is quicker.
        self.found: dict[object, tuple[Look, Look]] = {}
        # Another tuple where there is another look: threads may go through this one.
        self.all: tuple[Look, ...] = ()
        self.patience = self._PATIENCE

    def keep(
        self,
        args: Sequence[object],
        kwargs: dict[str, object],
        near: list[Near],
        free: bool,
        writes: bool,
    ) -> None:
        """Let what `near` has be found by the look of a call's form, if there is one."""
        form = form_of(args, free)
        options = form_of([*kwargs.values()], free)
        if form is None or options is None:
            self.patience -= 1
            return
        key = form, tuple(zip(kwargs, options, strict=True)), writes
        if key not in self.found:
            if len(self.found) >= self._MOST:
                self.found.pop(next(iter(self.found)), None)
            known: dict[Any, list[Near]] = {}
            look = _printed(*key)(known)
            native = native_look(*key, known)
            self.found[key] = look, native or look
            self.all = tuple([found[1] for found in self.found.values()])
        self.found[key][0](args, kwargs, [], [], near)
