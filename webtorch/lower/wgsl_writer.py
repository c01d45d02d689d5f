"""Writes the values, loads and stores of one kernel as WGSL lines. Floor 2; imports floor 0 and the
table."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import cast

from webtorch.errors import DTypeError
from webtorch.ir import expr as ex
from webtorch.ir.dtype import (
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int32,
    integer_limits,
    uint32,
    wide_int64,
)
from webtorch.ir.expr import FUNCTIONS, Expr, Range
from webtorch.ir.kernel import (
    BufferSlot,
    Check,
    Kernel,
    Store,
)
from webtorch.ir.limits import Limits
from webtorch.ir.view import contiguous_strides, numel
from webtorch.lower.affine import Memo, affine
from webtorch.lower.bounds import bounds, fits
from webtorch.lower.wgsl_table import (
    PER_WORD,
    TWO_WORDS,
    combine,
    convert,
    decode,
    encode,
    extract,
    float_literal,
    form,
    literal,
    wgsl_type,
    wrap,
)

_INT32 = integer_limits(int32)
# Invocations that share the elements which a kernel adds to in turn.
TAKERS = 256
# Below this many points, parallelism is worth more than four-element loads.
VECTOR_POINTS = 1 << 15
# Above so much work at a point, wide loads gain nothing, and four times the text takes long to compile.
_MOST_WORK = 512


@dataclass(slots=True)
class Slot:
    """How one buffer appears in the shader."""

    number: int
    slot: BufferSlot
    atomic: bool = False
    # Elements in one array element: 4 for vec4, 2 or 4 for packed words, else 1.
    width: int = 1
    packed: bool = False
    native_f16: bool = False
    # Whether neighbours that one point reads are components of one vector.
    apart: bool = False

    @property
    def name(self) -> str:
        """The buffer's name in the shader."""
        return f"b{self.number}"

    @property
    def declared(self) -> str:
        """The element type that the shader declares: a vector, or words where elements are packed."""
        if self.width == 8 and self.native_f16:
            # Eight at once, as bits: there is no wider vector.
            return "vec4<u32>"
        if self.packed:
            base = "u32"
        elif self.native_f16:
            base = "f16"
        else:
            base = wgsl_type(self.slot.dtype)
        if self.atomic:
            # A float is changed atomically through its bits.
            return f"atomic<{base if base in ('i32', 'u32') else 'u32'}>"
        return f"vec4<{base}>" if self.width == 4 and not self.packed else base


@dataclass(slots=True)
class Scope:
    """Where a value is known: the whole invocation, or one point (lane) of it."""

    parent: Scope | None = None
    env: dict[Expr, str] = field(default_factory=dict)
    # Lines go to the scope that owns a list; a lane shares the list of the block it stands in.
    lines: list[str] = field(default_factory=list)
    # The linear number of the lane's point in the fast space, and the same number for lane 0 of its
    # block.
    lane: int = 0
    linear: str = ""
    base: Scope | None = None
    vectors: dict[tuple[object, ...], str] = field(default_factory=dict)

    def find(self, x: Expr) -> str | None:
        """Return the text by which this scope or one around it knows a value, None if none does."""
        scope: Scope | None = self
        while scope is not None:
            text = scope.env.get(x)
            if text is not None:
                return text
            scope = scope.parent
        return None


class KernelWriter:
    """Writes one generic kernel. Templates use the same class for their loads and epilogues."""

    def __init__(self, kernel: Kernel, limits: Limits) -> None:
        self.kernel = kernel
        self.limits = limits
        self.rank = len(kernel.outer)
        self.names = 0
        self.affine_memo: Memo = {}
        self.bounds_memo: dict[Expr, Range] = {}
        self.mask_memo: dict[Expr, int] = {}
        self.uses: dict[Expr, int] = {}
        self.args: list[int] = []
        self.lanes = 1
        # Whether the lanes run along the outer points (no reduction) or along the inner ones.
        self.fast_inner = bool(kernel.reduces)
        self.fast_count = kernel.inner_count if self.fast_inner else kernel.outer_count
        self.slots: dict[int, Slot] = {}
        # Whether each invocation adds to elements of its own: no atomic word has 64 bits, but a sum of integers
        # is one of low words, which carry into the high ones.
        self.in_turn = any(
            s.combine != "set"
            and (dtype := kernel.buffers[s.buffer].dtype) in TWO_WORDS
            and (dtype is not wide_int64 or s.combine != "add")
            for s in kernel.stores
        )
        if self.in_turn and kernel.reduces:
            raise DTypeError(
                f"{kernel.name}: WebGPU adds sums to several places at once in 32 bits only. Use float32, int32, or "
                "device='cpu'"
            )
        # Functions that the body may call, by name.
        self.functions: dict[str, list[str]] = {}
        self.top = Scope()
        self._count_uses()

    # -- facts --

    def _count_uses(self) -> None:
        for node in ex.walk(*self.kernel.expressions()):
            for a in node.args:
                self.uses[a] = self.uses.get(a, 0) + 1
        for root in self.kernel.expressions():
            self.uses[root] = self.uses.get(root, 0) + 1

    def mask(self, x: Expr) -> int:
        """Return the set of loop variables in `x`, as bits."""
        memo = self.mask_memo
        waiting = [x]
        while waiting:
            node = waiting[-1]
            unknown = () if node in memo else [a for a in node.args if a not in memo]
            if unknown:
                waiting += unknown
                continue
            waiting.pop()
            if node in memo:
                continue
            m = 0
            if node.op == "reduced" and not self.kernel.reduces:
                # The sum of a product, each point's own.
                m = 1 << (self.rank - 1)
            if node.op == "index":
                m = 1 << cast("tuple[int, int]", node.value)[0]
            for a in node.args:
                m |= memo[a]
            memo[node] = m
        return memo[x]

    @property
    def inner_mask(self) -> int:
        """The bits of the inner loop variables."""
        return ((1 << len(self.kernel.inner)) - 1) << self.rank

    def varies(self, x: Expr) -> bool:
        """Whether `x` differs between the points of one invocation."""
        if self.fast_inner:
            return bool(self.mask(x) & self.inner_mask)
        if self.lanes == 1:
            return False
        if self.splits_last:
            return bool(self.mask(x) & (1 << (self.rank - 1)))
        return bool(self.mask(x))

    @property
    def fast_dims(self) -> tuple[int, ...]:
        """The sizes of the loops whose last one neighbouring invocations walk."""
        k = self.kernel
        return k.inner if self.fast_inner else k.outer

    @property
    def splits_last(self) -> bool:
        """Whether the lanes of a block differ in the last fast dimension only."""
        dims = self.fast_dims
        return bool(dims) and (len(dims) == 1 or dims[-1] % self.lanes == 0)

    def _strides_of(self, terms: dict[int, int], first: int, dims: tuple[int, ...]) -> int | None:
        """Return s if the terms of `dims` are s times the linear number of the point, None if they
        are not."""
        strides = contiguous_strides(dims)
        scale: int | None = None
        for i, size in enumerate(dims):
            if size == 1:
                continue
            c = terms.get(first + i, 0)
            if c % strides[i]:
                return None
            s = c // strides[i]
            if scale is None:
                scale = s
            elif s != scale:
                return None
        return scale or 0

    def is_vector(self, position: Expr, width: int, lanes: int) -> bool:
        """Whether `lanes` consecutive points access consecutive elements that start at a multiple
        of `width`."""
        form = affine(position, self.affine_memo)
        if form is None or lanes % width:
            return False
        constant, terms = form
        if constant % width:
            return False
        dims = self.fast_dims
        if not dims:
            return False
        first = self.rank if self.fast_inner else 0
        rest = {d: c for d, c in terms.items() if not first <= d < first + len(dims)}
        if any(c % width for c in rest.values()):
            return False
        if self._strides_of(terms, first, dims) == 1 and numel(dims) > 1:
            return True
        last = first + len(dims) - 1
        return (
            dims[-1] % lanes == 0
            and terms.get(last, 0) == 1
            and all(c % width == 0 for d, c in terms.items() if d != last)
        )

    def in_range(self, position: Expr, elements: int) -> bool:
        """Return whether a position is known to lie within a buffer."""
        low, high = self.bounds(position)
        return low >= 0 and high < elements

    def bounds(self, x: Expr) -> Range:
        """Return the bounds of an integer: all are computed in 32 bits."""
        return bounds(x, self.bounds_memo, _INT32)

    # -- choices --

    def loads(self, roots: Iterable[Expr] | None = None) -> list[Expr]:
        """Return every load under `roots` (of the whole kernel if None)."""
        return [n for n in ex.walk(*(roots or self.kernel.expressions())) if n.op == "load"]

    def choose_lanes(self, vector_points: int) -> None:
        """Choose how many consecutive points an invocation takes, and how each buffer is
        declared."""
        k = self.kernel
        fast: list[Store] = []
        if self.fast_inner:
            fast = [s for s in k.stores if s.level == "inner"]
        else:
            fast = list(k.stores)
        plain = [s for s in fast if s.combine == "set" and s.valid is None]
        packed = [s for s in plain if self.is_packed(k.buffers[s.buffer].dtype)]
        self.lanes = 1
        for lanes in (4, 2):
            if any(self.is_word_store(s, lanes) for s in packed):
                self.lanes = lanes
                break
        wide = [
            n
            for n in self.loads()
            if len(n.args) == 1
            and not self.is_packed(k.buffers[cast(int, n.value)].dtype)
            and self.is_vector(n.args[0], 4, 4)
        ]
        if (
            self.lanes < 4
            and self.fast_count % 4 == 0
            and vector_points >= VECTOR_POINTS
            and ex.cost(*k.expressions()) <= _MOST_WORK
            and all(s.combine == "set" for s in fast)
            and (wide or any(self.is_vector(s.position, 4, 4) for s in plain))
        ):
            self.lanes = 4
        self.choose_slots()

    def choose_slots(self) -> None:
        """Choose how each buffer is declared, for a number of points that is known."""
        for i, slot in enumerate(self.kernel.buffers):
            self.slots[i] = self._declare(i, slot)

    def touches(self, number: int) -> bool:
        """Return whether the kernel reads or writes a buffer."""
        return any(s.buffer == number for s in self.kernel.stores) or any(
            n.value == number for n in self.loads()
        )

    def plain(self, number: int) -> None:
        """Declare a buffer by single elements, where it is by vectors."""
        slot = self.slots[number]
        if not slot.packed:
            slot.width, slot.apart = 1, False

    def template_slot(self, number: int) -> Slot:
        """Return how a template's buffer appears: one element at a time, small types packed in words."""
        slot = self.kernel.buffers[number]
        packed = self.is_packed(slot.dtype)
        return Slot(
            number,
            slot,
            width=PER_WORD[slot.dtype] if packed else 1,
            packed=packed,
            native_f16=slot.dtype is float16 and not packed,
        )

    def is_packed(self, dtype: DType) -> bool:
        """Return whether several elements of a dtype share a 32-bit word."""
        return dtype in PER_WORD and not (dtype is float16 and self.limits.has_f16)

    def is_word_store(self, store: Store, lanes: int) -> bool:
        """Whether each block of `lanes` points writes whole words that no other invocation
        writes."""
        slot = self.kernel.buffers[store.buffer]
        per = PER_WORD[slot.dtype]
        if (
            store.combine != "set"
            or store.valid is not None
            or not self.is_vector(store.position, per, lanes)
        ):
            return False
        if self.fast_count % lanes == 0:
            return True
        # A last, partial word: allowed where the rest of it is the buffer's padding.
        form = affine(store.position, self.affine_memo)
        return (
            not self.fast_inner
            and form is not None
            and form.offset == 0
            and self._strides_of(form.strides, 0, self.kernel.outer) == 1
            and slot.elements == self.fast_count
        )

    def _declare(self, number: int, slot: BufferSlot) -> Slot:
        k = self.kernel
        stores = [s for s in k.stores if s.buffer == number]
        combines = any(s.combine != "set" for s in stores)
        packed = slot.dtype in PER_WORD and not (
            slot.dtype is float16 and self.limits.has_f16 and not combines
        )
        declared = Slot(number, slot, packed=packed)
        if packed:
            declared.width = PER_WORD[slot.dtype]
            fast_level = "inner" if self.fast_inner else None
            declared.atomic = any(
                not self.is_word_store(s, self.lanes)
                or (fast_level is not None and s.level != fast_level)
                for s in stores
            )
            return declared
        declared.native_f16 = slot.dtype is float16
        if combines:
            declared.atomic = not self.in_turn
            return declared
        if (
            self.lanes == 4
            and slot.dtype not in TWO_WORDS
            and self.fast_count % 4 == 0
            and slot.elements % 4 == 0
            and stores_fit(self, stores)
        ):
            loads = [n for n in self.loads() if n.value == number]
            fits = [n for n in loads if len(n.args) == 1 and self.is_vector(n.args[0], 4, 4)]
            others = [n for n in loads if n not in fits]
            if (fits or stores) and not any(
                self.varies(n.args[0]) or len(n.args) > 1 for n in others
            ):
                declared.width = 4
        if declared.width == 1 and not stores and self._reads_neighbours(number, slot):
            declared.width, declared.apart = 4, True
        return declared

    def _reads_neighbours(self, number: int, slot: BufferSlot) -> bool:
        """Whether each point reads some neighbours of a buffer, from places that are multiples of four."""
        if not self.limits.is_gpu or slot.dtype in TWO_WORDS or slot.elements % 4:
            return False
        loads = [n for n in self.loads() if n.value == number]
        if len(loads) < 2 or any(len(n.args) > 1 for n in loads):
            return False
        if not all(self.in_range(n.args[0], slot.elements) for n in loads):
            return False
        forms = [affine(n.args[0], self.affine_memo) for n in loads]
        if any(f is None or any(s % 4 for s in f.strides.values()) for f in forms):
            return False
        quads = {(f.offset // 4, *sorted(f.strides.items())) for f in forms if f is not None}
        return len(quads) < len(loads)

    # -- values --

    def fresh(self) -> str:
        """Return a new name."""
        self.names += 1
        return f"v{self.names}"

    def bind(self, text: str, lines: list[str]) -> str:
        """Give `text` a name in `lines`."""
        name = self.fresh()
        lines.append(f"let {name} = {text};")
        return name

    def value(self, root: Expr, scope: Scope) -> str:
        """Return the text of `root` at the point of `scope`, writing what it needs before."""
        found = scope.find(root)
        if found is not None:
            return found
        pending: list[tuple[Expr, bool]] = [(root, False)]
        while pending:
            node, ready = pending.pop()
            if scope.find(node) is not None:
                continue
            if self._same_in_block(node, scope):
                assert scope.base is not None
                scope.env[node] = self.value(node, scope.base)
                continue
            if not ready:
                pending.append((node, True))
                pending.extend((a, False) for a in reversed(self._needs(node)))
                continue
            home = self._home(node, scope)
            text = self._text(node, scope, home)
            trivial = node.op in ("const", "arg")
            keep = (
                trivial
                or text.isidentifier()
                or (
                    self.uses.get(node, 0) <= 1
                    and home is scope
                    and len(text) < 72
                    and node.op != "load"
                )
            )
            home.env[node] = text if keep else self.bind(text, home.lines)
        text_found = scope.find(root)
        assert text_found is not None
        return text_found

    def _same_in_block(self, node: Expr, scope: Scope) -> bool:
        """Whether the block's first point has the value too: it does not depend on the last inner
        dimension, in which the points of a whole block differ."""
        return (
            self.fast_inner
            and scope.base is not None
            and scope.base is not scope
            and self.splits_last
            and self.fast_count % self.lanes == 0
            and self.varies(node)
            and not self.mask(node) & (1 << (self.rank + len(self.kernel.inner) - 1))
        )

    def _home(self, node: Expr, scope: Scope) -> Scope:
        return scope if self.varies(node) else self._root(scope)

    def _root(self, scope: Scope) -> Scope:
        while scope.parent is not None:
            scope = scope.parent
        return scope

    def _needs(self, node: Expr) -> tuple[Expr, ...]:
        # A linear position is written from the loop variables as a whole, not from its parts.
        if node.op == "index" or (node.dtype is int32 and node.args and self._linear(node)):
            return ()
        if node.op == "not":
            inner = node.args[0]
            if inner.op in ("lt", "le") and inner.args[0].dtype.kind == "float":
                return inner.args
        if node.op == "load" and len(node.args) == 1 and self._vector_load(node):
            return ()
        if node.op == "load" and self.slots[cast(int, node.value)].apart:
            return ()
        return node.args

    def _linear(self, node: Expr) -> bool:
        return node.op in ("add", "sub", "mul") and affine(node, self.affine_memo) is not None

    def _vector_load(self, node: Expr) -> bool:
        slot = self.slots[cast(int, node.value)]
        if self.lanes == 1 or slot.width == 1 or slot.atomic:
            return False
        if self.fast_count % self.lanes and slot.width != self.lanes:
            return False
        return self.varies(node) and self.is_vector(node.args[0], slot.width, self.lanes)

    def _text(self, node: Expr, scope: Scope, home: Scope) -> str:
        match node.op:
            case "const":
                return literal(node.value, node.dtype)
            case "arg":
                return self._arg(node)
            case "index":
                return self._index(node, scope)
            case "load":
                return self._load(node, scope)
            case "philox":
                lane = "xyzw"[cast(int, node.value)]
                return f"{self._philox(node, scope, home)}.{lane}"
            case "reduced" | "input":
                raise AssertionError(
                    f"{node.op} {node.value} is used before it is known in {self.kernel.name}"
                )
            case _:
                if node.dtype is int32 and node.args and self._linear(node):
                    return self._affine_text(node, scope)
                return self._operation(node, [scope.find(a) or "" for a in self._needs(node)], home)

    def _philox(self, node: Expr, scope: Scope, home: Scope) -> str:
        # The four lanes of one counter share one evaluation.
        key = ex.make("philox", uint32, node.args, -1)
        found = scope.find(key)
        if found is None:
            parts = ", ".join(scope.find(a) or "" for a in node.args)
            found = home.env[key] = self.bind(f"wt_philox({parts})", home.lines)
        return found

    def _arg(self, node: Expr) -> str:
        number = cast(int, node.value)
        if number not in self.args:
            self.args.append(number)
        wgsl_type(node.dtype)
        text = f"args.a{number}"
        return f"({text} != 0u)" if node.dtype is bool_ else text

    def _index(self, node: Expr, scope: Scope) -> str:
        dim, size = cast("tuple[int, int]", node.value)
        if size == 1:
            return "0"
        k = self.kernel
        if dim >= self.rank:
            dims, position, linear = (
                k.inner,
                dim - self.rank,
                scope.linear if self.fast_inner else "0",
            )
            base = scope.base
        else:
            dims, position = k.outer, dim
            linear = self.top.linear if self.fast_inner or self.lanes == 1 else scope.linear
            base = None if self.fast_inner else scope.base
        if (
            base is not None
            and base is not scope
            and position == len(dims) - 1
            and self.splits_last
            and self.fast_count % self.lanes == 0
        ):
            return f"({self.value(node, base)} + {scope.lane})"
        if not self.varies(node) and not self.fast_inner and scope.base is not None:
            # Equal for all lanes of a block: from the block's first point.
            linear = scope.base.linear
        stride = contiguous_strides(dims)[position]
        text = linear if stride == 1 else f"({linear} / {stride})"
        if position == 0 or numel(dims[:position]) == 1:
            return text
        return f"({text} % {size})"

    def _affine_text(self, node: Expr, scope: Scope) -> str:
        form = affine(node, self.affine_memo)
        assert form is not None
        constant, terms = form
        parts: list[str] = []
        for first, dims, inner in (
            (0, self.kernel.outer, False),
            (self.rank, self.kernel.inner, True),
        ):
            mine = {d: c for d, c in terms.items() if first <= d < first + len(dims)}
            if not mine:
                continue
            scale = self._strides_of(mine, first, dims)
            if scale and len(dims) > 1:
                if inner:
                    linear = scope.linear if self.fast_inner else "0"
                else:
                    linear = self.top.linear if self.fast_inner or self.lanes == 1 else scope.linear
                parts.append(linear if scale == 1 else f"{linear} * {scale}")
            else:
                for d, c in sorted(mine.items()):
                    name = self.value(ex.index(d, dims[d - first]), scope)
                    parts.append(name if c == 1 else f"{name} * {literal(c, int32)}")
        if constant or not parts:
            parts.append(literal(constant, int32))
        return parts[0] if len(parts) == 1 and " " not in parts[0] else f"({' + '.join(parts)})"

    def _load(self, node: Expr, scope: Scope) -> str:
        slot = self.slots[cast(int, node.value)]
        if len(node.args) == 1 and self._vector_load(node):
            base = scope.base or scope
            first = scope.lane - scope.lane % slot.width
            key = (slot.number, node.args[0], first)
            name = base.vectors.get(key)
            if name is None:
                at = self.value(node.args[0], base)
                shift = slot.width.bit_length() - 1
                step = f" + {first // slot.width}" if first else ""
                name = base.vectors[key] = self.bind(
                    f"{slot.name}[({at} >> {shift}u){step}]", base.lines
                )
            if slot.packed:
                return extract(name, scope.lane % slot.width, slot.slot.dtype)
            text = f"{name}.{'xyzw'[scope.lane % 4]}"
            return f"f32({text})" if slot.native_f16 else text
        if slot.apart:
            return self._component(node, slot, self._home(node, scope))
        lines = self._home(node, scope).lines
        position = scope.find(node.args[0]) or ""
        if len(node.args) == 3:
            valid, other = (scope.find(a) or "" for a in node.args[1:])
            valid = self.named(valid, lines)
            position = self.bind(f"select(0, {position}, {valid})", lines)
            # Where it is valid, a position that is computed is right; one that was read may be
            # anything.
            if any(n.op in ("load", "arg") for n in ex.walk(node.args[0])):
                position = self.named(self._clamp(node.args[0], position, slot), lines)
            value = self.element(slot, position)
            return f"select({other}, {value}, {valid})"
        position = self._clamp(node.args[0], position, slot)
        if slot.packed or slot.width > 1:
            position = self.named(position, lines)
        return self.element(slot, position)

    def _component(self, node: Expr, slot: Slot, home: Scope) -> str:
        """Return an element as a component of a vector, of which others are other elements."""
        found = affine(node.args[0], self.affine_memo)
        assert found is not None
        lane = found.offset % 4
        first = node.args[0] - lane if lane else node.args[0]
        key = (slot.number, found.offset - lane, *sorted(found.strides.items()))
        name = home.vectors.get(key)
        if name is None:
            at = self.value(first, home)
            name = home.vectors[key] = self.bind(f"{slot.name}[({at} >> 2u)]", home.lines)
        text = f"{name}.{'xyzw'[lane]}"
        return f"f32({text})" if slot.native_f16 else text

    def named(self, text: str, lines: list[str]) -> str:
        """Return a name for `text`, which is going to be written more than once."""
        return text if text.isidentifier() else self.bind(text, lines)

    def _clamp(self, position: Expr, text: str, slot: Slot) -> str:
        if self.in_range(position, slot.slot.elements):
            return text
        return f"clamp({text}, 0, {max(slot.slot.elements - 1, 0)})"

    def element(self, slot: Slot, position: str) -> str:
        """Return the text of element `position` of a buffer, widened to its compute type."""
        dtype = slot.slot.dtype
        if slot.packed:
            word = f"{slot.name}[{position} >> {slot.width.bit_length() - 1}u]"
            if slot.atomic:
                word = f"atomicLoad(&{word})"
            return extract(word, position, dtype)
        if slot.atomic and dtype in TWO_WORDS:
            low, high = (f"atomicLoad(&{slot.name}[2 * ({position}){n}])" for n in ("", " + 1"))
            return f"{wgsl_type(dtype)}({low}, {high})"
        if slot.atomic:
            text = f"atomicLoad(&{slot.name}[{position}])"
            return f"bitcast<f32>({text})" if wgsl_type(dtype) == "f32" else text
        if slot.width == 4:
            text = f"{slot.name}[{position} >> 2u][{position} & 3]"
        else:
            text = f"{slot.name}[{position}]"
        return f"f32({text})" if slot.native_f16 else text

    def _operation(self, node: Expr, args: list[str], home: Scope) -> str:
        op = node.op
        match op:
            case "where":
                return self._where(node, args, home)
            case "cast":
                return self._cast(node, args[0])
            case "bitcast":
                return _bitcast(node, args[0])
            case "dot4":
                return f"dot4I8Packed(bitcast<u32>({args[0]}), bitcast<u32>({args[1]}))"
            case "half":
                return f"unpack2x16float(bitcast<u32>({args[0]})).{'xy'[node.value]}"
            case "not":
                inner = node.args[0]
                if inner.op in ("lt", "le") and inner.args[0].dtype is float64:
                    return f"!wt_f64_{inner.op}({args[0]}, {args[1]})"
                if inner.op in ("lt", "le") and inner.args[0].dtype.kind == "float":
                    return f"wt_not_{inner.op}({args[0]}, {args[1]})"
        kind = wgsl_type(node.args[0].dtype)
        function = FUNCTIONS[op]
        if all(a.op == "const" for a in node.args):
            # A front end refuses a constant expression that overflows; a variable is never one.
            name = self.fresh()
            home.lines.append(f"var {name} = {args[0]};")
            args = [name, *args[1:]]
        if kind == "f32" and function.expansion is not None:
            return f"wt_{op}({', '.join(args)})"
        shorter = self._shorter(node, kind, args)
        if shorter is not None:
            return shorter
        text = form(function, kind)
        if not text:
            raise DTypeError(
                f"{op}: no WGSL form for {node.args[0].dtype}. Convert the operand to float32 first"
            )
        text = text.format(*args)
        return wrap(node.dtype, text) if function.wraps else text

    def _where(self, node: Expr, args: list[str], home: Scope) -> str:
        if not _is_extreme(node):
            return f"select({args[2]}, {args[1]}, {args[0]})"
        other = self.named(args[2], home.lines)
        return f"select(select({other}, {args[1]}, {args[0]}), {other}, wt_isnan({other}))"

    def _cast(self, node: Expr, arg: str) -> str:
        source = node.args[0]
        plain = node.dtype.itemsize >= 4 and source.dtype not in TWO_WORDS
        if plain and wgsl_type(node.dtype) == "i32" and fits(source, _INT32):
            return f"i32({arg})"
        if node.dtype is float16 and self.limits.has_f16 and self.limits.is_gpu:
            # In hardware; software adapters round in ways of their own.
            return f"f32(f16({convert(arg, source.dtype, float32)}))"
        return convert(arg, source.dtype, node.dtype)

    def _shorter(self, node: Expr, kind: str, args: list[str]) -> str | None:
        """Return a form that what is known of an operand allows, None where it allows none."""
        op = node.op
        if kind == "i32" and op in ("floordiv", "mod", "truncdiv", "truncmod"):
            return self._fast_division(node, args)
        if kind == "f32" and op in ("max", "min"):
            # The side that is a number for sure needs no test.
            for i, a in enumerate(node.args):
                if a.op == "const" and a.value == a.value:
                    return f"wt_{op}_number({args[1 - i]}, {args[i]})"
        if op in ("shl", "shr") and node.args[1].op == "const" and kind in ("i32", "u32"):
            count = cast(int, node.args[1].value)
            if 0 <= count < 32:
                sign = "<<" if op == "shl" else ">>"
                return wrap(node.dtype, f"({args[0]} {sign} {count}u)")
        if op == "shr" and kind == "i32":
            low, high = self.bounds(node.args[1])
            if low >= 0 and high < 32:
                return f"({args[0]} >> bitcast<u32>({args[1]}))"
        return None

    def _fast_division(self, node: Expr, args: list[str]) -> str | None:
        divisor = node.args[1]
        if divisor.op != "const" or cast(int, divisor.value) <= 0:
            return None
        if self.bounds(node.args[0])[0] < 0:
            if node.op == "truncdiv":
                return f"({args[0]} / {divisor.value})"
            name = {"truncmod": "rem", "floordiv": "floordiv", "mod": "mod"}[node.op]
            return f"wt_i32_{name}by({args[0]}, {divisor.value})"
        sign = "/" if node.op in ("floordiv", "truncdiv") else "%"
        return f"({args[0]} {sign} {divisor.value})"

    # -- stores and checks --

    def check(self, check: Check, scope: Scope, guard: str) -> None:
        """Write a check of an index."""
        value = self.value(check.value, scope)
        test = f"{value} < {literal(check.low, int32)} || {value} >= {literal(check.high, int32)}"
        if guard:
            test = f"{guard} && ({test})"
        scope.lines += [
            f"if ({test}) {{",
            "  loop {",
            f"    let seen = atomicCompareExchangeWeak(&status[0], 0u, {1 + check.site}u);",
            f"    if (seen.exchanged) {{ atomicStore(&status[1], bitcast<u32>(i32({value}))); }}",
            "    if (seen.exchanged || seen.old_value != 0u) { break; }",
            "  }",
            "}",
        ]

    def read_before_writing(self, stores: Iterable[Store], scopes: list[Scope]) -> None:
        """Write all values of `stores`: a later one may need what an earlier one overwrites in
        place."""
        for store in stores:
            value = rounded_by_store(store.value, self.kernel.buffers[store.buffer].dtype)
            for scope in scopes:
                self.value(value, scope)
                if store.valid is not None:
                    self.value(store.valid, scope)

    def store_word(self, store: Store, lanes: list[Scope], count: str) -> None:
        """Write one block of a store that fills whole words or whole vectors."""
        slot = self.slots[store.buffer]
        base = lanes[0]
        value = rounded_by_store(store.value, slot.slot.dtype)
        texts = [self.value(value, s) for s in lanes]
        at = self.value(store.position, base)
        shift = slot.width.bit_length() - 1
        for first in range(0, len(lanes), slot.width):
            group = texts[first : first + slot.width]
            if slot.packed:
                bits = 32 // slot.width
                pieces = [
                    f"({encode(t, slot.slot.dtype)} << {i * bits}u)"
                    if i
                    else encode(t, slot.slot.dtype)
                    for i, t in enumerate(group)
                ]
                new = " | ".join(pieces)
            else:
                base_type = "f16" if slot.native_f16 else wgsl_type(slot.slot.dtype)
                if slot.native_f16:
                    group = [f"f16({t})" for t in group]
                new = f"vec4<{base_type}>({', '.join(group)})"
            step = f" + {first // slot.width}" if first else ""
            line = f"{slot.name}[({at} >> {shift}u){step}] = {new};"
            if count and first:
                line = f"if ({base.linear} + {first} < {count}) {{ {line} }}"
            base.lines.append(line)

    def store(self, store: Store, scope: Scope, guard: str) -> None:
        """Write a store at one point."""
        slot = self.slots[store.buffer]
        value = self.value(rounded_by_store(store.value, slot.slot.dtype), scope)
        position = self.named(self.value(store.position, scope), scope.lines)
        value = self.named(value, scope.lines)
        tests = [guard] if guard else []
        if store.combine != "set" and self.in_turn:
            tests.append(f"u32({position}) % {TAKERS}u == own")
        if store.valid is not None:
            tests.append(self.value(store.valid, scope))
        if not self.in_range(store.position, slot.slot.elements):
            tests.append(f"{position} >= 0 && {position} < {slot.slot.elements}")
        lines = self.store_lines(slot, position, value, store.combine)
        if tests:
            lines = [f"if ({' && '.join(tests)}) {{", *("  " + x for x in lines), "}"]
        scope.lines += lines

    def store_lines(self, slot: Slot, position: str, value: str, how: str) -> list[str]:
        """Return the lines that write `value`, of the buffer's type, to element `position`."""
        dtype = slot.slot.dtype
        kind = wgsl_type(dtype)
        if not slot.atomic:
            if how != "set":
                value = combine(how, kind, f"{slot.name}[{position}]", value)
            stored = f"f16({value})" if slot.native_f16 else value
            if slot.width == 4:
                return [f"{slot.name}[{position} >> 2u][{position} & 3] = {stored};"]
            return [f"{slot.name}[{position}] = {stored};"]
        if dtype in TWO_WORDS:
            low, high = (f"&{slot.name}[2 * {position}{n}]" for n in ("", " + 1"))
            if how == "set":
                return [f"atomicStore({low}, {value}.x);", f"atomicStore({high}, {value}.y);"]
            return [
                "{",
                f"  let old = atomicAdd({low}, {value}.x);",
                f"  atomicAdd({high}, {value}.y + select(0u, 1u, old + {value}.x < old));",
                "}",
            ]
        if not slot.packed:
            place = f"&{slot.name}[{position}]"
            if how == "set":
                return [
                    f"atomicStore({place}, {f'bitcast<u32>({value})' if kind == 'f32' else value});"
                ]
            if kind != "f32" and how in ("add", "max", "min"):
                return [f"atomic{how.capitalize()}({place}, {value});"]
            old = "bitcast<f32>(old)" if kind == "f32" else "old"
            new = combine(how, kind, old, value)
            return _exchange_loop(place, f"bitcast<u32>({new})" if kind == "f32" else new)
        bits = 32 // slot.width
        mask = (1 << bits) - 1
        place = f"&{slot.name}[{position} >> {slot.width.bit_length() - 1}u]"
        shift = f"((u32({position}) & {slot.width - 1}u) * {bits}u)"
        if how == "set":
            new_bits = encode(value, dtype)
        else:
            old = decode(f"((old >> {shift}) & {mask}u)", dtype)
            new_bits = encode(combine(how, kind, old, value), dtype)
        return _exchange_loop(place, f"(old & ~({mask}u << {shift})) | ({new_bits} << {shift})")


def stores_fit(writer: KernelWriter, stores: list[Store]) -> bool:
    """Whether every store to a buffer can be written as whole vectors."""
    return all(
        s.combine == "set"
        and s.valid is None
        and (s.level == "inner") == writer.fast_inner
        and writer.is_vector(s.position, 4, 4)
        for s in stores
    )


def rounded_by_store(value: Expr, dtype: DType) -> Expr:
    """Return `value` without the rounding to 16 bits that the store does anyway."""
    if (
        value.op == "cast"
        and value.dtype is dtype
        and dtype in (float16, bfloat16)
        and value.args[0].dtype is float32
    ):
        return value.args[0]
    return value


def _exchange_loop(place: str, new: str) -> list[str]:
    return [
        "loop {",
        f"  let old = atomicLoad({place});",
        f"  let swap = atomicCompareExchangeWeak({place}, old, {new});",
        "  if (swap.exchanged) { break; }",
        "}",
    ]


def _bitcast(node: Expr, arg: str) -> str:
    source = node.args[0]
    if source.op == "const" and wgsl_type(node.dtype) == "f32":
        bits = int(cast(int, source.value)) & 0xFFFFFFFF
        return float_literal(struct.unpack("<f", struct.pack("<I", bits))[0])
    return f"bitcast<{wgsl_type(node.dtype)}>({arg})"


def _is_extreme(node: Expr) -> bool:
    """Whether a where() takes the larger or smaller of two float32 numbers and keeps a NaN of the second.

    Drivers make max(x, 0) of select(x, 0, x <= 0), and the largest of NaN and 0 is 0 on a GPU (NVIDIA's).
    """
    condition, *sides = node.args
    return (
        condition.op in ("lt", "le")
        and wgsl_type(node.dtype) == "f32"
        and sides[1].op != "const"
        and {*sides} == {*condition.args}
    )
