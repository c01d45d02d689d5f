"""Registers every kernel of the "webgpu" device with PyTorch's dispatcher. Floor 6; imports PyTorch and the engine.

Importing this does it: `autoload` does so at the first tensor. Most operators need one registration: PyTorch makes
the functional and in-place forms of structured ones from their out= form, with its own checks, broadcasting and
promotion.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._ops import OpOverload

from webtorch import aten as aten  # its families declare themselves
from webtorch.aten.table import DIRECT, FUNCTIONS, load, meaning
from webtorch.ops.record import TABLE
from webtorch.pytorch import (
    attention,
    autocast,
    compressed,
    device,
    fallback,
    foreach,
    grouped,
    lent,
    optimizer,
    packers,
    patches,
    regions,
    sparse,
)
from webtorch.pytorch import batchnorm as batchnorm  # declares itself
from webtorch.pytorch import jagged as jagged  # declares itself
from webtorch.pytorch import own as own  # declares itself
from webtorch.pytorch import products as products  # declares itself
from webtorch.pytorch.compositions import RECURRENT, recurrent_cell, recurrent_layer
from webtorch.pytorch.device import CPU, empty, empty_strided, untyped_storage
from webtorch.pytorch.kernels import (
    COMPOSITIONS,
    KERNELS,
    STRUCTURED,
    Kernel,
    dispatched,
    functional,
    kernel_for,
    numbered,
    overloads,
    structured,
)
from webtorch_autoload.device import hide, libraries

__all__ = ["empty", "empty_strided", "untyped_storage"]


_COMPOSITE = (
    "CompositeImplicitAutograd",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)


def _has_kernel(name: str, key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key)


def _composing(packet: str, name: str, operator: OpOverload, known: set[str]) -> Kernel | None:
    """Return PyTorch's kernel that makes an operator of its out= form, if we may call what it makes.

    What is composed twice must not draw random numbers.
    """
    if "generator" in [a.name for a in operator._schema.arguments]:
        return None
    explicit = torch._C.DispatchKey.CompositeExplicitAutograd
    if _has_kernel(name, STRUCTURED.name):
        key = STRUCTURED
    elif _has_kernel(name, explicit.name) and _has_out_form(packet, operator, known):
        key = explicit
    else:
        return None
    return functools.partial(operator._op_dk, key)


def _has_out_form(packet: str, operator: OpOverload, known: set[str]) -> bool:
    """Whether an overload that has a kernel of its own takes the same arguments, and what it writes to."""
    arguments = [(a.name, str(a.type)) for a in operator._schema.arguments]
    return any(
        arguments == [(a.name, str(a.type)) for a in other._schema.arguments if not a.is_out]
        and other._name in known
        and _needs_kernel(other._name.removeprefix("aten::"))
        for _, other in overloads(packet)
        if other is not operator
    )


def _is_given_numbers(packet: str, operator: OpOverload, known: set[str]) -> bool:
    """Whether another overload gives it numbers as tensors without dims, of which kernels see the numbers."""
    entry = TABLE.get(packet.removesuffix("_"))
    types = [str(a.type) for a in operator._schema.arguments]
    return not (entry is not None and entry.numbers_as_tensors) and any(
        mine == "Tensor" and str(a.type) == "number"
        for _, other in overloads(packet)
        if other._name in known
        for mine, a in zip(types, other._schema.arguments, strict=False)
    )


def _needs_kernel(name: str) -> bool:
    return not any(_has_kernel(name, key) for key in _COMPOSITE)


def _packets() -> Iterator[str]:
    """Yield every operator that a meaning may belong to: its own name, and the in-place form."""
    seen: set[str] = set()
    for key in FUNCTIONS:
        base = key.partition(".")[0]
        for packet in (base, base + "_") if not base.endswith("_") else (base,):
            if packet not in seen:
                seen.add(packet)
                yield packet


def _register_meanings(library: torch.library.Library) -> int:
    count = 0
    known = dispatched()
    make: Callable[..., Kernel]
    for packet in _packets():
        for overload, operator in overloads(packet):
            name = packet if overload == "default" else f"{packet}.{overload}"
            if f"aten::{name}" not in known:
                continue
            if _needs_kernel(name) or name in DIRECT:
                make = kernel_for
                function = meaning(packet, overload)
            elif compose := _composing(packet, name, operator, known):
                make = functools.partial(structured, compose=compose)
                if _is_given_numbers(packet, operator, known):
                    if packet.endswith("_"):
                        continue
                    make = numbered
                # An in-place form means what the functional one does.
                function = meaning(packet.removesuffix("_"), overload)
            else:
                continue
            if function is not None and not _has_kernel(name, "PrivateUse1"):
                library.impl(name, hide(make(operator, function)), "PrivateUse1")
                count += 1
    return count


def _operator(name: str) -> OpOverload:
    """Return one overload by its name: "mm" or "add.Tensor"."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _register_own(library: torch.library.Library) -> None:
    """Register what is about memory, geometry, layouts, creation and devices rather than arithmetic."""
    sparse.register(library, hide)
    compressed.register(library, hide)

    views = {n: _operator(n) for entry in TABLE.values() for n in entry.geometry}
    for name, operator in views.items():
        # No frame of Python runs for a view, and mostly no function of it either.
        view = functools.partial(operator._handle.redispatch_boxed, CPU)
        library.impl(name, view, "PrivateUse1")
    lent.lend(views)
    for name, kernel in (KERNELS | optimizer.KERNELS).items():
        library.impl(name, hide(kernel), "PrivateUse1")
    for name in [n for entry in TABLE.values() for n in entry.lapack]:
        library.impl(name, hide(fallback.on_cpu(_operator(name))), "PrivateUse1")
    # Without this the copy of a lazily negated tensor would call itself for ever; the kernel reads the flag.
    for key in ("Conjugate", "Negative"):
        library.impl("_copy_from", torch.library.fallthrough_kernel, key)
    for key in ("PrivateUse1", "AutogradPrivateUse1"):
        # So that Module.to keeps its Parameters: tied weights stay tied, and optimizers made before it stay valid.
        library.impl("_has_compatible_shallow_copy_type", hide(lambda a, b: True), key)
        for name, kernel in COMPOSITIONS.items():
            if key != "PrivateUse1" or name not in KERNELS:
                library.impl(name, hide(kernel), key)
        for name, decomposition in RECURRENT.items():
            library.impl(name, hide(recurrent_layer(decomposition)), key)
        for name in ("lstm", "gru"):
            library.impl(f"{name}_cell", hide(recurrent_cell(name)), key)


def _follow_forward_mode() -> None:
    """Let `linear` be PyTorch's composition while forward mode is on: its own gradient has no such form."""
    module: Any = importlib.import_module("torch.autograd.forward_ad")
    enter, leave = module.enter_dual_level, module.exit_dual_level
    compose = functools.partial(
        torch.ops.aten.linear.default._op_dk, torch._C.DispatchKey.CompositeImplicitAutograd
    )
    composing: list[torch.library.Library] = []

    def follow() -> None:
        """Put the composition in the operator's place while forward mode is on, and take it out after."""
        if composing and module._current_level < 0:
            composing.pop()._destroy()
        elif not composing and module._current_level >= 0:
            composing.append(torch.library.Library("aten", "IMPL"))
            composing[0].impl("linear", compose, "AutogradPrivateUse1")

    @functools.wraps(enter)
    def enter_dual_level() -> int:
        """Enter a level."""
        level: int = enter()
        follow()
        return level

    @functools.wraps(leave)
    def exit_dual_level(*, level: int | None = None) -> None:
        """Leave a level."""
        leave(level=level)
        follow()

    module.enter_dual_level, module.exit_dual_level = enter_dual_level, exit_dual_level
    follow()


def _register() -> None:
    load()
    device.runtime()
    library = torch.library.Library("aten", "IMPL")
    everything = torch.library.Library("_", "IMPL")
    libraries.extend((library, everything))
    everything.fallback(hide(fallback.fallback), "PrivateUse1")
    _register_own(library)
    _register_meanings(library)
    foreach.register(library)
    if torch.distributed.is_available():
        importlib.import_module("webtorch.pytorch.distributed").register()
    attention.register(kernel_for)
    regions.register(functional)
    packers.register(functional)
    grouped.register(functional)
    patches.apply()
    _follow_forward_mode()
    optimizer.install()
    autocast.register()


_register()
