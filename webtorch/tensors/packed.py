"""What stands for a matrix whose numbers are packed: functions hand calls on to it. Floor 4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from webtorch.dispatch.call import Callee


class Packed:
    """The base of packed tensors, which are no `Tensor`: they have no elements, and `webtorch.quantization` says what
    they can do. An entry's field `packed` names the method that computes its calls with one as second operand.
    """

    __slots__ = ()


def handing_on(method: str, callee: Callee, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a public function whose calls with a packed second operand are those of its method."""

    def public(*args: object, **kwargs: object) -> Any:
        """Call the function, or the operand."""
        if len(args) > 1:
            if not isinstance(args[1], Packed):
                return function(*args, **kwargs)
            return getattr(args[1], method)(args[0], *args[2:], **kwargs)
        for name, value in kwargs.items():
            if isinstance(value, Packed):
                rest = {n: v for n, v in kwargs.items() if n != name}
                return getattr(value, method)(*args, **rest)
        return function(*args, **kwargs)

    public.__dict__.update(function.__dict__)
    public.__name__, public.__qualname__ = function.__name__, function.__qualname__
    public.__doc__, public.__module__ = function.__doc__, function.__module__
    callee.publish(public)
    return public
