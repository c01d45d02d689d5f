"""Kernel -> Kernel rewrites that suit processor caches and threads: tiling, and splitting of long reductions.

Both keep the kernel's meaning: outer points may run in any order. Imports floors 0-2.
"""

from __future__ import annotations

from dataclasses import replace

from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType, int32
from webtorch.ir.expr import Expr
from webtorch.ir.kernel import Access, BufferSlot, Kernel, Reduce, Store
from webtorch.ir.view import numel
from webtorch.lower.affine import affine

# A tile: rows x columns of elements whose cache lines are used up before they are evicted.
_TILE_ROWS = (32, 16, 24, 8)
_TILE_COLUMNS = (64, 32, 128, 48, 16)
# Reductions of at least this many points, to at most so many results, are split into parts.
_SPLIT_POINTS = 1 << 18
_SPLIT_RESULTS = 16
_PARTS = 16


def tile(kernel: Kernel) -> Kernel:
    """Return an elementwise kernel that walks a transposed operand in tiles, or the kernel itself."""
    outer = kernel.outer
    live = [d for d, size in enumerate(outer) if size > 1]
    if (
        kernel.inner
        or kernel.reduces
        or kernel.checks
        or len(live) < 2
        or kernel.outer_count < 1 << 14
    ):
        return kernel
    last = live[-1]
    across = _transposed(kernel, last)
    if across is None:
        return kernel
    rows = next((t for t in _TILE_ROWS if outer[across] % t == 0 and outer[across] > t), 0)
    columns = next(
        (t for t in _TILE_COLUMNS if outer[last] % t == 0 and outer[last] > t), outer[last]
    )
    if not rows:
        return kernel
    # New order: the other dims, tiles down, tiles across, rows in a tile, columns in a tile.
    rest = [d for d in live if d not in (across, last)]
    sizes = [outer[d] for d in rest] + [
        outer[across] // rows,
        outer[last] // columns,
        rows,
        columns,
    ]
    count = len(rest)
    new: dict[int, Expr] = {d: ex.index(n, outer[d]) for n, d in enumerate(rest)}
    new[across] = ex.index(count, sizes[count]) * rows + ex.index(count + 2, rows)
    new[last] = ex.index(count + 1, sizes[count + 1]) * columns + ex.index(count + 3, columns)
    for d, size in enumerate(outer):
        if size == 1:
            new[d] = ex.const(0, int32)
    memo: dict[Expr, Expr] = {}

    def moved(x: Expr) -> Expr:
        """Return an expression over the new loops."""
        return _renumbered(x, new, memo)

    stores = tuple(
        replace(
            s,
            position=moved(s.position),
            value=moved(s.value),
            valid=None if s.valid is None else moved(s.valid),
        )
        for s in kernel.stores
    )
    return replace(kernel, outer=tuple(sizes), stores=stores)


def _transposed(kernel: Kernel, last: int) -> int | None:
    """Return the dim along which a load is contiguous while stores are contiguous along `last`."""
    found: int | None = None
    for store in kernel.stores:
        where = affine(store.position)
        if where is None or where.stride(last) != 1 or store.combine != "set":
            return None
        for node in ex.walk(store.value):
            if node.op != "load":
                continue
            source = affine(node.args[0])
            if source is None:
                return None
            if abs(source.stride(last)) >= 16:
                ones = [d for d, stride in source.strides.items() if stride == 1 and d != last]
                if ones and found in (None, ones[0]):
                    found = ones[0]
    return found


def _renumbered(x: Expr, new: dict[int, Expr], memo: dict[Expr, Expr]) -> Expr:
    """Replace loop variables."""
    return ex.rewrite(x, lambda node, _: new[node.value[0]] if node.op == "index" else None, memo)


def split(
    kernel: Kernel,
) -> tuple[list[Kernel], list[tuple[DType, int]], list[tuple[int, ...]]] | None:
    """Return kernels that reduce parts, then join them, where one reduction is too long for one thread.

    The result is the kernels in order, the scratch buffers (type, elements) that they share, and for each kernel the
    numbers of its buffers: the kernel's own first, scratch after them. None where the kernel should stay as it is. The
    number of parts does not depend on the machine, so results do not either.
    """
    inner = kernel.inner
    results = kernel.outer_count
    points = results * kernel.inner_count
    if (
        not kernel.reduces
        or not inner
        or points < _SPLIT_POINTS
        or results > _SPLIT_RESULTS
        or kernel.checks
    ):
        return None
    if any(r.reducer.is_position for r in kernel.reduces) or any(
        b.access == "read_write" for b in kernel.buffers
    ):
        return None
    first = next(d for d, size in enumerate(inner) if size > 1)
    return _Splitter(kernel, first).split()


class _Splitter:
    def __init__(self, kernel: Kernel, first: int) -> None:
        self.kernel = kernel
        self.own = len(kernel.buffers)
        self.outer = kernel.outer
        self.first = first
        self.length = kernel.inner[first]
        self.parts = min(
            next((p for p in (16, 32, 8, 64, 24, 12) if self.length % p == 0), _PARTS), self.length
        )
        self.chunk = -(-self.length // self.parts)
        self.kernels: list[Kernel] = []
        self.bindings: list[tuple[int, ...]] = []
        self.scratch: list[tuple[DType, int]] = []
        # Reduction -> scratch buffer of its finished values.
        self.finished: dict[int, int] = {}

    def split(self) -> tuple[list[Kernel], list[tuple[DType, int]], list[tuple[int, ...]]]:
        """Split all stages, each after those that it reads."""
        done: set[int] = set()
        while len(done) < len(self.kernel.reduces):
            ready = [
                k for k, r in enumerate(self.kernel.reduces)
                if k not in done and all(n.value in done for n in ex.walk(r.value) if n.op == "reduced")
            ]  # fmt: skip
            self.stage(ready)
            done |= set(ready)
        self.epilogue("outer")
        self.epilogue("inner")
        return self.kernels, self.scratch, self.bindings

    def new_scratch(self, dtype: DType, elements: int) -> int:
        """Return the number of a new scratch buffer."""
        self.scratch.append((dtype, elements))
        return self.own + len(self.scratch) - 1

    def outer_number(self, shift: int) -> Expr:
        """Return the row-major number of the outer point, its dims numbered from `shift`."""
        number = ex.const(0, int32)
        for d, size in enumerate(self.outer):
            number = number * size + ex.index(d + shift, size)
        return number

    def add(self, kernel: Kernel, extra: list[int]) -> None:
        """Add a kernel; its bindings are the own buffers, then `extra`."""
        self.kernels.append(kernel)
        self.bindings.append((*range(self.own), *extra))

    def slots(self, extra: list[tuple[int, Access]]) -> tuple[BufferSlot, ...]:
        """Return the bindings of a kernel that reads the own buffers and uses scratch ones."""
        own = tuple(replace(b, access="read") for b in self.kernel.buffers)
        scratch = [(*self.scratch[number - self.own], access) for number, access in extra]
        return own + tuple(
            BufferSlot(dtype, access, elements) for dtype, elements, access in scratch
        )

    def stage(self, group: list[int]) -> None:
        """Reduce each part, then the parts."""
        results = numel(self.outer)
        types = [self.kernel.reduces[k].value.dtype for k in group]
        partials = [self.new_scratch(dtype, self.parts * results) for dtype in types]
        wholes = [self.new_scratch(dtype, results) for dtype in types]
        self.reduce_parts(group, partials)
        self.join_parts(group, partials, wholes)

    def reduce_parts(self, group: list[int], partials: list[int]) -> None:
        """Reduce each part into its place in `partials`."""
        kernel, outer = self.kernel, self.outer
        known = sorted(self.finished.values())
        local = {n: self.own + i for i, n in enumerate(known)}
        part = ex.index(0, self.parts)
        dims = len(outer)
        at = part * self.chunk + ex.index(dims + 1 + self.first, self.chunk)
        whole = self.chunk * self.parts == self.length
        valid = None if whole else ex.lt(at, ex.const(self.length, int32))
        new = {d: ex.index(d + 1, size) for d, size in enumerate(outer + kernel.inner)}
        new[dims + self.first] = at
        number = self.outer_number(1)

        def rule(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
            """Return what a node of the stage is in the kernel of the parts."""
            if node.op == "index":
                return new[node.value[0]]
            if node.op == "reduced":
                return ex.load(local[self.finished[node.value]], node.dtype, number)
            if node.op == "load" and valid is not None:
                if len(args) == 1:
                    return ex.make(
                        "load", node.dtype, (args[0], valid, ex.const(0, node.dtype)), node.value
                    )
                return ex.make("load", node.dtype, (args[0], args[1] & valid, args[2]), node.value)
            return None

        memo: dict[Expr, Expr] = {}
        reduces, stores = [], []
        for i, k in enumerate(group):
            r = kernel.reduces[k]
            value = ex.rewrite(r.value, rule, memo)
            if valid is not None:
                value = ex.where(valid, value, r.identity)
            reduces.append(Reduce(r.op, value, value.dtype))
            place = part * numel(outer) + number
            stores.append(Store(self.own + len(known) + i, place, ex.reduced(i, value.dtype)))
        inner = tuple(
            self.chunk if d == self.first else size for d, size in enumerate(kernel.inner)
        )
        slots = self.slots([(n, "read") for n in known] + [(n, "write") for n in partials])
        loops = (self.parts, *outer), inner
        name = f"{kernel.name}_parts"
        self.add(
            Kernel(name, *loops, slots, kernel.args, tuple(reduces), tuple(stores)),
            known + partials,
        )

    def join_parts(self, group: list[int], partials: list[int], wholes: list[int]) -> None:
        """Reduce the parts into `wholes`."""
        kernel, outer = self.kernel, self.outer
        number = self.outer_number(0)
        place = ex.index(len(outer), self.parts) * numel(outer) + number
        reduces, stores = [], []
        for i, k in enumerate(group):
            r = kernel.reduces[k]
            dtype = r.value.dtype
            reduces.append(Reduce(r.op, ex.load(self.own + i, dtype, place), dtype))
            stores.append(Store(self.own + len(group) + i, number, ex.reduced(i, dtype)))
            self.finished[k] = wholes[i]
        slots = self.slots([(n, "read") for n in partials] + [(n, "write") for n in wholes])
        name = f"{kernel.name}_join"
        self.add(
            Kernel(name, outer, (self.parts,), slots, kernel.args, tuple(reduces), tuple(stores)),
            partials + wholes,
        )

    def epilogue(self, level: str) -> None:
        """Do the stores of one level; inner ones become an elementwise kernel over all points."""
        kernel = self.kernel
        chosen = [s for s in kernel.stores if s.level == level]
        if not chosen:
            return
        known = sorted(self.finished.values())
        local = {n: self.own + i for i, n in enumerate(known)}
        number = self.outer_number(0)
        memo: dict[Expr, Expr] = {}

        def moved(x: Expr) -> Expr:
            """Return an expression with the finished reductions read from scratch memory."""
            return ex.rewrite(
                x,
                lambda n, _: (
                    ex.load(local[self.finished[n.value]], n.dtype, number)
                    if n.op == "reduced"
                    else None
                ),
                memo,
            )

        stores = tuple(
            replace(
                s,
                position=moved(s.position),
                value=moved(s.value),
                valid=None if s.valid is None else moved(s.valid),
                level="outer",
            )
            for s in chosen
        )
        written = {s.buffer for s in stores}
        slots = self.slots([(n, "read") for n in known])
        slots = tuple(
            replace(b, access="write") if i in written else b for i, b in enumerate(slots)
        )
        outer = kernel.outer + (kernel.inner if level == "inner" else ())
        self.add(Kernel(f"{kernel.name}_{level}", outer, (), slots, kernel.args, (), stores), known)
