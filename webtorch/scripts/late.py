"""Results that have been computed and that nobody has looked at.

They have memory, and no storage yet: most gradients end like this. Or their graph was used up, and no function says so
yet: that of a loss. Both are made when somebody looks at what such a tensor lacks, or before anybody goes through
all storages that there are.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from operator import call, is_
from typing import Any

from webtorch.ir.graph import Node
from webtorch.runtime.backend import Buffer
from webtorch.scripts.changes import PROMISED, history_of
from webtorch.scripts.run import Run
from webtorch.scripts.script import Known, picker
from webtorch.tensors.base import TensorBase
from webtorch.tensors.storage import Counter, Storage
from webtorch.tensors.tape import GradFn, gradient_edge, mark, set_history
from webtorch.tensors.tensor import Tensor

# What completes a tensor, and what it is given.
Late = tuple[Callable[..., None], *tuple[Any, ...]]
# The hooks of a tensor (`TensorHook`), if it has any.
Hooks = OrderedDict[int, Any] | None

# Past `__getattr__`, which comes here.
_late_of = TensorBase._late.__get__
_lock = threading.RLock()
# Whoever looks from another thread waits while results are being computed that were given before.
filling = _lock
_waiting: list[weakref.ref[Tensor]] = []
# Those that wait together.
_together: list[_Together] = []
# From how many on both are looked through.
_most = 16


def wait(reference: weakref.ref[Tensor], t: Tensor, late: Late) -> None:
    """Let a tensor wait for what it lacks."""
    t._late = late
    _waiting.append(reference)


class _Together:
    """Results of one run that wait. Each holds its memory alone; what else it lacks is found here."""

    __slots__ = ("_places", "references", "waiting")

    def __init__(self, waiting: Waiting, references: Sequence[weakref.ref[Tensor]]) -> None:
        self.waiting = waiting
        self.references = references
        # By id, once somebody asks.
        self._places: dict[int, int] = {}

    def place_of(self, t: Tensor) -> int | None:
        """Return which of them a tensor is."""
        if not self._places:
            self._places = {id(r()): n for n, r in enumerate(self.references)}
        n = self._places.get(id(t))
        return None if n is None or self.references[n]() is not t else n

    def is_gone(self) -> bool:
        """Whether nobody has any of them."""
        return all(map(is_, map(call, self.references), repeat(None)))


class Waiting:
    """Results of a program that wait for their storages and their functions, as (place, slot, what is known)."""

    def __init__(self, late: Sequence[tuple[int, int, Known]]) -> None:
        self.numbers = [slot for _, slot, _ in late]
        self.slots = picker(self.numbers)
        self.places = picker([place for place, *_ in late])
        self.known = [known for *_, known in late]
        # Which of them have a function.
        self.titled = [n for n, known in enumerate(self.known) if known.title]
        self.last: _Together | None = None

    def hold(self, run: Run, buffers: Sequence[object]) -> None:
        """Let those of a run wait."""
        references = self.slots(run.slots)
        # What is known of each is looked at when somebody looks at it, and in no cache here.
        for t, buffer in zip(map(call, references), self.places(buffers)):
            if t is not None:
                t._late = buffer
        for n in self.titled:
            t = references[n]()
            if t is not None:
                leaves, hooks = self.known[n].leaves(run.externals), run.hooks.get(self.numbers[n])
                t._late = self.give, n, t._late, leaves, mark(), hooks
        self.last = _Together(self, references)
        with _lock:
            # Those of the last run are gone, as a rule.
            if _together and _together[-1].is_gone():
                _together.pop()
            _together.append(self.last)

    def give(
        self,
        t: Tensor,
        n: int,
        buffer: Buffer,
        leaves: Sequence[Tensor] = (),
        at: int = 0,
        hooks: Hooks = None,
    ) -> None:
        """Give a tensor that is all of its storage this, with its memory, and what its graph has become."""
        known = self.known[n]
        storage = Storage(Node.in_memory(known.shape, buffer.dtype, buffer), known.runtime)
        storage.version = known.version
        give_value(t, storage)
        if known.title:
            use_up(t, known.title, leaves, at, hooks)
        else:
            t._grad_fn, t._output_nr = None, 0

    def take_back(self, run: Run) -> None:
        """Let those of a run wait no more."""
        with _lock:
            _together[:] = [together for together in _together if together is not self.last]
            for reference in self.slots(run.slots):
                t = reference()
                if t is not None:
                    t._late = None


def forget_dead() -> None:
    """Forget those that nobody has any more, when they may be most."""
    global _most
    if len(_waiting) + len(_together) > _most:
        with _lock:
            _waiting[:] = [reference for reference in _waiting if reference() is not None]
            _together[:] = [together for together in _together if not together.is_gone()]
            _most = max(16, 2 * (len(_waiting) + len(_together)))


def complete(t: Tensor) -> bool:
    """Give a tensor that waits what it lacks; return whether it waited."""
    try:
        _late_of(t)
    except AttributeError:
        return False
    with _lock:
        late = t._late
        # Unless another thread did it meanwhile.
        if type(late) is tuple:
            late[0](t, *late[1:])
        elif late is not None:
            _complete_one_of(_together, t, late)
        t._late = None
    return True


def _complete_one_of(groups: Iterable[_Together], t: Tensor, buffer: Buffer) -> None:
    """Give a tensor that waits with others what it lacks."""
    for together in groups:
        n = together.place_of(t)
        if n is not None:
            together.waiting.give(t, n, buffer)
            return


def use_up(t: Tensor, title: str, leaves: Iterable[Tensor], at: int, hooks: Hooks = None) -> None:
    """Give a tensor a function that was used up: a backward pass that comes here on its way to the leaves raises, once
    the tensor's hooks have been called. `at`: when it was recorded, as `mark` says, which is its turn in that pass.
    """
    if history_of(t) is not PROMISED:
        # Somebody has given it another one.
        return
    t._grad_fn = None
    fn = GradFn(title, tuple([gradient_edge(leaf) for leaf in leaves]), None)
    fn.sequence = at
    number = 0
    if hooks:
        # They are those of one output.
        fn.tensor_hooks, number = hooks, next(iter(hooks.values())).number
    set_history(t, fn, number)


def give_all() -> None:
    """Complete all that wait."""
    if _waiting or _together:
        with _lock:
            groups = [together.references for together in _together]
            for reference in chain(_waiting, *groups):
                t = reference()
                if t is not None:
                    complete(t)
            _waiting.clear()
            _together.clear()


def give_value(t: Tensor, storage: Storage, apart: bool = False) -> None:
    """Let a tensor be the whole of its storage, or a part, as it says: without a base or a history. `apart`: it counts
    its writes itself.
    """
    t._base, t._base_version, t._history, t._accumulate = None, 0, 0, None
    t._storage = t._counter = storage
    if apart:
        t._counter = Counter()
