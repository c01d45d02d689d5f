"""`torch.compile(model, backend="webgpu")`: forward and backward graphs as webtorch programs. Floor 6.

AOTAutograd turns the user's function into a forward and a backward graph of core aten operators,
without mutations. The first call of each runs the graph once through `functions`, under capture:
that records one program. Later calls bind their tensors' buffers to it and replay it, with no
Python per operator. Inputs must be on "webgpu" (0-d CPU tensors are uploaded, and so are tensors
that the function itself moves): for others on the CPU the compiler says to move them, rather than
move them at every call.
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

from webtorch.capture.trace import Capture, capture, replay
from webtorch.ir.view import is_contiguous, numel
from webtorch.ops.primitive import cast_to, copy, empty
from webtorch.ops.record import TABLE
from webtorch.pytorch import device as bridge
from webtorch.pytorch import kernels
from webtorch.pytorch.device import TO_TORCH, TO_WEBTORCH, flat, memory_of, upload, webtorch_dtype
from webtorch.pytorch.fallback import unsupported
from webtorch.pytorch.functions import FUNCTIONS, filled, op
from webtorch.tensors.device import device_of
from webtorch.tensors.storage import Storage
from webtorch.tensors.tensor import Tensor

Function = Callable[..., Any]

# Programs that one graph keeps, for other shapes, strides or offsets of its inputs.
_MAX_CAPTURES = 16
GRAPH: dict[str, Function] = {}


def compile_backend(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *, options: Any = None, **kwargs: Any
) -> Function:
    """Compile a Dynamo graph: what `torch.compile(..., backend="webgpu")` calls.

    Raises RuntimeError when an input is on the CPU and not just moved, NotImplementedError for an
    operator that webtorch does not have.
    """
    compiler = aot_autograd(
        fw_compiler=lower,
        bw_compiler=lower,
        inference_compiler=lower,
        decompositions=torch._decomp.core_aten_decompositions().materialize(),
    )
    return compiler(gm, example_inputs)


def lower(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Function:
    """Return a callable for one graph of aten operators."""
    for node, value in zip(
        (n for n in gm.graph.nodes if n.op == "placeholder"), example_inputs, strict=True
    ):
        if (
            isinstance(value, torch.Tensor)
            and value.device.type != "webgpu"
            and value.dim()
            and not _only_moved(node)
        ):
            raise RuntimeError(
                f"torch.compile(backend='webgpu'): an input of shape {list(value.shape)} is on "
                f"'{value.device}'. Move the model and its "
                "inputs to the device first: model.to('webgpu'), x.to('webgpu')."
            )
    return make_boxed_func(CompiledGraph(gm))


def _only_moved(node: torch.fx.Node) -> bool:
    """Whether a graph does nothing with an input but move it to the device."""
    users = [(u.target, u.kwargs.get("device")) for u in node.users if u.op != "output"]
    return bool(users) and all(
        target is torch.ops.aten._to_copy.default and where is not None and where.type == "webgpu"
        for target, where in users
    )


# ---- what the operators of a graph mean, beyond those of the eager kernels ----------------------


def graph(*names: str) -> Callable[[Function], Function]:
    """Declare the meaning of operators that only graphs contain: views and creation."""

    def declare(function: Function) -> Function:
        GRAPH.update(dict.fromkeys(names, function))
        return function

    return declare


def _where() -> Any:
    return device_of(bridge.runtime())


@graph("view", "_unsafe_view", "reshape")
def _view(x: Any, shape: Sequence[int]) -> Any:
    return op.reshape(x, tuple(shape))


@graph("permute")
def _permute(x: Any, dims: Sequence[int]) -> Any:
    return op.permute(x, tuple(dims))


@graph("expand")
def _expand(x: Any, shape: Sequence[int], *, implicit: bool = False) -> Any:
    return op.expand(x, tuple(shape))


@graph("squeeze")
def _squeeze(x: Any, dim: Any = None) -> Any:
    return op.squeeze(x, tuple(dim) if isinstance(dim, list) else dim)


@graph("alias", "detach", "lift", "lift_fresh")
def _alias(x: Any) -> Any:
    return x


@graph("clone", "contiguous", "lift_fresh_copy")
def _clone(x: Any, **options: Any) -> Any:
    return copy(x)


@graph("as_strided")
def _as_strided(
    x: Any, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> Any:
    return op.as_strided(x, tuple(size), tuple(stride), offset)


@graph("split")
def _split(x: Any, size: int, dim: int = 0) -> Any:
    return op.split(x, size, dim)


@graph("repeat")
def _repeat(x: Any, repeats: Sequence[int]) -> Any:
    return op.repeat(x, tuple(repeats))


@graph("sort")
def _sort(x: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
    return tuple(op.sort(x, dim, descending, bool(stable)))


@graph("_to_copy")
def _to_copy(x: Any, *, dtype: Any = None, **options: Any) -> Any:
    return copy(x) if dtype is None or dtype is x.dtype else cast_to(x, dtype)


@graph("copy")
def _copy(x: Any, src: Any, non_blocking: bool = False) -> Any:
    if isinstance(src, (bool, int, float)):
        return filled(x._shape, src, x.dtype, x.device)
    return copy(op.expand(cast_to(src, x.dtype), x._shape))


@graph("copy_")
def _copy_into(x: Any, src: Any, non_blocking: bool = False) -> Any:
    return op.copy_(x, src)


@graph("slice_scatter")
def _slice_scatter(
    x: Any, src: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    out = copy(x)
    op.copy_(op.slice(out, dim, start, end, step), src)
    return out


@graph("select_scatter")
def _select_scatter(x: Any, src: Any, dim: int, index: int) -> Any:
    out = copy(x)
    op.copy_(op.select(out, dim, index), src)
    return out


def _dtype(dtype: Any) -> Any:
    return webtorch_dtype(torch.get_default_dtype()) if dtype is None else dtype


@graph("full")
def _full(size: Sequence[int], value: Any, *, dtype: Any = None, **options: Any) -> Any:
    if dtype is None:
        default = torch.get_default_dtype()
        dtype = webtorch_dtype(
            torch.bool
            if isinstance(value, bool)
            else torch.int64
            if isinstance(value, int)
            else default
        )
    return filled(size, value, dtype, _where())


@graph("zeros", "empty", "new_zeros", "new_empty")
def _zeros(*args: Any, dtype: Any = None, **options: Any) -> Any:
    like, size = (
        (args[0], args[1]) if len(args) > 1 and isinstance(args[0], Tensor) else (None, args[0])
    )
    return filled(size, 0, dtype or (like.dtype if like is not None else _dtype(None)), _where())


@graph("empty_strided", "empty_permuted")
def _empty_strided(size: Sequence[int], layout: Any, *, dtype: Any = None, **options: Any) -> Any:
    return empty(tuple(size), _dtype(dtype), _where())


@graph("ones", "new_ones")
def _ones(*args: Any, dtype: Any = None, **options: Any) -> Any:
    like, size = (args[0], args[1]) if len(args) > 1 else (None, args[0])
    return filled(size, 1, dtype or (like.dtype if like is not None else _dtype(None)), _where())


@graph("new_full")
def _new_full(x: Any, size: Sequence[int], value: Any, *, dtype: Any = None, **options: Any) -> Any:
    return filled(size, value, dtype or x.dtype, _where())


@graph("full_like")
def _full_like(x: Any, value: Any, *, dtype: Any = None, **options: Any) -> Any:
    return filled(x._shape, value, dtype or x.dtype, _where())


@graph("zeros_like", "empty_like")
def _zeros_like(x: Any, *, dtype: Any = None, **options: Any) -> Any:
    return filled(x._shape, 0, dtype or x.dtype, _where())


@graph("ones_like")
def _ones_like(x: Any, *, dtype: Any = None, **options: Any) -> Any:
    return filled(x._shape, 1, dtype or x.dtype, _where())


@graph("scalar_tensor")
def _scalar_tensor(value: Any, *, dtype: Any = None, **options: Any) -> Any:
    return filled((), value, _dtype(dtype), _where())


@graph("arange")
def _arange(*args: Any, dtype: Any = None, **options: Any) -> Any:
    return op.arange(*args, dtype=dtype, device=_where())


@graph("linspace")
def _linspace(start: float, end: float, steps: int, *, dtype: Any = None, **options: Any) -> Any:
    return op.linspace(start, end, steps, dtype=_dtype(dtype), device=_where())


@graph("eye")
def _eye(n: int, m: int | None = None, *, dtype: Any = None, **options: Any) -> Any:
    return op.eye(n, n if m is None else m, dtype=_dtype(dtype), device=_where())


@graph("rand")
def _rand(size: Sequence[int], *, dtype: Any = None, **options: Any) -> Any:
    return op.rand(tuple(size), dtype=_dtype(dtype), device=_where())


@graph("randn")
def _randn(size: Sequence[int], *, dtype: Any = None, **options: Any) -> Any:
    return op.randn(tuple(size), dtype=_dtype(dtype), device=_where())


@graph("rand_like")
def _rand_like(x: Any, *, dtype: Any = None, **options: Any) -> Any:
    return op.rand(x._shape, dtype=dtype or x.dtype, device=_where())


@graph("randn_like")
def _randn_like(x: Any, *, dtype: Any = None, **options: Any) -> Any:
    return op.randn(x._shape, dtype=dtype or x.dtype, device=_where())


@graph("randint")
def _randint(*args: Any, dtype: Any = None, **options: Any) -> Any:
    low, high, size = (0, *args) if len(args) == 2 else args
    return op.randint(
        low, high, tuple(size), dtype=dtype or webtorch_dtype(torch.int64), device=_where()
    )


@graph("bernoulli")
def _bernoulli(x: Any, p: Any = None, **options: Any) -> Any:
    draw = op.rand(x._shape, dtype=webtorch_dtype(torch.float32), device=_where())
    return cast_to(op.lt(draw, x if p is None else p), x.dtype)


@graph("sym_size")
def _sym_size(x: Any, dim: int) -> int:
    return int(x._shape[dim])


@graph("sym_numel")
def _sym_numel(x: Any) -> int:
    return int(numel(x._shape))


@graph("sym_stride")
def _sym_stride(x: Any, dim: int) -> int:
    return int(x._strides[dim])


@graph("sym_storage_offset")
def _sym_storage_offset(x: Any) -> int:
    return int(x._offset)


# Operators of graphs that are the table's own functions.
_SAME = [
    "transpose",
    "t",
    "slice",
    "select",
    "unsqueeze",
    "split_with_sizes",
    "unbind",
    "stack",
    "diagonal",
    "unfold",
    "flip",
    "roll",
    "logsumexp",
]


def _foreach(name: str) -> Function | None:
    """Return the meaning of a `_foreach_` operator: the plain one on every element of the lists."""
    base = FUNCTIONS.get(name.removeprefix("_foreach_"))
    if name == "_foreach_norm":
        base = FUNCTIONS["linalg_vector_norm"]
    if name == "_foreach_copy":
        base = GRAPH["copy"]
    if base is None:
        return None

    def run(*args: Any, **kwargs: Any) -> list[Any]:
        count = max(len(a) for a in args if isinstance(a, list))
        rows = [a if isinstance(a, list) else [a] * count for a in args]
        return [base(*row, **kwargs) for row in zip(*rows, strict=True)]

    return run


def meaning(target: Any) -> Function:
    """Return what a node's target means on webtorch tensors. Raises NotImplementedError when it has no meaning here."""
    if not isinstance(target, torch._ops.OpOverload):
        return target  # operator.getitem, arithmetic on sizes
    packet, overload = target._schema.name.rpartition("::")[2], target._overloadname
    if packet in GRAPH:
        return GRAPH[packet]
    found = kernels.meaning(packet, overload)
    if found is None and packet in _SAME:
        found = TABLE[packet].function
    if found is None and packet.startswith("_foreach_"):
        found = _foreach(packet)
    if found is None:
        raise unsupported(target)
    return found


# ---- running a graph ----------------------------------------------------------------------------


@dataclass(slots=True)
class Step:
    """One call of a graph: function, arguments with `Slot` for values, and what may be dropped after it."""

    slot: int
    function: Function
    args: Any
    kwargs: dict[str, Any]
    dead: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """The value of a graph's node."""

    number: int


def _template(value: Any, slots: dict[torch.fx.Node, int]) -> Any:
    """Return an argument with nodes as slots and PyTorch's types as the engine's."""
    if isinstance(value, torch.fx.Node):
        return Slot(slots[value])
    if isinstance(value, (list, tuple)):
        return [_template(v, slots) for v in value]
    if isinstance(value, slice):
        return slice(*(_template(v, slots) for v in (value.start, value.stop, value.step)))
    if isinstance(value, torch.dtype):
        return webtorch_dtype(value)
    return value


def _fill_in(value: Any, values: list[Any]) -> Any:
    kind = type(value)
    if kind is Slot:
        return values[value.number]
    if kind is list:
        return [_fill_in(v, values) for v in value]
    if kind is slice:
        return slice(*(_fill_in(v, values) for v in (value.start, value.stop, value.step)))
    return value


class CompiledGraph:
    """A graph and the programs that were captured from it, one for each geometry of its inputs."""

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        nodes = list(gm.graph.nodes)
        slots = {n: i for i, n in enumerate(nodes)}
        last = {slots[source]: i for i, n in enumerate(nodes) for source in n.all_input_nodes}
        dead: dict[int, list[int]] = {}
        for source, user in last.items():
            dead.setdefault(user, []).append(source)
        self.count = len(nodes)
        self.inputs: list[int] = []
        self.constants: dict[int, Any] = {}
        self.steps: list[Step] = []
        self.result: Any = None
        for i, node in enumerate(nodes):
            match node.op:
                case "placeholder":
                    self.inputs.append(i)
                case "get_attr":
                    self.constants[i] = operator.attrgetter(node.target)(gm)
                case "call_function":
                    kwargs = {
                        k: _template(v, slots) for k, v in node.kwargs.items() if k not in _IGNORED
                    }
                    args = _template(node.args, slots)
                    self.steps.append(
                        Step(i, meaning(node.target), args, kwargs, tuple(dead.get(i, ())))
                    )
                case "output":
                    self.result = _template(node.args[0], slots)
                    _check_outputs(node.args[0])
                case _:
                    raise NotImplementedError(
                        f"torch.compile(backend='webgpu'): unexpected node {node.op} {node.target}"
                    )
        self.captures: OrderedDict[Any, Capture] = OrderedDict()

    def evaluate(self, inputs: Sequence[Any]) -> list[Any]:
        """Run the graph's operators once on webtorch tensors."""
        values: list[Any] = [None] * self.count
        for slot, value in zip(self.inputs, inputs, strict=True):
            values[slot] = value
        for slot, constant in self.constants.items():
            values[slot] = _constant(constant)
        for step in self.steps:
            args = [_fill_in(a, values) for a in step.args]
            values[step.slot] = step.function(
                *args, **{k: _fill_in(v, values) for k, v in step.kwargs.items()}
            )
            for slot in step.dead:
                values[slot] = None
        return list(_fill_in(self.result, values))

    def __call__(self, *args: Any) -> list[Any]:
        storages: list[Storage] = []
        owners: list[torch.Tensor] = []
        numbers: dict[Storage, int] = {}
        geometry: list[Any] = []
        for a in args:
            if not isinstance(a, torch.Tensor):
                geometry.append(a)
                continue
            a = a if a.device.type == "webgpu" else _moved_input(a)
            storage = memory_of(a).typed(TO_WEBTORCH[a.dtype])
            number = numbers.get(storage)
            if number is None:
                number = numbers[storage] = len(storages)
                storages.append(storage)
                owners.append(a)
            geometry.append(
                (number, tuple(a.shape), a.stride(), a.storage_offset(), storage.elements, a.dtype)
            )
        key = tuple(geometry)
        flats = [flat(s) for s in storages]
        captured = self.captures.get(key)
        if captured is None:
            captured = self.captures[key] = self._capture(key, flats)
            if len(self.captures) > _MAX_CAPTURES:
                self.captures.popitem(last=False)
        made: dict[Storage, Any] = {}
        return [_to_torch(x, made, owners) for x in replay(captured, flats)[0]]

    def _capture(self, key: tuple[Any, ...], flats: list[Tensor]) -> Capture:
        def run(*tensors: Tensor) -> list[Any]:
            views = [_view_of(tensors[g[0]], *g[1:4]) if isinstance(g, tuple) else g for g in key]
            numbers = {t._storage: n for n, t in enumerate(tensors)}
            return [_mark(x, numbers) for x in self.evaluate(views)]

        return capture(run, tuple(flats), {}, flats)


_IGNORED = frozenset(
    ("device", "layout", "pin_memory", "memory_format", "non_blocking", "generator")
)


def _check_outputs(result: Any) -> None:
    for node in torch.utils._pytree.tree_leaves(result):
        value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
        if (
            isinstance(value, torch.Tensor)
            and value.device.type == "cpu"
            and node.op != "placeholder"
        ):
            raise RuntimeError(
                f"torch.compile(backend='webgpu'): the result '{node}' is on the CPU: a program "
                f"cannot read values. Return it on the device "
                "and move it outside the compiled function."
            )


def _constant(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if value.device.type == "webgpu":
        return bridge.wrap(value)
    return upload(value, webtorch_dtype(value.dtype))


def _moved_input(x: torch.Tensor) -> torch.Tensor:
    """Upload an input: a number in a CPU tensor, or a tensor that the function itself moves."""
    return x.to("webgpu", torch.float32 if x.dtype is torch.float64 else x.dtype)


def _view_of(x: Tensor, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Tensor:
    storage = x._storage
    whole = offset == 0 and numel(shape) == storage.elements and is_contiguous(shape, strides)
    return Tensor._from_storage(storage, shape, strides, offset, whole)


@dataclass(frozen=True, slots=True)
class OfInput:
    """A result that is a view of input storage `number`: what a forward saves for its backward often is."""

    number: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


def _mark(x: Any, numbers: dict[Storage, int]) -> Any:
    if isinstance(x, Tensor) and x._storage in numbers:
        return OfInput(numbers[x._storage], TO_TORCH[x.dtype], x._shape, x._strides, x._offset)
    return x


def _to_torch(x: Any, made: dict[Storage, Any], owners: list[torch.Tensor]) -> Any:
    """Return a webtorch result as a PyTorch tensor; results that share storage with each other or an input still do."""
    if isinstance(x, OfInput):
        out = bridge._create((0,), x.dtype)
        bridge._set(
            bridge.CPU, out, owners[x.number].untyped_storage(), x.offset, x.shape, x.strides
        )
        return out
    if not isinstance(x, Tensor):
        return x
    inner = x._storage
    storage = made.get(inner)
    if storage is None:
        storage, memory = bridge.new_storage(inner.elements * inner.dtype.itemsize, inner.dtype)
        memory.storage = inner
        made[inner] = storage
    out = bridge._create((0,), TO_TORCH[inner.dtype])
    bridge._set(bridge.CPU, out, storage, x._offset, x._shape, x._strides)
    return out
