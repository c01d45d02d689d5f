"""`torch.compile(model, backend="webgpu")`: forward and backward graphs as webtorch programs. Floor 6.

AOTAutograd turns the user's function into a forward and a backward graph of core aten operators. The
first call of each runs the graph once through `functions`, under capture: that records one program
(`programs`). Later calls bind their tensors' buffers to it and replay it, with no Python per operator.

A graph may be traced on CPU tensors: it runs on the device all the same. Its parameters are uploaded
once, and again when they have changed; other inputs at each call; results come back to the CPU.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import default_partition
from torch._ops import OperatorBase
from torch.utils._pytree import tree_leaves

from webtorch.aten.table import Function, op
from webtorch.ir.view import is_contiguous, memory_order
from webtorch.ops.primitive import copy
from webtorch.pytorch import device as bridge
from webtorch.pytorch.copying import upload
from webtorch.pytorch.device import on_device, webtorch_dtype
from webtorch.pytorch.graphs import meaning
from webtorch.pytorch.origin import Origin, origin_of
from webtorch.pytorch.partition import Partition, is_called
from webtorch.pytorch.programs import Programs
from webtorch.pytorch.saved import contents, name_inputs, pack, title_of
from webtorch.pytorch.saved import hooks as saving_hooks
from webtorch.pytorch.values import NUMBERS, Value
from webtorch.tensors.tensor import Tensor


def compile_backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[object],
    *,
    options: object = None,
    **kwargs: object,
) -> Function:
    """Compile a Dynamo graph: what `torch.compile(..., backend="webgpu")` calls.

    Raises NotImplementedError for an operator that webtorch does not have. Operators that want their operands on one
    device have been refused by Dynamo; indices may be on the CPU.
    """
    bridge.runtime()
    origin = origin_of(gm)
    compiler = aot_autograd(
        fw_compiler=functools.partial(_lower_forward, origin=origin),
        bw_compiler=functools.partial(_lower_backward, origin=origin),
        inference_compiler=functools.partial(lower, origin=origin),
        partition_fn=_partition,
        decompositions=_decompositions(),
        # Written in the program, in place, rather than copied after it.
        keep_inference_input_mutations=True,
    )
    # What a forward graph saves is one object of ours, whose memory is not PyTorch's to give away; before 2.13 PyTorch
    # asks it for a storage all the same.
    with functorch_config.patch(donated_buffer=False):
        return compiler(gm, example_inputs)


@functools.cache
def _decompositions() -> dict[OperatorBase, Function]:
    """Return PyTorch's decompositions into core operators, of those that are no better whole.

    Those of `linspace` and `logspace` compute in float64; that of `take` asks for the number of indices.
    """
    table: dict[OperatorBase, Function] = torch._decomp.core_aten_decompositions().materialize()
    aten = torch.ops.aten
    whole = (aten.linspace, aten.logspace, aten.take)
    return {k: v for k, v in table.items() if getattr(k, "overloadpacket", None) not in whole}


def _count_steps_on_the_device() -> None:
    """Let optimizers whose step is compiled count their steps on the device, as PyTorch does for CUDA.

    Else each compiled step would wait for the numbers of steps to come back to the CPU.
    """
    from torch._dynamo.variables.optimizer import OptimizerVariable

    original = OptimizerVariable._set_capturable

    def set_capturable(self: Any, tx: Any) -> None:
        """Make groups of new parameters on the device capturable."""
        for group in self.value.param_groups:
            params = group.get("params", [])
            new = all(on_device(p) and p not in self.value.state for p in params)
            if "capturable" in group and params and new:
                group["capturable"] = True
        original(self, tx)

    variable: Any = OptimizerVariable
    variable._set_capturable = set_capturable


_count_steps_on_the_device()


def _partition(
    joint: torch.fx.GraphModule, inputs: Sequence[object], *, num_fwd_outputs: int, **options: Any
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """Split a graph of values and gradients as PyTorch does, then let one object carry all that is saved.

    In these cases they stay tensors: operators are called between programs; hooks of the function's own, or
    compiled autograd, look at each; the backward writes a buffer; the graph is a region that is compiled once, which
    has no inputs of its own.
    """
    forward, backward = default_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **options)
    name_inputs(forward, backward, num_fwd_outputs)
    seen = torch._dynamo.config.compiled_autograd or saving_hooks() is not None
    split = _is_split(forward) or _is_split(backward)
    if inputs and not (seen or split or _writes(backward)):
        pack(forward, backward, num_fwd_outputs)
    return forward, backward


def _writes(gm: torch.fx.GraphModule) -> bool:
    """Whether a graph writes some of its inputs."""
    copies = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    return any(n.args[0].op == "placeholder" for n in copies)


def lower(
    gm: torch.fx.GraphModule, example_inputs: Sequence[object], origin: Origin | None = None
) -> Function:
    """Return a callable for one graph of aten operators, which come from `origin`."""
    if _is_split(gm):
        parts = functools.partial(_programs, origin=origin)
        return make_boxed_func(Partition(gm, _static_inputs(), None, parts))
    return _boxed(Programs(Graph(gm), _static_inputs(), origin=origin))


def _lower_backward(
    gm: torch.fx.GraphModule, example_inputs: Sequence[object], origin: Origin | None = None
) -> Function:
    """Return a callable for a backward graph."""
    if _is_split(gm):
        parts = functools.partial(_programs, origin=origin, second=True)
        return make_boxed_func(Partition(gm, frozenset(), None, parts))
    graph = Graph(gm, visible=0)
    return _boxed(Programs(graph, frozenset(), is_backward=True, origin=origin, second=True))


def _lower_forward(
    gm: torch.fx.GraphModule, example_inputs: Sequence[object], origin: Origin | None = None
) -> Function:
    """Return a callable for a forward graph, which ends with what its backward graph will take."""
    metadata = torch._guards.TracingContext.get().fw_metadata
    saved = None if metadata is None else metadata.tensors_saved_for_backwards_slice
    if _is_split(gm):
        parts = functools.partial(_programs, origin=origin)
        return make_boxed_func(Partition(gm, _static_inputs(), saved, parts))
    graph = Graph(gm, None if saved is None else saved.start)
    numbers = range(len(graph.results))[saved] if saved is not None and not graph.packed else ()
    return _boxed(Programs(graph, _static_inputs(), frozenset(numbers), origin=origin))


def _boxed(programs: Programs) -> Function:
    """Return a function that takes its arguments as one list, and says so."""

    def run(args: list[object]) -> list[object]:
        """Run the programs on the list's tensors."""
        return programs(args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _is_split(gm: torch.fx.GraphModule) -> bool:
    """Whether a graph has operators that no program can hold."""
    return any(map(is_called, gm.graph.nodes))


def _programs(
    gm: torch.fx.GraphModule,
    static: frozenset[int],
    visible: int,
    saved: frozenset[int],
    downloads: bool,
    *,
    origin: Origin | None,
    second: bool = False,
) -> Programs:
    """Return the programs of a part of a graph; `second`: of a backward graph."""
    return Programs(
        Graph(gm, visible), static, saved, downloads=downloads, origin=origin, second=second
    )


def _static_inputs() -> frozenset[int]:
    """Return which inputs of the graph in hand are parameters and buffers."""
    context = torch._guards.TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    return frozenset(metadata.static_input_indices or ()) if metadata is not None else frozenset()


# ---- running a graph ----------------------------------------------------------------------------


@dataclass(slots=True)
class Step:
    """One call of a graph: function, arguments with `Slot` for values, and what may be dropped after it."""

    slot: int
    function: Function
    args: Sequence[Template]
    kwargs: dict[str, Template]
    dead: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """The value of a graph's node."""

    number: int


# An argument of a step: a value, or lists and slices of such, with slots in them.
Template: TypeAlias = Any


def _template(value: object, slots: dict[torch.fx.Node, int], of: torch.fx.Node) -> Template:
    """Return an argument with nodes as slots and PyTorch's types as the engine's."""
    if isinstance(value, torch.fx.Node):
        return Slot(slots[value])
    if isinstance(value, (list, tuple)):
        return [_template(v, slots, of) for v in value]
    if isinstance(value, slice):
        return slice(*(_template(v, slots, of) for v in (value.start, value.stop, value.step)))
    if isinstance(value, torch.dtype):
        made = of.meta.get("val")
        if isinstance(made, torch.Tensor) and made.is_cpu and not made.dim():
            value = NUMBERS.get(value, value)
        return webtorch_dtype(value, compiled=True)
    return value


def _fill_in(value: Template, values: list[object]) -> object:
    kind = type(value)
    if kind is Slot:
        return values[value.number]
    if kind is list:
        return [_fill_in(v, values) for v in value]
    if kind is slice:
        return slice(*(_fill_in(v, values) for v in (value.start, value.stop, value.step)))
    return value


_IGNORED = frozenset(
    ("device", "layout", "pin_memory", "memory_format", "non_blocking", "generator")
)


class Graph:
    """A graph of operators as steps on webtorch tensors."""

    def __init__(self, gm: torch.fx.GraphModule, visible: int | None = None) -> None:
        """`visible`: how many of the first results the user gets to see; None for all."""
        nodes = list(gm.graph.nodes)
        slots = {n: i for i, n in enumerate(nodes)}
        last = {slots[source]: i for i, n in enumerate(nodes) for source in n.all_input_nodes}
        dead: dict[int, list[int]] = {}
        for source, user in last.items():
            dead.setdefault(user, []).append(source)
        self.count = len(nodes)
        # What the trace knows of each result.
        self.results: list[Value] = []
        # Inputs that the graph writes.
        self.written: frozenset[int] = frozenset()
        self.constants: dict[int, object] = {}
        self.steps: list[Step] = []
        self.result: Any = None
        given = [n for n in nodes if n.op == "placeholder"]
        returned = tree_leaves(nodes[-1].args[0])
        holders, self.taken = _unpacked(given)
        leaves, self.packed = _unpacked(returned)
        # What stands for several values is no value itself.
        standing = {n for n in (*given, *returned) if contents(n) is not None}
        number = {n: i for i, n in enumerate(holders)}
        self.places = [slots[n] for n in holders]
        self.titles = [title_of(n) for n in holders]
        self.inputs = [Value.of(n, None) for n in holders]
        written: set[int] = set()
        for i, node in enumerate(nodes):
            if node in number or node in standing:
                continue
            match node.op:
                case "get_attr":
                    self.constants[i] = operator.attrgetter(node.target)(gm)
                case "call_function":
                    kwargs = {
                        k: _template(v, slots, node)
                        for k, v in node.kwargs.items()
                        if k not in _IGNORED
                    }
                    args = _template(node.args, slots, node)
                    if node.target is torch.ops.aten.copy_.default and node.args[0] in number:
                        written.add(number[node.args[0]])
                    self.steps.append(
                        Step(i, meaning(node.target), args, kwargs, tuple(dead.get(i, ())))
                    )
                case "output":
                    self.result = [_template(leaf, slots, node) for leaf in leaves]
                    seen: dict[torch.fx.Node, int] = {}
                    for leaf in leaves:
                        again = seen.get(leaf)
                        if isinstance(leaf, torch.fx.Node):
                            seen.setdefault(leaf, len(self.results))
                        self.results.append(Value.of(leaf, number.get(leaf), again))
                case _:
                    raise NotImplementedError(
                        f"torch.compile(backend='webgpu'): unexpected node {node.op} {node.target}"
                    )
        self.written = frozenset(written)
        # Values that must lie in memory as PyTorch traced them, with their dims in that order: what the
        # user gets, who may take views of it, and what `as_strided` reads.
        self.layouts: dict[int, tuple[int, ...]] = {}
        # Those of them that the trace says have memory of their own.
        self.own: set[int] = set()
        self._lay_results(leaves[:visible], slots)
        for node in nodes:
            if str(node.target).startswith("aten.as_strided"):
                read = _source(node.args[0])
                # An input may be what an operator returned, which lies otherwise than its trace said.
                if read.op == "call_function" or number.get(read) not in (None, *written):
                    self._lay(read, slots)

    def _lay_results(self, leaves: list[object], slots: dict[torch.fx.Node, int]) -> None:
        for node in map(_source, leaves):
            if isinstance(node, torch.fx.Node) and node.op == "call_function":
                if _is_new(node):
                    self.own.add(slots[node])
                self._lay(node, slots)

    def _lay(self, node: torch.fx.Node, slots: dict[torch.fx.Node, int]) -> None:
        order = _traced_order(node.meta.get("val"))
        if order is not None:
            self.layouts[slots[node]] = order

    def evaluate(self, inputs: Sequence[Any]) -> list[object]:
        """Run the graph's operators once on webtorch tensors."""
        values: list[Any] = [None] * self.count
        for slot, value in zip(self.places, inputs, strict=True):
            order = self.layouts.get(slot)
            values[slot] = value if order is None else _laid(value, order)
        for slot, constant in self.constants.items():
            values[slot] = _constant(constant)
        # Operations may return what they were given: the largest element of a tensor of one is the tensor.
        known = {v._storage for v in values if isinstance(v, Tensor)}
        for step in self.steps:
            args = [_fill_in(a, values) for a in step.args]
            value = step.function(*args, **{k: _fill_in(v, values) for k, v in step.kwargs.items()})
            order = self.layouts.get(step.slot)
            if order is not None:
                value = _laid(value, order)
            if step.slot in self.own:
                if value._storage in known:
                    value = _laid(value, order or tuple(range(value.dim())), anew=True)
                known.add(value._storage)
            values[step.slot] = value
            for slot in step.dead:
                values[slot] = None
        return [_fill_in(r, values) for r in self.result]


def _source(value: object) -> Any:
    """Return the node that a view is of, through all views."""
    while isinstance(value, torch.fx.Node) and getattr(value.target, "is_view", False):
        value = value.args[0]
    return value


def _unpacked(nodes: Sequence[object]) -> tuple[list[Any], range]:
    """Return inputs or results with the values of what carries several in its place, and where these are."""
    out: list[object] = []
    place = range(0)
    for node in nodes:
        values = contents(node)
        if values is None:
            out.append(node)
        else:
            place = range(len(out), len(out) + len(values))
            out += values
    return out, place


def _is_new(node: torch.fx.Node) -> bool:
    """Whether a result is a tensor whose memory is none of its operands', as the trace has it."""
    made = node.meta.get("val")
    if not isinstance(made, torch.Tensor):
        return False
    # An element of what an operator returned.
    of = node.args[0] if node.target is operator.getitem else node
    operands = of.all_input_nodes if isinstance(of, torch.fx.Node) else []
    given = [v for n in operands for v in tree_leaves(n.meta.get("val"))]
    place = made.untyped_storage()._cdata
    return all(v.untyped_storage()._cdata != place for v in given if isinstance(v, torch.Tensor))


def _traced_order(fake: object) -> tuple[int, ...] | None:
    """Return the dims of a traced tensor in the order in which they lie in memory; None if it has gaps."""
    if not isinstance(fake, torch.Tensor):
        return None
    shape, strides = (
        tuple([n.node.hint if hasattr(n, "node") else n for n in x])
        for x in (fake.shape, fake.stride())
    )
    return None if None in (*shape, *strides) else memory_order(shape, strides)


def _laid(x: Tensor, order: tuple[int, ...], anew: bool = False) -> Tensor:
    """Return `x`, copied if its dims do not lie in memory in this order, or a copy is wanted."""
    turned = op.permute(x, order)
    lies = not turned.numel() or is_contiguous(turned._shape, turned._strides)
    if lies and not anew:
        return x
    return op.permute(copy(turned), tuple(order.index(d) for d in range(len(order))))


def _constant(value: object) -> object:
    if not isinstance(value, torch.Tensor):
        return value
    if value.device.type == "webgpu":
        return bridge.wrap(value)
    dtype = value.dtype if value.dim() else NUMBERS.get(value.dtype, value.dtype)
    return upload(value.to(dtype), webtorch_dtype(dtype, compiled=True))
