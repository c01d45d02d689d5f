"""`torch.export`: a module as a graph of PyTorch's operators, with what it reads as inputs. Floor 6.

A mode of `__torch_dispatch__` writes down what the module calls (`recording`); dimensions that change are found by
recording at several sizes (`sizes`). The result is a `program`, whose inputs `signature` tells apart.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from operator import add as _ADD
from operator import mul as _MUL
from typing import Any, cast

import webtorch.aten.parts as parts
from webtorch.fx.export.file import load, save
from webtorch.fx.export.modules import (
    InterpreterModule,
    UnflattenedModule,
    unflatten,
)
from webtorch.fx.export.program import CallSpec, ExportedProgram
from webtorch.fx.export.recording import Recorded, run, tensors_of
from webtorch.fx.export.signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from webtorch.fx.export.sizes import (
    Dim,
    Formula,
    Marked,
    UserError,
    dims,
    formula_of,
    marked,
    others,
    sizes_of,
    specs_of,
)
from webtorch.fx.graph import Graph
from webtorch.fx.node import Node
from webtorch.nn import Module
from webtorch.ops.primitive import fill
from webtorch.tensors.tensor import Tensor
from webtorch.utils import _pytree as pytree

__all__ = [
    "ConstantArgument", "Dim", "ExportGraphSignature", "ExportedProgram", "InputKind", "InputSpec", "InterpreterModule",
    "OutputKind", "OutputSpec", "TensorArgument", "UnflattenedModule", "UserError", "dims", "export", "load",
    "save", "unflatten",
]  # fmt: skip


def export(
    mod: Module,
    args: tuple[object, ...],
    kwargs: Mapping[str, object] | None = None,
    *,
    dynamic_shapes: object = None,
    strict: bool = False,
    preserve_module_call_signature: Sequence[str] = (),
    prefer_deferred_runtime_asserts_over_guards: bool = False,
) -> ExportedProgram:
    """Return a module as a graph of the operators that it calls with arguments like these.

    Nothing is computed. What is no tensor among the arguments is part of the program, and so are sizes, but for
    `dynamic_shapes`: for each argument, by name or in order, `Dim`s by dimension. Raises UserError where the module
    looks at a value that it computes, or a number is no sum or product of sizes.
    """
    if not isinstance(mod, Module):
        raise ValueError(f"Expected `mod` to be an instance of `torch.nn.Module`, got {type(mod)}.")
    if not isinstance(args, tuple):
        raise UserError(
            f"Expecting `args` to be a tuple of example positional inputs, got {type(args)}"
        )
    given = dict(kwargs or {})
    names = _leaf_names(mod, args, given)
    leaves, in_spec = pytree.tree_flatten((args, given))
    where = marked(leaves, _specs(mod, args, given, dynamic_shapes))
    state = _state(mod)
    used: set[str] = {name for name, _, _ in state}
    names = [_free(n, used) for n in names]

    def recorded(leaves: Sequence[object]) -> Recorded:
        """Return the recording of a call with these leaves as arguments."""
        own = pytree.tree_unflatten(list(leaves), in_spec)
        inputs = [*((name, x) for name, x, _ in state), *zip(names, leaves, strict=True)]
        return run(mod, own[0], own[1], inputs)

    # In-place writes of the module are undone, but tensors of the user's stay out of it.
    first = recorded([x.detach() if isinstance(x, Tensor) else x for x in leaves])
    if where:
        example = sizes_of(leaves, where)
        trials = [example, *others(example)]
        again = []
        for sizes in trials[1:]:
            try:
                again.append(recorded(_resized(leaves, where, sizes)))
            except (ValueError, RuntimeError, IndexError) as error:
                given = {d.__name__: n for d, n in sizes.items()}
                raise UserError(
                    f"torch.export: the module fails at the sizes {given}: {error}"
                ) from error
        _make_dynamic(first, again, trials, where, names)
    graph, outputs = first.graph, _outputs(first)
    graph.lint()
    specs = [s for _, _, s in state]
    specs += [
        InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(n), n.removeprefix("c_"))
        for n in first.constants
    ]
    specs += [
        InputSpec(InputKind.USER_INPUT, _argument(n, x), None)
        for n, x in zip(names, leaves, strict=True)
    ]
    _put_in_order(graph, specs)
    _, buffers, plain = tensors_of(mod)
    kept = dict(mod.state_dict(keep_vars=True))
    constants = {k: v for k, v in {**buffers, **plain}.items() if k not in kept}
    constants |= {n.removeprefix("c_"): x for n, x in first.constants.items()}
    return ExportedProgram(
        graph, ExportGraphSignature(specs, outputs), cast("dict[str, Tensor]", kept), constants,
        CallSpec(in_spec, first.spec), names, leaves, where, (args, given),
    )  # fmt: skip


def _state(mod: Module) -> list[tuple[str, Tensor, InputSpec]]:
    """Return what a module has as inputs of its graph: name of the node, tensor, what it is."""
    parameters, buffers, plain = tensors_of(mod)
    persistent = set(mod.state_dict())
    found = []
    for prefix, kind, table in (
        ("p", InputKind.PARAMETER, parameters),
        ("b", InputKind.BUFFER, buffers),
        ("c", InputKind.CONSTANT_TENSOR, plain),
    ):
        for target, x in table.items():
            name = f"{prefix}_{re.sub('[^0-9a-zA-Z]', '_', target)}"
            kept = target in persistent if kind is InputKind.BUFFER else None
            found.append((name, x, InputSpec(kind, TensorArgument(name), target, kept)))
    return found


def _leaf_names(mod: Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[str]:
    """Return names for the leaves of arguments: the parameter's, with the way to the leaf within it."""
    bound = inspect.signature(mod.forward).bind(*args, **kwargs)
    parameters = inspect.signature(mod.forward).parameters
    found: list[str] = []
    for name, value in bound.arguments.items():
        for path, _ in pytree.tree_flatten_with_path(value)[0]:
            keys = [str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", "")))) for k in path]
            if parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                found.append("_".join(keys))
            else:
                found.append("_".join((name, *keys)).lower())
    return found


def _free(name: str, used: set[str]) -> str:
    count, found = 0, name
    while found in used:
        count += 1
        found = f"{name}_{count}"
    used.add(found)
    return found


def _specs(
    mod: Module, args: tuple[object, ...], kwargs: Mapping[str, object], given: Any
) -> list[object]:
    """Return what `dynamic_shapes` says of each leaf of the arguments."""
    bound = inspect.signature(mod.forward).bind(*args, **kwargs).arguments
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        if len(given) != len(bound):
            raise UserError(
                f"When `dynamic_shapes` is specified as a tuple, it has one entry for each argument: {len(bound)}, not "
                f"{len(given)}"
            )
        given = dict(zip(bound, given, strict=True))
    if unknown := given.keys() - bound.keys():
        raise UserError(
            "When `dynamic_shapes` is specified as a dict, its top-level keys must be the arg names "
            f"{list(bound)} of `inputs`, but here they are {sorted(unknown)}"
        )
    return [s for name, value in bound.items() for s in specs_of(value, given.get(name))]


def _resized(leaves: Sequence[object], where: Marked, sizes: Mapping[Dim, int]) -> list[object]:
    """Return inputs of other sizes; nobody looks at their values."""
    found = []
    for i, x in enumerate(leaves):
        if isinstance(x, Tensor):
            shape = [sizes[where[i, d]] if (i, d) in where else s for d, s in enumerate(x.shape)]
            x = fill(shape, 0, x.dtype, x.device)
        found.append(x)
    return found


class _Sizes:
    """Sizes of dynamic dimensions as nodes of a graph, and the nodes of what is worked out with them."""

    def __init__(
        self, graph: Graph, names: Sequence[str], where: Marked, trials: Sequence[Mapping[Dim, int]]
    ) -> None:
        self.graph, self.trials = graph, trials
        inputs = {n.name: n for n in graph.nodes if n.op == "placeholder"}
        self.sources: dict[Dim, tuple[Node, int]] = {}
        for (i, d), dim in where.items():
            self.sources.setdefault(dim, (inputs[names[i]], d))
        # Sizes stand before all that is computed.
        self.first = next((n for n in graph.nodes if n.op != "placeholder"), None)
        self.made: dict[Dim, Node] = {}

    def _before(self, node: Node | None) -> AbstractContextManager[object]:
        """A block in which nodes are put before one, without one at the end."""
        graph = self.graph
        return graph.inserting_after(None) if node is None else graph.inserting_before(node)

    def _size(self, dim: Dim) -> Node:
        if dim not in self.made:
            with self._before(self.first):
                self.made[dim] = self.graph.create_node(
                    "call_function", parts.aten.sym_size.int, self.sources[dim], {}, "sym_size_int"
                )
        return self.made[dim]

    def _written(self, formula: Formula, before: Node | None) -> Node:
        kind, sizes, number = formula
        call = self.graph.call_function
        terms: list[Node | int] = []
        with self._before(before):
            for dim, factor in sizes.items():
                node = self._size(dim)
                terms.append(call(_MUL, (node, factor)) if factor != 1 else node)
            combine, neutral = (_ADD, 0) if kind == "sum" else (_MUL, 1)
            terms += [number] * (number != neutral)
            found = functools.reduce(lambda x, y: call(combine, (x, y)), terms)
        own = {t for t in terms if isinstance(t, Node)} - set(self.made.values())
        stack = {} if before is None else before.meta.get("nn_module_stack", {})
        for made in (*own, cast("Node", found)):
            if made.op == "call_function" and made not in self.made.values():
                made.meta["nn_module_stack"] = stack
        return cast("Node", found)

    def replaced(self, values: Sequence[Any], before: Node | None) -> Any:
        """Return an argument, given what it is in each recording, with formulas for what differs."""
        value = values[0]
        if isinstance(value, (list, tuple)):
            rows = zip(*values, strict=True)
            return type(value)([self.replaced(v, before) for v in rows])
        if isinstance(value, dict):
            return {k: self.replaced([v[k] for v in values], before) for k in value}
        if isinstance(value, int) and not isinstance(value, bool):
            formula = formula_of(values, self.trials)
            return value if formula is None else self._written(formula, before)
        return value


def _make_dynamic(
    first: Recorded,
    again: Sequence[Recorded],
    trials: Sequence[Mapping[Dim, int]],
    where: Marked,
    names: Sequence[str],
) -> None:
    """Put formulas of sizes in the places of numbers that differ between recordings."""
    nodes = [list(r.graph.nodes) for r in (first, *again)]
    alike = len({len(n) for n in nodes}) == 1 and all(
        len({(n.op, n.name, str(n.target)) for n in row}) == 1 for row in zip(*nodes, strict=False)
    )
    if not alike:
        raise UserError(
            "torch.export: the module calls other operators at other sizes, so that its dimensions are not dynamic: "
            f"{[{d.__name__: n for d, n in s.items()} for s in trials]}"
        )
    sizes = _Sizes(first.graph, names, where, trials)
    for row in zip(*nodes, strict=True):
        node = row[0]
        node.args = sizes.replaced([n.args for n in row], node)
        node.kwargs = sizes.replaced([n.kwargs for n in row], node)
    leaves = zip(first.leaves, *[r.leaves for r in again], strict=True)
    first.leaves[:] = [sizes.replaced(v, None) for v in leaves]


def _outputs(recorded: Recorded) -> list[OutputSpec]:
    """End the graph, and return what its results are."""
    recorded.graph.output(tuple(recorded.leaves))
    return [
        OutputSpec(
            OutputKind.USER_OUTPUT,
            TensorArgument(x.name) if isinstance(x, Node) else ConstantArgument("", x),
        )
        for x in recorded.leaves
    ]


def _argument(name: str, x: object) -> TensorArgument | ConstantArgument:
    return TensorArgument(name) if isinstance(x, Tensor) else ConstantArgument(name, x)


def _put_in_order(graph: Graph, specs: Sequence[InputSpec]) -> None:
    """Have the placeholders stand as their specifications do."""
    places = {n.name: n for n in graph.nodes if n.op == "placeholder"}
    for spec in reversed(specs):
        node = places[spec.arg.name]
        first = next(iter(graph.nodes))
        if first is not node:
            first.prepend(node)
