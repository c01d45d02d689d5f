"""16-bit floats in what is made of several operations: computed in float32, rounded once at the end.

Every recorded operation rounds its result (`lower.body`). PyTorch's operations round once too, and many of
them are several here. May import floors 0 and 1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from webtorch.ir.dtype import DType, bfloat16, float16, float32, promote_types
from webtorch.ops.primitive import cast_to
from webtorch.ops.record import P, R

if TYPE_CHECKING:
    from webtorch.tensors.tensor import Tensor


def is_short(dtype: DType) -> bool:
    """Whether it is a 16-bit float."""
    return dtype is bfloat16 or dtype is float16


def widened(x: Tensor) -> Tensor:
    """Return x as float32 if it is a 16-bit float, so that nothing on the way to a result is rounded."""
    return cast_to(x, float32) if is_short(x.dtype) else x


def to_type(x: Tensor, dtype: DType) -> Tensor:
    """Return x as `dtype`; x itself if it is that already."""
    return x if x.dtype is dtype else cast_to(x, dtype)


def computed_wide(function: Callable[P, R]) -> Callable[P, R]:
    """Let what is made of several operations compute 16-bit floats in float32 and round its results once."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        """Call the function with 16-bit floats widened, and round its results."""
        dtypes = [getattr(a, "dtype", None) for a in (*args, *kwargs.values())]
        floats = [d for d in dtypes if isinstance(d, DType) and d.kind == "float"]
        if not floats or not all(map(is_short, floats)):
            return function(*args, **kwargs)
        dtype = functools.reduce(promote_types, floats)

        def wide(x: Any) -> Any:
            """Return a 16-bit float tensor in float32, others as they are."""
            return widened(x) if isinstance(getattr(x, "dtype", None), DType) else x

        out: Any = function(*[wide(a) for a in args], **{n: wide(a) for n, a in kwargs.items()})
        if isinstance(out, tuple):
            return tuple([x if x is None else to_type(x, dtype) for x in out])
        return to_type(out, dtype)

    return call
