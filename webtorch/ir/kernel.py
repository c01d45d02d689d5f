"""A kernel: one loop nest over scalar expressions, as data that prints. Standard library only.

    for each outer point (in parallel):
        for each stage: reduced[k] = combine over the inner points of stage.value
        stores at level "outer" once, stores at level "inner" for every inner point

With no stage it is an elementwise kernel, with one a reduction with prologue and epilogue, with
several a row kernel
(softmax, layer norm and their gradients). The stages of one kernel share one iteration space, so a
fused softmax reads a
row and writes a row; this is why more than one reduction is allowed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType, Scalar
from webtorch.ir.expr import Expr
from webtorch.ir.reducer import REDUCERS, Reducer
from webtorch.ir.view import numel

Level = Literal["outer", "inner"]
Access = Literal["read", "write", "read_write"]


@dataclass(frozen=True, slots=True)
class BufferSlot:
    """One buffer of a kernel: its element type, how it is used, and how many elements the whole
    buffer holds.
    """

    dtype: DType
    access: Access
    elements: int


@dataclass(frozen=True, slots=True)
class Reduce:
    """One reduction over the inner points, `op` of `REDUCERS`.

    `value` is combined in its own type. argmax/argmin combine (value, position), where the position
    is the row-major
    number of the inner point, the first one wins on ties and NaN counts as the extreme; their
    result is an int32... int64
    position, typed `dtype`. max/min give NaN if any value is NaN.
    """

    op: str
    value: Expr
    dtype: DType

    @property
    def reducer(self) -> Reducer:
        """What is known of the reduction."""
        return REDUCERS[self.op]

    @property
    def identity(self) -> Scalar:
        """The value that changes no other."""
        return self.reducer.identity(self.value.dtype)


@dataclass(frozen=True, slots=True)
class Store:
    """Write `value` to element `position` of a buffer where `valid` holds.

    "set" writes; any other `combine` is a scalar function by which old and new value become one, atomically:
    positions of a scatter may repeat.
    """

    buffer: int
    position: Expr
    value: Expr
    level: Level = "outer"
    combine: str = "set"
    valid: Expr | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """A condition on an index that the device must report: `low <= value < high`, else the access
    is an error.

    The kernel writes (1 + site, value) to the program's status words, once, and goes on with a
    clamped index.
    """

    value: Expr
    high: int
    site: int
    level: Level = "outer"
    low: int = 0


@dataclass(frozen=True, slots=True)
class Kernel:
    """One generated kernel. Loop variable `ex.index(d, size)` numbers the outer dims first, then
    the inner ones.
    """

    name: str
    outer: tuple[int, ...]
    inner: tuple[int, ...]
    buffers: tuple[BufferSlot, ...]
    args: tuple[DType, ...]
    reduces: tuple[Reduce, ...]
    stores: tuple[Store, ...]
    checks: tuple[Check, ...] = ()

    @property
    def is_large(self) -> bool:
        """Whether positions in one of its buffers may not fit 32 bits."""
        return any(b.elements >= 1 << 31 for b in self.buffers)

    @property
    def outer_count(self) -> int:
        """Number of outer points."""
        return numel(self.outer)

    @property
    def inner_count(self) -> int:
        """Number of inner points for each outer point (1 when there is no inner loop)."""
        return numel(self.inner)

    def expressions(self) -> Iterator[Expr]:
        """Yield every root expression."""
        for reduce in self.reduces:
            yield reduce.value
        for store in self.stores:
            yield store.position
            yield store.value
            if store.valid is not None:
                yield store.valid
        for check in self.checks:
            yield check.value

    def __str__(self) -> str:
        lines = [f"kernel {self.name}  outer={list(self.outer)} inner={list(self.inner)}"]
        lines += [
            f"  b{i}: {b.access} {b.dtype.name}[{b.elements}]" for i, b in enumerate(self.buffers)
        ]
        lines += [f"  arg{i}: {d.name}" for i, d in enumerate(self.args)]
        lines += [
            f"  check {c.low} <= {ex.show(c.value)} < {c.high}  site {c.site}" for c in self.checks
        ]
        lines += [f"  r{i} = {r.op} {ex.show(r.value)}" for i, r in enumerate(self.reduces)]
        for s in self.stores:
            sign = "=" if s.combine == "set" else f"{s.combine}="
            guard = f" if {ex.show(s.valid)}" if s.valid is not None else ""
            lines.append(
                f"  {s.level}: b{s.buffer}[{ex.show(s.position)}] {sign} {ex.show(s.value)}{guard}"
            )
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Several:
    """Kernels that are run as one: the updates of many parameters, or sums of one vector, which need nothing of each
    other. Their buffers and arguments are numbered in common.

    Where there are `groups`, the parts run in turn, each after those that it needs: so many workgroups have a share of
    the outer points of each part, in row-major order, and read nothing that the others write. Of `local` buffers nobody
    else sees what they hold: of each of these a workgroup may have so many elements of its own, those of its group.
    """

    name: str
    parts: tuple[Kernel, ...]
    buffers: tuple[BufferSlot, ...]
    args: tuple[DType, ...] = ()
    groups: int = 0
    local: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        turns = f"  in turn, {self.groups} groups" if self.groups else ""
        return "\n".join([f"several {self.name}{turns}", *(str(p) for p in self.parts)])


# Neighbouring k that are unpacked together.
RUN = 32


@dataclass(frozen=True, slots=True)
class Matmul:
    """Template: out[b, m, n] = sum over k of left[b, m, k] * right[b, k, n] (buffers 0 and 1; out
    is 2).

    `left_strides` and `right_strides` are (batch, row, column) strides in elements, batch 0 for a
    shared operand; the
    offsets are in elements. The output is contiguous. Accumulates in float32 (float64 for float64,
    the integer type
    for integers).

    Where there is an `epilogue`, its stores are made instead of that of the sum, which they read as
    `ex.reduced(0)`: bias, activation, residual. They are those of a kernel whose outer points are
    `points`, use the buffers from 2 on, and read what they overwrite only where they write it.

    Where the right operand is `unpacked`, that is its element, made of what is read of buffer 1: at k = index(0, k //
    RUN) * RUN + index(1, RUN) of column index(2, n). Its strides say nothing then.
    """

    name: str
    batch: tuple[int, ...]
    m: int
    n: int
    k: int
    left_strides: tuple[int, ...]
    right_strides: tuple[int, ...]
    left_offset: int
    right_offset: int
    buffers: tuple[BufferSlot, ...]
    args: tuple[DType, ...] = ()
    epilogue: tuple[Store, ...] = ()
    unpacked: Expr | None = None

    @property
    def points(self) -> tuple[int, ...]:
        """Sizes of the loops over the output."""
        return (*self.batch, self.m, self.n)

    def right(self, run: Expr, place: Expr, column: Expr, slot: int = 1) -> Expr:
        """Return the element of an unpacked right operand in a run of k, at a place in it; `slot` is the number of its
        buffer.
        """
        assert self.unpacked is not None
        places = (run, place, column)

        def other(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
            """Return a loop variable's place, and what is read of the buffer."""
            if node.op == "load":
                return ex.make("load", node.dtype, args, slot)
            return places[node.value[0]] if node.op == "index" else None

        return ex.rewrite(self.unpacked, other)

    @property
    def accumulates(self) -> DType:
        """The type of the sums."""
        return _accumulates(self)

    def __str__(self) -> str:
        head = (
            f"matmul {self.name}  batch={list(self.batch)} m={self.m} n={self.n} k={self.k} "
            f"left={list(self.left_strides)}+{self.left_offset} "
            f"right={'unpacked ' * (self.unpacked is not None)}{list(self.right_strides)}+{self.right_offset} "
            f"{self.accumulates.name if self.epilogue else self.buffers[2].dtype.name}"
        )
        return "\n".join([head, *_epilogue_lines(self)])


@dataclass(frozen=True, slots=True)
class Products:
    """Matrix products of one left operand, none of which needs another: queries, keys and values.

    They have the batch, m and k in common, and may differ in n. Buffer j of part i has number
    `places[i][j]` here, argument j `numbers[i][j]`; the left operand is buffer 0.
    """

    name: str
    parts: tuple[Matmul, ...]
    places: tuple[tuple[int, ...], ...]
    numbers: tuple[tuple[int, ...], ...]
    buffers: tuple[BufferSlot, ...]
    args: tuple[DType, ...] = ()

    def __str__(self) -> str:
        lines = [f"products {self.name}"]
        for part, places in zip(self.parts, self.places, strict=True):
            lines += [str(part), f"  in buffers {list(places)}"]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Convolution:
    """Template: a 2-d convolution or one of its gradients, on contiguous NCHW buffers (two inputs,
    one output).

    `kind` "forward": (input, weight) -> output; "input": (grad_output, weight) -> grad_input;
    "weight": (input,
    grad_output) -> grad_weight. Shapes: input (n, c, h, w), weight (o, c / groups, kh, kw), output
    (n, o, oh, ow).
    """

    name: str
    kind: Literal["forward", "input", "weight"]
    input_shape: tuple[int, int, int, int]
    weight_shape: tuple[int, int, int, int]
    output_shape: tuple[int, int, int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    buffers: tuple[BufferSlot, ...]
    args: tuple[DType, ...] = ()
    # As in `Matmul`.
    epilogue: tuple[Store, ...] = ()

    @property
    def points(self) -> tuple[int, ...]:
        """Sizes of the loops over the output: (image, channel, place), or (channel, the rest) of a weight."""
        shapes = {
            "forward": self.output_shape,
            "input": self.input_shape,
            "weight": self.weight_shape,
        }
        return image_points(self.kind, shapes[self.kind])

    @property
    def accumulates(self) -> DType:
        """The type of the sums."""
        return _accumulates(self)

    def __str__(self) -> str:
        head = (
            f"conv {self.name} {self.kind}  input={list(self.input_shape)} "
            f"weight={list(self.weight_shape)} "
            f"output={list(self.output_shape)} stride={list(self.stride)} "
            f"padding={list(self.padding)} "
            f"dilation={list(self.dilation)} groups={self.groups} "
            f"{self.accumulates.name if self.epilogue else self.buffers[2].dtype.name}"
        )
        return "\n".join([head, *_epilogue_lines(self)])


def image_points(kind: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes of the loops over the output of a convolution or of one of its gradients."""
    return (shape[0], numel(shape[1:])) if kind == "weight" else (*shape[:2], numel(shape[2:]))


def _accumulates(r: Matmul | Convolution) -> DType:
    for e in ex.walk(*(s.value for s in r.epilogue)):
        if e.op == "reduced":
            return e.dtype
    # Buffer 2 is another value's, if there is an epilogue: one that reads no sums, as isnan of integers.
    return r.buffers[0 if r.epilogue else 2].dtype.compute


def _epilogue_lines(r: Matmul | Convolution) -> list[str]:
    if not r.epilogue:
        return []
    return str(epilogue_of(r)).splitlines()[1:]


def epilogue_of(r: Matmul | Convolution) -> Kernel:
    """Return the kernel that stores what follows a product, with the same buffers and arguments:
    it reads the sum of its point as `ex.reduced(0)`, and neither of the first two buffers.
    """
    return Kernel(r.name, r.points, (), r.buffers, r.args, (), r.epilogue)


@dataclass(frozen=True, slots=True)
class Scan:
    """Template: running sum, product, max or min (`op` of `REDUCERS`) along the middle of (outer, length,
    inner), contiguous in and out.
    """

    name: str
    op: str
    outer: int
    length: int
    inner: int
    buffers: tuple[BufferSlot, ...]
    args: tuple[DType, ...] = ()

    def __str__(self) -> str:
        return f"scan {self.name} {self.op}  {self.outer}x{self.length}x{self.inner} {self.buffers[1].dtype.name}"


@dataclass(frozen=True, slots=True)
class Sort:
    """Template: for each row of (rows, length), where the elements of the sorted row were, `count` of them
    from rank `first` on. NaN is the largest number; ties keep their order. Contiguous in and out.
    """

    name: str
    rows: int
    length: int
    first: int
    count: int
    descending: bool
    buffers: tuple[BufferSlot, ...]
    args: tuple[DType, ...] = ()

    def __str__(self) -> str:
        order = "descending" if self.descending else "ascending"
        return (
            f"sort {self.name} {order}  {self.rows}x{self.length} ranks "
            f"{self.first}:{self.first + self.count} "
            f"{self.buffers[0].dtype.name}"
        )


@dataclass(frozen=True, slots=True)
class Attention:
    """Template: softmax(query key^T scale + mask) value, or a part of its gradients, whose scores are
    never in memory (Dao et al., 2022).

    Sizes: batch, heads of query, heads of key and value (a divisor), length of query, source of key
    and value, size of a head in query and key, width of a head in value. Buffers: query, key, value;
    mask if `mask` (bool: what is seen; float: added); for the gradients the cotangent of the result,
    the statistics and delta; then those of the results that `results` numbers:

        "forward"  result (batch, heads, length, width); statistics (batch, heads, length, 2): the
                   largest score and the inverse of the sum of exp(score - largest)
        "backward" the cotangents of query, key and value

    `strides` and `offsets` are those of query, key, value, mask, cotangent, along (batch, head,
    position, element), in elements; the mask's along (batch, head, length, source). Statistics and
    delta (the sum of cotangent times result over a row) are contiguous float32, results contiguous.
    Arguments: scale; with `dropout` also its probability, and seed and counter of Philox: weight i of
    (batch, heads, length, source) is kept if uniform number i is at least the probability.
    """

    name: str
    # The last three are what templates split "backward" into: the cotangent of query; those of key
    # and value; the weights and their gradient.
    part: Literal["forward", "backward", "query", "key", "weights"]
    batch: int
    heads: int
    shared: int
    length: int
    source: int
    size: int
    width: int
    causal: bool
    mask: bool
    dropout: bool
    results: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    buffers: tuple[BufferSlot, ...]
    args: tuple[DType, ...] = ()

    def __str__(self) -> str:
        traits = [t for t in ("causal", "mask", "dropout") if getattr(self, t)]
        return (
            f"attention {self.name} {self.part}  batch={self.batch} heads={self.heads}/{self.shared} "
            f"{self.length}x{self.source} size={self.size} width={self.width} "
            f"{' '.join([*traits, self.buffers[0].dtype.name])}"
        )


@dataclass(frozen=True, slots=True)
class Host:
    """Template: a function of whole arrays: LAPACK on the CPU, factorisations in several passes on WebGPU.

    Contiguous inputs of `shapes`; the last buffer takes all results, one after the other.
    """

    name: str
    function: str
    params: tuple[bool | int | float | str, ...]
    shapes: tuple[tuple[int, ...], ...]
    buffers: tuple[BufferSlot, ...]
    args: tuple[DType, ...] = ()

    def __str__(self) -> str:
        shapes = " ".join(str(list(s)) for s in self.shapes)
        return f"host {self.function}{self.params} {shapes} {self.buffers[-1].dtype.name}"


# The functions that WebGPU has kernels for (lower/templates/matrices), of real and of "complex " numbers. Named here,
# where nothing is imported: whoever records one asks.
ON_WEBGPU = frozenset(
    [
        "cholesky",
        "geqrf",
        "ldl_factor",
        "ldl_rows",
        "lu_factor",
        "orthogonal_columns",
        "permutation",
        "solve_triangular",
        "squared",
    ]
)


Routine = Kernel | Several | Matmul | Products | Convolution | Scan | Sort | Attention | Host
