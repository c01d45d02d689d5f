"""Collating: making one batch of many examples. May import floors 0 to 4."""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

from webtorch.functions import public as webtorch
from webtorch.tensors.tensor import Tensor

__all__ = ["default_collate", "default_convert"]


def _is_array(value: object) -> bool:
    """Return whether `value` is a NumPy array or number; NumPy itself is not imported for it."""
    return type(value).__module__ == "numpy" and hasattr(value, "dtype")


def _floats(values: list[float]) -> Tensor:
    """Return numbers as float64, like PyTorch; as float32 where the default device has no other."""
    if webtorch.get_default_device().type == "webgpu":
        return webtorch.tensor(values, dtype=webtorch.float32)
    return webtorch.tensor(values, dtype=webtorch.float64)


def default_convert(data: Any) -> Any:
    """Return `data` with the NumPy arrays in it made tensors."""
    if isinstance(data, (Tensor, str, bytes)):
        return data
    if _is_array(data):
        return data if data.dtype.kind in "SUO" else webtorch.as_tensor(data)
    if isinstance(data, Mapping):
        return _like(data, {key: default_convert(value) for key, value in data.items()})
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(default_convert(one) for one in data))
    if isinstance(data, tuple):
        return [default_convert(one) for one in data]
    if isinstance(data, Sequence):
        return _like(data, [default_convert(one) for one in data])
    return data


def _like(example: Any, values: Any) -> object:
    """Return `values` in the type of `example` where that can be had, else as they are."""
    try:
        if isinstance(example, MutableMapping):
            made = copy.copy(example)
            made.update(values)
            return made
        if isinstance(example, MutableSequence):
            sequence = copy.copy(example)
            for place, value in enumerate(values):
                sequence[place] = value
            return sequence
        return type(example)(values)
    except TypeError:
        # Some types cannot be copied or made from one argument, such as range.
        return values


def default_collate(batch: Sequence[Any]) -> Any:
    """Return a batch: tensors are stacked, numbers become a tensor, containers go by their parts.

    Raises TypeError on what cannot be put together, RuntimeError on sequences of unequal length.
    """
    first = batch[0]
    if isinstance(first, Tensor):
        return webtorch.stack(list(batch), 0)
    if _is_array(first) and not isinstance(first, (str, bytes)):
        if first.dtype.kind in "SUO":
            raise _cannot(first.dtype)
        tensors = [webtorch.as_tensor(one) for one in batch]
        return webtorch.stack(tensors, 0)
    if isinstance(first, float):
        return _floats(list(batch))
    if isinstance(first, int):
        return webtorch.tensor(list(batch))
    if isinstance(first, (str, bytes)):
        return batch
    if isinstance(first, Mapping):
        return _like(first, {key: default_collate([one[key] for one in batch]) for key in first})
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        parts = zip(*batch, strict=True)
        return type(first)(*(default_collate(samples) for samples in parts))
    if isinstance(first, Sequence):
        if any(len(one) != len(first) for one in batch):
            raise RuntimeError("each element in list of batch should be of equal size")
        collated = [default_collate(samples) for samples in zip(*batch, strict=True)]
        return collated if isinstance(first, tuple) else _like(first, collated)
    raise _cannot(type(first))


def _cannot(kind: object) -> TypeError:
    """Return the error for a type that cannot be collated."""
    return TypeError(
        "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; "
        f"found {kind}"
    )
