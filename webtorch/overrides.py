"""`webtorch.overrides`: no class here replaces PyTorch's functions, and these say so. Floor 5."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from webtorch import Tensor

__all__ = ["handle_torch_function", "has_torch_function", "is_tensor_like"]


def has_torch_function(relevant_args: Iterable[Any]) -> bool:
    """Whether an argument is of a class with `__torch_function__`, which is called by no operation
    here: such a class must call `handle_torch_function` itself, as functions written for PyTorch do.
    """
    return any(
        not isinstance(x, Tensor) and hasattr(type(x), "__torch_function__") for x in relevant_args
    )


has_torch_function_unary = has_torch_function_variadic = lambda *args: has_torch_function(args)


def handle_torch_function(
    public_api: Callable[..., Any], relevant_args: Iterable[Any], *args: Any, **kwargs: Any
) -> Any:
    """Call the `__torch_function__` of the first argument that has one and accepts."""
    relevant = [x for x in relevant_args if has_torch_function([x])]
    kinds = tuple(dict.fromkeys(map(type, relevant)))
    for x in relevant:
        result = type(x).__torch_function__(public_api, kinds, args, kwargs)
        if result is not NotImplemented:
            return result
    raise TypeError(f"no implementation found for '{public_api.__name__}' on types {list(kinds)}")


def is_tensor_like(inp: Any) -> bool:
    """Whether something is a tensor or offers `__torch_function__`."""
    return isinstance(inp, Tensor) or hasattr(inp, "__torch_function__")
