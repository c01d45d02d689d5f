"""`webtorch.autograd.graph`: what becomes of the tensors that backward needs. May import floor 4."""

from __future__ import annotations

import abc
import contextlib
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from webtorch.dispatch.call import looking
from webtorch.tensors.absent import missing_names as _missing_names
from webtorch.tensors.device import device
from webtorch.tensors.engine import will_run
from webtorch.tensors.function import FunctionCtx
from webtorch.tensors.handle import RemovableHandle
from webtorch.tensors.modes import mode
from webtorch.tensors.storage import Storage
from webtorch.tensors.tape import GradFn, GradientEdge, gradient_edge
from webtorch.tensors.tensor import Tensor

__all__ = [
    "GradientEdge", "Node", "allow_mutation_on_saved_tensors", "disable_saved_tensors_hooks",
    "get_gradient_edge", "increment_version", "register_multi_grad_hook", "save_on_cpu", "saved_tensors_hooks",
]  # fmt: skip


class Node(abc.ABC):
    """What every gradient function is, though none inherits from it; so is the context of a user's function."""

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        if cls is not Node:
            return NotImplemented
        return issubclass(other, GradFn | FunctionCtx) or other is Node or NotImplemented

    @abc.abstractmethod
    def name(self) -> str:
        """Return the name, such as "MulBackward0"."""

    @property
    @abc.abstractmethod
    def next_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """The gradient functions of the inputs."""

    @abc.abstractmethod
    def metadata(self) -> dict[object, object]:
        """Return a dict for the user's own notes."""

    @property
    @abc.abstractmethod
    def _input_metadata(self) -> list[object]:
        """What the cotangents are like that come here."""

    @abc.abstractmethod
    def register_hook(self, fn: Callable[..., object]) -> RemovableHandle:
        """Call `fn(grad_inputs, grad_outputs)` after this function has run."""

    @abc.abstractmethod
    def register_prehook(self, fn: Callable[..., object]) -> RemovableHandle:
        """Call `fn(grad_outputs)` before this function runs."""


class saved_tensors_hooks:
    """Inside, `pack_hook(tensor)` is kept in place of a saved tensor, and `unpack_hook` of that gives it back.

    The innermost pair applies. `unpack_hook` must return a tensor of the same values.
    """

    def __init__(
        self, pack_hook: Callable[[Tensor], object], unpack_hook: Callable[[Any], Tensor]
    ) -> None:
        self.pack_hook = pack_hook
        self.unpack_hook = unpack_hook

    def __enter__(self) -> None:
        if mode.hooks_disabled is not None:
            raise RuntimeError(mode.hooks_disabled)
        mode.saved_hooks = (*mode.saved_hooks, (self.pack_hook, self.unpack_hook))
        looking.add(1)

    def __exit__(self, *error: object) -> None:
        if mode.saved_hooks:
            mode.saved_hooks = mode.saved_hooks[:-1]
            looking.add(-1)


class save_on_cpu(saved_tensors_hooks):
    """Keep saved tensors in the computer's memory, and bring them back to their device for backward."""

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        def pack(tensor: Tensor) -> tuple[device, Tensor]:
            """Return a copy on the CPU, and where the tensor was."""
            return tensor.device, tensor.cpu()

        def unpack(packed: tuple[device, Tensor]) -> Tensor:
            """Return the tensor where it was."""
            where, tensor = packed
            return tensor.to(where)

        super().__init__(pack, unpack)


@contextlib.contextmanager
def disable_saved_tensors_hooks(error_message: str) -> Generator[None, None, None]:
    """Inside, saved_tensors_hooks raise RuntimeError with this text; so does this within such hooks."""
    if mode.saved_hooks:
        raise RuntimeError(error_message)
    before, mode.hooks_disabled = mode.hooks_disabled, error_message
    try:
        yield
    finally:
        mode.hooks_disabled = before


class _AllowMutationOnSavedContext:
    """What `allow_mutation_on_saved_tensors` gives: it knows which saved values there are. They belong to the graph
    alone, and are copied where their tensors are written.
    """

    def __init__(self) -> None:
        # What keeps a value -> whose it was, and in which version.
        self._kept: WeakKeyDictionary[Storage, tuple[weakref.ref[Storage], int]] = (
            WeakKeyDictionary()
        )

    def note(self, kept: Storage, shared: Storage) -> None:
        """Remember what keeps the value that a storage has now."""
        self._kept[kept] = weakref.ref(shared), shared.version

    def knows(self, kept: Storage) -> bool:
        """Whether it runs, and has not forgotten a value."""
        return mode.mutation_allowed is self and kept in self._kept

    @property
    def tid_to_weakhandle(self) -> dict[tuple[int, int], object]:
        """The values that are saved, by what they are of: one for each storage and version."""
        return {(id(of), version): kept for kept, (of, version) in self._kept.items()}

    @property
    def cloned(self) -> dict[tuple[int, int], object]:
        """Those whose tensors have been written since."""
        return {
            (id(of), version): kept
            for kept, (of, version) in self._kept.items()
            if (storage := of()) is None or storage.version != version
        }

    def clear(self) -> None:
        """Forget them: the graph that needs them can no longer run."""
        self._kept.clear()


@contextlib.contextmanager
def allow_mutation_on_saved_tensors() -> Generator[_AllowMutationOnSavedContext, None, None]:
    """Inside, tensors that backward needs may be overwritten: it uses the values that they had when
    they were saved. They are copied only where they are written.

    Raises RuntimeError inside of another, and a backward pass outside of it raises AssertionError.
    """
    if mode.mutation_allowed is not None:
        raise RuntimeError("allow_mutation_on_saved_tensors contexts cannot be nested")
    mode.mutation_allowed = context = _AllowMutationOnSavedContext()
    looking.add(1)
    try:
        yield context
    finally:
        context.clear()
        mode.mutation_allowed = None
        looking.add(-1)


def get_gradient_edge(tensor: Tensor) -> GradientEdge:
    """Return where the gradient of a tensor goes, to be given to `autograd.grad` in its place."""
    edge = gradient_edge(tensor) if tensor.requires_grad else None
    if edge is None:
        raise RuntimeError(
            "It is not possible to get the gradient edge for a Tensor that does not require gradients"
        )
    return GradientEdge(*edge, tensor if tensor.is_leaf else None)


def increment_version(tensor: Tensor | Iterable[Tensor]) -> None:
    """Have backward believe that the tensors were written in place."""
    for t in (tensor,) if isinstance(tensor, Tensor) else tensor:
        t._counter.version += 1


class _Handles:
    def __init__(self, handles: Sequence[RemovableHandle]) -> None:
        self.handles = handles

    def remove(self) -> None:
        """Take the hooks away."""
        for handle in self.handles:
            handle.remove()

    def __enter__(self) -> _Handles:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def register_multi_grad_hook(
    tensors: Sequence[Tensor], fn: Callable[..., None], *, mode: str = "all"
) -> _Handles:
    """Call `fn` with the list of gradients once all of the tensors' are computed that the backward pass
    reaches (None for the others), or, with mode "any", with the first gradient.
    """
    if mode not in ("all", "any"):
        raise ValueError(f"Expects mode to be one of ('all', 'any') but got {mode}")
    edges = [gradient_edge(t) for t in tensors]
    # What each pass has found so far: several may run at once.
    passes: WeakKeyDictionary[object, dict[int, Tensor]] = WeakKeyDictionary()
    lock = threading.Lock()

    def hook_of(i: int) -> Callable[[Tensor], None]:
        """Return the hook of tensor i."""

        def hook(g: Tensor) -> None:
            """Keep a gradient; call `fn` when all of this pass are there."""
            with lock:
                first = _task() not in passes
                found = passes.setdefault(_task(), {})
            if mode == "any":
                if first:
                    fn(g)
                return
            found[i] = g
            if len(found) == sum(will_run([e[0] for e in edges if e is not None])):
                fn([found.get(k) for k in range(len(tensors))])

        return hook

    return _Handles([t.register_hook(hook_of(i)) for i, t in enumerate(tensors)])


def _task() -> object:
    return mode.task


__getattr__ = _missing_names(__name__, "autograd.graph")
