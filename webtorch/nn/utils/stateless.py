"""A module's call with other parameters. May import nn's base files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from webtorch.jit import ScriptModule
from webtorch.nn.module import Module
from webtorch.nn.parallel import DataParallel
from webtorch.ops.purity import warn
from webtorch.tensors.tensor import Tensor

__all__ = ["functional_call"]

# What stands for a tensor that a module does not have.
_MISSING: Any = object()


def functional_call(
    module: Module,
    parameters_and_buffers: Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]],
    args: object = None,
    kwargs: dict[str, object] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """Do what `torch.func.functional_call` does, whose older name this is."""
    warn(
        "`torch.nn.utils.stateless.functional_call` is deprecated as of PyTorch 2.0 and will be removed "
        "in a future version of PyTorch. Please use `torch.func.functional_call` instead which is a "
        "drop-in replacement.",
        FutureWarning,
    )
    return called_with(
        module, parameters_and_buffers, args, kwargs, tie_weights=tie_weights, strict=strict
    )


def called_with(
    module: Module,
    parameters_and_buffers: Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]],
    args: object = None,
    kwargs: dict[str, object] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """Call the module with the given tensors, by dotted name, in place of its own.

    Gradients flow to the given tensors. What the call assigns to these names is put into the mapping that was
    given. `tie_weights` replaces a shared tensor under all its names; `strict` wants all names, and no other ones.
    """
    if isinstance(module, DataParallel):
        raise RuntimeError("The stateless API can't be used with nn.DataParallel module")
    if isinstance(module, ScriptModule):
        raise RuntimeError("The stateless API can't be used with Jitted modules")
    arguments = () if args is None else args if isinstance(args, tuple) else (args,)
    with _reparametrize_module(
        module, _joined(parameters_and_buffers), tie_weights=tie_weights, strict=strict
    ):
        return module(*arguments, **(kwargs or {}))


# PyTorch's name of it in this module.
_functional_call = called_with


def _joined(listed: object) -> Any:
    """Return one mapping of those that are given. Raises ValueError for a name that two of them have."""
    if isinstance(listed, Mapping):
        return listed
    if not isinstance(listed, Sequence):
        raise ValueError(
            "Expected parameter_and_buffer_dicts to be a dict, or a list/tuple of dicts, but got "
            f"{type(listed)}"
        )
    if not all(isinstance(one, Mapping) for one in listed):
        raise ValueError("Expected all elements of parameter_and_buffer_dicts to be dictionaries")
    names = [name for one in listed for name in one]
    repeated = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if repeated:
        raise ValueError(
            f"{repeated} appeared in multiple dictionaries; behavior of functional call is ambiguous"
        )
    return {name: tensor for one in listed for name, tensor in one.items()}


def _named(module: Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a module under all their names."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


@contextmanager
def _reparametrize_module(
    module: Module,
    parameters_and_buffers: Mapping[str, Tensor],
    tie_weights: bool = False,
    strict: bool = False,
    stack_weights: bool = False,
) -> Iterator[None]:
    """Give the module other tensors by dotted name, and its own ones back at the end."""
    given = dict(parameters_and_buffers)
    if tie_weights:
        given = _untied(module, given)
    if strict:
        _check_names(module, given)
    places = [(*_place(module, name), name, tensor) for name, tensor in given.items()]
    for owner, _, _, _ in places:
        # What a captured call depends on are the module's own tensors.
        owner._note_state()
    before: list[object] = []
    try:
        for owner, name, _, tensor in places:
            before.append(_swapped(owner, name, tensor))
        yield
    finally:
        pairs = list(zip(places, before, strict=False))
        after = {}
        for (owner, name, path, _), old in reversed(pairs) if stack_weights else pairs:
            after[path] = _swapped(owner, name, old)
        if isinstance(parameters_and_buffers, dict):
            changed = {k: v for k, v in after.items() if k in parameters_and_buffers}
            parameters_and_buffers.update(changed)


def _untied(module: Module, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors under all names of what they stand for. Raises ValueError if two differ."""
    names: dict[int, list[str]] = {}
    for name, tensor in _named(module).items():
        names.setdefault(id(tensor), []).append(name)
    found = dict(given)
    for tied in names.values():
        chosen = [name for name in tied if name in given]
        if len(tied) > 1 and chosen:
            # As PyTorch: several are the same if all names have them.
            if len(chosen) > 1 and len({id(given[name]) for name in chosen}) > 1:
                raise ValueError(
                    f"functional_call got multiple values for keys {sorted(tied)}, which are tied. "
                    "Consider using tie_weights=False"
                )
            found.update(dict.fromkeys(tied, given[chosen[0]]))
    return found


def _check_names(module: Module, given: Mapping[str, Tensor]) -> None:
    """Raise RuntimeError unless the names are those of the module's tensors."""
    own = _named(module)
    errors = [
        f"{title} key(s): {', '.join(map(repr, names))}."
        for title, names in (
            ("Unexpected", sorted(given.keys() - own)),
            ("Missing", sorted(own.keys() - given)),
        )
        if names
    ]
    if errors:
        lines = "\n\t".join(errors)
        raise RuntimeError(f"Error(s) in reparametrizing for {module._get_name()}:\n\t{lines}")


def _place(module: Module, path: str) -> tuple[Module, str]:
    """Return the module that holds the tensor at a dotted path, and its name there."""
    parent, _, name = path.rpartition(".")
    if not name:
        raise KeyError('tensor name can\'t be empty string ""')
    return module.get_submodule(parent), name


def _swapped(owner: Module, name: str, tensor: object) -> object:
    """Put a tensor, or None, in place of what is called `name`, a parameter, a buffer or an attribute,
    and return that. Raises TypeError where one of the two is something else.
    """
    if tensor is not _MISSING and tensor is not None and not isinstance(tensor, Tensor):
        raise TypeError(f"{tensor} is not an instance of torch.Tensor")
    table: dict[str, Any]
    for table in (owner._parameters, owner._buffers):
        if name in table:
            old = table[name]
            if tensor is _MISSING:
                del table[name]
            else:
                table[name] = tensor
            return old
    old = getattr(owner, name, _MISSING)
    if old is not _MISSING and old is not None and not isinstance(old, Tensor):
        raise TypeError(f"attribute `{name}`: {old} is not an instance of torch.Tensor")
    if tensor is not _MISSING:
        setattr(owner, name, tensor)
    elif old is not _MISSING:
        delattr(owner, name)
    return old
