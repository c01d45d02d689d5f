"""complex32: parts of 16 bits, computed in float32 and rounded as float16 is: PyTorch's values and types."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch

import webtorch
from webtorch.ops.purity import Said

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support")

PROGRAMS: dict[str, Callable[..., Any]] = {
    "add": lambda lib, x, y: x + y,
    "sub": lambda lib, x, y: x - y * 2,
    "mul": lambda lib, x, y: x * y,
    "a number": lambda lib, x, y: x.real * (2 + 1j),
    "half": lambda lib, x, y: x * y.real,
    "bfloat16": lambda lib, x, y: x * y.real.bfloat16(),
    "float": lambda lib, x, y: x * y.real.float(),
    "integers": lambda lib, x, y: x * lib.arange(3, device=x.device),
    "complex64": lambda lib, x, y: x * y.cfloat(),
    "parts": lambda lib, x, y: lib.view_as_real(x * y).sum(1),
    "of parts": lambda lib, x, y: lib.view_as_complex(lib.view_as_real(x) * 2),
    "of two": lambda lib, x, y: lib.complex(x.real, y.imag),
    "absolute": lambda lib, x, y: x.abs(),
    "chalf": lambda lib, x, y: (
        y.cdouble().chalf() if y.device.type == "cpu" else y.cfloat().chalf()
    ),
    "chosen": lambda lib, x, y: lib.where(x == y, x, y.conj())[1:],
    "written": lambda lib, x, y: lib.zeros(3, dtype=lib.complex32, device=x.device).copy_(y),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_are_pytorchs(name: str, device: str) -> None:
    parts = [[1, 2], [3, -0.1], [-0.5, 0.25]], [[0.1, 1], [3, -0.1], [7, 1e-7]]
    x, y = (torch.tensor(p).half() for p in parts)
    expected = PROGRAMS[name](torch, *(torch.view_as_complex(v) for v in (x, y)))
    ours = (webtorch.tensor(v.numpy(), device=device) for v in (x, y))
    found = PROGRAMS[name](webtorch, *(webtorch.view_as_complex(v) for v in ours))
    assert str(found.dtype) == str(expected.dtype)
    mine = torch.tensor(found.tolist(), dtype=expected.dtype)
    torch.testing.assert_close(
        *(torch.view_as_real(v) if v.is_complex() else v for v in (mine, expected)),
        rtol=1e-3,
        atol=1e-6,
    )


def test_the_type_is_pytorchs() -> None:
    kinds = [
        "half",
        "bfloat16",
        "float",
        "double",
        "int8",
        "int64",
        "bool",
        "cfloat",
        "cdouble",
        "chalf",
    ]

    def facts(lib: Any) -> list[str]:
        kind = lib.complex32
        x = lib.tensor([1 - 2j], dtype=kind)
        return [
            *(str(lib.promote_types(kind, getattr(lib, k))) for k in kinds),
            *map(str, (kind.itemsize, kind.to_real(), lib.half.to_complex(), lib.chalf is kind)),
            *map(str, (x, x.type(), x.nbytes, x[0].item(), lib.finfo(kind).eps)),
        ]

    assert facts(webtorch) == facts(torch)
    with pytest.raises(TypeError, match="ScalarType ComplexHalf"):
        webtorch.ones(1, dtype=webtorch.complex32).numpy()


def test_gradients() -> None:
    def slope(lib: Any) -> Any:
        x = lib.tensor([1 + 2j, 3 - 0.5j], dtype=lib.complex32).requires_grad_()
        (x * x.conj()).real.float().sum().backward()
        return x.grad.tolist()

    assert slope(webtorch) == slope(torch)


def test_files_go_both_ways() -> None:
    for writer, reader in ((webtorch, torch), (torch, webtorch), (webtorch, webtorch)):
        x: Any = writer.tensor([1 + 2j, -0.1j], dtype=writer.complex32)
        file = io.BytesIO()
        writer.save({"x": x}, file)
        file.seek(0)
        found = reader.load(file)["x"]
        assert found.dtype is reader.complex32 and found.tolist() == x.tolist()


@pytest.mark.parametrize("name", ["ones", "randn", "empty"])
def test_it_is_called_experimental(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Said, "texts", set())
    with pytest.warns(
        UserWarning, match="ComplexHalf support is experimental and many operators don't support it"
    ):
        getattr(webtorch, name)(2, dtype=webtorch.complex32)
