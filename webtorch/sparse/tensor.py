"""The class of sparse tensors: dense tensors of places and of values, seen as one tensor. Floor 5.

A sparse tensor has no elements of its own. COO keeps the places of `nnz` values as the columns of one matrix of
integers. The compressed layouts keep, for rows (CSR) or columns (CSC), where the values of each begin, and the place of
each value in its row (column); BSR and BSC keep blocks in the places of values. All tensors of a compressed one may
have dims before, of a batch of matrices with as many values each. Seen by its elements (`Pattern.coordinates`,
`SparseTensor.elements`) each layout is COO of its batch's dims and two more, so that operations know that alone. They
are written with operations on these tensors, so they fuse, run on every device and are differentiated by theirs.

In the graph a sparse tensor stands between values: `SparseTensor.values_of` has an edge to it, whose cotangents are
sparse tensors of the same places, and it has one to the values that it was made of, which takes the cotangents of
their places. So what is sparse is made and taken apart here alone, and no gradient rule of an operation is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn, Self

from webtorch.dispatch.call import Living, active
from webtorch.functions import public as dense
from webtorch.ir.dtype import bool_, int64
from webtorch.tensors import override
from webtorch.tensors.formats import layout as Layout
from webtorch.tensors.formats import sparse_bsc, sparse_bsr, sparse_coo, sparse_csc, sparse_csr
from webtorch.tensors.host import tracing
from webtorch.tensors.modes import mode
from webtorch.tensors.storage import Counter
from webtorch.tensors.tape import attach
from webtorch.tensors.tensor import Tensor

# What layouts are called in PyTorch's messages, and its backends.
TITLES = {
    sparse_coo: "Sparse",
    sparse_csr: "SparseCsr",
    sparse_csc: "SparseCsc",
    sparse_bsr: "SparseBsr",
    sparse_bsc: "SparseBsc",
}
# The layouts of blocks; those that compress columns; and what each is when its matrices are transposed.
BLOCKS = (sparse_bsr, sparse_bsc)
BY_COLUMN = (sparse_csc, sparse_bsc)
TURNED = {
    sparse_csr: sparse_csc,
    sparse_csc: sparse_csr,
    sparse_bsr: sparse_bsc,
    sparse_bsc: sparse_bsr,
}


# The sparse tensors that there are: calls look for them only while there are any.
alive = Living(active)


class SparseTensor(Tensor):
    """A tensor of which only some elements are kept. `places` are its tensors of indices, `kept` its values without
    their graph.
    """

    __slots__ = ("_made_in", "coalesced", "kept", "layout", "places")

    layout: Layout
    places: tuple[Tensor, ...]
    kept: Tensor
    # Whether the places are sorted, and each comes once.
    coalesced: bool
    # The capture that made it, by the number of its first gradient function; None outside of captures.
    _made_in: int | None

    __torch_function__ = override.disabled  # type: ignore[assignment]

    def __new__(cls, *_: object, **__: object) -> Any:
        """Refuse: functions make sparse tensors."""
        raise TypeError("a sparse tensor is made by torch.sparse_coo_tensor and its kind")

    @classmethod
    def of(
        cls,
        layout: Layout,
        places: Sequence[Tensor],
        values: Tensor,
        shape: Sequence[int],
        coalesced: bool = False,
        title: str = "",
    ) -> Self:
        """Return a sparse tensor of these places and values, through which these are differentiated."""
        self = object.__new__(cls)
        self._take(layout, places, values.detach(), shape, coalesced)
        self._living = alive.one()
        self._made_in = tracing.first if tracing.active else None
        made = _MADE if layout is sparse_coo else "SparseCompressedTensor"
        attach(self, title or made, (values,), _at_places, (), (self.pattern(),))
        return self

    def _take(
        self,
        layout: Layout,
        places: Sequence[Tensor],
        values: Tensor,
        shape: Sequence[int],
        coalesced: bool,
    ) -> None:
        if values._levels or any(p._levels for p in places):
            raise RuntimeError(
                "vmap: sparse tensors of what is mapped over are not supported: call it outside of vmap"
            )
        history = hasattr(self, "kept") and (
            self._requires_grad, self._grad_fn, self._output_nr, self._counter,
        )  # fmt: skip
        if not history:
            self._adopt(values._storage, tuple(shape), (), 0, False)
            self._counter = Counter()
        self._storage, self._shape, self.dtype = values._storage, tuple(shape), values.dtype
        self._strides = (0,) * len(self._shape)
        self.layout, self.places, self.kept = layout, tuple(places), values
        self.coalesced = coalesced or layout is not sparse_coo or values._shape[0] < 2

    def become(self, other: SparseTensor) -> Self:
        """Take what another one is, as operations in place do."""
        if self._requires_grad and self._grad_fn is None and mode.grad:
            raise RuntimeError(
                "a leaf Variable that requires grad is being used in an in-place operation."
            )
        if self._inference and not mode.inference:
            raise RuntimeError(
                "Inplace update to inference tensor outside InferenceMode is not allowed."
            )
        self._take(other.layout, other.places, other.kept, other._shape, other.coalesced)
        self._counter.version += 1
        if mode.grad and other._requires_grad:
            self._grad_fn, self._output_nr = other._grad_fn, other._output_nr
            self._requires_grad = True
        return self

    @property
    def is_sparse(self) -> bool:  # type: ignore[override]
        """Whether the layout is COO."""
        return self.layout is sparse_coo

    @property
    def is_sparse_csr(self) -> bool:  # type: ignore[override]
        """Whether the layout is CSR."""
        return self.layout is sparse_csr

    @property
    def nnz(self) -> int:
        """How many values (blocks) are kept, of each matrix of a batch."""
        return self.places[-1]._shape[-1]

    @property
    def batch_rank(self) -> int:
        """How many dims a batch of compressed matrices has."""
        return 0 if self.layout is sparse_coo else self.places[1].dim() - 1

    @property
    def sparse_rank(self) -> int:
        """How many dims the places have, those of a batch included."""
        return self.places[0]._shape[0] if self.layout is sparse_coo else self.batch_rank + 2

    @property
    def blocksize(self) -> tuple[int, int]:
        """The sizes of a block."""
        batch = self.batch_rank
        rows, columns = self.kept._shape[batch + 1 : batch + 3] if self.layout in BLOCKS else (1, 1)
        return rows, columns

    def pattern(self) -> Pattern:
        """Return what this tensor is but for its values."""
        if tracing.active and self._made_in != tracing.first:
            # A replay would look its values up anew, and not its places.
            tracing.refuse("it reads a sparse tensor from outside")
        return Pattern(self.layout, self.places, self._shape, self.coalesced, self.blocksize)

    def values_of(self) -> Tensor:
        """Return the values, with their place in the graph."""
        values = self.kept.detach()
        return attach(values, "Values", (self,), _of_values, (), (self.pattern(),))

    def elements(self) -> Tensor:
        """Return the values one after the other, for each of the pattern's coordinates one."""
        values = self.values_of()
        rank = len(self._shape) - self.sparse_rank
        whole = values.dim() == rank + 1
        return values if whole else values.flatten(0, values.dim() - rank - 1)

    def like(self, values: Tensor, title: str = "") -> SparseTensor:
        """Return a sparse tensor of the same places with other values."""
        return self.pattern().filled(values, title)

    def _nnz(self) -> int:
        return self.nnz

    def _indices(self) -> Tensor:
        if self.layout is not sparse_coo:
            raise no_kernel("_indices", self)
        return self.places[0]

    def _values(self) -> Tensor:
        if self.layout is not sparse_coo:
            raise no_kernel("_values", self)
        return self.kept.detach()

    def _coalesced_(self, coalesced: bool) -> Self:
        self.coalesced = coalesced
        return self

    # What code that knows nothing of layouts asks a tensor for.
    def _node(self, into: object = None) -> NoReturn:
        raise no_kernel("", self)

    _flat_node = _pairs = _contents = _node

    def __reduce_ex__(self, protocol: object) -> Any:
        return _rebuild, (
            self.layout, self.places, self.kept, self._shape, self.coalesced, self.requires_grad,
        )  # fmt: skip

    def __deepcopy__(self, memo: dict[int, Any]) -> SparseTensor:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
                "protocol at the moment."
            )
        places = [dense.clone(p) for p in self.places]
        out = SparseTensor.of(
            self.layout, places, dense.clone(self.kept), self._shape, self.coalesced
        )
        out._requires_grad = self._requires_grad
        memo[id(self)] = out
        if self._grad is not None:
            out._grad = self._grad.__deepcopy__(memo)
        return out

    def __copy__(self) -> SparseTensor:
        out = SparseTensor.of(self.layout, self.places, self.kept, self._shape, self.coalesced)
        out._requires_grad = self._requires_grad
        return out


_MADE = "SparseCooTensorWithDimsAndTensors"


class Pattern:
    """Where a sparse tensor has values."""

    __slots__ = ("blocksize", "coalesced", "layout", "places", "shape")

    def __init__(
        self,
        layout: Layout,
        places: Sequence[Tensor],
        shape: tuple[int, ...],
        coalesced: bool,
        blocksize: tuple[int, int] = (1, 1),
    ) -> None:
        self.layout, self.places, self.shape, self.coalesced = layout, places, shape, coalesced
        self.blocksize = blocksize

    def filled(self, values: Tensor, title: str = "") -> SparseTensor:
        """Return the sparse tensor with these values."""
        return SparseTensor.of(self.layout, self.places, values, self.shape, self.coalesced, title)

    @property
    def rank(self) -> int:
        """How many dims are sparse, those of a batch included."""
        return self.places[0]._shape[0] if self.layout is sparse_coo else self.places[1].dim() + 1

    def in_blocks(self, elements: Tensor) -> Tensor:
        """Return values as they are kept, given one for each of the coordinates."""
        if self.layout in BLOCKS:
            return elements.unflatten(0, (*self.places[1]._shape, *self.blocksize))
        batched = self.layout is not sparse_coo and self.places[1].dim() > 1
        return elements.unflatten(0, self.places[1]._shape) if batched else elements

    def lines(self) -> tuple[Tensor, Tensor]:
        """Return for each value (block) of a compressed tensor its row and its place in it; or column and place."""
        compressed, plain = self.places
        return uncompressed(compressed, plain._shape[-1]), plain.to(int64)

    def coordinates(self) -> Tensor:
        """Return the places of all elements as COO has them, a row for each sparse dim."""
        if self.layout is sparse_coo:
            return self.places[0]
        batch = self.places[1]._shape[:-1]
        outer, plain = self.lines()
        if self.layout in BLOCKS:
            rows, columns = (
                dense.arange(size, device=plain.device).reshape(shape)
                for size, shape in zip(self.blocksize, ((-1, 1), (1, -1)), strict=True)
            )
            plain, outer = plain[..., None, None], outer[..., None, None]
            here = (plain, outer) if self.layout in BY_COLUMN else (outer, plain)
            pair = [here[0] * self.blocksize[0] + rows, here[1] * self.blocksize[1] + columns]
        else:
            pair = [plain, outer] if self.layout in BY_COLUMN else [outer, plain]
        if not batch and self.layout not in BLOCKS:
            return dense.stack(pair)
        heads = [
            dense.arange(size, device=plain.device).reshape(-1, *(1,) * (pair[0].dim() - d - 1))
            for d, size in enumerate(batch)
        ]
        return dense.stack([p.reshape(-1) for p in dense.broadcast_tensors(*heads, *pair)])


def uncompressed(compressed: Tensor, count: int) -> Tensor:
    """Return for each of `count` values its row, given where rows begin; of each matrix of a batch."""
    batch = compressed._shape[:-1]
    if not count or 0 in batch:
        return dense.zeros((*batch, count), dtype=int64, device=compressed.device)
    each = dense.arange(count, device=compressed.device).expand(*batch, count)
    return dense.searchsorted(compressed.to(int64), each.contiguous(), right=True) - 1


def keys(coordinates: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a number for each place: its position in a dense tensor of the sparse dims."""
    out = coordinates[0].to(int64) if len(coordinates) else None
    if out is None:
        return dense.zeros(coordinates._shape[1], dtype=int64, device=coordinates.device)
    for d in range(1, coordinates._shape[0]):
        out = out * shape[d] + coordinates[d]
    return out


def at(dense_tensor: Tensor, coordinates: Tensor) -> Tensor:
    """Return the elements (slices, where there are more dims) of a dense tensor at places."""
    if not coordinates._shape[0]:
        return dense_tensor.expand(coordinates._shape[1], *dense_tensor._shape)
    return dense_tensor[tuple(coordinates.unbind(0))]


def added(base: Tensor, places: Tensor, values: Tensor) -> Tensor:
    """Return `base` with values added to its slices at `places`; truths are put together by "or"."""
    if not values._shape[0]:
        # The result is a part of the graph all the same.
        return base + values.sum(0) if values.requires_grad else base
    if values.dtype is bool_:
        return base.to(int64).index_add(0, places, values.to(int64)) > 0
    return base.index_add(0, places, values)


def _of_values(g: Tensor, pattern: Pattern) -> tuple[Tensor]:
    """The cotangent of a sparse tensor, given that of its values: one value at each place. Whatever reads values at
    one place adds them, so that their cotangents are equal.
    """
    count = g._shape[0] if pattern.layout is sparse_coo else 1
    if pattern.coalesced or count < 2:
        return (pattern.filled(g),)
    shape = pattern.shape[: pattern.rank]
    places, number = dense.unique(keys(pattern.coordinates(), shape), return_inverse=True)
    each = dense.arange(count, device=g.device)
    one = dense.zeros_like(places).index_copy(0, number, each)
    return (
        SparseTensor.of(sparse_coo, (pattern.coordinates()[:, one],), g[one], pattern.shape, True),
    )


def _at_places(g: Tensor, pattern: Pattern) -> tuple[Tensor]:
    """The cotangent of the values that a sparse tensor was made of."""
    if not isinstance(g, SparseTensor):
        return (pattern.in_blocks(at(g, pattern.coordinates())),)
    if g.layout is pattern.layout and all(
        a is b for a, b in zip(g.places, pattern.places, strict=True)
    ):
        return (g.values_of(),)
    return (pattern.in_blocks(looked_up(g, pattern.coordinates())),)


def to_dense(x: SparseTensor) -> Tensor:
    """Return the dense tensor of the same elements."""
    pattern, values = x.pattern(), x.elements()
    rank = pattern.rank
    head, tail = x._shape[:rank], x._shape[rank:]
    out = dense.zeros((math.prod(head), *tail), dtype=values.dtype, device=values.device)
    return added(out, keys(pattern.coordinates(), head), values).reshape(x._shape)


def looked_up(source: SparseTensor, coordinates: Tensor) -> Tensor:
    """Return the values of a sparse tensor at places, zeros where it has none; of places that it has more than once,
    the sum.
    """
    if source.sparse_rank != coordinates._shape[0]:
        return at(to_dense(source), coordinates)
    values, count = source.elements(), coordinates._shape[1]
    tail = values._shape[1:]
    if not values._shape[0] or not count:
        nothing = dense.zeros((count, *tail), dtype=values.dtype, device=values.device)
        nowhere = dense.zeros(0, dtype=int64, device=coordinates.device)
        return added(nothing, nowhere, values[:0])
    pattern = source.pattern()
    shape = source._shape[: pattern.rank]
    wanted, there = keys(coordinates, shape), keys(pattern.coordinates(), shape)
    # Each wanted place has a number, the same for equal ones, and what no one wants goes behind the last.
    ordered = dense.sort(wanted, stable=True)[0]
    found = dense.searchsorted(ordered, there)
    inside = dense.clamp(found, max=count - 1)
    hit = (ordered[inside] == there) & (found < count)
    target = dense.where(hit, inside, count)
    sums = dense.zeros((count + 1, *tail), dtype=values.dtype, device=values.device)
    sums = added(sums, target, values)
    first = dense.searchsorted(ordered, wanted)
    return sums[first]


def _rebuild(
    layout: Layout,
    places: Sequence[Tensor],
    values: Tensor,
    shape: Sequence[int],
    coalesced: bool,
    requires_grad: bool,
) -> SparseTensor:
    out = SparseTensor.of(layout, places, values, shape, coalesced)
    out._requires_grad = requires_grad
    return out


def backend_of(x: Tensor) -> str:
    """Return PyTorch's name of the backend of a tensor."""
    kind = {"cpu": "CPU", "meta": "Meta"}.get(x.device.type, "WebGPU")
    return TITLES.get(x.layout, "") + kind


def no_kernel(name: str, x: Tensor) -> NotImplementedError:
    """Return the error of an operation that there is not for the layout of a tensor."""
    operator = f"aten::{name}" if name else "this operation"
    return NotImplementedError(
        f"Could not run '{operator}' with arguments from the '{backend_of(x)}' backend. "
        f"{name or 'It'} has no form for tensors of layout {x.layout}; use .to_dense()"
    )
