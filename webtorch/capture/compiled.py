"""`webtorch.compile`, and compiled Modules. Floor 5."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from typing import Any

from webtorch.capture.kernels import KernelText
from webtorch.capture.memory import MemoryPlan
from webtorch.capture.step import CompiledFunction
from webtorch.capture.trace import Capture
from webtorch.ir.program import Program
from webtorch.nn import Module
from webtorch.tensors.tensor import Tensor


class OptimizedModule(Module):
    """A Module whose calls are replayed as programs; it stands for the Module that it was made from.

    As in PyTorch that is its only submodule, `_orig_mod` (which prefixes the names in a state dict).
    Attributes, mode and length are those of `_orig_mod`, also where they are set. Hooks that are
    registered here run around a program, those of `_orig_mod` in it. A copy, or one that was
    pickled, is compiled anew.
    """

    _orig_mod: Any

    def __init__(
        self,
        module: Module,
        *,
        device: str | None = None,
        captures: bool | Iterable[str] = (),
        memory_budget: int | str | None = None,
    ) -> None:
        """Compile `module`; the options are those of `webtorch.compile`."""
        super().__init__()
        # `training` is that of the module.
        del self.__dict__["training"]
        self._modules["_orig_mod"] = module
        options = {"device": device, "captures": captures, "memory_budget": memory_budget}
        self.__dict__["_options"] = options
        self.__dict__["_compiled"] = CompiledFunction(
            module, device=device, captures=captures, memory_budget=memory_budget
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program of the arguments' signature."""
        return self._compiled(*args, **kwargs)

    def __len__(self) -> int:
        return len(self._orig_mod)

    def __getitem__(self, index: Any) -> Any:
        return self._orig_mod[index]

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the module."""
        if name == "_orig_mod":
            return super().__getattr__(name)
        return getattr(self._orig_mod, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the module."""
        setattr(self._orig_mod, name, value)

    def __delattr__(self, name: str) -> None:
        """Delete an attribute of the module."""
        delattr(self._orig_mod, name)

    def __reduce__(self) -> Any:
        return functools.partial(OptimizedModule, **self._options), (self._orig_mod,)

    # ---- looking inside

    def latest(self) -> Capture:
        """Return the capture of the latest signature. Raises RuntimeError before the first call."""
        return self._compiled.latest()

    def program(self) -> Program:
        """As `CompiledFunction.program`."""
        return self._compiled.program()

    def kernels(self) -> list[KernelText]:
        """As `CompiledFunction.kernels`."""
        return self._compiled.kernels()

    def memory_plan(self) -> MemoryPlan:
        """As `CompiledFunction.memory_plan`."""
        return self._compiled.memory_plan()

    def graph(self, path: str | os.PathLike[str] | None = None) -> str:
        """As `CompiledFunction.graph`."""
        return self._compiled.graph(path)

    def captured(self) -> dict[str, Tensor]:
        """As `CompiledFunction.captured`."""
        return self._compiled.captured()


def function_of(x: Any) -> Any:
    """Return the compiled function of a compiled Module; anything else as it is."""
    return x._compiled if isinstance(x, OptimizedModule) else x


def compile(
    model: Callable[..., Any] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Any = "inductor",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    disable: bool = False,
    device: str | None = None,
    captures: bool | Iterable[str] = (),
    memory_budget: int | str | None = None,
) -> Any:
    """Return `model` (a function or Module) compiled; also a decorator, with or without arguments.

    A Module gives a Module, which stands for it: see `OptimizedModule`. Anything else gives a
    `CompiledFunction`.

    PyTorch's options are accepted; there is one compiler and one mode. With `device="meta"` nothing
    runs and no device is needed: a call plans the program for a common GPU, to be looked at, and
    returns tensors without values. `captures` names intermediate results that `captured()` is to
    give after a call (True: all that have a name). `memory_budget`, in bytes or as a text like
    "2 GiB", is what `memory_plan().peak` should not exceed: values between forward and backward are
    then computed again instead of kept, and a warning says when that is not enough. It is chosen
    before kernels are written, so without `memory_plan().scratch`.
    """
    if model is None:
        return functools.partial(
            compile, fullgraph=fullgraph, dynamic=dynamic, backend=backend, mode=mode,
            options=options, disable=disable, device=device, captures=captures,
            memory_budget=memory_budget,
        )  # fmt: skip
    if device not in (None, "meta"):
        raise ValueError(
            f"compile: device={device!r}: a program runs where its tensors are; the only other "
            "choice is 'meta', which compiles without a device"
        )
    if disable:
        return model
    kind: Callable[..., Any] = OptimizedModule if isinstance(model, Module) else CompiledFunction
    return kind(model, device=device, captures=captures, memory_budget=memory_budget)
