"""Matmul, Convolution and Scan on NumPy's BLAS and ufuncs. Imports NumPy, floors 0-2 and modules beside it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from webtorch.ir.dtype import DType, bfloat16, float16, float32, uint8
from webtorch.ir.expr import FUNCTIONS
from webtorch.ir.kernel import Convolution, Matmul, Scan
from webtorch.ir.reducer import REDUCERS
from webtorch.runtime.backends.cpu.memory import Array, CpuBuffer, array_type
from webtorch.runtime.backends.cpu.numpy_math import from_bfloat16, to_bfloat16, ufunc, view
from webtorch.runtime.backends.cpu.threads import get_num_threads

Run = Callable[..., None]

# A few rows, a matrix that is large for them (elements), and the part of one that a cache holds.
_FEW, _LARGE, _PART = 8, 1 << 18, 1 << 17
# Scratch for unfolded images, in bytes: large enough for BLAS, small enough to stay in cache.
_SCRATCH = 8 << 20


def widen(x: Array, dtype: DType) -> Array:
    """Return 16-bit floats as float32; other arrays as they are."""
    if dtype is bfloat16:
        return from_bfloat16(x)
    return x.astype(np.float32) if dtype is float16 else x


def narrow(x: Array, dtype: DType) -> Array:
    """Return float32 results in `dtype`'s array type."""
    return to_bfloat16(x) if dtype is bfloat16 else x.astype(array_type(dtype), copy=False)


# -- matrix products ---------------------------


def matmul(routine: Matmul) -> Run:
    """Return a function of (left, right, out) flat arrays."""
    types = [b.dtype for b in routine.buffers[:3]]
    batch, m, left_strides, right_strides = simplified(routine)
    n, k = routine.n, routine.k
    left_shape, right_shape, out_shape = (*batch, m, k), (*batch, k, n), (*batch, m, n)
    left_offset, right_offset = routine.left_offset, routine.right_offset
    plain = all(t not in (bfloat16, float16) for t in types) and types[0] is types[1]
    same = plain and types[0] is types[2]
    # What BLAS does not take NumPy sums term by term: slow, and less exact where sums are long.
    copied = [
        types[0].is_floating_point and not _blas_takes(shape, strides)
        for shape, strides in ((left_shape, left_strides), (right_shape, right_strides))
    ]

    def run(left: Array, right: Array, out: Array) -> None:
        """Multiply, through BLAS where the types allow it."""
        a = view(left, left_offset, left_shape, left_strides)
        b = view(right, right_offset, right_shape, right_strides)
        if copied[0]:
            a = np.ascontiguousarray(a)
        if copied[1]:
            b = np.ascontiguousarray(b)
        if same:
            np.matmul(a, b, out=out.reshape(out_shape))
        elif plain:
            np.matmul(a, b, out=out.reshape(out_shape), dtype=out.dtype, casting="unsafe")
        else:
            product = np.matmul(widen(a, types[0]), widen(b, types[1]))
            out.reshape(out_shape)[...] = narrow(product, types[2])

    return run


def is_few_rows(routine: Matmul) -> bool:
    """Whether it is a few float32 rows by a large matrix that lies as a layer's weight does."""
    batch, m, left, right = simplified(routine)
    n, k = routine.n, routine.k
    return (
        not batch
        and 2 <= m <= _FEW
        and n * k >= _LARGE
        and left[1] == right[0] == 1
        and right[1] >= k
        and all(b.dtype is float32 for b in routine.buffers[:3])
    )


def few_rows(routine: Matmul) -> Run:
    """Return a function of (left, right, out) flat arrays: parts of the matrix that stay in the second-level cache
    times each row. A product of matrices would copy all of it first.
    """
    _, m, left_strides, right_strides = simplified(routine)
    n, k = routine.n, routine.k

    def run(left: Array, right: Array, out: Array) -> None:
        """Multiply."""
        a = view(left, routine.left_offset, (m, k), left_strides)
        b = view(right, routine.right_offset, (n, k), right_strides[::-1])
        results = out.reshape(m, n)
        part = max(_PART // k, 16) * get_num_threads()
        for begin in range(0, n, part):
            lines = b[begin : begin + part]
            for row, result in zip(a, results):
                np.dot(lines, row, out=result[begin : begin + part])

    return run


def _blas_takes(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether matrices of a stack lie as BLAS reads them: by rows or columns, with no element twice."""
    (rows, columns), (down, along) = shape[-2:], strides[-2:]
    if rows == 1 or columns == 1:
        return (rows == 1 or down > 0) and (columns == 1 or along > 0)
    return (along == 1 and down >= columns) or (down == 1 and along >= rows)


def simplified(
    routine: Matmul,
) -> tuple[tuple[int, ...], int, tuple[int, ...], tuple[int, ...]]:
    """Return the batch, the rows and the strides of both sides, with as few dims as strides allow."""
    batch, left_strides, right_strides = _merge_batch(routine)
    m = routine.m
    if len(batch) == 1 and right_strides[0] == 0 and left_strides[0] == m * left_strides[1]:
        # One matrix for the whole batch: the rows of all batches make one tall matrix.
        return (), batch[0] * m, left_strides[1:], right_strides[1:]
    return batch, m, left_strides, right_strides


def _merge_batch(routine: Matmul) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Merge neighbouring batch dims that one stride walks on both sides; drop those of size 1."""
    dims: list[tuple[int, int, int]] = []
    for size, left, right in zip(routine.batch, routine.left_strides, routine.right_strides):
        if size == 1:
            continue
        if dims and dims[-1][1] == left * size and dims[-1][2] == right * size:
            dims[-1] = (dims[-1][0] * size, left, right)
        else:
            dims.append((size, left, right))
    return (
        tuple(d[0] for d in dims),
        (*[d[1] for d in dims], *routine.left_strides[-2:]),
        (*[d[2] for d in dims], *routine.right_strides[-2:]),
    )


# -- convolutions ---------------------------


class _Scratch:
    """Arrays for one call, from the backend's pool: fresh pages would cost more than what is written to them."""

    def __init__(self) -> None:
        self.held: list[CpuBuffer] = []

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an uninitialised array; it lasts as long as this object."""
        buffer = CpuBuffer(uint8, math.prod(shape) * np.dtype(dtype).itemsize)
        self.held.append(buffer)
        return buffer.array.view(dtype).reshape(shape)

    def copy(self, x: Array) -> Array:
        """Return a contiguous copy."""
        out = self.empty(x.shape, x.dtype)
        np.copyto(out, x)
        return out

    def matmul(self, a: Array, b: Array) -> Array:
        """Return a matrix product of two stacks of equal length."""
        return np.matmul(a, b, out=self.empty((a.shape[0], a.shape[1], b.shape[2]), a.dtype))


class _Conv:
    """Shapes of one convolution, and the unfolding of images into columns."""

    def __init__(self, routine: Convolution) -> None:
        self.routine = routine
        self.n, self.c, self.h, self.w = routine.input_shape
        self.o, self.cg, self.kh, self.kw = routine.weight_shape
        _, _, self.oh, self.ow = routine.output_shape
        self.sh, self.sw = routine.stride
        self.ph, self.pw = routine.padding
        self.dh, self.dw = routine.dilation
        self.g = routine.groups
        self.depth = self.cg * self.kh * self.kw
        self.spots = self.oh * self.ow
        self.types = [b.dtype for b in routine.buffers[:3]]
        self.work = array_type(self.types[0].compute)
        # What the windows touch: an input may have rows that no window reaches, and padding on the
        # right that none needs.
        self.reach_h = (self.oh - 1) * self.sh + (self.kh - 1) * self.dh + 1
        self.reach_w = (self.ow - 1) * self.sw + (self.kw - 1) * self.dw + 1
        self.pointwise = self.kh == self.kw == self.sh == self.sw == 1 and self.ph == self.pw == 0
        # Short rows of small images make short copies; rows of whole batches are long.
        self.batch_last = not self.pointwise and self.ow < 32 and self.n >= 8
        per_image = self.c * self.kh * self.kw * self.spots * self.work.itemsize
        self.images = max(1, min(self.n, _SCRATCH // max(per_image, 1)))

    def padded(self, x: Array, scratch: _Scratch) -> Array:
        """Return images (b, c, h, w), seen as (c, b, h, w), with the zeros around them that windows reach."""
        height, width = max(self.reach_h, self.ph + self.h), max(self.reach_w, self.pw + self.w)
        view = x.transpose(1, 0, 2, 3)
        if height == self.h and width == self.w and not self.batch_last:
            return view
        out = self.blank(x.shape[0], x.dtype, scratch)
        out[:, :, self.ph : self.ph + self.h, self.pw : self.pw + self.w] = view
        return out

    def blank(self, count: int, dtype: object, scratch: _Scratch) -> Array:
        """Return zeros (c, b, h, w) with room for the padding, in the order that makes windows long runs of memory."""
        height, width = max(self.reach_h, self.ph + self.h), max(self.reach_w, self.pw + self.w)
        shape = (
            (self.c, height, width, count) if self.batch_last else (self.c, count, height, width)
        )
        out = scratch.empty(shape, dtype)
        out.fill(0)
        return out.transpose(0, 3, 1, 2) if self.batch_last else out

    def columns(self, x: Array, scratch: _Scratch) -> Array:
        """Unfold images into (g, depth, columns); a column is an image and a spot, in the order of `split`."""
        if self.pointwise:
            images = x.reshape(x.shape[0], self.g, self.cg, self.spots)
            return scratch.copy(images.transpose(1, 2, 0, 3)).reshape(self.g, self.depth, -1)
        padded = self.padded(x, scratch)
        sc, sn, sh, sw = padded.strides
        shape = (self.g, self.cg, self.kh, self.kw, padded.shape[1], self.oh, self.ow)
        strides = (sc * self.cg, sc, sh * self.dh, sw * self.dw, sn, sh * self.sh, sw * self.sw)
        if self.batch_last:
            shape = (*shape[:4], *shape[5:], shape[4])
            strides = (*strides[:4], *strides[5:], strides[4])
        windows = np.lib.stride_tricks.as_strided(padded, shape, strides, writeable=False)
        return scratch.copy(windows).reshape(self.g, self.depth, -1)

    def blocks(self) -> list[slice]:
        """Cut the batch so that the columns of a block fit the scratch."""
        return [slice(i, min(i + self.images, self.n)) for i in range(0, self.n, self.images)]

    def by_group(self, y: Array, scratch: _Scratch) -> Array:
        """Return output images (b, o, oh, ow) as (g, o / g, columns)."""
        images = y.reshape(y.shape[0], self.g, self.o // self.g, self.spots)
        order = (1, 2, 3, 0) if self.batch_last else (1, 2, 0, 3)
        return scratch.copy(images.transpose(order)).reshape(self.g, self.o // self.g, -1)

    def split(self, columns: Array, count: int) -> Array:
        """Return (..., columns) as (..., b, spots)."""
        if self.batch_last:
            return columns.reshape(*columns.shape[:-1], self.spots, count).swapaxes(-1, -2)
        return columns.reshape(*columns.shape[:-1], count, self.spots)

    # -- the three kinds: flat arrays in, flat array out ---------------------------

    def forward(self, x: Array, weight: Array, out: Array) -> None:
        """Compute the convolution, some images at a time."""
        x = x.reshape(self.n, self.c, self.h, self.w)
        filters = widen(weight, self.types[1]).reshape(self.g, self.o // self.g, self.depth)
        y = out.reshape(self.n, self.g, self.o // self.g, self.spots)
        for block in self.blocks():
            scratch = _Scratch()
            images = widen(x[block], self.types[0])
            if self.pointwise:
                spots = images.reshape(images.shape[0], self.g, self.cg, self.spots)
                y[block] = narrow(np.matmul(filters, spots), self.types[2])
            else:
                product = scratch.matmul(filters, self.columns(images, scratch))
                y[block] = self.split(narrow(product, self.types[2]), len(images)).transpose(
                    2, 0, 1, 3
                )

    def input(self, grad: Array, weight: Array, out: Array) -> None:
        """Compute the gradient of the images."""
        grad = grad.reshape(self.n, self.o, self.oh, self.ow)
        filters = (
            widen(weight, self.types[1])
            .reshape(self.g, self.o // self.g, self.depth)
            .transpose(0, 2, 1)
        )
        result = out.reshape(self.n, self.c, self.h, self.w)
        for block in self.blocks():
            scratch = _Scratch()
            g = widen(grad[block], self.types[0])
            count = g.shape[0]
            if self.pointwise:
                product = np.matmul(filters, g.reshape(count, self.g, self.o // self.g, self.spots))
                result[block] = narrow(product, self.types[2]).reshape(
                    count, self.c, self.h, self.w
                )
                continue
            columns = scratch.matmul(filters, self.by_group(g, scratch)).reshape(
                self.c, self.kh, self.kw, -1
            )
            columns = self.split(columns, count).reshape(
                self.c, self.kh, self.kw, count, self.oh, self.ow
            )
            image = self.blank(count, columns.dtype, scratch)
            for i in range(self.kh):
                for j in range(self.kw):
                    top, left = i * self.dh, j * self.dw
                    bottom, right = (
                        top + (self.oh - 1) * self.sh + 1,
                        left + (self.ow - 1) * self.sw + 1,
                    )
                    image[:, :, top : bottom : self.sh, left : right : self.sw] += columns[:, i, j]
            inside = image[:, :, self.ph : self.ph + self.h, self.pw : self.pw + self.w]
            result[block] = narrow(inside, self.types[2]).transpose(1, 0, 2, 3)

    def weight(self, x: Array, grad: Array, out: Array) -> None:
        """Compute the gradient of the filters, summed over the images."""
        x = x.reshape(self.n, self.c, self.h, self.w)
        grad = grad.reshape(self.n, self.o, self.oh, self.ow)
        total: Array | None = None
        for block in self.blocks():
            scratch = _Scratch()
            columns = self.columns(widen(x[block], self.types[0]), scratch)
            product = np.matmul(
                self.by_group(widen(grad[block], self.types[1]), scratch),
                columns.transpose(0, 2, 1),
            )
            total = product if total is None else np.add(total, product, out=total)
        out[...] = 0 if total is None else narrow(total, self.types[2]).reshape(-1)


def convolution(routine: Convolution) -> Run:
    """Return a function of (first, second, out) flat arrays."""
    conv = _Conv(routine)
    return {"forward": conv.forward, "input": conv.input, "weight": conv.weight}[routine.kind]


# -- scans ---------------------------


def scan(routine: Scan) -> Run:
    """Return a function of (x, out) flat arrays."""
    shape = (routine.outer, routine.length, routine.inner)
    accumulate = ufunc(FUNCTIONS[REDUCERS[routine.op].combine]).accumulate
    source, target = routine.buffers[0].dtype, routine.buffers[1].dtype
    plain = source not in (bfloat16, float16) and target not in (bfloat16, float16)

    def run(x: Array, out: Array) -> None:
        """Accumulate along the middle dim."""
        if plain:
            accumulate(x.reshape(shape), axis=1, dtype=out.dtype, out=out.reshape(shape))
        else:
            out[...] = narrow(accumulate(widen(x, source).reshape(shape), axis=1), target).reshape(
                -1
            )

    return run
