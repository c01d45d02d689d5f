"""What a compiled forward graph saves for its backward graph: one object, whatever it holds. Floor 6.

AOTAutograd saves each tensor by itself, which costs the host of every call a microsecond for each. It saves objects
that it does not look into as well: the forward graph here returns one of those in place of all tensors.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._library.fake_class_registry import FakeScriptObject
from torch._library.opaque_object import register_opaque_type
from torch._opaque_base import OpaqueBase, OpaqueBaseMeta
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import py_sym_types
from torch.fx.node import Argument

Hooks = tuple[Callable[[torch.Tensor], object], Callable[[object], torch.Tensor]]
# Where a node of a graph keeps what people call its value.
_TITLE = "webtorch_title"
# What a path of Dynamo begins with: "L['self'].encoder.0".
_LOCAL = re.compile(r"^L\['\w+'\]\.?")
# Operators that give what they are given.
_SAME = (torch.ops.aten.alias.default, torch.ops.aten.detach.default)
_VERSION = operator.attrgetter("_version")


def hooks() -> Hooks | None:
    """Return what the user wants to be called with each tensor that is saved, and with what that returned."""
    found: Hooks | None = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return found


class Saved(OpaqueBase):
    """The values that one call of a forward graph saved, until the backward pass has used them."""

    def __init__(
        self,
        source: Any,
        values: Sequence[object],
        owners: Sequence[torch.Tensor] = (),
        unpack: Callable[[object], torch.Tensor] | None = None,
    ) -> None:
        """`source`: the program whose values these are, which tells how they lie in memory; None for what hooks
        returned, with `unpack`. `owners`: tensors that must not be overwritten before the values are used.
        """
        self.source = source
        self.values = values
        self.owners = owners
        try:
            self.versions = list(map(_VERSION, owners))
        except RuntimeError:
            if not any(o.is_inference() for o in owners):
                raise
            raise RuntimeError(
                "Inference tensors cannot be saved for backward: make clones of them outside inference mode, or "
                "use torch.no_grad() in place of torch.inference_mode() where they are made."
            ) from None
        self.unpack = unpack

    def take(self) -> Sequence[object]:
        """Return the values: of hooks, tensors. They are let go, unless the pass keeps its graph.

        Raises RuntimeError, as PyTorch does, where some have been overwritten since.
        """
        if list(map(_VERSION, self.owners)) != self.versions:
            self._refuse()
        values = self.values
        if self.unpack is not None:
            with torch.no_grad():
                values = [self.unpack(v) for v in values]
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            self.values = self.owners = self.versions = []
        return values

    def _refuse(self) -> None:
        for owner, version in zip(self.owners, self.versions, strict=True):
            if owner._version != version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace "
                    f"operation: [{owner.type()} {list(owner.shape)}] is at version {owner._version}; "
                    f"expected version {version} instead."
                )


register_opaque_type(Saved, typ="reference")


class Traced(FakeScriptObject, metaclass=OpaqueBaseMeta):
    """What stands for a `Saved` while a graph is traced.

    Two classes at once: PyTorch 2.11 counts the objects that a graph saves by the first. Where DistributedDataParallel
    cuts a graph, PyTorch takes what was traced for the result of a first call, which must be of a registered class.
    """


register_opaque_type(Traced, typ="reference")


def nodes_of(values: Argument) -> list[Any]:
    """Return the values of a list among a node's arguments: nodes, and numbers."""
    assert isinstance(values, (list, tuple))
    return list(values)


def first_of(node: Node) -> Node:
    """Return the node that is a node's first argument."""
    first = node.args[0]
    assert isinstance(first, Node)
    return first


def _place(node: Node) -> int:
    """Return which element of its operand a node takes."""
    place = node.args[1]
    assert isinstance(place, int)
    return place


def pack(forward: GraphModule, backward: GraphModule, visible: int) -> None:
    """Let one object carry the tensors that a forward graph returns after its `visible` results for the backward."""
    output = forward.graph.output_node()
    results = nodes_of(output.args[0])
    rest = results[visible:]
    saved = [n for n in rest if isinstance(n.meta["val"], torch.Tensor)]
    if not saved:
        return
    # Numbers that are saved come first in the backward graph, then the tensors.
    numbers = sum(isinstance(n.meta["val"], py_sym_types) for n in rest)
    holders = backward.graph.find_nodes(op="placeholder")
    taken = holders[numbers : numbers + len(saved)]
    with forward.graph.inserting_before(output):
        packed = forward.graph.call_function(Saved, (None, tuple(saved)))
    with backward.graph.inserting_before(taken[0]):
        holder = backward.graph.placeholder("saved")
    token: Any = Saved(None, ())
    packed.meta["val"] = holder.meta["val"] = Traced(token, "Saved", token)
    output.args = ((*results[:visible], packed, *rest[len(saved) :]),)
    with backward.graph.inserting_after(holders[-1]):
        for i, node in reversed(list(enumerate(taken))):
            value = backward.graph.call_function(operator.getitem, (holder, i))
            value.meta = dict(node.meta)
            node.replace_all_uses_with(value)
            backward.graph.erase_node(node)
    forward.recompile()
    backward.recompile()


def name_inputs(forward: GraphModule, backward: GraphModule, visible: int) -> None:
    """Note what people call the inputs of a backward graph, for `title_of`: what the forward graph was given or has
    computed, and the gradients of its `visible` results.
    """
    given = {n: i for i, n in enumerate(forward.graph.find_nodes(op="placeholder"))}
    rest = nodes_of(forward.graph.output_node().args[0])[visible:]
    saved = {n.name: n for n in rest if isinstance(n, Node)}
    for holder in backward.graph.find_nodes(op="placeholder"):
        source = saved.get(holder.name)
        while source is not None and source.target in _SAME:
            source = first_of(source)
        if source is not None:
            holder.meta[_TITLE] = given[source] if source in given else _computed(source)
        elif (number := holder.name.removeprefix("tangents_")).isdecimal():
            holder.meta[_TITLE] = f"gradient of result {int(number) - 1}"


def title_of(node: Node) -> str | int:
    """Return what people call an input of a graph; a number stands for an input of the forward graph."""
    title: str | int = node.meta.get(_TITLE, node.name)
    return title


def _computed(node: Node) -> str:
    """Return the operation that gave a saved value, and the module that called it."""
    number = ""
    if node.target is operator.getitem:
        number = f", result {node.args[1]}"
        node = first_of(node)
    target = node.target
    name = target.overloadpacket.__name__ if isinstance(target, OpOverload) else node.name
    modules = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    path = _LOCAL.sub("", modules[-1]) if modules else ""
    place = f" of {path}" if path else ""
    return f"{name.strip('_')}{place}{number} (saved)"


def contents(node: object) -> list[Node] | None:
    """Return the values, in order, where a result or an input of a graph is what `pack` made; else None."""
    if not isinstance(node, Node):
        return None
    if node.target is Saved:
        return nodes_of(node.args[1])
    value = node.meta.get("val") if node.op == "placeholder" else None
    return sorted(node.users, key=_place) if isinstance(value, Traced) else None
