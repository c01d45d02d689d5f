"""What a module calls, as a graph of PyTorch's operators, at one choice of sizes. Nothing is computed."""

from __future__ import annotations

import contextlib
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from webtorch.aten.dispatch import OpOverload
from webtorch.errors import CaptureError
from webtorch.fx.export.sizes import UserError
from webtorch.fx.graph import Graph
from webtorch.fx.node import Node
from webtorch.nn import Module
from webtorch.nn.module_hooks import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from webtorch.onnx.recording import contents, record, value_of
from webtorch.ops.primitive import empty
from webtorch.tensors.modes import mode
from webtorch.tensors.tensor import Tensor
from webtorch.utils import _pytree as pytree
from webtorch.utils._python_dispatch import TorchDispatchMode


class Calls:
    """The calls of modules that are at work, outermost first: which it is -> the module's path and class."""

    def __init__(self, root: object) -> None:
        parts = root.named_modules() if isinstance(root, Module) else ()
        self.paths = {id(m): path for path, m in parts}
        self.count: Counter[str] = Counter()
        self.stack: list[tuple[str, tuple[str, str]] | None] = []

    @contextlib.contextmanager
    def seen(self) -> Iterator[None]:
        """A block whose calls of modules are noted."""
        hooks = (
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self, module: Module, args: object) -> None:
        path, kind = self.paths.get(id(module)), type(module)
        if path is None:
            self.stack.append(None)
            return
        number = self.count[path]
        self.count[path] += 1
        key = f"L__self__{path}" + (f"@{number}" if number else "")
        self.stack.append((key, (path, f"{kind.__module__}.{kind.__qualname__}")))

    def _leave(self, module: Module, args: object, result: object) -> None:
        self.stack.pop()

    def now(self) -> dict[str, tuple[str, str]]:
        """Return the calls at work."""
        return dict([c for c in self.stack if c is not None])


class Recorder(TorchDispatchMode):
    """A mode that writes the operators which it is handed into a graph."""

    whole = True

    def __init__(self, graph: Graph, known: dict[int, Node], calls: Calls) -> None:
        """`known`: the nodes of tensors, by their ids. All of them are kept alive by whoever calls."""
        super().__init__()
        self.graph, self.known, self.calls = graph, known, calls
        self.kept: list[object] = []
        # Tensors that were made outside of the graph: constants.
        self.constants: list[tuple[Node, Tensor]] = []
        self.first: Node | None = None

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call, and write it down."""
        args, kwargs = self.node_of(list(args)), self.node_of(kwargs or {})
        node = self.graph.create_node(
            "call_function", func, tuple(args[0]), kwargs[0], func._opname
        )
        self.first = self.first or node
        node.meta["nn_module_stack"] = self.calls.now()
        out = func(*args[1], **kwargs[1])
        if isinstance(out, Tensor):
            self._note(node, out)
        elif isinstance(out, (tuple, list)):
            node.meta["val"] = tuple([_shown(x) for x in out])
            for i, x in enumerate(out):
                if isinstance(x, Tensor):
                    item = self.graph.create_node(
                        "call_function", operator.getitem, (node, i), {}, "getitem"
                    )
                    item.meta["nn_module_stack"] = self.calls.now()
                    self._note(item, x)
        return out

    def _note(self, node: Node, x: Tensor) -> None:
        node.meta["val"] = _shown(x)
        self.known[id(x)] = node
        self.kept.append(x)

    def node_of(self, values: object) -> tuple[Any, Any]:
        """Return arguments with nodes in the places of tensors, and as they are."""
        return pytree.tree_map(self._of, values), values

    def _of(self, x: object) -> object:
        if not isinstance(x, Tensor):
            return x
        found = self.known.get(id(x))
        if found is None:
            with self.graph.inserting_before(self.first):
                found = self.graph.placeholder(f"c_lifted_tensor_{len(self.constants)}")
            found.meta["val"] = _shown(x)
            self.constants.append((found, x))
            self.known[id(x)] = found
            self.kept.append(x)
        return found


def _shown(x: object) -> object:
    """Return a tensor that tells shape and type, and holds nothing."""
    return empty(x._shape, x.dtype, "meta") if isinstance(x, Tensor) else x


class Recorded:
    """A graph, the leaves of what the module returned, as nodes, and constants by name."""

    def __init__(
        self, graph: Graph, leaves: list[object], spec: object, constants: dict[str, Tensor]
    ) -> None:
        self.graph, self.leaves, self.spec, self.constants = graph, leaves, spec, constants


def run(
    module: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
    inputs: Sequence[tuple[str, object]],
) -> Recorded:
    """Return what a call of a module is made of; `inputs` are all tensors that it may read, by the names of nodes, and
    the other leaves of its arguments. Raises UserError where it looks at what it computes.
    """
    graph = Graph()
    known: dict[int, Node] = {}
    for name, x in inputs:
        node = graph.placeholder(name)
        # Also where that is one of Python's names ("input").
        node.name = name
        if isinstance(x, Tensor):
            node.meta["val"] = _shown(x)
            known.setdefault(id(x), node)
    calls = Calls(module)
    recorder = Recorder(graph, known, calls)
    held: list[Any] = []

    def call() -> object:
        """Return the tensors of the module's result, and keep the nodes of all its leaves."""
        before, mode.exporting = mode.exporting, True
        try:
            with recorder, calls.seen():
                out = module(*args, **kwargs)
        finally:
            mode.exporting = before
        leaves, spec = pytree.tree_flatten(out)
        held.append((recorder.node_of(leaves)[0], spec))
        return [x for x in leaves if isinstance(x, Tensor)]

    tensors = [x for _, x in inputs if isinstance(x, Tensor)]
    try:
        recording = record(call, (), {}, tensors, {})
    except CaptureError as error:
        raise UserError(
            "torch.export: Could not guard on data-dependent expression: the module reads a value of what it computes "
            f"({error}). Choose with torch.where, or take the choice out of the exported module."
        ) from error
    leaves, spec = held[0]
    constants = {}
    for node, x in recorder.constants:
        value = value_of(x)
        if recording.depends(value) or recording.is_weight(
            value, {id(t._storage.node) for t in tensors}
        ):
            raise UserError(
                f"torch.export: {next(iter(node.users))} is given what an operation makes that is no operator of "
                "PyTorch's here: its part cannot be written into the graph"
            )
        constants[node.name] = contents(value.whole, recording.runtime) if value.is_flat else x
    return Recorded(graph, leaves, spec, constants)


def tensors_of(module: Module) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Return a module's parameters, its buffers, and tensors that are plain attributes, by name."""
    constants = {}
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if type(value) is Tensor:
                constants[f"{path}.{name}".lstrip(".")] = value
    return dict(module.named_parameters()), dict(module.named_buffers()), constants
