"""Collating: making one batch of many examples. May import floors 0 to 4."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
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


def collate_tensor_fn(batch: Sequence[Tensor], *, collate_fn_map: object = None) -> Tensor:
    """Stack tensors."""
    return webtorch.stack(list(batch), 0)


def collate_numpy_array_fn(batch: Sequence[Any], *, collate_fn_map: object = None) -> Tensor:
    """Stack NumPy arrays or numbers as tensors."""
    if batch[0].dtype.kind in "SUO":
        raise _cannot(batch[0].dtype)
    return webtorch.stack([webtorch.as_tensor(one) for one in batch], 0)


def collate_float_fn(batch: Sequence[float], *, collate_fn_map: object = None) -> Tensor:
    """Make one tensor of floats."""
    return _floats(list(batch))


def collate_int_fn(batch: Sequence[int], *, collate_fn_map: object = None) -> Tensor:
    """Make one tensor of ints."""
    return webtorch.tensor(list(batch))


def collate_str_fn(batch: Sequence[Any], *, collate_fn_map: object = None) -> Sequence[Any]:
    """Return texts as they are."""
    return batch


# What collates each type. Users add their own.
default_collate_fn_map: dict[type | tuple[type, ...], Callable[..., object]] = {
    Tensor: collate_tensor_fn,
    float: collate_float_fn,
    int: collate_int_fn,
    str: collate_str_fn,
    bytes: collate_str_fn,
}


def default_collate(batch: Sequence[Any]) -> Any:
    """Return a batch: tensors are stacked, numbers become a tensor, containers go by their parts.

    Raises TypeError on what cannot be put together, RuntimeError on sequences of unequal length.
    """
    return collate(batch, collate_fn_map=default_collate_fn_map)


def collate(
    batch: Sequence[Any],
    *,
    collate_fn_map: Mapping[type | tuple[type, ...], Callable[..., object]] | None = None,
) -> Any:
    """Return a batch of what `collate_fn_map` has a function for, and of containers of that.

    The function of the example's class counts first, then that of the first class which the example is of.
    """
    first, kinds = batch[0], collate_fn_map or {}
    make = kinds.get(type(first))
    if make is None and _is_array(first):
        # A NumPy number may also be a float or a text.
        make = collate_numpy_array_fn
    if make is None:
        make = next((f for kind, f in kinds.items() if isinstance(first, kind)), None)
    if make is not None:
        return make(batch, collate_fn_map=collate_fn_map)

    def parts(batch: Sequence[Any]) -> Any:
        """Collate what stands in one place."""
        return collate(batch, collate_fn_map=collate_fn_map)

    if isinstance(first, Mapping):
        return _like(first, {key: parts([one[key] for one in batch]) for key in first})
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(parts(samples) for samples in zip(*batch, strict=True)))
    if isinstance(first, Sequence):
        if any(len(one) != len(first) for one in batch):
            raise RuntimeError("each element in list of batch should be of equal size")
        collated = [parts(samples) for samples in zip(*batch, strict=True)]
        return collated if isinstance(first, tuple) else _like(first, collated)
    raise _cannot(type(first))


def _cannot(kind: object) -> TypeError:
    """Return the error for a type that cannot be collated."""
    return TypeError(
        "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; "
        f"found {kind}"
    )
