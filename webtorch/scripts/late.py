"""Results that have been computed and that nobody has looked at: they have memory, and no storage yet.

Most gradients end like this. A storage is made when somebody looks at what such a tensor lacks, or before anybody
goes through all storages that there are.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from webtorch.ir.graph import Node
from webtorch.ir.view import Shape
from webtorch.runtime.realize import Runtime
from webtorch.tensors.base import TensorBase
from webtorch.tensors.storage import Counter, Storage
from webtorch.tensors.tensor import Tensor

# Memory of a tensor, its shape, how often it was written, and the device.
Late = tuple[Any, Shape, int, Runtime]

# Past `__getattr__`, which comes here.
_late_of = TensorBase._late.__get__
_lock = threading.RLock()
_waiting: list[weakref.ref[Tensor]] = []
# From how many on these are looked through.
_most = 1024


def wait(reference: weakref.ref[Tensor], t: Tensor, late: Late) -> None:
    """Let a tensor wait for its storage."""
    t._late = late
    _waiting.append(reference)


def forget_dead() -> None:
    """Forget those that nobody has any more, when they may be most."""
    global _most
    if len(_waiting) > _most:
        with _lock:
            _waiting[:] = [reference for reference in _waiting if reference() is not None]
            _most = max(1024, 2 * len(_waiting))


def give_storage(t: Tensor) -> bool:
    """Give a tensor that waits its storage; return whether it waited."""
    try:
        _late_of(t)
    except AttributeError:
        return False
    with _lock:
        late = t._late
        # Unless another thread did it meanwhile.
        if late is not None:
            buffer, shape, version, runtime = late
            storage = Storage(Node.in_memory(shape, buffer.dtype, buffer), runtime)
            storage.version = version
            give_value(t, storage)
            t._grad_fn, t._output_nr, t._late = None, 0, None
    return True


def give_all() -> None:
    """Give all that wait their storages."""
    if _waiting:
        with _lock:
            for reference in _waiting:
                t = reference()
                if t is not None:
                    give_storage(t)
            _waiting.clear()


def give_value(t: Tensor, storage: Storage, apart: bool = False) -> None:
    """Let a tensor be the whole of its storage, or a part, as it says: without a base or a history. `apart`: it counts
    its writes itself.
    """
    t._base, t._base_history, t._history, t._accumulate = None, 0, 0, None
    t._storage = t._counter = storage
    if apart:
        t._counter = Counter()
