"""Arguments of calls by the names of parameters, with the defaults. Floor 6."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from webtorch import nn
from webtorch.aten.dispatch import OpOverload, OpOverloadPacket
from webtorch.aten.schema import Schema, overloads
from webtorch.nn import Module

_PLAIN = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class ArgsKwargsPair(NamedTuple):
    """Arguments by position, and those by name."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def normalize_function(
    target: Callable[..., object],
    args: tuple[object, ...],
    kwargs: Mapping[str, object] | None = None,
    arg_types: tuple[object, ...] | None = None,
    kwarg_types: Mapping[str, object] | None = None,
    normalize_to_only_use_kwargs: bool = False,
) -> ArgsKwargsPair | None:
    """Return the arguments of a function by its parameters, all by name if asked; None where it has no such. Types are
    not needed: a function takes all of its overloads.
    """
    for signature in _signatures(target):
        found = _normalized(signature, args, kwargs or {}, normalize_to_only_use_kwargs)
        if found is not None:
            return found
    return None


def normalize_module(
    root: Module,
    target: str,
    args: tuple[object, ...],
    kwargs: Mapping[str, object] | None = None,
    normalize_to_only_use_kwargs: bool = False,
) -> ArgsKwargsPair | None:
    """Return the arguments of a submodule by its parameters; None where it is none of `nn`."""
    try:
        module = root.get_submodule(target)
    except AttributeError as error:
        raise RuntimeError(
            f"Tried to normalize node with target {target} but root did not have that target!"
        ) from error
    kind = type(module)
    if getattr(nn, kind.__name__, None) is not kind:
        return None
    signature = inspect.signature(inspect.unwrap(module.forward))
    return _normalized(signature, args, kwargs or {}, normalize_to_only_use_kwargs)


def _signatures(target: Callable[..., object]) -> Iterator[inspect.Signature]:
    """Give the signatures that a function has, its own first."""
    if isinstance(target, OpOverload):
        yield _of_schema(target._schema)
        return
    if not isinstance(target, OpOverloadPacket):
        try:
            signature = inspect.signature(inspect.unwrap(target))
        except ValueError:
            return
        parameters = signature.parameters.values()
        if all(p.kind in _PLAIN for p in parameters):
            # Where a result goes is no argument of PyTorch's operators.
            yield signature.replace(parameters=[p for p in parameters if p.name != "out"])
            return
    # One that takes its arguments as they come: PyTorch's operator of its name says what they are.
    callee = target if isinstance(target, OpOverloadPacket) else getattr(target, "callee", None)
    for schema in overloads(getattr(callee, "name", getattr(target, "__name__", ""))).values():
        yield _of_schema(schema)


def _of_schema(schema: Schema) -> inspect.Signature:
    return inspect.Signature([
        inspect.Parameter(
            "input" if a.name == "self" else a.name,
            inspect.Parameter.KEYWORD_ONLY if a.kwarg_only else inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=a.default_value,
        )
        for a in schema.arguments
    ])  # fmt: skip


def _normalized(
    signature: inspect.Signature,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    by_name: bool,
) -> ArgsKwargsPair | None:
    """Return arguments as a signature has them; None where they do not fit, or it takes any number of them."""
    if any(p.kind not in _PLAIN for p in signature.parameters.values()):
        return None
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return None
    bound.apply_defaults()
    # What was given by position stays there.
    count = 0 if by_name else len(args)
    pairs = list(bound.arguments.items())
    return ArgsKwargsPair(tuple([v for _, v in pairs[:count]]), dict(pairs[count:]))
