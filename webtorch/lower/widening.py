"""Which int64 values of a program need more than 32 bits, and the program that computes them so. Floor 2; imports
floor 0 and the generic forms of templates.

On WebGPU int64 lies in 32 bits where they are enough, as indices and labels do. Each buffer of it carries the least
and the largest value that it may hold. Before a program runs, `Widths` follows them through its expressions; a kernel
in which a value may leave 32 bits, and one that reads or writes a wide buffer, is rewritten in `wide_int64`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from webtorch.errors import DTypeError
from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType, Scalar, bool_, int32, int64, integer_limits, uint32, wide_int64
from webtorch.ir.expr import FUNCTIONS, Expr
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
)
from webtorch.ir.program import BufferDecl, Copy, Dispatch, Program, Step
from webtorch.ir.view import numel
from webtorch.lower.affine import affine
from webtorch.lower.bounds import bounds
from webtorch.lower.templates import generic

Held = tuple[int, int]
NARROW: Held = integer_limits(int32)
_LEAST, _MOST = NARROW
FULL: Held = integer_limits(int64)
# Of so many kinds of values it is remembered what they need.
_MOST_KNOWN = 256


def held_by(stored: DType) -> Held:
    """Return what a buffer of int64 may hold of which no more is known."""
    return FULL if stored is wide_int64 else NARROW


def _union(a: Held, b: Held) -> Held:
    return min(a[0], b[0]), max(a[1], b[1])


def _fits(held: Held, limits: Held = NARROW) -> bool:
    return limits[0] <= held[0] and held[1] <= limits[1]


def _within(held: tuple[float, float], dtype: DType) -> Held:
    """Return bounds of a value of a type: what may leave it wraps around."""
    limits = integer_limits(dtype)
    low, high = held
    if not (limits[0] <= low and high <= limits[1]):
        return limits
    return math.floor(low), math.ceil(high)


@dataclass(frozen=True, slots=True)
class Needs:
    """What is wide: buffers of a program, inputs that are so before it runs, and steps that compute so. `held`: what
    its outputs may hold then.
    """

    buffers: frozenset[int]
    inputs: frozenset[int]
    steps: frozenset[int]
    held: tuple[Held | None, ...]


class _Body:
    """The int64 values of one kernel, in the order in which they are computed."""

    def __init__(self, kernel: Kernel, stages: Sequence[Reduce] | None = None) -> None:
        self.kernel = kernel
        self.stages = kernel.reduces if stages is None else stages
        order = list(ex.walk(*kernel.expressions()))
        self.stores = [s for s in kernel.stores if kernel.buffers[s.buffer].dtype is int64]
        # Those that leave nothing of what was there.
        self.whole = [
            s
            for s in self.stores
            if kernel.buffers[s.buffer].elements == _points(s, kernel)
            and (s.combine, s.valid) == ("set", None)
            and affine(s.position)
        ]
        needed = {n for n in order if n.dtype is int64}
        self.uses = bool(needed) or any(b.dtype is int64 for b in kernel.buffers)
        # Of x + n where x is below 0, else x: the sum counts where it is taken only.
        self.chosen = {
            n.args[1] for n in order if n.op == "where" and n.dtype is int64 and _counts_from_end(n)
        }
        for node in reversed(order):
            if node in needed and node.op != "bitcast":
                read = node.args[2:] if node.op == "load" else node.args
                needed.update(a for a in read if a.dtype.kind in ("int", "uint"))
        # What is the same in every run is known; the other nodes are followed in each.
        self.known: dict[Expr, Held] = {}
        self.leaves = False
        self.nodes: list[Expr] = []
        changing: set[Expr] = set()
        for node in order:
            if node.op == "bitcast" and node.args[0].dtype is int64:
                # All 64 bits are looked at.
                self.leaves = True
            if node not in needed:
                continue
            given = node.dtype is int64 and node.op in ("load", "arg", "reduced")
            if given or not changing.isdisjoint(node.args):
                changing.add(node)
                self.nodes.append(node)
                continue
            found = self.known[node] = _within(_bounds_of(node, self.known), node.dtype)
            if node.dtype is int64 and node not in self.chosen and not _fits(found):
                self.leaves = True


def _counts_from_end(node: Expr) -> bool:
    """Whether a where() is an index that counts from the end, if it is below 0."""
    condition, moved, x = node.args
    return (
        condition.op == "lt"
        and condition.args[0] is x
        and condition.args[1].op == "const"
        and condition.args[1].value == 0
        and moved.op == "add"
        and moved.args[0] is x
        and moved.args[1].op == "const"
    )


class Widths:
    """Follows what int64 buffers and arguments may hold through a program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        given = len(program.args) - len(program.constants)
        # Which inputs and which arguments of a run are int64.
        self.inputs = [i for i, b in enumerate(program.inputs) if self._is_long(b)]
        self.args = [n for n, d in enumerate(program.args[:given]) if d is int64]
        self.outputs = [i for i, b in enumerate(program.outputs) if self._is_long(b)]
        self.bodies = {n: _bodies(r) for n, r in enumerate(program.routines)}
        self.known: dict[object, Needs] = {}
        self.long = frozenset([n for n, b in enumerate(program.buffers) if b.dtype is int64])
        self.taken_over = [
            (n, b.alias)
            for n, b in enumerate(program.buffers)
            if n in self.long and b.role == "output" and b.alias is not None
        ]
        self.steps = [
            (n, step)
            for n, step in enumerate(program.steps)
            if not self.long.isdisjoint(step.buffers)
            or (isinstance(step, Dispatch) and any(b.uses for b in self.bodies[step.routine]))
        ]
        self.uses = bool(self.long or self.steps)
        self.numbers = {
            given + i: int(v)
            for i, v in enumerate(program.constants)
            if program.args[given + i] is int64
        }

    def _is_long(self, buffer: int) -> bool:
        return self.program.buffers[buffer].dtype is int64

    def least(self) -> Needs:
        """Return what is wide whatever the values are."""
        return self.needs([(0, 0)] * len(self.inputs), [0] * len(self.args), ())

    def needs(self, held: Sequence[Held], args: Sequence[Scalar], wide: Sequence[int]) -> Needs:
        """Return what is wide where int64 inputs hold this, int64 arguments are these, and the inputs with the numbers
        `wide` are.
        """
        key = (*held, *args, -1, *wide)
        found = self.known.get(key)
        if found is None:
            if len(self.known) >= _MOST_KNOWN:
                self.known.clear()
            found = self.known[key] = self._found(held, args, wide)
        return found

    def _found(self, held: Sequence[Held], args: Sequence[Scalar], wide: Sequence[int]) -> Needs:
        program = self.program
        numbers = dict(zip(self.args, map(int, args), strict=True)) | self.numbers
        holds: dict[int, Held] = {
            program.inputs[i]: h for i, h in zip(self.inputs, held, strict=True)
        }
        given = frozenset([program.inputs[i] for i in wide])
        large = set(given)
        for number, alias in self.taken_over:
            if alias in holds:
                holds[number] = holds[alias]
            if alias in large:
                large.add(number)
        steps = set()
        for number, step in self.steps:
            if isinstance(step, Copy):
                if step.source in holds:
                    holds[step.target] = holds[step.source]
                if step.source in large:
                    large.add(step.target)
                continue
            flow = _Flow(step, holds, numbers)
            flow.follow(program.routines[step.routine], self.bodies[step.routine])
            if flow.leaves:
                steps.add(number)
        large |= {b for b, h in holds.items() if not _fits(h)}
        if large:
            steps |= {
                n
                for n, step in self.steps
                if isinstance(step, Dispatch) and not large.isdisjoint(step.buffers)
            }
        then = tuple([holds.get(b) for b in program.outputs])
        return Needs(frozenset(large), given, frozenset(steps), then)


def _bodies(routine: Routine) -> list[_Body]:
    match routine:
        case Kernel():
            return [_Body(routine)]
        case Several():
            return [_Body(part) for part in routine.parts]
        case Matmul() | Convolution() if routine.epilogue:
            return [_Body(epilogue_of(routine), ())]
        case Products():
            return [b for part in routine.parts for b in _bodies(part)]
    return []


class _Flow:
    """One step: what its values may be, of what its buffers hold and its arguments are."""

    def __init__(self, step: Dispatch, holds: dict[int, Held], numbers: dict[int, int]) -> None:
        self.step, self.holds, self.numbers = step, holds, numbers
        # Whether a value may leave 32 bits.
        self.leaves = False

    def follow(self, routine: Routine, bodies: Sequence[_Body]) -> None:
        """Note what the step leaves in its buffers."""
        match routine:
            case Matmul() | Convolution():
                self._product(routine, list(range(len(routine.buffers))), bodies)
            case Products():
                rest = list(bodies)
                for part, places in zip(routine.parts, routine.places, strict=True):
                    count = 1 if part.epilogue else 0
                    self._product(part, places, rest[:count])
                    rest = rest[count:]
            case Scan():
                self._scan(routine)
            case Sort():
                self._put(1, (0, max(routine.length - 1, 0)))
            case Kernel() | Several():
                for body in bodies:
                    self._run(body, {})
            case _:
                for slot, b in enumerate(routine.buffers):
                    if b.dtype is int64 and b.access != "read":
                        self._put(slot, NARROW)

    def _read(self, slot: int) -> Held:
        return self.holds.get(self.step.buffers[slot], NARROW)

    def _put(self, slot: int, held: Held) -> None:
        buffer = self.step.buffers[slot]
        before = self.holds.get(buffer)
        self.holds[buffer] = held if before is None else _union(before, held)

    def _noted(self, held: tuple[float, float]) -> Held:
        """Return the bounds of an int64 value, and note whether they are beyond 32 bits."""
        low, high = held
        if low >= _LEAST and high <= _MOST:
            return math.floor(low), math.ceil(high)
        self.leaves = True
        return _within(held, int64)

    def _product(
        self, r: Matmul | Convolution, places: Sequence[int], bodies: Sequence[_Body]
    ) -> None:
        dtype = r.accumulates
        total: Held = NARROW
        if dtype is int64:
            sides = [
                self._read(places[i]) if b.dtype is int64 else integer_limits(b.dtype)
                for i, b in enumerate(r.buffers[:2])
            ]
            most = math.prod(max(map(abs, s)) for s in sides) * _terms(r)
            total = self._noted((-most, most))
        if bodies:
            self._run(bodies[0], {0: total}, places)
        elif r.buffers[2].dtype is int64:
            self._put(places[2], total)

    def _scan(self, r: Scan) -> None:
        source, out = (b.dtype for b in r.buffers[:2])
        if out is not int64:
            return
        held = self._read(0) if source is int64 else _of_type(source)
        self._put(1, self._noted(_reduced(r.op, held, r.length)))

    def _run(
        self, body: _Body, reduced: dict[int, Held], places: Sequence[int] | None = None
    ) -> None:
        if not body.uses:
            return
        kernel = body.kernel
        found = dict(body.known)
        self.leaves |= body.leaves
        slots = range(len(kernel.buffers)) if places is None else places
        for node in body.nodes:
            long = node.dtype is int64
            if not long or (node.args and node.op != "load"):
                value = _bounds_of(node, found)
            elif node.op == "reduced":
                stage = node.value
                if stage not in reduced:
                    reduced[stage] = self._stage(body.stages[stage], kernel, found)
                value = reduced[stage]
            elif node.op == "load":
                value = self._read(slots[node.value])
                if len(node.args) == 3:
                    value = _union(value, found[node.args[2]])
            else:
                number = self.numbers[self.step.args[node.value]]
                value = number, number
            if long and node not in body.chosen:
                found[node] = self._noted(value)
            else:
                found[node] = _within(value, node.dtype)
        for stage, reduce in enumerate(body.stages):
            if stage not in reduced and reduce.value.dtype is int64:
                reduced[stage] = self._stage(reduce, kernel, found)
        for store in body.stores:
            self._store(store, body, found, slots[store.buffer])

    def _stage(self, reduce: Reduce, kernel: Kernel, found: dict[Expr, Held]) -> Held:
        count = kernel.inner_count
        if reduce.reducer.is_position:
            return 0, max(count - 1, 0)
        if reduce.value.dtype is not int64:
            return integer_limits(reduce.dtype)
        return self._noted(_reduced(reduce.op, found[reduce.value], count))

    def _store(self, store: Store, body: _Body, found: dict[Expr, Held], slot: int) -> None:
        held = found[store.value]
        if store.combine == "add":
            before = self.holds.get(self.step.buffers[slot], (0, 0))
            low, high = _reduced("sum", held, _points(store, body.kernel))
            held = self._noted((before[0] + low, before[1] + high))
        elif store.combine not in ("set", "max", "min"):
            held = self._noted(FULL)
        if store in body.whole:
            # Nothing is left of what was there.
            self.holds[self.step.buffers[slot]] = held
        else:
            self._put(slot, held)


def _points(store: Store, kernel: Kernel) -> int:
    return kernel.outer_count * (kernel.inner_count if store.level == "inner" else 1)


def _of_type(dtype: DType) -> Held:
    return integer_limits(dtype) if dtype.kind in ("int", "uint", "bool") else FULL


def _reduced(op: str, held: Held, count: int) -> Held:
    """Return the bounds of a reduction of up to `count` values."""
    if op == "sum":
        return min(held[0] * count, held[0], 0), max(held[1] * count, held[1], 0)
    if op == "prod":
        most = max(map(abs, held)) ** min(max(count, 1), 64)
        return (-most if held[0] < 0 else 0), max(most, 1)
    return held


def _terms(r: Matmul | Convolution) -> int:
    """Return how many products a sum has at most."""
    if isinstance(r, Matmul):
        return r.k
    return max(numel(s) for s in (r.input_shape, r.weight_shape, r.output_shape))


def _bounds_of(node: Expr, found: dict[Expr, Held]) -> tuple[float, float]:
    """Return the bounds of an integer, of those of its arguments."""
    match node.op:
        case "const":
            return node.value, node.value
        case "index":
            return 0, max(node.value[1] - 1, 0)
        case "cast":
            source = node.args[0]
            if source in found:
                return found[source]
            if source.dtype is bool_:
                return 0, 1
            low, high = bounds(source, {})
            if math.isinf(low) or math.isinf(high):
                return integer_limits(node.dtype)
            # NaN becomes 0.
            return min(int(low), 0), max(int(high), 0)
        case "where":
            if _counts_from_end(node):
                x, size = found[node.args[2]], int(node.args[1].args[1].value)
                return min(x[0] + size, max(x[0], 0)), max(x[1], size - 1)
            return _union(found[node.args[1]], found[node.args[2]])
    function = FUNCTIONS.get(node.op)
    rule = None if function is None else function.bounds_integers or function.bounds
    if rule is None or not all(a in found for a in node.args):
        return integer_limits(node.dtype)
    return rule(*[found[a] for a in node.args])


# ---- the wide program
# ---------------------------------------------------------------------------------------------------------------------


def widen(program: Program, needs: Needs) -> Program:
    """Return a program with wide buffers and steps."""
    return _Widening(program, needs).program() if needs.buffers or needs.steps else program


def least_wide(program: Program) -> Program:
    """Return a program with what is wide whatever its values are."""
    return widen(program, Widths(program).least())


class _Widening:
    """Rewrites a program."""

    def __init__(self, program: Program, needs: Needs) -> None:
        self.old, self.needs = program, needs
        self.buffers: list[BufferDecl] = []
        self.routines: list[Routine] = []
        self.numbers: dict[Routine, int] = {}
        self.steps: list[Step] = []
        # Where inputs are that are written and lie in 32 bits.
        self.moved: dict[int, int] = {}

    def _elsewhere(self, step: Step) -> Step:
        """Return a step with the buffers that stand for inputs."""
        moved = self.moved
        if isinstance(step, Copy):
            return Copy(moved.get(step.source, step.source), moved.get(step.target, step.target))
        return replace(step, buffers=tuple([moved.get(b, b) for b in step.buffers]))

    def program(self) -> Program:
        """Return the rewritten program."""
        old, wide = self.old, self.needs.buffers
        written = {n for n in wide - self.needs.inputs if old.buffers[n].role == "input"}
        self.buffers += [
            replace(b, dtype=wide_int64) if n in wide - written else b
            for n, b in enumerate(old.buffers)
        ]
        for number in sorted(wide):
            b = old.buffers[number]
            if number in written:
                # Its memory is too small: what is written is another buffer.
                self.moved[number] = len(self.buffers)
                self.buffers.append(BufferDecl("output", wide_int64, b.elements))
                self._convert(number, self.moved[number])
            elif b.role == "output" and b.alias is not None and b.alias not in self.needs.inputs:
                self.buffers[number] = replace(self.buffers[number], alias=None)
                self._convert(b.alias, number)
        for number, old_step in enumerate(old.steps):
            step = self._elsewhere(old_step)
            if isinstance(step, Copy):
                if self.buffers[step.source].dtype is self.buffers[step.target].dtype:
                    self.steps.append(step)
                else:
                    self._convert(step.source, step.target)
            elif number in self.needs.steps:
                self._step(step, old.routines[step.routine])
            else:
                self._dispatch(old.routines[step.routine], step.buffers, step)
        args = tuple([wide_int64 if d is int64 else d for d in old.args])
        return replace(
            old,
            routines=tuple(self.routines),
            buffers=tuple(self.buffers),
            outputs=tuple([self.moved.get(b, b) for b in old.outputs]),
            steps=tuple(self.steps),
            args=args,
            separations=(),
        )

    def _dispatch(self, routine: Routine, buffers: Sequence[int], step: Dispatch) -> None:
        number = self.numbers.setdefault(routine, len(self.routines))
        if number == len(self.routines):
            self.routines.append(routine)
        self.steps.append(Dispatch(number, tuple(buffers), step.args, step.line))

    def _temporary(self, dtype: DType, elements: int) -> int:
        self.buffers.append(BufferDecl("temporary", dtype, elements))
        return len(self.buffers) - 1

    def _map(
        self, name: str, sources: Sequence[int], target: int, line: str, value: Expr, at: Expr
    ) -> None:
        """Add a step that computes `value` for each element of a buffer from those of others."""
        count = self.buffers[target].elements
        slots = [
            BufferSlot(self.buffers[b].dtype, "read", self.buffers[b].elements) for b in sources
        ]
        slots.append(BufferSlot(self.buffers[target].dtype, "write", count))
        store = Store(len(sources), at, value)
        kernel = Kernel(name, (count,), (), tuple(slots), (), (), (store,))
        self._dispatch(kernel, (*sources, target), Dispatch(0, (), (), line))

    def _convert(self, source: int, target: int, line: str = "") -> None:
        """Add a step that copies a buffer into one of another width."""
        at = ex.index(0, self.buffers[target].elements)
        value = ex.cast(ex.load(0, self.buffers[source].dtype, at), self.buffers[target].dtype)
        self._map("widened", (source,), target, line, value, at)

    def _step(self, step: Dispatch, routine: Routine) -> None:
        """Add a step in wide numbers."""
        wide = {s for s, b in enumerate(step.buffers) if self.buffers[b].dtype is wide_int64}
        match routine:
            case Kernel():
                self._dispatch(_wide_kernel(routine, wide), step.buffers, step)
            case Several():
                parts = tuple([_wide_kernel(part, wide) for part in routine.parts])
                made = replace(routine, parts=parts, buffers=parts[0].buffers, args=parts[0].args)
                self._dispatch(made, step.buffers, step)
            case Matmul() | Convolution():
                self._dispatch(_wide_product(routine, wide), step.buffers, step)
            case Products():
                for part, places, numbers in zip(
                    routine.parts, routine.places, routine.numbers, strict=True
                ):
                    args = tuple([step.args[n] for n in numbers])
                    mine = replace(
                        step, buffers=tuple([step.buffers[p] for p in places]), args=args
                    )
                    if any(b.dtype is int64 for b in part.buffers):
                        self._step(mine, part)
                    else:
                        self._dispatch(part, mine.buffers, mine)
            case Scan():
                made_scan = replace(routine, buffers=_wide_slots(routine.buffers, wide))
                self._dispatch(made_scan, step.buffers, step)
            case Sort():
                self._sort(step, routine, wide)
            case _:
                raise DTypeError(
                    f"{routine.name}: on WebGPU this takes and gives int64 of 32 bits. Bring the values into these, "
                    "convert them to float32, or use device='cpu'"
                )

    def _sort(self, step: Dispatch, r: Sort, wide: set[int]) -> None:
        """Order by the low words first, then by the high ones: what was in order stays so."""
        keys, out = step.buffers
        if 0 not in wide:
            raise DTypeError(f"{r.name}: more places than 32 bits can number. Use device='cpu'")
        count = r.rows * r.length
        low, high = self._temporary(uint32, count), self._temporary(int32, count)
        first, second = self._temporary(int64, count), self._temporary(int64, r.rows * r.count)
        at = ex.index(0, count)
        whole = ex.load(0, wide_int64, at)
        self._map("low_words", (keys,), low, step.line, ex.cast(whole, uint32), at)
        slots = (BufferSlot(uint32, "read", count), BufferSlot(int64, "write", count))
        every = replace(r, first=0, count=r.length, buffers=slots)
        self._dispatch(every, (low, first), step)

        def chosen(position: Expr, length: int) -> Expr:
            """Return where the element lies whose place in its row is in buffer 1."""
            place = ex.cast(ex.load(1, int64, position), int32)
            return ex.floordiv(position, length) * r.length + place

        moved = ex.load(0, wide_int64, chosen(at, r.length))
        top = ex.cast(ex.binary("shr", moved, ex.const(32, wide_int64)), int32)
        self._map("high_words", (keys, first), high, step.line, top, at)
        slots = (BufferSlot(int32, "read", count), BufferSlot(int64, "write", r.rows * r.count))
        self._dispatch(replace(r, buffers=slots), (high, second), step)
        here = ex.index(0, r.rows * r.count)
        place = ex.load(0, int64, chosen(here, r.count))
        self._map(
            "places", (first, second), out, step.line, ex.cast(place, self.buffers[out].dtype), here
        )


def _wide_slots(slots: Sequence[BufferSlot], wide: set[int]) -> tuple[BufferSlot, ...]:
    return tuple([replace(s, dtype=wide_int64) if i in wide else s for i, s in enumerate(slots)])


def _wide_product(r: Matmul | Convolution, wide: set[int]) -> Kernel:
    made = generic.matmul_kernel(r) if isinstance(r, Matmul) else generic.conv_kernel(r)
    return _wide_kernel(made, wide)


def _wide_kernel(kernel: Kernel, wide: set[int]) -> Kernel:
    """Return a kernel that computes int64 in two words, of buffers of which those in `wide` hold two."""
    memo: dict[Expr, Expr] = {}
    positions = {i for i, r in enumerate(kernel.reduces) if r.reducer.is_position}

    def rule(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
        """Return a wide form of what is int64."""
        if node.dtype is not int64:
            return None
        match node.op:
            case "load":
                if node.value in wide:
                    return ex.make("load", wide_int64, args, node.value)
                other = tuple([ex.cast(a, int64) if a.dtype is wide_int64 else a for a in args])
                return ex.cast(ex.make("load", int64, other, node.value), wide_int64)
            case "const":
                return ex.const(node.value, wide_int64)
            case "reduced" if node.value in positions:
                return ex.cast(node, wide_int64)
            case "arg" | "reduced" | "bitcast":
                return ex.make(node.op, wide_int64, args, node.value)
            case "cast":
                return ex.cast(args[0], wide_int64)
        return None

    def made(x: Expr) -> Expr:
        """Return the expression in two words."""
        return ex.rewrite(x, rule, memo)

    reduces = tuple(
        [
            replace(
                r,
                value=made(r.value),
                dtype=wide_int64 if r.dtype is int64 and i not in positions else r.dtype,
            )
            for i, r in enumerate(kernel.reduces)
        ]
    )
    slots = _wide_slots(kernel.buffers, wide)
    return replace(
        kernel,
        buffers=slots,
        args=tuple([wide_int64 if d is int64 else d for d in kernel.args]),
        reduces=reduces,
        stores=tuple(
            [
                replace(
                    s,
                    position=made(s.position),
                    value=ex.cast(made(s.value), slots[s.buffer].dtype),
                    valid=None if s.valid is None else made(s.valid),
                )
                for s in kernel.stores
            ]
        ),
        checks=tuple([replace(c, value=_checked(made(c.value))) for c in kernel.checks]),
    )


def _checked(value: Expr) -> Expr:
    """Return what is checked as an int32: what lies beyond is the nearest."""
    if value.dtype is not wide_int64:
        return value
    low, high = (ex.const(v, wide_int64) for v in NARROW)
    return ex.cast(ex.maximum(ex.minimum(value, high), low), int32)


__all__ = ["FULL", "NARROW", "Held", "Needs", "Widths", "held_by", "least_wide", "widen"]
