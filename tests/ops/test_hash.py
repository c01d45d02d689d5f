"""`hash_tensor`, whose results are uint64: on the CPU, against PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import webtorch

ARGUMENTS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}), ((0,), {}), ((-1,), {"keepdim": True}), (([0, 1],), {"keepdim": True}), ((), {"mode": 1}),
]  # fmt: skip


def _result(lib: Any, x: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    try:
        found = lib.hash_tensor(x, *args, **kwargs)
    except (RuntimeError, IndexError) as error:
        # The function's name is told of some more here.
        return str(error).replace("()", "").removeprefix("hash_tensor: ")[:30]
    assert found.dtype is lib.uint64
    return found.tolist()


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "bfloat16", "float64", "int32", "uint8", "bool", "complex64"]
)
def test_bits_of_all_types(dtype: str) -> None:
    values = [[1.5, -2.0, 7.0], [3.0, 0.0, 5.25]]
    if dtype == "uint8":
        values = [[1.0, 2.0, 7.0], [3.0, 0.0, 5.0]]
    for args, kwargs in ARGUMENTS:
        for rows in (values, values[:1], 3.0):
            ours, theirs = (
                _result(lib, lib.tensor(rows).to(getattr(lib, dtype)), args, kwargs)
                for lib in (webtorch, torch)
            )
            assert ours == theirs


def test_of_nothing() -> None:
    for args in ((1,), (0,)):
        ours, theirs = (
            _result(lib, lib.empty(0, 2), args, {"keepdim": True}) for lib in (webtorch, torch)
        )
        assert ours == theirs
    with pytest.raises(RuntimeError, match="dim to be specified"):
        webtorch.hash_tensor(webtorch.empty(0))
