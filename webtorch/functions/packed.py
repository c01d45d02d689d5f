"""Packed numbers, as files of llama.cpp hold them: unpacking, products that unpack as they read, and rows.

The data of a tensor (rows, columns) is flat: bytes on the CPU, words of four bytes elsewhere, as kernels of WGSL read
no smaller ones. Formats are those of `ops/blocks`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from webtorch.functions.contract import rows_times
from webtorch.ir.dtype import DType, float16, float32, int32
from webtorch.ir.graph import Node
from webtorch.ir.view import contiguous_strides
from webtorch.ops.blocks import (
    FORMATS,
    PLANES,
    PLANES_OF_HALVES,
    RUN,
    WORD,
    Reading,
    dotting,
    in_bytes,
    multiplying,
    unpacking,
)
from webtorch.ops.primitive import (
    as_view,
    cast_to,
    formula,
    iota,
    pad_with,
    reduce_dims,
    seen_as,
)
from webtorch.ops.primitive import take as _take
from webtorch.ops.record import LOWER, composite
from webtorch.tensors.modes import records_for_pages
from webtorch.tensors.tensor import Tensor

# Rows of input up to which every output is a sum of its own, and rows share what is unpacked (lower/coarsening): for
# more, unpacking once and a matrix product is less work; where there are matrix units it is from the second number on.
_FEW_ROWS, _FEW_HALVES = 8, 4
# Elements of weights, for each row, from which on sums of bytes save more than a dispatch costs that rounds the rows.
_LARGE = 1 << 22
# Elements of a row that lie together in every order: words hold parts of four neighbours, or of four at a time.
_TOGETHER = 4


def _in_words(data: Tensor) -> bool:
    return data.dtype is int32


def has_dots(x: Tensor) -> bool:
    """Whether sums of products of bytes are quick where a tensor is. Pages do not know where they will be."""
    return x._storage.runtime.backend.limits.has_dots and not records_for_pages()


def _few_rows(x: Tensor) -> int:
    """Return up to how many rows every output is a sum of its own."""
    limits = x._storage.runtime.backend.limits
    units = limits.has_matrix_units and x.dtype is float16 and not records_for_pages()
    return _FEW_HALVES if units else _FEW_ROWS


def _window(x: Tensor, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Tensor:
    """Return elements of x, outside autograd. Where they begin is a part of the graph, and no argument of its kernels:
    data has one format. Formulas read more of them than a kernel can bind: they are never memory of their own.
    """
    if x._offset:
        return as_view(x, shape, strides, x._offset + offset)
    node = Node("view", (x._storage.node,), (strides, offset), (), shape, x.dtype)
    return Tensor._from_node(node, x._storage.runtime, owned=False)


def _applied(
    reading: Reading,
    data: Tensor,
    lead: tuple[tuple[int, int], ...],
    lanes: tuple[Tensor, ...] = (),
) -> Tensor:
    """Return what an operation makes of data: float32 of the sizes `lead`, which have strides in the data, and of its
    loops.
    """
    loops = reading.loops
    shape = (*[size for size, _ in lead], *loops)
    steps = tuple([stride for _, stride in lead])
    operands = [
        _window(data, shape, (*steps, *strides), offset) for offset, strides in reading.windows
    ]
    for i, size in enumerate(loops):
        count = iota(size, 0, 1, int32, data.device)
        strides = [0] * len(shape)
        strides[len(lead) + i] = 1
        operands.append(as_view(count, shape, strides, 0))
    return formula(reading.op, [*operands, *lanes], shape, float32, data.device, compute=int32)


@composite(name="_unpacked", function_in=(), torch="", differentiable=False)
def unpacked(data: Tensor, form: str, count: int) -> Tensor:
    """Return the first `count` elements, as float32, of whole blocks that lie in flat data."""
    reading = unpacking(form, _in_words(data))
    groups = -(-count // reading.span)
    out = _applied(reading, data, ((groups, reading.pitch),)).reshape((groups * reading.span,))
    return out if groups * reading.span == count else out[:count]


class _Way(NamedTuple):
    """A dim of a product's result: its size, and how many rows of the input and elements of data a step of it moves."""

    size: int
    rows: int
    elements: int


def _summed(x: Tensor, data: Tensor, reading: Reading, ways: Sequence[_Way]) -> Tensor:
    """Return x @ w.T in float32 for few rows x (M, columns), as sums over the blocks."""
    count, columns = x._shape
    groups = columns // reading.span
    x = cast_to(x, float32).contiguous()
    bits = seen_as(x, (count, columns), (columns, 1), x._offset, int32)
    shape = (*[way.size for way in ways], groups, *reading.loops)
    if _in_words(data):
        lanes = _in_lanes(bits, reading, shape, ways)
    else:
        bits = Tensor._from_node(bits._node(), x._storage.runtime)
        along = [way.rows * columns for way in ways]
        lanes = tuple(
            [
                _window(bits, shape, (*along, reading.span, *strides), offset)
                for offset, strides in reading.lanes
            ]
        )
    return _total(data, reading, ways, groups, lanes)


def _total(
    data: Tensor, reading: Reading, ways: Sequence[_Way], groups: int, lanes: tuple[Tensor, ...]
) -> Tensor:
    """Return the sums over groups of blocks of what an operation makes of data and lanes."""
    lead = [(way.size, way.elements * reading.pitch // reading.span) for way in ways]
    out = _applied(reading, data, (*lead, (groups, reading.pitch)), lanes)
    return reduce_dims(out, "sum", tuple(range(len(ways), len(out._shape))))


def _in_lanes(
    bits: Tensor, reading: Reading, shape: tuple[int, ...], ways: Sequence[_Way]
) -> tuple[Tensor, ...]:
    """Return the lanes of rows that are put in another order first: neighbouring threads then read neighbouring
    elements.
    """
    count, columns = bits._shape
    groups, loops = columns // reading.span, reading.loops
    each = groups * math.prod(loops)
    sizes = [size for size, _ in reading.shared]
    # Each axis with its stride in a row, and its stride where the row is laid out: four neighbours are one load.
    axes = [
        (groups, reading.span, each // groups * _TOGETHER),
        *zip(loops, reading.lanes[0][1], [s * _TOGETHER for s in contiguous_strides(loops)]),
        (_TOGETHER, 1, 1),
    ]
    sizes[-1] //= _TOGETHER
    steps = [s * each * _TOGETHER for s in contiguous_strides(tuple(sizes))]
    apart = [stride for _, stride in reading.shared]
    apart[-1] *= _TOGETHER
    axes += zip(sizes, apart, steps, strict=True)
    axes.sort(key=lambda axis: -axis[1])
    window = (count, *[size for size, *_ in axes])
    strides = (columns, *[there for *_, there in axes])
    # It is written in the order of the row, so by what computes the row; products of one row share it.
    kept = _kept(bits, window, strides)
    along = [way.rows * columns for way in ways]
    along += [s * _TOGETHER for s in contiguous_strides((groups, *loops))]
    lanes = [divmod(i, _TOGETHER) for i in range(len(reading.lanes))]
    return tuple([_window(kept, shape, tuple(along), i * each * _TOGETHER + j) for i, j in lanes])


def _planes(x: Tensor) -> int:
    """Return how many bytes a number of a row is rounded to."""
    return PLANES_OF_HALVES if x.dtype.itemsize == 2 else PLANES


def _dotted(x: Tensor, data: Tensor, reading: Reading, ways: Sequence[_Way]) -> Tensor:
    """Return x @ w.T in float32 for few rows x (M, columns), as sums of integers: rows are rounded to bytes first, run
    by run of neighbours, in the order in which neighbouring threads read them.
    """
    count, columns = x._shape
    groups, loops, planes = columns // reading.span, reading.loops, _planes(x)
    x = cast_to(x, float32).contiguous()
    # Written by what computes the row; elements are read several times.
    whole = (count, columns)
    bits = _kept(seen_as(x, whole, (columns, 1), x._offset, int32), whole, (columns, 1))
    runs = reading.shared[:-1]
    units = groups * math.prod(loops)
    lengths = contiguous_strides((count, *[size for size, _ in runs], planes + 1, units, WORD))
    along = [s * WORD for s in contiguous_strides((groups, *loops))]
    # Axes of the row, each with its stride there, and where it is written: in the order of the row, of which neighbours
    # are then computed together, and the words of a plane last, which share what is known of a run.
    axes = [*zip((groups, *loops), (reading.span, *reading.lanes[0][1]), along, strict=True)]
    axes += [(size, step, there) for (size, step), there in zip(runs, lengths[1:-3], strict=True)]
    axes.sort(key=lambda axis: -axis[1])
    shape = (count, *[size for size, *_ in axes], planes + 1, WORD)
    steps = (columns, *[step for _, step, _ in axes])
    there = (lengths[0], *[there for *_, there in axes], lengths[-3], 1)
    last = len(shape) - 1
    places = [
        as_view(iota(shape[i], 0, 1, int32, data.device), shape, [*[0] * i, 1, *[0] * (last - i)], 0)
        for i in (last - 1, last)
    ]  # fmt: skip
    operands = [_window(bits, shape, (*steps, 0, 0), i) for i in range(RUN)]
    operands += [_window(bits, shape, (*steps, 0, WORD), i) for i in range(WORD)]
    made = formula(in_bytes(planes), [*operands, *places], shape, int32, data.device, compute=int32)
    kept = _kept(made, shape, there)
    lanes = []
    wanted = (*[way.size for way in ways], groups, *loops)
    strides = [*[way.rows * lengths[0] for way in ways], *along]
    for run in range(len(reading.lanes) // RUN):
        # The words of the planes, then the scale and the sum.
        for i in range(planes * WORD + 2):
            offset = (run * (planes + 1) + i // WORD) * units * WORD + i % WORD
            lanes.append(_window(kept, wanted, tuple(strides), offset))
    return _total(data, reading, ways, groups, tuple(lanes))


def _kept(x: Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    """Return a part of memory into which a tensor is written: it lies there, whatever reads it."""
    whole = (x.numel() + _TOGETHER,)
    base = Node("empty", (), (), (), whole, int32)
    row = x._node()
    node = Node("update", (base, row), (shape, strides, 0), (), whole, int32, row.line)
    return Tensor._from_node(node, x._storage.runtime)


def _weight(data: Tensor, form: str, shape: tuple[int, int], dtype: DType) -> Tensor:
    """Return the matrix that data stands for."""
    return cast_to(unpacked(data, form, shape[0] * shape[1]), dtype).reshape(shape)


@composite(name="_lowered_rows", function_in=(), torch="", autocast=LOWER)
def _lowered(input: Tensor) -> Tensor:
    """The input in the precision that products have under autocast."""
    return input


def _cotangent_of_input(
    g: Tensor, _out: Tensor, input_shape: tuple[int, ...], data: Tensor, form: str, rows: int
) -> Tensor:
    return rows_times(g, _weight(data, form, (rows, input_shape[-1]), g.dtype))


@composite(name="_packed_product", function_in=(), torch="", vjp=(_cotangent_of_input,))
def _packed_product(input: Tensor, data: Tensor, form: str, rows: int) -> Tensor:
    """Return input @ w.T for an input (*, columns) and the matrix (rows, columns) that data stands for, in the type of
    the input.
    """
    columns = input._shape[-1]
    lead = input._shape[:-1]
    count = math.prod(lead)
    # What vmap maps over are more rows.
    if not (0 < count <= _few_rows(input) and not input._levels and columns and rows):
        return rows_times(input, _weight(data, form, (rows, columns), input.dtype), True)
    x, group = input.reshape((count, columns)), FORMATS[form].elements * FORMATS[form].together
    ways = [_Way(count, 1, 0), _Way(rows, 0, columns)]
    rest = columns % group
    if _in_words(data) and rest * 2 == group and rows % 2 == 0:
        # Every other row begins in the middle of a group of blocks.
        x = _before_and_behind(x, rest)
        ways = [_Way(count, 2, 0), _Way(rows // 2, 0, columns * 2), _Way(2, 1, columns - rest)]
    reading, product = None, _summed
    if _in_words(data) and count * rows * columns >= _LARGE and has_dots(input):
        reading, product = dotting(form, x._shape[1], _planes(input)), _dotted
    if reading is None:
        reading, product = multiplying(form, _in_words(data), x._shape[1]), _summed
    if reading is None:
        return rows_times(input, _weight(data, form, (rows, columns), input.dtype), True)
    return cast_to(product(x, data, reading, ways), input.dtype).reshape((*lead, rows))


def _before_and_behind(x: Tensor, zeros: int) -> Tensor:
    """Return each row (M, columns) twice: with zeros behind it, and with zeros before it."""
    count, columns = x._shape
    x = x.contiguous()
    twice = as_view(x, (count, 2, columns), (columns, 0, 1), x._offset)
    padded = pad_with(twice, (0, 0, 0), (0, 0, zeros), 0)
    length = columns + zeros
    # The second one begins with the zeros of the first.
    seen = as_view(padded, (count, 2, length), (2 * length, columns, 1), padded._offset)
    return seen.reshape((2 * count, length))


def packed_product(input: Tensor, data: Tensor, form: str, rows: int) -> Tensor:
    """Return input @ w.T, as `_packed_product`, in the precision of products under autocast."""
    return _packed_product(_lowered(input), data, form, rows)


@composite(name="_packed_rows", function_in=(), torch="", differentiable=False)
def packed_rows(index: Tensor, data: Tensor, form: str, rows: int, columns: int) -> Tensor:
    """Return the rows at positions (*) of the matrix (rows, columns) that data stands for, as float32 (*, columns)."""
    length = FORMATS[form].row_bytes(columns)
    flat = index.reshape((-1,))
    unit = WORD if _in_words(data) else 1
    if length % unit or index._levels:
        # Rows that begin within words, or that vmap maps over.
        out = _take(_weight(data, form, (rows, columns), float32), [flat], "embedding")
    else:
        length //= unit
        lines = as_view(data, (rows, length), (length, 1), data._offset)
        taken = _take(lines, [flat], "embedding").reshape((-1,))
        out = unpacked(taken, form, flat._shape[0] * columns)
    return out.reshape((*index._shape, columns))
