"""torch._jit_internal: marks for TorchScript."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

BroadcastingList1 = BroadcastingList2 = BroadcastingList3 = list
List, Tuple = list, tuple

__all__ = [
    "BroadcastingList1",
    "BroadcastingList2",
    "BroadcastingList3",
    "Final",
    "List",
    "Tuple",
    "boolean_dispatch",
]


def boolean_dispatch(
    arg_name: str,
    arg_index: int,
    default: bool,
    if_true: Callable[..., object],
    if_false: Callable[..., object],
    module_name: str,
    func_name: str,
) -> Callable[..., Any]:
    """Return a function that calls one of two by an argument."""

    def choose(*args: object, **kwargs: object) -> object:
        """Call the one function or the other, as the argument says."""
        given = args[arg_index] if len(args) > arg_index else kwargs.get(arg_name, default)
        return (if_true if given else if_false)(*args, **kwargs)

    choose.__name__ = func_name
    return choose


def _overload_method(func: object) -> object:
    return func
