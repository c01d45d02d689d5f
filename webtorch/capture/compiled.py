"""`webtorch.compile`, and compiled Modules. Floor 5."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypedDict, TypeVar, Unpack, overload

from webtorch.capture.step import CompiledFunction
from webtorch.nn import Module
from webtorch.tensors.above import give

# The methods of a compiled function that show its programs.
_LOOKS_INSIDE = frozenset(
    (
        "captured",
        "compilations",
        "explain",
        "graph",
        "kernels",
        "latest",
        "memory_plan",
        "program",
        "programs",
    )
)


class OptimizedModule(Module):
    """A Module whose calls are replayed as programs; it stands for the Module that it was made from.

    As in PyTorch that is its only submodule, `_orig_mod` (which prefixes the names in a state dict).
    Attributes, mode and length are those of `_orig_mod`, also where they are set. Hooks that are
    registered here run around a program, those of `_orig_mod` in it. The methods of
    `CompiledFunction` that show its programs (`latest`, `program`, `programs`, `kernels`, `memory_plan`,
    `graph`, `captured`, `explain`, `compilations`) are here too, but for names that the module
    has itself. A copy, or one that was pickled, is compiled anew.
    """

    _orig_mod: Any

    def __init__(
        self,
        module: Module,
        *,
        device: str | None = None,
        captures: bool | Iterable[str] = (),
        memory_budget: int | str | None = None,
        fullgraph: bool = False,
    ) -> None:
        """Compile `module`; the options are those of `webtorch.compile`."""
        super().__init__()
        # `training` is that of the module.
        del self.__dict__["training"]
        if not isinstance(captures, bool):
            captures = frozenset(captures)
        options = {
            "device": device, "captures": captures, "memory_budget": memory_budget,
            "fullgraph": fullgraph,
        }  # fmt: skip
        self.__dict__["_compile_options"] = options
        self._orig_mod = module

    def forward(self, *args: object, **kwargs: object) -> Any:
        """Run the program of the arguments' signature."""
        compiled, module = self._compiled_function, self._orig_mod
        # The program is not that of a replica on another device, which lives for one call.
        return (compiled if compiled.function is module else module)(*args, **kwargs)

    # Python and notebooks look these up in the class.

    def _repr_html_(self) -> str | None:
        return self._compiled_function._repr_html_()

    def __bool__(self) -> bool:
        return bool(self._orig_mod)

    def __len__(self) -> int:
        return len(self._orig_mod)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._orig_mod)

    def __contains__(self, item: object) -> bool:
        return item in self._orig_mod

    def __getitem__(self, index: object) -> Any:
        return self._orig_mod[index]

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the module or, where it has none of that name, of its programs."""
        if name == "_orig_mod":
            return super().__getattr__(name)
        try:
            return getattr(self._orig_mod, name)
        except AttributeError:
            if name not in _LOOKS_INSIDE:
                raise
        return getattr(self._compiled_function, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the module; what is a Module's own, such as `forward`, here."""
        if name == "_orig_mod":
            self._modules[name] = value
            compiled = CompiledFunction(value, **self._compile_options)
            self.__dict__["_compiled_function"] = compiled
        elif hasattr(type(self), name):
            super().__setattr__(name, value)
        else:
            setattr(self._orig_mod, name, value)

    def __delattr__(self, name: str) -> None:
        """Delete an attribute, where it would be set."""
        if hasattr(type(self), name):
            super().__delattr__(name)
        else:
            delattr(self._orig_mod, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._orig_mod), *_LOOKS_INSIDE})

    def __reduce__(self) -> Any:
        return functools.partial(type(self), **self._compile_options), (self._orig_mod,)


def function_of(x: object) -> Any:
    """Return the compiled function of a compiled Module; anything else as it is."""
    return x._compiled_function if isinstance(x, OptimizedModule) else x


_P = ParamSpec("_P")
_R = TypeVar("_R")
_M = TypeVar("_M", bound=Module)

if TYPE_CHECKING:

    class _Typed(CompiledFunction, Generic[_P, _R]):
        """A compiled function, as types see it: it takes and gives what the function does."""

        def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R: ...


class _Options(TypedDict, total=False):
    fullgraph: bool
    dynamic: bool | None
    backend: object
    mode: str | None
    options: dict[str, object] | None
    disable: bool
    device: str | None
    captures: bool | Iterable[str]
    memory_budget: int | str | None


# A Module can be called, too: the first form that fits counts.
@overload
def compile(model: _M, **options: Unpack[_Options]) -> _M:  # type: ignore[overload-overlap]
    """Return a Module that stands for `model`."""


@overload
def compile(model: Callable[_P, _R], **options: Unpack[_Options]) -> _Typed[_P, _R]:
    """Return a function that takes and gives what `model` does."""


@overload
def compile(
    model: None = None, **options: Unpack[_Options]
) -> Callable[[Callable[_P, _R]], _Typed[_P, _R]]:
    """Return a decorator."""


def compile(
    model: Callable[..., object] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: object = "inductor",
    mode: str | None = None,
    options: dict[str, object] | None = None,
    disable: bool = False,
    device: str | None = None,
    captures: bool | Iterable[str] = (),
    memory_budget: int | str | None = None,
) -> Any:
    """Return `model` (a function or Module) compiled; also a decorator, with or without arguments.

    A Module gives a Module, which stands for it: see `OptimizedModule`. Anything else gives a
    `CompiledFunction`.

    A function that reads a value of what it computes runs as usual, with a warning that says where it
    reads; with `fullgraph` it raises CaptureError. PyTorch's other options are accepted; there is one
    compiler and one mode. With `device="meta"` nothing runs and no device is needed: a call plans
    the program for a common GPU, to be looked at, and returns tensors without values. `captures`
    names intermediate results that `captured()` is to give after a call (True: all that have a
    name). `memory_budget`, in bytes or as a text like "2 GiB", is what `memory_plan().peak` should
    not exceed: values between forward and backward are then computed again instead of kept, and a
    warning says when that is not enough. It is chosen before kernels are written, so without
    `memory_plan().scratch`.
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
    kind: Callable[..., object] = OptimizedModule if isinstance(model, Module) else CompiledFunction
    return kind(
        model, device=device, captures=captures, memory_budget=memory_budget, fullgraph=fullgraph
    )


give(compile=compile)
