"""Names, order and defaults of arguments are PyTorch's: functional, init, utils, Module."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest
import torch

from webtorch import nn

# What PyTorch has for its own machinery, or for hardware formats that are not here.
NOT_HERE = {
    "assert_int_or_pair", "boolean_dispatch", "grouped_mm", "handle_torch_function",
    "scaled_grouped_mm", "scaled_mm",
}  # fmt: skip
# PyTorch ignores the argument of these, whose result has the indices anyway.
WITH_INDICES = {f"{kind}_pool{rank}d_with_indices" for rank in (1, 2, 3)
                for kind in ("max", "adaptive_max")}  # fmt: skip


def functions(module: Any) -> list[str]:
    return [
        name
        for name in dir(module)
        if not name.startswith("_") and inspect.isfunction(getattr(module, name))
    ]


def arguments(function: Any) -> list[tuple[str, Any]]:
    """Return names and defaults; a default that is code counts as one."""
    return [
        (name, "code" if callable(p.default) and p.default is not p.empty else p.default)
        for name, p in inspect.signature(function).parameters.items()
    ]


@pytest.mark.parametrize("name", sorted(set(functions(torch.nn.functional)) - NOT_HERE))
def test_functional(name: str) -> None:
    ours, theirs = getattr(nn.functional, name), getattr(torch.nn.functional, name)
    wanted = arguments(theirs)
    if [one for one, _ in wanted] == ["args", "kwargs"] or name in WITH_INDICES:
        return
    got = arguments(ours)
    if [one for one, _ in got] == ["args", "kwargs"]:
        # An elementwise entry: its signature is the table's.
        return
    if name in ("softsign", "tanhshrink"):
        got = [one for one in got if one[0] != "out"]
    assert got == wanted


@pytest.mark.parametrize("name", functions(torch.nn.init))
def test_init(name: str) -> None:
    if inspect.signature(getattr(torch.nn.init, name)).parameters.keys() == {"args", "kwargs"}:
        return
    assert arguments(getattr(nn.init, name)) == arguments(getattr(torch.nn.init, name))


@pytest.mark.parametrize(
    "part", ["clip_grad", "convert_parameters", "fusion", "parametrizations", "parametrize", "rnn"]
)
def test_utils(part: str) -> None:
    theirs = importlib.import_module(f"torch.nn.utils.{part}")
    ours = importlib.import_module(f"webtorch.nn.utils.{part}")
    for name in getattr(theirs, "__all__", []):
        if inspect.isfunction(getattr(theirs, name)) and name != "clip_grad_norm":
            assert arguments(getattr(ours, name)) == arguments(getattr(theirs, name)), name


def test_module() -> None:
    absent = {"ipu", "mtia", "xpu"}
    for name in set(functions(torch.nn.Module)) - absent - {"forward"}:
        theirs = getattr(torch.nn.Module, name)
        if not theirs.__module__.startswith("torch."):
            # What another package has put there (transformers does).
            continue
        ours = getattr(nn.Module, name)
        assert arguments(ours) == arguments(theirs), name


def test_files_of_layers_are_found_by_their_names_in_pytorch() -> None:
    old = {"Container", "CrossMapLRN2d", "register_module_backward_hook"}
    for name in nn.modules._FILES:
        theirs = importlib.import_module(f"torch.nn.modules.{name}")
        ours = importlib.import_module(f"webtorch.nn.modules.{name}")
        assert {one for one in getattr(theirs, "__all__", []) if not hasattr(ours, one)} <= old
    tools = importlib.import_module("webtorch.nn.modules.utils")
    assert (tools._pair(3), tools._triple([1, 2, 3]), tools._ntuple(2)(1)) == (
        (3, 3),
        (1, 2, 3),
        (1, 1),
    )
    assert nn.modules.batchnorm._BatchNorm in nn.BatchNorm2d.__mro__
    assert nn.modules.Linear is nn.Linear
