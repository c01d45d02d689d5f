"""Which routines are computed in parts, where a buffer is larger than a kernel may bind. Floor 2; imports floor 0 and
`windows`, which does it for kernels.

Products become products of some rows and columns, convolutions those of some images, scans and sorts those of some rows
(a long scan block by block). Templates whose operands must begin where a buffer begins are given copies, where a window
may not begin at that element.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import gcd
from typing import Any

from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType
from webtorch.ir.kernel import (
    BufferSlot,
    Convolution,
    Kernel,
    Matmul,
    Products,
    Reduce,
    Routine,
    Scan,
    Several,
    Sort,
    Store,
    epilogue_of,
    image_points,
)
from webtorch.ir.limits import Limits
from webtorch.ir.program import Copy, Dispatch, Program
from webtorch.ir.reducer import REDUCERS
from webtorch.ir.view import numel
from webtorch.lower.layout import binding_bytes
from webtorch.lower.templates import generic
from webtorch.lower.windows import Windows, Work, aligned_elements, linear


def within_bindings(program: Program, limits: Limits) -> Program:
    """Return a program whose dispatches bind at most `limits.max_binding_bytes` of a buffer each.

    Raises OutOfMemoryError for what cannot be computed in parts.
    """
    most = limits.max_binding_bytes
    if all(binding_bytes(b.dtype, b.elements) <= most for b in program.buffers):
        return program
    return _InParts(program, limits).program()


class _InParts(Windows):
    """Rewrites a program."""

    def program(self) -> Program:
        """Return the program in parts."""
        for step in self.old.steps:
            self.first = len(self.steps)
            if isinstance(step, Copy):
                self.steps.append(step)
            else:
                self._step(step, self.old.routines[step.routine])
        return replace(
            self.old,
            routines=tuple(self.routines),
            buffers=tuple(self.buffers),
            steps=tuple(self.steps),
            separations=(),
        )

    def _step(self, step: Dispatch, routine: Routine) -> None:
        if all(self.fits(s.dtype, s.elements) for s in routine.buffers):
            self.dispatch(routine, step.buffers, step, step.starts)
            return
        self.most_slots = len(routine.buffers) if not isinstance(routine, Several | Products) else 0
        match routine:
            case Kernel():
                self.kernel(routine, step)
            case Several():
                for kernel in routine.parts:
                    self.kernel(kernel, step)
            case Products():
                for part, places, numbers in zip(
                    routine.parts, routine.places, routine.numbers, strict=True
                ):
                    buffers = tuple([step.buffers[p] for p in places])
                    args = tuple([step.args[n] for n in numbers])
                    self._step(replace(step, buffers=buffers, args=args), part)
            case Matmul():
                whole = routine if routine.unpacked is None else None
                self.kernel(generic.matmul_kernel(routine), step, product=whole)
            case Convolution():
                self._convolution(step, routine)
            case Scan():
                self._scan(step, routine)
            case Sort():
                self._sort(step, routine)
            case _:
                raise self.refusal(routine.name, "its algorithm needs it as a whole")

    # -- some of a contiguous buffer

    def _copy(
        self,
        name: str,
        source: tuple[int, int],
        target: tuple[int, int],
        count: int,
        step: Dispatch,
    ) -> None:
        """Add a copy of elements: (buffer, first element) of both."""
        dtype = self.buffers[source[0]].dtype
        at = ex.index(0, count)
        slots = (
            BufferSlot(dtype, "read", self.buffers[source[0]].elements),
            BufferSlot(dtype, "write", self.buffers[target[0]].elements),
        )
        store = Store(1, at + target[1], ex.load(0, dtype, at + source[1]))
        kernel = Kernel(name, (count,), (), slots, (), (), (store,))
        self.kernel(kernel, replace(step, args=()), (source[0], target[0]))

    def _is_window(self, dtype: DType, first: int, count: int, elements: int) -> bool:
        """Whether a slot may bind just these elements: whole words, unless they are the last."""
        per = 16 // min(dtype.itemsize, 16)
        return (
            first % aligned_elements(dtype) == 0
            and (count % per == 0 or first + count == elements)
            and not self.crosses(dtype, first, first + count - 1)
        )

    def _read(self, buffer: int, first: int, count: int, step: Dispatch) -> tuple[int, int]:
        """Return where a template finds elements of a buffer: there, or in a copy."""
        declared = self.buffers[buffer]
        if self._is_window(declared.dtype, first, count, declared.elements):
            return buffer, first
        copy = self.temporary(declared.dtype, count)
        self._copy("copy_part", (buffer, first), (copy, 0), count, step)
        return copy, 0

    def _run(self, routine: Any, step: Dispatch, parts: Sequence[tuple[int, int, int]]) -> None:
        """Add a template of contiguous operands, the last of which it writes, on some of their elements: of each the
        buffer, the first element and how many."""
        places = [self._read(*part, step) for part in parts[:-1]]
        buffer, first, count = parts[-1]
        declared = self.buffers[buffer]
        if self._is_window(declared.dtype, first, count, declared.elements):
            places.append((buffer, first))
        else:
            places.append((self.temporary(declared.dtype, count), 0))
        slots = tuple(
            [replace(s, elements=p[2]) for s, p in zip(routine.buffers, parts, strict=True)]
        )
        made = replace(routine, buffers=slots)
        self.dispatch(made, [b for b, _ in places], step, [f for _, f in places])
        if places[-1][0] != buffer:
            self._copy("copy_part", places[-1], (buffer, first), count, step)

    def _rows(self, slots: Sequence[BufferSlot], rows: int) -> int:
        """Return how many rows of all slots can be bound at once; 0 if not even one."""
        count = rows
        while count and not all(self.fits(s.dtype, -(-s.elements // rows) * count) for s in slots):
            count //= 2
        for unit in (256, 64, 16):
            if unit <= count < rows:
                return count // unit * unit
        return count

    def _parts(
        self, rows: int, most: int, operands: Sequence[tuple[DType, int]]
    ) -> Iterator[tuple[int, int]]:
        """Yield so many rows at most, the first and how many; `operands` are types and elements of a row.

        Those that reach over an edge of memory are few, as they are copied; those after them begin where windows may.
        """
        units = [aligned_elements(t) // gcd(n, aligned_elements(t)) for t, n in operands]
        unit, first = max(units), 0
        while first < rows:
            count = min(most, rows - first)
            for dtype, length in operands:
                before = self.up_to_edge(dtype, first * length) // length
                if before < count:
                    count = before - before % unit or min(unit, count)
            yield first, count
            first += count

    # -- templates

    def _sort(self, step: Dispatch, r: Sort) -> None:
        rows = self._rows(r.buffers, r.rows)
        if not rows:
            raise self.refusal(r.name, "a row is sorted as a whole")
        source, target = step.buffers
        types = [s.dtype for s in r.buffers]
        for first, count in self._parts(
            r.rows, rows, list(zip(types, (r.length, r.count), strict=True))
        ):
            parts = [
                (source, first * r.length, count * r.length),
                (target, first * r.count, count * r.count),
            ]
            self._run(replace(r, rows=count), step, parts)

    def _scan(self, step: Dispatch, r: Scan) -> None:
        row = r.length * r.inner
        rows = self._rows(r.buffers, r.outer)
        source, target = step.buffers
        operands = [(s.dtype, row) for s in r.buffers]
        for first, count in self._parts(r.outer, max(rows, 1), operands):
            if rows:
                part = first * row, count * row
                self._run(replace(r, outer=count), step, [(source, *part), (target, *part)])
            else:
                self._long_scan(step, r, first * row)

    def _long_scan(self, step: Dispatch, r: Scan, start: int) -> None:
        """Add the scan of one row, block by block: what came before is carried on."""
        source, target = step.buffers
        wide = [BufferSlot(s.dtype, s.access, r.length * r.inner) for s in r.buffers]
        block = self._rows(wide, r.length)
        if not block:
            raise self.refusal(r.name, "one place of a row is too much")
        dtype = self.buffers[target].dtype
        combine = REDUCERS[r.op].function(dtype).name
        for first in range(0, r.length, block):
            count = min(block, r.length - first)
            at = start + first * r.inner
            size = count * r.inner
            made = replace(r, outer=1, length=count)
            self._run(made, step, [(source, at, size), (target, at, size)])
            if not first:
                continue
            carried = self.temporary(dtype, r.inner)
            self._copy("carry", (target, at - r.inner), (carried, 0), r.inner, step)
            i, j = ex.index(0, count), ex.index(1, r.inner)
            place = i * r.inner + j + at
            before = ex.cast(ex.load(0, dtype, j), dtype.compute)
            value = ex.cast(ex.load(1, dtype, place), dtype.compute)
            store = Store(1, place, ex.cast(ex.binary(combine, before, value), dtype))
            slots = (
                BufferSlot(dtype, "read", r.inner),
                BufferSlot(dtype, "read_write", self.buffers[target].elements),
            )
            kernel = Kernel(f"{r.name}_carried", (count, r.inner), (), slots, (), (), (store,))
            self.kernel(kernel, replace(step, args=()), (carried, target))

    def _convolution(self, step: Dispatch, r: Convolution) -> None:
        """Add a convolution of some images at a time."""
        images = r.input_shape[0]
        of_image = numel(r.input_shape[1:]), numel(r.output_shape[1:])
        forward, weight = r.kind == "forward", r.kind == "weight"
        # The operands that have images, by their slots.
        mine = {0: of_image[0], 1: of_image[1]} if weight else {0: of_image[not forward]}
        types = [r.buffers[0].dtype, r.buffers[1].dtype, r.accumulates]
        out = of_image[forward]
        count = images
        while count and not (
            all(self.fits(types[s], n * count) for s, n in mine.items())
            and (weight or self.fits(types[2], out * count))
        ):
            count //= 2
        if not count or not self.fits(types[1], r.buffers[1].elements if 1 not in mine else 1):
            self.kernel(generic.conv_kernel(r), step)
            return
        points = image_points(r.kind, r.weight_shape) if weight else r.points
        total = numel(points)
        operands = [(types[s], n) for s, n in mine.items()]
        chunks = list(
            self._parts(images, count, operands if weight else [*operands, (types[2], out)])
        )
        sums = self.temporary(r.accumulates, total * len(chunks) if weight else total)
        slot = BufferSlot(r.accumulates, "write", total)
        plain = replace(r, buffers=(*r.buffers[:2], slot), args=(), epilogue=())
        for part, (first, n) in enumerate(chunks):
            made = replace(
                plain,
                input_shape=(n, *r.input_shape[1:]),
                output_shape=(n, *r.output_shape[1:]),
            )
            parts = [
                (step.buffers[s], mine[s] * first, mine[s] * n)
                if s in mine
                else (step.buffers[s], 0, r.buffers[s].elements)
                for s in (0, 1)
            ]
            parts.append((sums, part * total, total) if weight else (sums, out * first, out * n))
            self._run(made, replace(step, args=()), parts)
        self._after(step, r, sums, len(chunks) if weight else 0)

    def _after(self, step: Dispatch, r: Convolution, sums: int, parts: int) -> None:
        """Add what is stored of the sums of a convolution: those of each part are added where there are `parts`."""
        points = r.points
        flat = linear([ex.index(d, n) for d, n in enumerate(points)], points)
        stores = r.epilogue or (
            Store(2, flat, ex.cast(ex.reduced(0, r.accumulates), r.buffers[2].dtype)),
        )
        kernel = replace(epilogue_of(replace(r, epilogue=stores)), name=f"{r.name}_after")
        w = Work(kernel, step.buffers, (0,) * len(step.buffers), step)
        count = numel(points)
        w, number = w.with_slot(sums, BufferSlot(r.accumulates, "read", count * max(parts, 1)))
        if parts:
            at = ex.index(len(points), parts) * count + flat
            reduce = Reduce("sum", ex.load(number, r.accumulates, at), r.accumulates)
            self.work(replace(w, kernel=replace(w.kernel, inner=(parts,), reduces=(reduce,))))
            return
        value = ex.load(number, r.accumulates, flat)
        of_points = generic.at_points(
            replace(r, epilogue=stores), [ex.index(d, n) for d, n in enumerate(points)], value
        )
        self.work(replace(w, kernel=replace(w.kernel, stores=of_points)))
