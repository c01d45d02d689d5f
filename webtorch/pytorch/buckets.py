"""Buckets of gradients: what a reducer writes into one tensor, and copies out of it, is one call each way. Floor 6.

PyTorch's reducer multiplies each gradient into its part of a flat tensor (`mul.out`), and copies each part of what has
come back. Products are kept until somebody looks at the memory: where they are all of it by then, one call joins them.
What lies as they did is taken apart by one call as well, for the first copy of a part.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch
import torch.distributed as dist

from webtorch.functions.joining import cat
from webtorch.ir.graph import IN_MEMORY, Node
from webtorch.ir.lines import user_line
from webtorch.ir.view import Shape, numel
from webtorch.ops import primitive
from webtorch.pytorch.device import (
    TO_WEBTORCH,
    UNSUPPORTED,
    Lain,
    Memory,
    changes,
    flat,
    lie,
    memory_of,
    offset_of,
    runtime,
    tensor_on,
)
from webtorch.pytorch.known import Key, Kinds, Plan, is_calm
from webtorch.tensors.storage import Storage
from webtorch.tensors.tensor import Tensor

_find: Callable[[torch.Tensor], Any] = torch._C.TensorBase.untyped_storage
# The place of the storage in a memory, which a bucket looks at without joining.
_place: Any = Memory.__dict__["storage"]
_joins, _splits = Kinds(), Kinds()


class Bucket(Memory):
    """Memory whose parts are written one by one, and read as a whole."""

    __slots__ = ("factor", "given", "left", "parts", "shapes", "taken", "whole")

    def __init__(self, memory: Memory) -> None:
        # What is to be written: where, its shape and value, and a storage so that this is computed with others.
        self.given: list[tuple[int, Shape, Node, Storage | None]] = []
        self.factor = 1.0
        # Shapes by where they begin, once they have been all of the memory.
        self.shapes: dict[int, Shape] = {}
        # Parts that nobody has taken, of this value, and where those begin that are not made yet; and others, as long
        # as somebody computes with them.
        self.whole: Node | None = None
        self.left: set[int] = set()
        self.parts: dict[int, Node] = {}
        self.taken: dict[int, weakref.ref[Node]] = {}
        super().__init__(memory.nbytes, memory.dtype, memory.storage)

    @property
    def storage(self) -> Storage | None:
        """The values, with all that is to be written."""
        if self.given:
            self._join()
        found: Storage | None = _place.__get__(self)
        return found

    @storage.setter
    def storage(self, storage: Storage | None) -> None:
        """Take another storage: what was given to the last one is forgotten."""
        self.given.clear()
        _place.__set__(self, storage)

    def _join(self) -> None:
        given, self.given = sorted(self.given, key=itemgetter(0)), []
        nodes = [node for _, _, node, _ in given]
        end = 0
        for start, shape, _, _ in given:
            end = end + numel(shape) if start == end else -1
        kind = nodes[0].dtype
        if end * kind.itemsize == self.nbytes:
            self._put(_joined(nodes, self.factor))
            self.shapes = {start: shape for start, shape, _, _ in given}
        else:
            target = flat(self.typed(kind))
            for start, shape, node, _ in given:
                part = primitive.as_view(target, (numel(shape),), (1,), start)
                primitive.write(
                    part, Tensor._from_node(node, runtime()).reshape((-1,)) * self.factor
                )
        for _, _, node, kept in given:
            if kept is not None and node.shared is True:
                node.shared = False

    def _put(self, node: Node) -> None:
        storage: Storage | None = _place.__get__(self)
        if storage is None or storage.dtype is not node.dtype:
            self.adopt(Storage(node, runtime()))
        else:
            storage.replace(node)

    def take(self, start: int, shape: Shape, again: bool = False) -> Node | None:
        """Return a part, where the memory has such parts, unless it has been taken and nobody holds it any more;
        `again`: then, too.
        """
        storage = self.storage
        if storage is None or self.shapes.get(start) != shape or not is_calm(runtime()):
            return None
        whole = storage.node
        if self.whole is not whole:
            self.whole, self.parts, self.taken = whole, {}, {}
            self.left = set(self.shapes)
        taken = self.taken.get(start)
        part = None if taken is None else taken()
        if part is not None:
            return part
        if start in self.left or (again and start not in self.parts):
            starts = list(self.shapes)
            first = starts.index(start) // _GROUP * _GROUP
            some = starts[first : first + _GROUP]
            self.left.difference_update(some)
            found = _split(storage, some[0], tuple([self.shapes[n] for n in some]))
            self.parts.update(zip(some, found, strict=True))
        part = self.parts.pop(start, None)
        if part is not None:
            self.taken[start] = weakref.ref(part)
        return part


def _found(kinds: Kinds, key: Key, nodes: Sequence[Node]) -> Plan | Key | None:
    """Return the plan of a call over nodes, or its kind if it is to be watched."""
    if not is_calm(runtime()) or len(set(nodes)) < len(nodes):
        return None
    return kinds.look_up(key)


def _kind_of(node: Node) -> tuple[object, ...]:
    return node.dtype, node.shape, node.kind in IN_MEMORY and node.kind


# Calls that record more than some hundred operations are not remembered.
_GROUP = 48


def _joined(nodes: list[Node], factor: float) -> Node:
    """Return the products of all, one after the other."""
    if len(nodes) > _GROUP:
        groups = [nodes[i : i + _GROUP] for i in range(0, len(nodes), _GROUP)]
        return _joined([_joined(group, factor) for group in groups], 1.0)
    key = (factor, *map(_kind_of, nodes))
    plan = _found(_joins, key, nodes)
    if type(plan) is Plan:
        return plan.node(nodes, (), user_line())

    def call(values: Sequence[Tensor], options: object) -> Lain:
        """Return them as they are to lie."""
        joined = cat([x.reshape((-1,)) for x in values])
        return lie(joined if factor == 1.0 else joined * factor, True)

    values = [Tensor._from_node(node, runtime()) for node in nodes]
    if plan is not None:
        made: Lain = _joins.watch(key, call, values, {}, nodes, ())
    else:
        made = call(values, {})
    return made.tensor._node()


def _split(storage: Storage, first: int, shapes: tuple[Shape, ...]) -> list[Node]:
    """Return the parts of a memory that have these shapes, from an element on."""
    nodes = [storage.node]
    key = (first, shapes, *map(_kind_of, nodes))
    plan = _found(_splits, key, nodes)
    if type(plan) is Plan:
        return plan.results_of(nodes, user_line())

    def call(values: Sequence[Tensor], options: object) -> tuple[Lain, ...]:
        """Return them as they are to lie."""
        parts = values[0][first : first + sum(map(numel, shapes))].split([numel(s) for s in shapes])
        return tuple([lie(x.reshape(s), False) for x, s in zip(parts, shapes, strict=True)])

    values = [flat(storage)]
    if plan is not None:
        made: tuple[Lain, ...] = _splits.watch(key, call, values, {}, nodes, ())
    else:
        made = call(values, {})
    return [x.tensor._node() for x in made]


def _bucket(out: torch.Tensor) -> Bucket | None:
    """Return the memory of a tensor that may be a part of a reducer's bucket."""
    memory, kind = memory_of(out), TO_WEBTORCH.get(out.dtype)
    if type(memory) is Bucket:
        return memory
    if (
        not (dist.is_available() and dist.is_initialized())
        or kind is None
        or kind.is_complex
        or kind in UNSUPPORTED
        or memory.nbytes <= out.nbytes
        or memory.laid is not None
        or memory.raw is not None
        or memory.is_cut
    ):
        return None
    made = Bucket(memory)
    changes.count += 1
    carrier: Any = out.untyped_storage()
    carrier._webgpu = made
    return made


def gather(x: torch.Tensor, factor: float, out: torch.Tensor) -> bool:
    """Keep a product for the part of a bucket that it overwrites; False where it is to be recorded at once."""
    bucket = _find(out)._webgpu
    if type(bucket) is not Bucket:
        bucket = _bucket(out)
        if bucket is None:
            return False
    held = _held(x)
    there: Storage | None = _place.__get__(bucket)
    if (
        held is None
        or held.dtype is not TO_WEBTORCH.get(out.dtype)
        or (there is not None and there.dtype is not held.dtype)
        or x.shape != out.shape
        or not out.is_contiguous()
        or bucket.laid is not None
        or bucket.raw is not None
        or bucket.is_cut
        or not is_calm(runtime())
    ):
        return False
    given = bucket.given
    if given and factor != bucket.factor:
        bucket._join()
        given = bucket.given
    bucket.factor = factor
    node, kept = held.node, None
    if node.shared is False:
        # Until it has been read, its memory is nobody else's, and it is computed when others are.
        node.shared = True
        kept = Storage.waiting(node, held.runtime, held.elements)
    elif node.kind != "buffer":
        kept = Storage(node, held.runtime, held.elements)
    given.append((offset_of(out), tuple(out.shape), node, kept))
    return True


def takes(src: torch.Tensor, dst: torch.Tensor) -> bool:
    """Keep a copy to a part of a bucket, as a reducer with a hook makes in its backward pass; False where it is to be
    copied as others are.
    """
    known = type(_find(dst)._webgpu) is Bucket or torch._C._current_graph_task_id() >= 0
    return known and gather(src, 1.0, dst)


def _held(x: torch.Tensor) -> Storage | None:
    """Return the storage that a tensor is all of, row-major."""
    found = _find(x)._webgpu
    if type(found) is not Storage:
        if found.laid is not None or found.is_cut:
            return None
        found = found.storage
    whole = found is not None and found.elements == x.numel() and x.is_contiguous()
    same = whole and found.dtype is TO_WEBTORCH.get(x.dtype)
    return found if same else None


def apart(tensors: Any) -> Any:
    """Return a list's parts of buckets as tensors with memory of their own; all others as they are. Who writes into
    these then calls `put`.
    """
    if not tensors or type(tensors[0]) is not torch.Tensor or _part(tensors[0]) is None:
        return tensors
    return [x if (found := _part(x)) is None else found for x in tensors]


def put(written: Sequence[torch.Tensor | None], parts: Sequence[torch.Tensor | None]) -> None:
    """Overwrite parts of buckets with what was written into those that `apart` gave for them."""
    for x, part in zip(written, parts, strict=True) if written is not parts else ():
        if x is part or x is None or part is None:
            continue
        if not gather(x, 1.0, part):
            part.copy_(x)


def _part(x: torch.Tensor) -> torch.Tensor | None:
    # Sparse gradients have no memory of their own.
    if x.layout is not torch.strided:
        return None
    carried: Any = _find(x)
    bucket = getattr(carried, "_webgpu", None)
    if type(bucket) is not Bucket or not x.is_contiguous():
        return None
    shape = tuple(x.shape)
    part = bucket.take(offset_of(x), shape, again=True)
    if part is None:
        return None
    inner = Storage.waiting(part, runtime(), numel(shape))
    return tensor_on(inner, x.dtype, shape, x.stride(), 0)


def give(src: torch.Tensor, dst: torch.Tensor) -> bool:
    """Overwrite a tensor with a part of a bucket; False where it is to be copied as others are."""
    bucket = _find(src)._webgpu
    if type(bucket) is not Bucket:
        return False
    held = _held(dst)
    if held is None or src.dtype is not dst.dtype or not src.is_contiguous():
        return False
    part = bucket.take(offset_of(src), tuple(dst.shape)) if src.shape == dst.shape else None
    if part is None:
        return False
    held.replace(part)
    return True
