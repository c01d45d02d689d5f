"""A module's call with other parameters. May import nn's base files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from webtorch.nn.module import Module
from webtorch.tensors.tensor import Tensor

__all__ = ["functional_call"]


def functional_call(
    module: Module,
    parameters_and_buffers: Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]],
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """Call the module with the given tensors, by dotted name, in place of its own.

    Gradients flow to the given tensors. `tie_weights` replaces a shared tensor under all its names;
    `strict` wants all names, and no other ones.
    """
    listed = (
        [parameters_and_buffers]
        if isinstance(parameters_and_buffers, Mapping)
        else list(parameters_and_buffers)
    )
    given: dict[str, Tensor] = {}
    for one in listed:
        twice = given.keys() & one.keys()
        if twice:
            raise ValueError(f"{sorted(twice)} appear in multiple dictionaries")
        given.update(one)
    own: dict[str, Tensor] = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    if strict:
        unexpected, missing = given.keys() - own.keys(), own.keys() - given.keys()
        if unexpected or missing:
            raise RuntimeError(
                "Error(s) in running functional_call: "
                f"Unexpected key(s): {sorted(unexpected)}. Missing key(s): {sorted(missing)}."
            )
    if tie_weights:
        by_tensor = {id(own[name]): tensor for name, tensor in given.items() if name in own}
        for name, tensor in own.items():
            if id(tensor) in by_tensor:
                given.setdefault(name, by_tensor[id(tensor)])
    places = [(*_place(module, name), tensor) for name, tensor in given.items()]
    for owner, _, _ in places:
        # What a captured call depends on are the module's own tensors.
        owner._note_state()
    before = [_swapped(owner, name, tensor) for owner, name, tensor in places]
    try:
        arguments = () if args is None else args if isinstance(args, tuple) else (args,)
        return module(*arguments, **(kwargs or {}))
    finally:
        for (owner, name, _), old in reversed(list(zip(places, before, strict=True))):
            _swapped(owner, name, old)


def _place(module: Module, path: str) -> tuple[Module, str]:
    """Return the module that holds the tensor at a dotted path, and its name there."""
    parent, _, name = path.rpartition(".")
    return module.get_submodule(parent), name


def _swapped(owner: Module, name: str, tensor: Any) -> Any:
    """Put a tensor in place of the one called `name`, and return that."""
    table: dict[str, Any]
    for table in (owner._parameters, owner._buffers):
        if name in table:
            old, table[name] = table[name], tensor
            return old
    raise AttributeError(f"{owner._get_name()} has no attribute `{name}`")
