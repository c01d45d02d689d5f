"""The graph of a model for TensorBoard: the operators of one call, in the modules that call them. Floor 6."""

from __future__ import annotations

from collections import Counter
from typing import Any

from webtorch.nn.module import Module
from webtorch.nn.module_hooks import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from webtorch.tensors.modes import no_grad
from webtorch.tensors.tensor import Tensor
from webtorch.utils._python_dispatch import TorchDispatchMode
from webtorch.utils._pytree import tree_leaves

# What a node is: its name, its operator, the names of what it reads, and the shapes of what it gives.
Drawn = tuple[str, str, list[str], list[tuple[int, ...]]]


class _Watch(TorchDispatchMode):
    """Notes each operator that is called, in the module that runs."""

    whole = True

    def __init__(self, model: Module) -> None:
        """Give modules and parameters their names."""
        super().__init__()
        self.nodes: list[Drawn] = []
        self.counts: Counter[str] = Counter()
        # The node of each tensor, which lives as long: another would have its number.
        self.known: dict[int, tuple[Tensor, str]] = {}
        root = type(model).__name__
        self.paths = {id(model): root}
        self.running = [root]
        for name, module in model.named_modules():
            above, _, own = name.rpartition(".")
            if name:
                parent = self.paths[id(model.get_submodule(above))]
                self.paths[id(module)] = f"{parent}/{type(module).__name__}[{own}]"
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            above, _, own = name.rpartition(".")
            place = f"{self.paths[id(model.get_submodule(above))]}/{own}"
            self.note(place, "Parameter", [], [tensor])

    def note(self, name: str, kind: str, read: list[str], given: list[Tensor]) -> None:
        """Add a node; a name that is taken gets a number."""
        self.counts[name] += 1
        name = name if self.counts[name] == 1 else f"{name}_{self.counts[name] - 1}"
        self.nodes.append((name, kind, read, [tuple(t.shape) for t in given]))
        self.known.update((id(t), (t, name)) for t in given)

    def names(self, values: object) -> list[str]:
        """Return the nodes that tensors among values come from."""
        return [self.known[id(v)][1] for v in tree_leaves(values) if id(v) in self.known]

    def __torch_dispatch__(
        self, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operator and note it."""
        out = func(*args, **(kwargs or {}))
        given = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        name = func.overloadpacket.__name__
        self.note(f"{self.running[-1]}/{name}", f"aten::{name}", self.names((args, kwargs)), given)
        return out

    def enter(self, module: Module, *_: object) -> None:
        """Note that a module runs."""
        self.running.append(self.paths.get(id(module), self.running[-1]))

    def leave(self, *_: object) -> None:
        """Note that it has run."""
        self.running.pop()


def drawn_graph(model: Module, inputs: object) -> list[Drawn]:
    """Call a model and return the nodes of what it computes: parameters, inputs, operators, outputs."""
    args = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    watch = _Watch(model)
    for i, tensor in enumerate(t for t in tree_leaves(args) if isinstance(t, Tensor)):
        watch.note(f"input/{i}", "IO Node", [], [tensor])
    hooks = register_module_forward_pre_hook(watch.enter), register_module_forward_hook(watch.leave)
    try:
        with no_grad(), watch:
            out = model(*args)
    finally:
        for hook in hooks:
            hook.remove()
    watch.nodes += [
        (f"output/{i}", "IO Node", [name], []) for i, name in enumerate(watch.names(out))
    ]
    return watch.nodes
