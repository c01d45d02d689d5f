"""Programs and hand-written passes for the tests of the WebGPU backend."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType, float32
from webtorch.ir.kernel import BufferSlot, Kernel, Store
from webtorch.ir.program import BufferDecl, Dispatch, Program

ROOT = Path(__file__).resolve().parents[2]


def missing(reason: str) -> None:
    """Skip, visibly; in continuous integration, where every device is there, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@dataclass(frozen=True)
class Pass:
    """A hand-written dispatch, in the form that the renderer gives."""

    source: str
    grid: tuple[int, int, int] = (1, 1, 1)
    workgroup_size: tuple[int, int, int] = (64, 1, 1)
    slots: tuple[int, ...] = (0,)
    scratch: tuple[int, ...] = ()
    args: tuple[tuple[int, DType, int], ...] = ()
    args_bytes: int = 0
    has_status: bool = False
    bindings: tuple[str, ...] = ("read_write",)
    trusted_indices: bool = False
    trusted_loops: bool = False
    numbers: tuple[int, ...] = ()


def named(name: str, *buffers: BufferSlot, args: tuple[DType, ...] = ()) -> Kernel:
    """Return a kernel that only carries a name, for hand-written passes."""
    return Kernel(name, (1,), (), buffers, args, (), ())


def scale_kernel(n: int, name: str = "scale") -> Kernel:
    """Return out = input * arg0 + 1 on `n` float32 elements."""
    i = ex.index(0, n)
    value = ex.load(0, float32, i) * ex.arg(0, float32) + 1.0
    slots = (BufferSlot(float32, "read", n), BufferSlot(float32, "write", n))
    return Kernel(name, (n,), (), slots, (float32,), (), (Store(1, i, value),))


def scale_program(n: int) -> Program:
    """Return the program of `scale_kernel`, applied twice with two arguments."""
    decl = [BufferDecl(role, float32, n) for role in ("input", "temporary", "output")]
    steps = (Dispatch(0, (0, 1), (0,)), Dispatch(0, (1, 2), (1,)))
    return Program((scale_kernel(n),), tuple(decl), steps, (float32, float32), (0,), (2,))
