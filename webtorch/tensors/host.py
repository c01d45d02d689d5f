"""Numbers that live on the host and may change between runs of a captured program. Floor 4.

A captured program is replayed without Python. A number that was read through here is read again at
every replay.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from webtorch.ir.dtype import Scalar


class HostScalar(float):
    """A float that remembers where it was read. Arithmetic on it gives a plain float, which is
    fixed in a capture.
    """

    source: Mapping[str, Any]
    key: str
    name: str

    def read(self) -> Scalar:
        """Return the number as it is now."""
        return float(self.source[self.key])


def host_scalar(source: Mapping[str, Any], key: str, name: str | None = None) -> HostScalar:
    """Return `source[key]` as a number that replays read anew; `name` is what an exported program
    calls it.
    """
    out = HostScalar(source[key])
    out.source, out.key, out.name = source, key, name or key
    return out


class RandomOffset(int):
    """A random number generator's offset during a capture: `relative` to where the generator stands
    at each replay.
    """

    relative: int
    word: int

    def read(self, base: int) -> int:
        """Return this word of the counter when the replay starts at counter `base`."""
        return ((base + self.relative) >> (32 * self.word)) & 0xFFFFFFFF


def random_offset_words(offset: int) -> tuple[Scalar, Scalar]:
    """Return the low and high word of a counter, as numbers that a replay computes anew while a
    capture is running.
    """
    words = (offset & 0xFFFFFFFF, (offset >> 32) & 0xFFFFFFFF)
    start = tracing.random_start
    if start is None:
        return words
    out = []
    for word, number in enumerate(words):
        traced = RandomOffset(number)
        traced.relative, traced.word = offset - start, word
        out.append(traced)
    return out[0], out[1]


class _Tracing(threading.local):
    # The default generator's offset when the running capture began; None outside captures.
    random_start: int | None = None
    active: bool = False
    # Tensors whose `.grad` the running capture looked at or changed -> the `.grad` before.
    grads: dict[Any, Any]
    # Modules that the running capture called -> what they were like.
    modules: dict[Any, Any]

    def touch_grad(self, tensor: Any) -> None:
        """Note that the running capture is about to read or change the `.grad` of `tensor`, unless it
        made the tensor itself.
        """
        storage = tensor._storage
        if storage.node.kind != "buffer" and storage not in storage.runtime.overwritten:
            return
        self.grads.setdefault(id(tensor), (tensor, tensor._grad))


class _Bindings:
    # Counts the times that a tensor or an optimizer was given other storages: captures made before
    # refer to the old ones.
    epoch = 0

    def change(self) -> None:
        """Note that what holds data outside was bound anew."""
        if not tracing.active:
            self.epoch += 1


tracing = _Tracing()
bindings = _Bindings()
