"""uint16, uint32 and uint64: PyTorch's types with PyTorch's values, on the CPU and, but for uint64, on WebGPU."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import webtorch
from webtorch.errors import DTypeError

VALUES = {
    "uint16": [0, 1, 2, 300, 65535, 7],
    "uint32": [0, 1, 2, 300, 2**32 - 1, 7],
    "uint64": [0, 1, 2, 300, 2**64 - 1, 2**63 + 5],
}
NAMES = (
    "bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16",
    "float32", "float64", "complex64", "complex128",
)  # fmt: skip
# What PyTorch's CPU computes of them: (module, x, x reversed).
CALLS: tuple[Callable[..., Any], ...] = (
    lambda m, x, y: x * y,
    lambda m, x, y: x * 2.5,
    lambda m, x, y: x / y.float(),
    lambda m, x, y: x & y,
    lambda m, x, y: x ^ y,
    lambda m, x, y: x == y,
    lambda m, x, y: m.where(x == y, x, y),
    lambda m, x, y: m.cat([x, y])[2:7],
    lambda m, x, y: x[[2, 1]],
    lambda m, x, y: m.sort(x).values,
    lambda m, x, y: m.unique(x),
    lambda m, x, y: x.float(),
    lambda m, x, y: x.short(),
    lambda m, x, y: x.bool(),
    lambda m, x, y: m.full_like(x, -1),
    lambda m, x, y: m.tensor([-1, 5, 70000], device=x.device).to(x.dtype),
    lambda m, x, y: m.tensor([3.5, 70000.5, -1.0], device=x.device).to(x.dtype),
    lambda m, x, y: x.view(m.uint8)[:3],
)
# And what has 64 bits, or goes through those.
WIDE: tuple[Callable[..., Any], ...] = (
    lambda m, x, y: x.sum(),
    lambda m, x, y: x.cumsum(0),
    lambda m, x, y: x.long(),
    lambda m, x, y: x.double(),
    lambda m, x, y: m.tensor([1e19, 1e20, float("nan")], dtype=m.float64).to(m.uint64),
    lambda m, x, y: x.any(),
)


def described(
    call: Callable[..., Any], module: Any, name: str, device: str
) -> tuple[str, list[Any]]:
    dtype = getattr(module, name)
    x = module.tensor(VALUES[name], dtype=dtype, device=device)
    y = module.tensor(VALUES[name][::-1], dtype=dtype, device=device)
    out = call(module, x, y)
    return str(out.dtype), out.tolist()


@pytest.mark.parametrize("name", VALUES)
def test_values_are_pytorchs(name: str, device: str) -> None:
    if device == "webgpu" and name == "uint64":
        with pytest.raises(DTypeError, match=r"uint64 is not available.*torch.int32"):
            webtorch.tensor([1], dtype=webtorch.uint64).to(device)
        return
    for call in CALLS + WIDE * (device == "cpu"):
        assert described(call, webtorch, name, device) == described(call, torch, name, "cpu")


@pytest.mark.parametrize("name", VALUES)
def test_what_pytorch_leaves_out_is_computed_as_numpy_does(name: str, device: str) -> None:
    if device == "webgpu" and name == "uint64":
        return
    a = np.array(VALUES[name], name)
    b = a[::-1] | a.dtype.type(1)
    x, y = (webtorch.tensor(v, device=device) for v in (a, b))
    for mine, expected in (
        (x + y, a + b),
        (x - y, a - b),
        (x // y, a // b),
        (x % y, a % b),
        (x >> 1, a >> a.dtype.type(1)),
        (~x, ~a),
        (x < y, a < b),
        (webtorch.maximum(x, y), np.maximum(a, b)),
        (x.max(), a.max()),
        (x.argmax(), a.argmax()),
        (x.flip(0), a[::-1]),
        (x.view(3, 2).amin(1), a.reshape(3, 2).min(1)),
    ):
        assert mine.tolist() == expected.tolist()


def test_promotion_is_pytorchs() -> None:
    def promoted(module: Any, pair: tuple[str, str]) -> str:
        try:
            return str(module.promote_types(*(getattr(module, name) for name in pair)))
        except RuntimeError as error:
            return str(error)

    for pair in itertools.product(NAMES, NAMES):
        assert promoted(webtorch, pair).startswith(promoted(torch, pair))


@pytest.mark.parametrize("name", VALUES)
def test_they_come_through_files_and_other_libraries(name: str, tmp_path: Path) -> None:
    import safetensors.torch

    values = VALUES[name]
    x, theirs = (m.tensor(values, dtype=getattr(m, name)) for m in (webtorch, torch))
    made = io.BytesIO()
    webtorch.save(x, made)
    made.seek(0)
    back = torch.load(made)
    assert (str(back.dtype), back.tolist()) == (f"torch.{name}", values)
    torch.save(theirs, tmp_path / "x.pt")
    safetensors.torch.save_file({"x": theirs}, tmp_path / "x.safetensors")
    for found in (
        webtorch.load(tmp_path / "x.pt"),
        webtorch.load(tmp_path / "x.safetensors")["x"],
        webtorch.from_numpy(theirs.numpy()),
        webtorch.from_dlpack(theirs),
        pickle.loads(pickle.dumps(x)),
        copy.deepcopy(x),
    ):
        assert (found.dtype, found.tolist()) == (x.dtype, values)
    assert torch.from_dlpack(x).tolist() == values
    assert x.numpy().dtype.name == name
    limits = webtorch.iinfo(x.dtype)
    assert (limits.max, limits.bits) == (torch.iinfo(theirs.dtype).max, x.dtype.itemsize * 8)
