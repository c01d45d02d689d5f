"""Programs whose buffers are larger than what a kernel may bind: dispatches in parts that bind windows. Floor 2;
imports floor 0, and the templates as generic kernels.

One rule serves all kernels: what a kernel reads and writes of a buffer is an interval of positions, by the ranges of
its loops. Where that is more than a binding, an outer loop is halved until it fits; where that gains nothing, the loop
of a reduction is (each part combines its result with that of those before); and where a position is data, the kernel
runs once for each window of the buffer, for the positions that lie in it. What is left is refused before anything runs.

Memory larger than one buffer is a row of buffers (`Limits.row_step`), so no window reaches over an edge between two:
loops are cut before the row that does and behind it, and that row is cut by its other loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from webtorch.errors import OutOfMemoryError
from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType, int32, integer_limits
from webtorch.ir.expr import Expr, Range
from webtorch.ir.kernel import (
    BufferSlot,
    Convolution,
    Kernel,
    Matmul,
    Reduce,
    Routine,
    Store,
)
from webtorch.ir.limits import Limits
from webtorch.ir.program import BufferDecl, Dispatch, Program, Step
from webtorch.ir.view import contiguous_strides, numel
from webtorch.lower.affine import affine
from webtorch.lower.bounds import bounds
from webtorch.lower.layout import binding_bytes, device_bytes
from webtorch.lower.templates import generic

# Where a window may begin, in bytes: what the specification lets every device ask for at most.
ALIGN = 256
# Dispatches that one may become.
_MOST_PARTS = 1 << 12
# Halving a loop gains something where what is reached becomes less by one part in so many.
_GAIN = 8
Rule = Callable[[Expr, tuple[Expr, ...]], Expr | None]
# What a kernel reads or writes: the slot and the position.
Access = tuple[int, Expr]


def aligned_elements(dtype: DType) -> int:
    """Return of how many elements windows begin at a multiple."""
    return ALIGN // device_bytes(dtype, 1)


@dataclass(frozen=True)
class Work:
    """A kernel on its way: the program's buffer of each slot, from which element on, and the arguments.

    `product` is what it stands for, of some rows and columns, where its loops are still those of the product.
    """

    kernel: Kernel
    buffers: tuple[int, ...]
    starts: tuple[int, ...]
    step: Dispatch
    product: Matmul | Convolution | None = None
    # Whether it is one of several parts: what they bind alike is bound by windows, so that they are one kernel.
    is_part: bool = False

    def with_slot(self, buffer: int, slot: BufferSlot, start: int = 0) -> tuple[Work, int]:
        """Return the same with one more slot, and its number."""
        kernel = replace(self.kernel, buffers=(*self.kernel.buffers, slot))
        more = replace(
            self, kernel=kernel, buffers=(*self.buffers, buffer), starts=(*self.starts, start)
        )
        return more, len(self.buffers)


def rewritten(kernel: Kernel, rule: Rule) -> Kernel:
    """Return a kernel with all its expressions rewritten by a rule (see `ex.rewrite`)."""
    memo: dict[Expr, Expr] = {}

    def new(x: Expr) -> Expr:
        """Return an expression rewritten."""
        return ex.rewrite(x, rule, memo)

    return replace(
        kernel,
        reduces=tuple([Reduce(r.op, new(r.value), r.dtype) for r in kernel.reduces]),
        stores=tuple([
            replace(s, position=new(s.position), value=new(s.value),
                    valid=None if s.valid is None else new(s.valid))
            for s in kernel.stores
        ]),
        checks=tuple([replace(c, value=new(c.value)) for c in kernel.checks]),
    )  # fmt: skip


def linear(points: Sequence[Expr], sizes: Sequence[int]) -> Expr:
    """Return the row-major number of a point."""
    total: Expr = ex.const(0, int32)
    for point, stride in zip(points, contiguous_strides(tuple(sizes)), strict=True):
        total = total + point * stride
    return total


def accesses(kernel: Kernel) -> list[Access]:
    """Return what a kernel reads and writes, each once."""
    found = [(n.value, n.args[0]) for n in ex.walk(*kernel.expressions()) if n.op == "load"]
    found += [(s.buffer, s.position) for s in kernel.stores]
    return list(dict.fromkeys(found))


def _narrowed(kernel: Kernel, dim: int, first: int, size: int) -> Kernel:
    """Return a kernel over a part of one of its loops."""
    dims = [*kernel.outer, *kernel.inner]
    if size == dims[dim]:
        return kernel
    dims[dim] = size
    point = ex.index(dim, size) + first

    def rule(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
        """Put the point in the place of the dim's number."""
        del args
        return point if node.op == "index" and node.value[0] == dim else None

    rank = len(kernel.outer)
    return replace(rewritten(kernel, rule), outer=tuple(dims[:rank]), inner=tuple(dims[rank:]))


class Windows:
    """Rewrites a program so that no dispatch binds more than `most` bytes of a buffer."""

    def __init__(self, program: Program, limits: Limits) -> None:
        self.limits = limits
        self.most = min(limits.max_binding_bytes // ALIGN * ALIGN, limits.row_step)
        self.old = program
        self.buffers: list[BufferDecl] = list(program.buffers)
        self.routines: list[Routine] = []
        self.numbers: dict[Routine, int] = {}
        self.steps: list[Step] = []
        self.first = 0
        # The most buffers that a kernel of the program has.
        self.most_slots = 0

    # -- steps

    def dispatch(self, routine: Routine, buffers: Sequence[int], step: Dispatch,
                 starts: Sequence[int] = ()) -> None:  # fmt: skip
        """Add a step."""
        number = self.numbers.setdefault(routine, len(self.routines))
        if number == len(self.routines):
            self.routines.append(routine)
        found = tuple(starts) if any(starts) or self._is_part(routine, buffers) else ()
        self.steps.append(Dispatch(number, tuple(buffers), step.args, step.line, found))
        if len(self.steps) - self.first > _MOST_PARTS:
            raise self.refusal(routine.name, f"it would be more than {_MOST_PARTS} dispatches")

    def _is_part(self, routine: Routine, buffers: Sequence[int]) -> bool:
        return any(
            s.elements != self.buffers[b].elements
            for s, b in zip(routine.buffers, buffers, strict=True)
        )

    def temporary(self, dtype: DType, elements: int) -> int:
        """Return the number of a new buffer."""
        self.buffers.append(BufferDecl("temporary", dtype, elements))
        return len(self.buffers) - 1

    def fits(self, dtype: DType, elements: int) -> bool:
        """Whether so many elements can be bound."""
        return binding_bytes(dtype, elements) <= self.most

    def refusal(self, name: str, why: str) -> OutOfMemoryError:
        """Return the error for what cannot be done in parts."""
        mib = f"{self.limits.max_binding_bytes / (1 << 20):.4g} MiB, "
        return OutOfMemoryError(
            f"{name}: a tensor is more than a kernel can use at once on this adapter "
            f"({mib}{self.limits.max_binding_bytes} bytes), and this cannot be computed in parts: {why}; "
            "split the tensor, or use device 'cpu'"
        )

    # -- kernels

    def kernel(self, kernel: Kernel, step: Dispatch, buffers: Sequence[int] | None = None,
               product: Matmul | Convolution | None = None) -> None:  # fmt: skip
        """Add a kernel's dispatches."""
        buffers = step.buffers if buffers is None else tuple(buffers)
        self.work(Work(kernel, tuple(buffers), (0,) * len(buffers), step, product))

    def work(self, w: Work) -> None:
        """Add the dispatches of a kernel, in as many parts as are needed."""
        k = w.kernel
        everywhere = self._everywhere(k)
        if everywhere is not None:
            self._in_each_window(w, everywhere)
            return
        wide = self._too_wide(k)
        if not wide:
            self._emit(w)
            return
        rank, dims = len(k.outer), len(k.outer) + len(k.inner)
        dim = self._halved(k, wide, range(dims if k.reduces else rank))
        if dim is None:
            raise self.refusal(k.name, "each of its results needs all of it")
        if dim < rank:
            for first, size in self._chunks(k, wide, dim):
                self.work(replace(w, kernel=_narrowed(k, dim, first, size), is_part=True))
        elif len(k.reduces) > 1 or any(s.level == "inner" for s in k.stores):
            self._stage_by_stage(w)
        elif k.reduces[0].reducer.is_position:
            self._stage_by_stage(replace(w, kernel=_without_positions(k), product=None))
        else:
            self._partial(w, wide, dim)

    def interval(
        self, slot: BufferSlot, position: Expr, memo: dict[Expr, Range]
    ) -> tuple[int, int]:
        """Return the first and the last element that a position can be."""
        low, high = bounds(position, memo)
        last = max(slot.elements - 1, 0)
        # (Where all of it lies outside, a mask keeps the kernel from reading it.)
        return int(min(max(low, 0), last)), int(min(max(high, 0), last))

    def _window(self, slot: BufferSlot, low: int, high: int) -> tuple[int, int]:
        """Return where the window with these elements begins, and how many it has."""
        unit = aligned_elements(slot.dtype)
        low -= low % unit
        # Whole words: what follows in the last one is another's.
        per = 16 // min(device_bytes(slot.dtype, 1), 16)
        return low, min(-(-(high + 1 - low) // per) * per, slot.elements - low)

    def _is_wide(self, slot: BufferSlot, low: int, high: int) -> bool:
        return self.crosses(slot.dtype, low, high) or not self.fits(
            slot.dtype, self._window(slot, low, high)[1]
        )

    def up_to_edge(self, dtype: DType, first: int) -> int:
        """Return how many elements from one on lie in the same buffer of a row."""
        step = self.limits.row_step // device_bytes(dtype, 1)
        return step - first % step

    def crosses(self, dtype: DType, low: int, high: int) -> bool:
        """Whether the first and the last of these elements may lie in two buffers of a row."""
        return high - low >= self.up_to_edge(dtype, low)

    def _too_wide(self, k: Kernel) -> list[Access]:
        memo: dict[Expr, Range] = {}
        large = {i for i, s in enumerate(k.buffers) if not self.fits(s.dtype, s.elements)}
        return [
            (slot, position)
            for slot, position in (accesses(k) if large else ())
            if slot in large
            and self._is_wide(k.buffers[slot], *self.interval(k.buffers[slot], position, memo))
        ]

    def _spans(self, k: Kernel, wide: list[Access], dim: int | None, size: int = 0) -> int:
        """Return how many elements these accesses reach, with one loop shorter."""
        memo: dict[Expr, Range] = {}
        if dim is not None:
            memo[ex.index(dim, (*k.outer, *k.inner)[dim])] = (0, size - 1)
        total = 0
        for slot, position in wide:
            low, high = self.interval(k.buffers[slot], position, memo)
            total += high - low
        return total

    def _halved(self, k: Kernel, wide: list[Access], dims: range) -> int | None:
        """Return the loop that makes these accesses narrower: an outer one where that gains something, else the one
        that gains most; None where none does."""
        sizes = (*k.outer, *k.inner)
        whole = self._spans(k, wide, None)
        gains = {
            dim: whole - self._spans(k, wide, dim, -(-sizes[dim] // 2))
            for dim in dims
            if sizes[dim] > 1
        }
        best = max(gains, key=lambda d: gains[d], default=None)
        outer = max((d for d in gains if d < len(k.outer)), key=lambda d: gains[d], default=None)
        if outer is not None and gains[outer] * _GAIN >= whole:
            return outer
        return best if best is not None and gains[best] > 0 else None

    def _chunks(self, k: Kernel, wide: list[Access], dim: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of a loop: as few as make what it reaches fit, or what it alone can do."""
        size = (*k.outer, *k.inner)[dim]
        chunk, spans = size, self._spans(k, wide, None)
        memo: dict[Expr, Range] = {}
        reach = [(k.buffers[s], *self.interval(k.buffers[s], p, memo)) for s, p in wide]
        if all(self.fits(s.dtype, self._window(s, a, b)[1]) for s, a, b in reach):
            # They only reach over an edge.
            cut = self._before_edge(k, wide, dim, 0, size)
            if cut < size:
                yield from self._up_to_edges(k, wide, dim, size)
                return
        while chunk > 1:
            half = -(-chunk // 2)
            # Equal parts of one alignment are one kernel.
            unit = next((u for u in (256, 64, 16, 4) if half >= u), 1)
            half -= half % unit
            narrower = self._spans(k, wide, dim, half)
            if chunk < size and (spans - narrower) * _GAIN < spans:
                break
            chunk, spans = half, narrower
            memo = {ex.index(dim, size): (0, chunk - 1)}
            reach = [(k.buffers[s], *self.interval(k.buffers[s], p, memo)) for s, p in wide]
            # (With room for windows that begin before what is read.)
            if all(self.fits(s.dtype, b - a + 1 + aligned_elements(s.dtype)) for s, a, b in reach):
                break
        yield from self._up_to_edges(k, wide, dim, chunk)

    def _up_to_edges(
        self, k: Kernel, wide: list[Access], dim: int, most: int
    ) -> Iterator[tuple[int, int]]:
        """Yield the parts of a loop, of at most so many rows, cut where they would reach over an edge."""
        size, first = (*k.outer, *k.inner)[dim], 0
        while first < size:
            count = self._before_edge(k, wide, dim, first, min(most, size - first))
            yield first, count
            first += count

    def _before_edge(self, k: Kernel, wide: list[Access], dim: int, first: int, count: int) -> int:
        """Return how many rows of a loop come before one that reaches over an edge, 1 if it is the first.

        Where all rows of an access do, another loop must be cut.
        """
        point = ex.index(dim, (*k.outer, *k.inner)[dim])

        def crosses(access: Access, at: int, rows: int = 1) -> bool:
            """Whether rows of an access reach over an edge."""
            slot = k.buffers[access[0]]
            reach = self.interval(slot, access[1], {point: (at, at + rows - 1)})
            return self.crosses(slot.dtype, *reach)

        here = [a for a in wide if crosses(a, first, count)]
        if not here or count == 1:
            return count
        over = [a for a in here if crosses(a, first)]
        if any(not crosses(a, first + 1) for a in over):
            return 1
        here = [a for a in here if a not in over]
        low, high = 1, count
        while low < high:
            middle = (low + high + 1) // 2
            if any(crosses(a, first, middle) for a in here):
                high = middle - 1
            else:
                low = middle
        return low

    # -- one kernel, ready

    def _emit(self, w: Work) -> None:
        """Add a kernel whose accesses fit, each buffer bound in windows."""
        k = w.kernel
        memo: dict[Expr, Range] = {}
        by_slot: dict[int, list[tuple[int, int, Expr]]] = {}
        for slot, position in accesses(k):
            low, high = self.interval(k.buffers[slot], position, memo)
            by_slot.setdefault(slot, []).append((low, high, position))
        # Of each access: its new slot, and the element at which that begins.
        at: dict[Access, tuple[int, int]] = {}
        slots: list[BufferSlot] = []
        buffers: list[int] = []
        starts: list[int] = []
        for slot, declared in enumerate(k.buffers):
            spans = sorted(by_slot.get(slot, ()), key=lambda s: s[:2])
            if not spans and not (isinstance(w.product, Matmul) and slot < 2):
                continue
            whole = self.fits(declared.dtype, declared.elements)
            groups = [spans] if whole else self._grouped(w, slot, spans)
            for group in groups:
                low, count = 0, declared.elements
                if (w.is_part or not whole) and group:
                    low, count = self._window(
                        declared, min(s[0] for s in group), max(s[1] for s in group)
                    )
                for _, _, position in group:
                    at[slot, position] = len(slots), low
                slots.append(replace(declared, elements=count))
                buffers.append(w.buffers[slot])
                starts.append(w.starts[slot] + low)
        most = max(self.limits.max_buffers_per_kernel, self.most_slots)
        if len(slots) > most:
            self._gathered_apart(w, at, most)
            return
        made = self._moved(k, at, tuple(slots))
        routine: Routine = made
        if isinstance(w.product, Matmul):
            routine = _as_product(made, w.product) or made
        self.dispatch(routine, buffers, w.step, starts)

    def _grouped(
        self, w: Work, slot: int, spans: list[tuple[int, int, Expr]]
    ) -> list[list[tuple[int, int, Expr]]]:
        """Return accesses of a slot in groups that have a window each."""
        declared = w.kernel.buffers[slot]
        groups: list[list[tuple[int, int, Expr]]] = []
        for span in spans:
            last = groups[-1] if groups else None
            reach = max(span[1], *[s[1] for s in last]) if last else 0
            if last is not None and not self._is_wide(declared, last[0][0], reach):
                last.append(span)
            else:
                groups.append([span])
        if len(groups) > 1 and any(s.buffer == slot for s in w.kernel.stores):
            raise self.refusal(w.kernel.name, "it writes a tensor in places far apart")
        return groups

    def _moved(
        self, k: Kernel, at: dict[Access, tuple[int, int]], slots: tuple[BufferSlot, ...]
    ) -> Kernel:
        """Return a kernel with positions in windows."""
        # By what the node was before.
        done: dict[tuple[Expr, int], Expr] = {}

        def shifted(position: Expr, low: int) -> Expr:
            """Return a position, counted from where its window begins."""
            if not low:
                return position
            found = done.get((position, low))
            if found is None:
                form = affine(position)
                if form is None:
                    found = position - low
                else:
                    sizes = (*k.outer, *k.inner)
                    found = ex.const(form.offset - low, int32)
                    for dim, stride in sorted(form.strides.items()):
                        found = found + ex.index(dim, sizes[dim]) * stride
                done[position, low] = found
            return found

        def rule(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
            """Let a load read a window."""
            if node.op != "load":
                return None
            slot, low = at[node.value, node.args[0]]
            return ex.make("load", node.dtype, (shifted(args[0], low), *args[1:]), slot)

        memo: dict[Expr, Expr] = {}
        stores = []
        for s in k.stores:
            slot, low = at[s.buffer, s.position]
            stores.append(
                replace(
                    s,
                    buffer=slot,
                    position=shifted(ex.rewrite(s.position, rule, memo), low),
                    value=ex.rewrite(s.value, rule, memo),
                    valid=None if s.valid is None else ex.rewrite(s.valid, rule, memo),
                )
            )
        bare = rewritten(replace(k, stores=()), rule)
        return replace(bare, stores=tuple(stores), buffers=slots)

    # -- positions that are read from memory

    def _everywhere(self, k: Kernel) -> Expr | Store | None:
        """Return a load or store that may reach too much at one point of the loops already: its position is data."""
        large = {i for i, s in enumerate(k.buffers) if not self.fits(s.dtype, s.elements)}
        if not large:
            return None
        memos: list[dict[Expr, Range]] = []
        for part in (0, 1):
            sizes = (*k.outer, *k.inner)
            memos.append({ex.index(d, n): (part * (n - 1),) * 2 for d, n in enumerate(sizes)})

        def is_data(slot: int, position: Expr) -> bool:
            """Whether the place of a load depends on data, and no window holds all of them."""
            return slot in large and any(
                self._is_wide(k.buffers[slot], *self.interval(k.buffers[slot], position, memo))
                for memo in memos
            )

        # The last of a walk is the outermost: what its position reads goes with it.
        found = None
        for node in ex.walk(*k.expressions()):
            if node.op == "load" and is_data(node.value, node.args[0]):
                found = node
        if found is not None:
            return found
        return next((s for s in k.stores if is_data(s.buffer, s.position)), None)

    def _in_each_window(self, w: Work, access: Expr | Store) -> None:
        k = w.kernel
        if isinstance(access, Store):
            if k.reduces:
                self._stage_by_stage(w)
            else:
                self._scatter(w, access)
        elif any(n.op == "reduced" for n in ex.walk(*access.args)):
            self._stage_by_stage(w)
        else:
            self.work(self._gathered(w, access))

    def _gathered(self, w: Work, node: Expr) -> Work:
        """Add what computes a part of a kernel's values into memory of its own; return the kernel that reads it there.

        Of a load from anywhere each window of the buffer is looked through.
        """
        k = w.kernel
        sizes = (*k.outer, *k.inner)
        is_load = node.op == "load"
        roots = node.args[:2] if is_load else (node,)
        dims = sorted({n.value[0] for n in ex.walk(*roots) if n.op == "index"})
        shape = tuple([sizes[d] for d in dims])
        place = {d: ex.index(i, sizes[d]) for i, d in enumerate(dims)}
        buffer = self.temporary(node.dtype, numel(shape))
        slot = BufferSlot(node.dtype, "write", numel(shape))

        def rule(n: Expr, args: tuple[Expr, ...]) -> Expr | None:
            """Number the dims that the value depends on."""
            del args
            return place[n.value[0]] if n.op == "index" else None

        first = Work(
            replace(k, name=f"{k.name}_read", outer=shape, inner=(), reduces=(), stores=(), checks=()),
            w.buffers, w.starts, w.step,
        )  # fmt: skip
        first, target = first.with_slot(buffer, slot)
        flat = linear([place[d] for d in dims], shape)
        if not is_load:
            store = Store(target, flat, ex.rewrite(node, rule))
            self.work(replace(first, kernel=replace(first.kernel, stores=(store,))))
        else:
            position, *masked = (ex.rewrite(a, rule) for a in node.args)
            if masked:
                position = ex.where(masked[0], position, 0)
            self._look_through(first, node, position, target, flat)
        now, number = w.with_slot(buffer, replace(slot, access="read"))
        value: Expr = ex.load(
            number, node.dtype, linear([ex.index(d, sizes[d]) for d in dims], shape)
        )

        def other(n: Expr, args: tuple[Expr, ...]) -> Expr | None:
            """Read the value in the place of computing it."""
            if n is not node:
                return None
            return ex.where(args[1], value, args[2]) if is_load and len(args) == 3 else value

        return replace(now, kernel=rewritten(now.kernel, other))

    def _look_through(self, w: Work, node: Expr, position: Expr, target: int, at: Expr) -> None:
        """Add a copy of what lies at positions that are data, from each window of a buffer."""
        source = w.kernel.buffers[node.value]
        position = ex.binary("min", ex.binary("max", position, 0), source.elements - 1)
        for low, count in self._windows_of(source):
            value = ex.load(node.value, node.dtype, position - low)
            store = Store(target, at, value, valid=generic.within(position - low, count))
            self.work(self._at_window(w, node.value, low, count, (store,)))

    def _windows_of(self, slot: BufferSlot) -> Iterator[tuple[int, int]]:
        """Yield the windows of a whole buffer: the first element and how many."""
        unit = aligned_elements(slot.dtype)
        count = self.most // device_bytes(slot.dtype, 1) // unit * unit
        low = 0
        while low < slot.elements:
            size = min(count, self.up_to_edge(slot.dtype, low), slot.elements - low)
            yield low, size
            low += size

    def _at_window(
        self, w: Work, slot: int, low: int, count: int, stores: tuple[Store, ...]
    ) -> Work:
        """Return a kernel with other stores, for which a slot is a window."""
        slots, starts = list(w.kernel.buffers), list(w.starts)
        slots[slot] = replace(slots[slot], elements=count)
        starts[slot] += low
        kernel = replace(w.kernel, buffers=tuple(slots), stores=stores)
        return replace(w, kernel=kernel, starts=tuple(starts))

    def _scatter(self, w: Work, store: Store) -> None:
        """Add a store to positions that are data: for each window of the buffer those that lie in it."""
        k = w.kernel
        self._needs_no_order(w)
        others = tuple([s for s in k.stores if s is not store])
        if others:
            self.work(replace(w, kernel=replace(k, stores=others)))
        for low, count in self._windows_of(k.buffers[store.buffer]):
            inside = generic.within(store.position - low, count)
            valid = inside if store.valid is None else store.valid & inside
            part = replace(store, position=store.position - low, valid=valid)
            self.work(self._at_window(w, store.buffer, low, count, (part,)))

    def _needs_no_order(self, w: Work) -> None:
        """Refuse a kernel that reads what it writes."""
        if self._reads(w) & {w.buffers[s.buffer] for s in w.kernel.stores}:
            raise self.refusal(w.kernel.name, "it overwrites what it reads")

    def _gathered_apart(self, w: Work, at: dict[Access, tuple[int, int]], most: int) -> None:
        """Add a kernel that would bind more than `most` windows: a part of its values that needs many of them is
        computed first."""
        needs: dict[Expr, frozenset[int]] = {}
        best = None
        for node in ex.walk(*w.kernel.expressions()):
            found = frozenset().union(*[needs[a] for a in node.args])
            if node.op == "load":
                found |= {at[node.value, node.args[0]][0]}
            # (As many as no kernel has.)
            needs[node] = found if node.op != "reduced" else frozenset(range(-most, 0))
            if 1 < len(needs[node]) < most and (best is None or len(needs[best]) < len(found)):
                best = node
        if best is None:
            raise self.refusal(w.kernel.name, "it reads too many places far apart")
        self.work(self._gathered(w, best))

    # -- reductions

    def _stage_by_stage(self, w: Work) -> None:
        """Add a kernel of several reductions as kernels of one each, and of none for what is stored."""
        k = w.kernel
        if not k.reduces:
            raise self.refusal(k.name, "each of its results needs all of it")
        flat = linear([ex.index(d, n) for d, n in enumerate(k.outer)], k.outer)
        place: dict[Expr, Expr] = {}

        def known(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
            """Return what stands in the place of a node, if anything does."""
            del args
            return place.get(node)

        now = (
            w if isinstance(w.product, Matmul) and len(k.reduces) == 1 else replace(w, product=None)
        )
        early = tuple([c for c in k.checks if not any(n.op == "reduced" for n in ex.walk(c.value))])
        for stage, reduce in enumerate(k.reduces):
            buffer = self.temporary(reduce.dtype, k.outer_count)
            slot = BufferSlot(reduce.dtype, "write", k.outer_count)
            one, number = now.with_slot(buffer, slot)
            value = ex.rewrite(reduce.value, known)
            store = Store(number, flat, ex.reduced(0, reduce.dtype))
            kernel = replace(
                one.kernel, name=f"{k.name}_{stage}", stores=(store,),
                reduces=(replace(reduce, value=value),), checks=() if stage else early,
            )  # fmt: skip
            self.work(replace(one, kernel=kernel))
            now, number = now.with_slot(buffer, replace(slot, access="read"))
            now = replace(now, product=None)
            place[ex.reduced(stage, reduce.dtype)] = ex.load(number, reduce.dtype, flat)
        rest = rewritten(
            replace(now.kernel, reduces=(), checks=tuple([c for c in k.checks if c not in early])),
            known,
        )
        for level in self._levels_in_order(replace(now, kernel=rest)):
            outer = (*k.outer, *k.inner) if level == "inner" else k.outer
            kernel = replace(
                rest, outer=outer, inner=(),
                stores=tuple([replace(s, level="outer") for s in rest.stores if s.level == level]),
                checks=tuple([replace(c, level="outer") for c in rest.checks if c.level == level]),
            )  # fmt: skip
            self.work(replace(now, kernel=kernel, product=None))

    def _levels_in_order(self, w: Work) -> Sequence[str]:
        """Return the levels of a kernel's stores, so that none overwrites what a later one reads."""
        levels = list(dict.fromkeys(s.level for s in w.kernel.stores))
        if len(levels) < 2:
            return levels
        for one, two in (levels, levels[::-1]):
            written = {w.buffers[s.buffer] for s in w.kernel.stores if s.level == one}
            later = [s for s in w.kernel.stores if s.level == two]
            if not self._reads(replace(w, kernel=replace(w.kernel, stores=tuple(later)))) & written:
                return one, two
        raise self.refusal(w.kernel.name, "it overwrites what it reads")

    def _reads(self, w: Work) -> set[int]:
        """Return the program's buffers that a kernel reads."""
        loads = [n for n in ex.walk(*w.kernel.expressions()) if n.op == "load"]
        return {w.buffers[n.value] for n in loads}

    def _partial(self, w: Work, wide: list[Access], dim: int) -> None:
        """Add a reduction in parts of an inner loop: each combines its result with that of those before."""
        k = w.kernel
        (reduce,) = k.reduces
        flat = linear([ex.index(d, n) for d, n in enumerate(k.outer)], k.outer)
        buffer = self.temporary(reduce.dtype, k.outer_count)
        last, number = w.with_slot(buffer, BufferSlot(reduce.dtype, "read_write", k.outer_count))
        result = ex.reduced(0, reduce.dtype)
        combine = reduce.reducer.function(reduce.dtype).name
        combined = ex.binary(combine, ex.load(number, reduce.dtype, flat), result)
        chunks = list(self._chunks(k, wide, dim))
        for part, (first, size) in enumerate(chunks):
            kernel = _narrowed(replace(last.kernel, stores=()), dim, first, size)
            if part < len(chunks) - 1:
                stores: tuple[Store, ...] = (Store(number, flat, combined if part else result),)
            else:
                stores = rewritten(
                    replace(k, reduces=()), lambda node, _: combined if node is result else None
                ).stores
            kernel = replace(kernel, name=f"{k.name}_part", stores=stores)
            self.work(replace(last, kernel=kernel, is_part=True))


def _without_positions(k: Kernel) -> Kernel:
    """Return a kernel that looks for the position of an extreme as one that looks for the extreme and its place."""
    (reduce,) = k.reduces
    extreme = Reduce("max" if reduce.op == "argmax" else "min", reduce.value, reduce.value.dtype)
    best = ex.reduced(0, extreme.dtype)
    same = ex.eq(reduce.value, best)
    if reduce.value.dtype.kind == "float":
        same = ex.binary("or", same, ex.isnan(reduce.value))
    rank = len(k.outer)
    place = linear([ex.index(rank + d, n) for d, n in enumerate(k.inner)], k.inner)
    far = integer_limits(int32)[1]
    second = Reduce("min", ex.where(same, place, far), int32)
    found = ex.cast(ex.reduced(1, int32), reduce.dtype)
    was = ex.reduced(0, reduce.dtype)
    stores = rewritten(
        replace(k, reduces=()), lambda node, _: found if node is was else None
    ).stores
    return replace(k, reduces=(extreme, second), stores=stores)


def _as_product(k: Kernel, product: Matmul) -> Matmul | None:
    """Return a part of a product, whose loops and operands are the kernel's, as a product."""
    if len(k.reduces) != 1 or len(k.inner) != 1 or len(k.outer) != len(product.points):
        return None
    factors = k.reduces[0].value.args
    operands = []
    for factor in factors:
        loads = [n for n in ex.walk(factor) if n.op == "load"]
        form = affine(loads[0].args[0]) if len(loads) == 1 else None
        if form is None:
            return None
        operands.append((loads[0].value, form))
    if [slot for slot, _ in operands] != [0, 1]:
        return None
    (_, left), (_, right) = operands
    rank = len(k.outer)
    batch = range(rank - 2)
    return replace(
        product,
        batch=k.outer[:-2],
        m=k.outer[-2],
        n=k.outer[-1],
        k=k.inner[0],
        left_strides=(*[left.stride(d) for d in batch], left.stride(rank - 2), left.stride(rank)),
        right_strides=(
            *[right.stride(d) for d in batch],
            right.stride(rank),
            right.stride(rank - 1),
        ),
        left_offset=left.offset,
        right_offset=right.offset,
        buffers=k.buffers,
        args=k.args,
        epilogue=k.stores,
    )
