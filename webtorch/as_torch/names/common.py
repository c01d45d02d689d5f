"""torch.nn.common_types and torch.nn.modules.utils: sizes for each dimension."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any

from webtorch.tensors.tensor import Tensor

_size_1_t = int | tuple[int]
_size_2_t = int | tuple[int, int]
_size_3_t = int | tuple[int, int, int]
_size_4_t = int | tuple[int, int, int, int]
_size_5_t = int | tuple[int, int, int, int, int]
_size_6_t = int | tuple[int, int, int, int, int, int]
_size_any_t = int | tuple[int, ...]
_size_any_opt_t = int | None | tuple[int | None, ...]
_size_2_opt_t = int | None | tuple[int | None, int | None]
_size_3_opt_t = int | None | tuple[int | None, int | None, int | None]
_ratio_2_t = float | tuple[float, float]
_ratio_3_t = float | tuple[float, float, float]
_ratio_any_t = float | tuple[float, ...]
_tensor_list_t = Tensor | list[Tensor]
_maybe_indices_t = Tensor | tuple[Tensor, Tensor]


def _ntuple(n: int, name: str = "parse") -> Callable[[object], tuple[object, ...]]:
    def parse(x: object) -> tuple[object, ...]:
        """Return an iterable as a tuple, or one value n times."""
        return tuple(x) if isinstance(x, Iterable) else tuple(repeat(x, n))

    parse.__name__ = name
    return parse


_single = _ntuple(1, "_single")
_pair = _ntuple(2, "_pair")
_triple = _ntuple(3, "_triple")
_quadruple = _ntuple(4, "_quadruple")


def _reverse_repeat_tuple(t: tuple[object, ...], n: int) -> tuple[object, ...]:
    return tuple([x for x in reversed(t) for _ in range(n)])


def _list_with_default(out_size: Any, defaults: list[int]) -> object:
    if isinstance(out_size, int):
        return out_size
    if len(defaults) <= len(out_size):
        raise ValueError(f"Input dimension should be at least {len(out_size) + 1}")
    given = defaults[-len(out_size) :]
    return [v if v is not None else d for v, d in zip(out_size, given, strict=True)]


def consume_prefix_in_state_dict_if_present(state_dict: dict[str, object], prefix: str) -> None:
    """Strip `prefix` from the names of a state dict, in place."""
    for key in list(state_dict):
        if key.startswith(prefix):
            state_dict[key[len(prefix) :]] = state_dict.pop(key)
    metadata = getattr(state_dict, "_metadata", None) or {}
    for key in list(metadata):
        if key == prefix.rstrip(".") or key.startswith(prefix):
            metadata[key[len(prefix) :]] = metadata.pop(key)
