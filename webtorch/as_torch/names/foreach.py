"""torch._foreach_* and torch.utils._foreach_utils: lists of tensors, an operation for each element."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

from webtorch import linalg
from webtorch.functions import public as webtorch
from webtorch.ops.record import TABLE
from webtorch.tensors.tensor import Tensor

_ELEMENTWISE = [n for n, op in TABLE.items() if op.foreach]
# Every name after `_foreach_`.
NAMES = frozenset(
    [*_ELEMENTWISE, *(f"{n}_" for n in _ELEMENTWISE), "clone", "copy_", "max", "mm", "norm", "zero_"]
)  # fmt: skip
_POSITIONAL = ("scalar", "scalars", "other", "exponent", "src", "tensors1", "mat2", "ord")


@functools.cache
def foreach(name: str) -> Callable[..., Any]:
    """Return the function called `_foreach_name`: lists are gone through together, other arguments
    are for every element. In-place ones return the list. What is recorded is computed together.
    """
    plain = name.removesuffix("_")

    def one(x: Any, *args: Any, **kwargs: Any) -> object:
        """Return the operation of one tensor."""
        if plain in ("maximum", "minimum"):
            # These take numbers in lists of tensors, and have no form in place for single ones.
            bound = "clamp_min" if plain == "maximum" else "clamp_max"
            return getattr(x, name.replace(plain, bound))(*args)
        if plain == "norm":
            return linalg.vector_norm(x, *(args or (2,)), **kwargs)
        if not isinstance(x, Tensor):
            return webtorch.pow(x, *args)
        return getattr(x, name)(*args, **kwargs)

    def run(self: object, *args: object, **kwargs: object) -> object:
        """Return the operation of each tensor of the list; arguments may be lists as long."""
        args = (*args, *(kwargs.pop(n) for n in _POSITIONAL if n in kwargs))
        if plain in ("addcdiv", "addcmul") and len(args) == 3:
            value = args[2]
            # A tensor of numbers, one for each element of the list.
            kwargs["value"] = value.tolist() if isinstance(value, Tensor) and value.dim() else value
            args = args[:2]
        if plain == "lerp" and "weights" in kwargs:
            kwargs["weight"] = kwargs.pop("weights")
        given = [self, *args, *kwargs.values()]
        count = _length([v for v in given if isinstance(v, list | tuple)])
        columns = [v if isinstance(v, list | tuple) else repeat(v) for v in given]
        results = []
        for _, *row in zip(range(count), *columns, strict=False):
            named = dict(zip(kwargs, row[1 + len(args) :], strict=True))
            results.append(one(row[0], *row[1 : 1 + len(args)], **named))
        return self if name.endswith("_") else tuple(results)

    run.__name__ = run.__qualname__ = f"_foreach_{name}"
    return run


def _length(lists: Sequence[Sequence[object]]) -> int:
    """Return how long lists are, which must be of one length."""
    first = len(lists[0]) if lists else 0
    if not first:
        raise RuntimeError("Tensor list must have at least one tensor.")
    for other in lists[1:]:
        if len(other) != first:
            of_tensors = len(other) and isinstance(other[0], Tensor)
            raise RuntimeError(
                f"Tensor lists must have the same number of tensors, got {first} and {len(other)}"
                if of_tensors
                else "Tensor list must have same number of elements as scalar list."
            )
    return first


def _group_tensors_by_device_and_dtype(
    tensorlistlist: list[list[object]], with_indices: bool = False
) -> dict[Any, Any]:
    """Return {(device, dtype): (lists, indices)}; the first list decides, and None goes along."""
    found: dict[object, tuple[list[list[object]], list[int]]] = {}
    for index, row in enumerate(
        zip(*(l or [None] * len(tensorlistlist[0]) for l in tensorlistlist), strict=True)
    ):
        key = (row[0].device, row[0].dtype)
        lists, indices = found.setdefault(key, ([[] for _ in tensorlistlist], []))
        for part, x in zip(lists, row, strict=True):
            part.append(x)
        if with_indices:
            indices.append(index)
    return found


def _get_foreach_kernels_supported_devices() -> list[str]:
    return ["cpu", "webgpu"]


_get_fused_kernels_supported_devices = _get_foreach_kernels_supported_devices


def _device_has_foreach_support(device: Any) -> bool:
    return device.type in ("cpu", "webgpu")


def _has_foreach_support(tensors: list[object], device: object) -> bool:
    return True
