"""Looking up: rows of tables, counts of integers, places in what is sorted, membership.

Bounds of index tensors are checked on the device. `bincount` reads its input, because the result's shape depends on it.
"""

from __future__ import annotations

import math
from typing import Any

from webtorch.errors import DTypeError, ShapeError
from webtorch.functions import creation, movement, pointwise
from webtorch.functions.gather_scatter import gather_along
from webtorch.functions.indexing import FUNCTIONAL, expanded_to, flattened, no_elements
from webtorch.ir.dtype import (
    DType,
    Number,
    bool_,
    float32,
    float64,
    int32,
    int64,
)
from webtorch.ir.view import numel
from webtorch.ops import comparison, elementwise
from webtorch.ops.integer import search_high, search_low, search_probe
from webtorch.ops.primitive import cast_to, fill, iota, reduce_dims
from webtorch.ops.primitive import scatter as _scatter
from webtorch.ops.primitive import take as _take
from webtorch.ops.primitive import write as _write
from webtorch.ops.record import BOOL, Example, Family, composite
from webtorch.ops.splits import equation, of_embedding
from webtorch.tensors import tape
from webtorch.tensors.above import ask
from webtorch.tensors.modes import mode, no_grad
from webtorch.tensors.tensor import Tensor
from webtorch.tensors.values import check_places, check_values, taken_over, waited_for

FAMILY: Family = "index"


def _classes(tensor: Tensor, num_classes: int = -1) -> None:
    """Raise for a class that there is not."""
    check_values(tensor, _are_classes, num_classes)


def _are_classes(num_classes: int, known: Any) -> None:
    if not known.size:
        return
    if known.min() < 0:
        raise RuntimeError("Class values must be non-negative.")
    if 0 < num_classes <= known.max():
        raise RuntimeError("Class values must be smaller than num_classes.")


def _rows(input: Tensor, weight: Tensor, *_: object, **__: object) -> None:
    """Raise for a row that there is not, or where there are no rows."""
    if len(weight._shape) != 2:
        raise RuntimeError("'weight' must be 2-D")
    check_places("embedding", input, weight._shape[0], "index out of range in self. ")


@composite(function_in=FUNCTIONAL, example=Example(("i5",), (5,)), values=_classes)
def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """1 at the class of each element, in a new last dimension.

    num_classes=-1 stands for the largest class plus 1, which is read from the device.
    """
    if tensor.dtype is not int64:
        raise DTypeError(
            f"one_hot is only applicable to index tensor of type LongTensor. Got {tensor.dtype}: use .long()."
        )
    if not tensor.numel():
        if num_classes <= 0:
            raise RuntimeError("Can not infer total number of classes from empty tensor.")
        return fill((*tensor._shape, num_classes), 0, int64, tensor.device)
    flat = flattened(tensor)
    if num_classes == -1:
        if tensor._levels:
            raise RuntimeError(
                "When vmap-ing torch.nn.functional.one_hot, please provide an explicit positive num_classes argument."
            )
        low = int(reduce_dims(flat, "min", (0,)).item())
        if low < 0:
            raise RuntimeError("Class values must be non-negative.")
        num_classes = int(reduce_dims(flat, "max", (0,)).item()) + 1
    if num_classes < 1:
        raise RuntimeError("num_classes should be positive")
    n = flat.numel()
    table = fill((n, num_classes), 0, int64, tensor.device)
    ones = fill((n,), 1, int64, tensor.device)
    rows = iota(n, 0, 1, int64, tensor.device)
    out = _scatter(table, [rows, flat], ones, "set", "one_hot")
    return movement.reshape(out, (*tensor._shape, num_classes))


def _renormalize(weight: Tensor, flat: Tensor, max_norm: float, norm_type: float) -> None:
    """Scale down, in place, the looked-up rows whose norm is above max_norm."""
    rows = _take(weight, [flat], "embedding")
    size = elementwise.abs(rows)
    if norm_type == math.inf:
        norm = reduce_dims(size, "max", (1,))
    else:
        total = reduce_dims(pointwise.pow(size, norm_type), "sum", (1,))
        norm = pointwise.pow(total, 1.0 / norm_type)
    # PyTorch's own guard against a norm that rounds to the bound.
    factor = pointwise.where(comparison.gt(norm, max_norm), max_norm / (norm + 1e-7), 1.0)
    _write(weight, _scatter(weight, [flat], rows * factor, "set", "embedding"))


@composite(
    splits=of_embedding,
    function_in=FUNCTIONAL,
    gradient_name="EmbeddingBackward0",
    example=Example(("i5", (5, 3))),
    values=_rows,
)
def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """The rows of `weight` at the positions `input`.

    padding_idx: this row gets no gradient. max_norm: rows with a larger norm_type norm are scaled down in place first.
    scale_grad_by_freq: a row's gradient is divided by how often it was used. sparse: the gradient of a weight that is a
    leaf is a sparse tensor of the rows that were read.
    """
    if input.dtype not in (int64, int32):
        raise DTypeError(
            "Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; but got "
            f"torch.{input.dtype.legacy}Tensor instead (while checking arguments for embedding)"
        )
    if len(weight._shape) != 2:
        raise ShapeError(f"'weight' must be 2-D, got {list(weight._shape)}")
    count, width = weight._shape
    if padding_idx is not None:
        if not -count <= padding_idx < count:
            raise AssertionError("Padding_idx must be within num_embeddings")
        padding_idx %= count
    # Of what is computed the rule of its own gradient wants a dense one.
    sparse = sparse and weight.is_leaf and weight.requires_grad
    if not input.numel() and not sparse:
        return no_elements(weight, (*input._shape, width))
    if max_norm is not None and input.numel():
        if not weight.dtype.has_gradient:
            raise DTypeError(
                "embedding: max_norm: norm(): input dtype should be either floating point or complex. "
                f"Got {weight.dtype} instead. Convert the weight with .float()."
            )
        with no_grad():
            _renormalize(weight, flattened(input), max_norm, norm_type)
    if padding_idx is None and not scale_grad_by_freq and not sparse:
        return _take(weight, [input], "embedding")
    rule = _sparse_rows_back if sparse else _rows_back
    args = (count, width, padding_idx, scale_grad_by_freq)
    levels, mode.forward = mode.forward, ()
    try:
        with no_grad():
            out = (
                _take(weight, [input], "embedding")
                if input.numel()
                else no_elements(weight, (*input._shape, width))
            )
        tape.attach(out, "Embedding", (weight,), rule, (tape.SavedTensor(input),), args)
        # What is left out, or divided, is so of gradients: a tangent is read like the rows.
        for i, level in enumerate(levels):
            tangent = level.of(weight)
            if tangent is not None:
                mode.forward = levels[:i]
                level.set(
                    out, embedding(input, tangent, padding_idx, None, 2.0, scale_grad_by_freq)
                )
    finally:
        mode.forward = levels
    return out


def _rows_back(
    g: Tensor, input: Tensor, count: int, width: int, padding_idx: int | None, by_frequency: bool
) -> tuple[Tensor]:
    """Return the cotangent of an embedding's weight: rows added where they were read."""
    flat = flattened(input)
    n = flat.numel()
    rows = movement.reshape(g, (n, width))
    if by_frequency:
        ones = fill((n,), 1, g.dtype, g.device)
        used = _scatter(fill((count,), 0, g.dtype, g.device), [flat], ones, "add", "embedding")
        rows = rows / movement.reshape(_take(used, [flat], "embedding"), (n, 1))
    if padding_idx is not None:
        dropped = movement.reshape(comparison.eq(flat, padding_idx), (n, 1))
        rows = pointwise.where(dropped, 0.0, rows)
    table = fill((count, width), 0, g.dtype, g.device)
    return (_scatter(table, [flat], rows, "add", "embedding"),)


def _sparse_rows_back(
    g: Tensor, input: Tensor, count: int, width: int, padding_idx: int | None, by_frequency: bool
) -> tuple[Tensor]:
    """Return the same cotangent as a sparse tensor of the rows that were read, in their order."""
    if by_frequency:
        raise RuntimeError(
            "embedding_backward: scale_grad_by_freq not supported with sparse gradients"
        )
    flat = flattened(input)
    rows = movement.reshape(g, (flat.numel(), width))
    if padding_idx is not None:
        (kept,) = comparison.ne(flat, padding_idx).nonzero(as_tuple=True)
        flat, rows = _take(flat, [kept], "embedding"), _take(rows, [kept], "embedding")
    return (ask("sparse_rows")(flat, rows, (count, width)),)


def counted(
    places: Tensor, size: int, weights: Tensor | None = None, kind: DType = int64
) -> Tensor:
    """Return how often each place 0, 1, ... below `size` occurs, or the sum of its weights."""
    where = places.device
    values = fill(places._shape, 1, kind, where) if weights is None else weights
    return _scatter(
        fill((size,), 0, kind, where), [cast_to(places, int64)], values, "add", "bincount"
    )


@composite(example=Example(("i5",)), aten=("bincount",), looks_at=("input",))
def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each value 0, 1, ... occurs, or the sum of its weights. Reads the largest value from the device."""
    if input.dtype.kind not in ("int", "uint"):
        raise NotImplementedError(f"\"bincount\" not implemented for '{input.dtype.legacy}'")
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    if len(input._shape) != 1:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if weights is not None and weights._shape != input._shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    kind = int64 if weights is None else weights.dtype
    if kind.kind != "float" and weights is not None:
        kind = float64 if input._in_host_memory else float32
        weights = cast_to(weights, kind)
    n = input.numel()
    if not n:
        return fill((minlength,), 0, int64 if weights is None else kind, input.device)
    if weights is None and (known := waited_for(input)) is not None and known[0].min() >= 0:
        import numpy

        return taken_over(numpy.bincount(known[0], minlength=minlength), int64, input)
    if int(reduce_dims(input, "min", (0,)).item()) < 0:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    size = max(int(reduce_dims(input, "max", (0,)).item()) + 1, minlength)
    return counted(input, size, None if weights is None else weights.detach(), kind)


def _order(sequence: Tensor, *_: object, sorter: Tensor | None = None, **__: object) -> None:
    """Raise for a place in an order that there is not."""
    if sorter is not None:
        words = "torch.searchsorted(): sorter index out of range. "
        check_places("searchsorted", sorter, sequence._shape[-1], words)


@composite(function_in=("torch",), aten=("searchsorted",), values=_order)
def searchsorted(
    sorted_sequence: Tensor,
    input: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """Where to insert the values of `input` so that the last dimension of sorted_sequence stays sorted.

    Before equal elements, or after them with right=True (side="right").
    """
    if side not in (None, "left", "right"):
        raise RuntimeError(
            f"torch.searchsorted(): side can only be 'left' or 'right' but got {side}"
        )
    if side == "left" and right:
        raise RuntimeError(
            "torch.searchsorted(): side and right can't be set to opposites, got side of left while right was True"
        )
    right = right or side == "right"
    if not isinstance(input, Tensor):
        value = creation.number_of(input)
        input = creation.tensor(value, device=sorted_sequence.device)
    sequence = sorted_sequence
    if len(sequence._shape) != 1 and sequence._shape[:-1] != input._shape[:-1]:
        raise RuntimeError(
            "torch.searchsorted(): boundaries tensor should be 1 dimension or the first N-1 dimensions of "
            "boundaries tensor and input value tensor must match, but we got boundaries tensor "
            f"{list(sequence._shape)} and input value tensor {list(input._shape)}"
        )
    if sorter is not None:
        if sorter._shape != sequence._shape:
            raise RuntimeError(
                "torch.searchsorted(): boundary and sorter must have the same size, but got boundary tensor "
                f"{list(sequence._shape)} and got sorter tensor {list(sorter._shape)}"
            )
        if sorter.dtype is not int64:
            raise DTypeError(
                f"torch.searchsorted(): sorter must be a tensor of long dtype but got dtype {sorter.dtype.legacy}. "
                "Use sorter.long()."
            )
        sequence = gather_along(sequence, -1, sorter)
    return _search(sequence, input, right, int32 if out_int32 else int64)


def _search(sequence: Tensor, values: Tensor, right: bool, dtype: DType) -> Tensor:
    """Binary search of every value at once: a fixed number of halvings, which read nothing from the device."""
    n, shape, device = sequence._shape[-1], values._shape, values.device
    if not n or not values.numel():
        return fill(shape, 0, dtype, device)
    rows: list[Tensor] = []
    if len(sequence._shape) > 1:
        batch = numel(sequence._shape[:-1])
        sequence = movement.reshape(sequence, (batch, n))
        values = movement.reshape(values, (batch, values.numel() // batch))
        line = movement.reshape(iota(batch, 0, 1, int64, device), (batch, 1))
        rows = [expanded_to(line, values._shape)]
    inside = values._shape
    low, high = fill(inside, 0, int64, device), fill(inside, n, int64, device)
    for _ in range(n.bit_length()):
        found = _take(sequence, [*rows, search_probe(low, high, n - 1)], "searchsorted")
        # Where it does not stop, not where it goes on: a NaN among the values goes to the end.
        stop = comparison.gt(found, values) if right else comparison.ge(found, values)
        low, high = search_low(low, high, stop), search_high(low, high, stop)
    return movement.reshape(cast_to(low, dtype), shape)


@composite(splits=equation("...,N->..."), function_in=("torch",), refuses=BOOL, aten=("bucketize",))
def bucketize(
    input: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    """The number of the interval between sorted `boundaries` in which each value lies."""
    if len(boundaries._shape) != 1:
        raise RuntimeError(
            f"boundaries tensor must be 1 dimension, but got dim({len(boundaries._shape)})"
        )
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


@composite(
    splits=equation("...,N->..."),
    function_in=("torch",),
    refuses=BOOL,
    aten=("isin",),
    other_names={"element": "elements", "test_element": "test_elements"},
)
def isin(
    elements: Tensor | Number,
    test_elements: Tensor | Number,
    *,
    assume_unique: bool = False,
    invert: bool = False,
) -> Tensor:
    """Whether each element is among test_elements; the opposite with invert."""
    if not isinstance(elements, Tensor) and not isinstance(test_elements, Tensor):
        raise TypeError("isin(): at least one of elements and test_elements must be a Tensor")
    if not isinstance(test_elements, Tensor):
        same = comparison.eq(elements, test_elements)
        return comparison.logical_not(same) if invert else same
    if not isinstance(elements, Tensor):
        elements = fill((), elements, creation.dtype_of_number(elements), test_elements.device)
    if test_elements.dtype is bool_:
        raise RuntimeError("Unsupported input type encountered for isin(): Bool")
    if not elements.numel() or not test_elements.numel():
        return fill(elements._shape, invert, bool_, elements.device)
    same = comparison.eq(movement.unsqueeze(elements, -1), flattened(test_elements))
    last = len(elements._shape)
    found = movement.reshape(reduce_dims(same, "any", (last,)), elements._shape)
    return comparison.logical_not(found) if invert else found
