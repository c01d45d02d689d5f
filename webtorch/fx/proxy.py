"""What stands for a value while a function is traced: whatever is done with it becomes a node."""

from __future__ import annotations

import copy
import dis
import enum
import inspect
import operator
import traceback
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from types import FrameType
from typing import Any

from webtorch.fx import traceback as fx_traceback
from webtorch.fx.graph import Graph, magic_methods, reflectable_magic_methods
from webtorch.fx.naming import node_name
from webtorch.fx.node import Argument, Node, Target, base_types, map_aggregate, map_arg
from webtorch.nn import Parameter
from webtorch.tensors import override
from webtorch.tensors.size import Size

__all__ = [
    "Attribute",
    "GraphAppendingTracer",
    "ParameterProxy",
    "Proxy",
    "Scope",
    "ScopeContextManager",
    "TraceError",
    "TracerBase",
]


class TraceError(ValueError):
    """What a function does with a value cannot be traced."""


class Scope:
    """The module whose code runs: its path and its class."""

    def __init__(self, module_path: str, module_type: object) -> None:
        """Take the path and the class."""
        self.module_path, self.module_type = module_path, module_type


class ScopeContextManager:
    """A block in which `scope` is what `current_scope` is."""

    def __init__(self, scope: Scope, current_scope: Scope) -> None:
        """Enter at once, as PyTorch's does."""
        self._scope, self._before = scope, copy.copy(scope)
        vars(scope).update(vars(current_scope))

    def __enter__(self) -> Scope:
        return self._scope

    def __exit__(self, *_: object) -> None:
        vars(self._scope).update(vars(self._before))


class TracerBase:
    """Makes nodes of what is done with proxies, and proxies of nodes."""

    graph: Graph
    # Whether each node keeps where the user's code made it.
    record_stack_traces = False
    # Whether `assert` of a proxy is a node.
    trace_asserts = False
    # Whether a look at a buffer is a node, as a look at a parameter is.
    proxy_buffer_attributes = False
    # What is traced of a module.
    traced_func_name = "forward"
    scope: Scope
    # The modules whose code runs, outermost first: key -> (path, class).
    module_stack: OrderedDict[str, tuple[str, Any]]
    node_name_to_scope: dict[str, tuple[str, Any]]

    def create_node(
        self,
        kind: str,
        target: Target,
        args: tuple[Argument, ...],
        kwargs: dict[str, Argument],
        name: str | None = None,
        type_expr: object = None,
    ) -> Node:
        """Add a node to the graph. Subclasses change or check what is recorded here."""
        node = self.graph.create_node(kind, target, args, kwargs, name, type_expr)
        self.node_name_to_scope[node.name] = self.scope.module_path, self.scope.module_type
        if fx_traceback.has_preserved_node_meta():
            node.meta.update(fx_traceback.kept_meta())
        elif self.module_stack:
            node.meta["nn_module_stack"] = copy.copy(self.module_stack)
        if self.record_stack_traces and not node.stack_trace:
            frames = traceback.extract_stack()
            first = next((i for i, f in enumerate(frames) if f.name == "forward"), len(frames))
            user = [f for f in frames[first:] if not f.filename.startswith(_HERE)]
            if user:
                text = "".join(traceback.StackSummary.from_list(user).format())
                node.stack_trace = text.strip()
        return node

    def proxy(self, node: Node) -> Proxy:
        """Return what stands for a node's value."""
        return Proxy(node, self)

    def create_proxy(
        self,
        kind: str,
        target: Target,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        name: str | None = None,
        type_expr: object = None,
        proxy_factory_fn: Callable[[Node], Proxy] | None = None,
    ) -> Proxy:
        """Add a node, whose arguments may hold proxies, and return what stands for its value."""
        given, named = self.create_arg(args), self.create_arg(kwargs)
        node = self.create_node(kind, target, given, named, name, type_expr)
        return self.proxy(node) if proxy_factory_fn is None else proxy_factory_fn(node)

    def create_arg(self, a: object) -> Argument:
        """Return an argument as a node keeps it. Raises NotImplementedError for what no node keeps."""
        if isinstance(a, Proxy):
            return a.node
        if hasattr(a, "__fx_create_arg__"):
            return a.__fx_create_arg__(self)
        if isinstance(a, tuple):
            parts = [self.create_arg(x) for x in a]
            if hasattr(a, "_fields"):
                return type(a)(*parts)
            # A size may hold nodes, which its own class does not take.
            return tuple(parts) if isinstance(a, Size) else type(a)(parts)
        if isinstance(a, list):
            return [self.create_arg(x) for x in a]
        if isinstance(a, dict):
            return {self._key(k): self.create_arg(v) for k, v in a.items()}
        if isinstance(a, slice):
            return slice(*(self.create_arg(x) for x in (a.start, a.stop, a.step)))
        if isinstance(a, range):
            return range(*(self.create_arg(x) for x in (a.start, a.stop, a.step)))
        if isinstance(a, (*base_types, enum.Enum)) or a is None or a is ...:
            return a
        if is_dataclass(a) and not isinstance(a, type):
            named = {f.name: self.create_arg(getattr(a, f.name)) for f in fields(a)}
            return self.create_node("call_function", type(a), (), named)
        raise NotImplementedError(f"argument of type: {type(a)}")

    def _key(self, key: object) -> object:
        if not isinstance(key, str):
            key = self.create_arg(key)
            map_arg(key, _refuse_key)
        return key

    def to_bool(self, obj: Proxy) -> bool:
        """Called when a proxy decides something. Raises TraceError."""
        raise TraceError("symbolically traced variables cannot be used as inputs to control flow")

    def iter(self, obj: Proxy) -> Iterator[Any]:
        """Called when a proxy is iterated. Raises TraceError."""
        raise TraceError(
            "Proxy object cannot be iterated. This can be attempted when the Proxy is used in a loop or"
            " as a *args or **kwargs function argument. See the torch.fx docs on pytorch.org for a "
            "more detailed explanation of what types of control flow can be traced, and check out the"
            " Proxy docstring for help troubleshooting Proxy iteration errors"
        )

    def keys(self, obj: Proxy) -> Any:
        """Called for `**proxy` and `proxy.keys()`."""
        return Attribute(obj, "keys")()


_HERE = __file__.rpartition("fx")[0]


def _refuse_key(node: Node) -> object:
    raise RuntimeError(
        f"Keys for dictionaries used as an argument cannot contain a Node. Got key: {node}"
    )


class GraphAppendingTracer(TracerBase):
    """Adds what is done with proxies of a graph's nodes to that graph."""

    def __init__(self, graph: Graph) -> None:
        """Take the graph."""
        self.graph = graph
        self.scope = Scope("", None)
        self.module_stack = OrderedDict()
        self.node_name_to_scope = {}


def assert_fn(x: object) -> None:
    """What `assert` of a proxy becomes."""
    if not x:
        raise AssertionError("Assertion failed")


def _instructions(frame: FrameType) -> tuple[list[dis.Instruction], int]:
    """Return the instructions of a frame, and at which of them it is."""
    all_of_them = list(dis.get_instructions(frame.f_code))
    return all_of_them, bisect_left(all_of_them, frame.f_lasti, key=lambda x: x.offset)


class Proxy:
    """Stands for the value of a node: operators, methods, attributes and functions of it are nodes."""

    def __init__(self, node: Node, tracer: TracerBase | None = None) -> None:
        """Stand for a node; without a tracer what is done is added to its graph."""
        self.tracer = GraphAppendingTracer(node.graph) if tracer is None else tracer
        self.node = node

    def __repr__(self) -> str:
        return f"Proxy({self.node.name})"

    def __getattr__(self, k: str) -> Attribute:
        # No node yet: if it is called, it is a method.
        return Attribute(self, k)

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__ = state

    def __deepcopy__(self, memo: dict[int, object]) -> Proxy:
        new = Proxy.__new__(Proxy)
        for k, v in self.__dict__.items():
            try:
                new.__dict__[k] = copy.deepcopy(v, memo)
            except Exception:
                new.__dict__[k] = copy.copy(v)
        return new

    def __call__(self, *args: object, **kwargs: object) -> Proxy:
        return self.tracer.create_proxy("call_method", "__call__", (self, *args), kwargs)

    def __iter__(self) -> Iterator[Any]:
        frame = inspect.currentframe()
        assert frame is not None and frame.f_back is not None
        code, at = _instructions(frame.f_back)
        if code[at].opname == "UNPACK_SEQUENCE":
            return (self[i] for i in range(code[at].argval))  # type: ignore[index]
        return self.tracer.iter(self)

    def __bool__(self) -> bool:
        if self.tracer.trace_asserts:
            frame = inspect.currentframe()
            assert frame is not None and frame.f_back is not None
            code, at = _instructions(frame.f_back)
            after = code[at + 1].opname if at + 1 < len(code) else ""
            if code[at].opname.endswith("IF_TRUE") and after == "LOAD_ASSERTION_ERROR":
                self.tracer.create_proxy("call_function", assert_fn, (self,), {})
                return True
        return self.tracer.to_bool(self)

    def keys(self) -> Any:
        """Return what stands for the keys."""
        return self.tracer.keys(self)

    def __len__(self) -> int:
        raise RuntimeError(
            "'len' is not supported in symbolic tracing by default. If you want "
            "this call to be recorded, please call torch.fx.wrap('len') at module scope"
        )

    def __abs__(self) -> Proxy:
        return self.tracer.create_proxy("call_function", operator.abs, (self,), {})

    @classmethod
    def __torch_function__(
        cls,
        orig_method: Callable[..., object],
        types: tuple[type, ...],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> Any:
        """Make a node of a call that was given a proxy."""
        kwargs = kwargs or {}
        tracers: dict[TracerBase, None] = {}

        def find(a: object) -> None:
            """Note the tracer of a proxy."""
            if isinstance(a, Proxy):
                tracers[a.tracer] = None

        map_aggregate((args, kwargs), find)
        if len(tracers) > 1:
            raise RuntimeError(
                f"Found multiple different tracers {list(tracers)} while "
                f"trying to trace operations {orig_method}"
            )
        tracer = next(iter(tracers))
        if override.names().get(orig_method, "").startswith("torch.Tensor."):
            return tracer.create_proxy("call_method", orig_method.__name__, args, kwargs)
        name = node_name(orig_method)
        return tracer.create_proxy(
            "call_function", orig_method, args, kwargs, name=tracer.graph._target_to_str(name)
        )


class Attribute(Proxy):
    """An attribute of a proxy, which is a node once it is used as anything but a method."""

    def __init__(self, root: Proxy, attr: str) -> None:
        """Take whose attribute it is, and its name."""
        self.root, self.attr, self.tracer = root, attr, root.tracer
        self._node: Node | None = None

    @property
    def node(self) -> Node:  # type: ignore[override]
        """The node that looks the attribute up."""
        if self._node is None:
            given = self.root, self.attr
            self._node = self.tracer.create_proxy("call_function", getattr, given, {}).node
        return self._node

    def __call__(self, *args: object, **kwargs: object) -> Proxy:
        return self.tracer.create_proxy("call_method", self.attr, (self.root, *args), kwargs)


class ParameterProxy(Proxy):
    """Stands for a parameter whose shape is known while tracing."""

    def __init__(self, tracer: TracerBase, node: Node, name: str, param: Parameter) -> None:
        """Take the parameter and its name."""
        super().__init__(node, tracer)
        if not isinstance(param, Parameter):
            raise AssertionError(f"Expected Parameter, got {type(param)}")
        self.param, self.name = param, name

    def __repr__(self) -> str:
        return f"ParameterProxy({self.name})"

    @property
    def shape(self) -> Size:
        """The parameter's shape."""
        return self.param.shape

    def size(self) -> Size:
        """Return the parameter's shape."""
        return self.param.size()

    def dim(self) -> int:
        """Return how many dims the parameter has."""
        return self.param.dim()

    @property
    def ndim(self) -> int:
        """How many dims the parameter has."""
        return self.param.ndim

    def numel(self) -> int:
        """Return how many elements the parameter has."""
        return self.param.numel()

    def nelement(self) -> int:
        """Return how many elements the parameter has."""
        return self.param.nelement()


def _define_operator(name: str, *, reflected: bool = False) -> None:
    """Let Python's operator on a proxy be a node."""
    function: Any = getattr(operator, name, None)

    def operate(self: Proxy, *others: object) -> Proxy:
        """Return the proxy of the operator's result."""
        args = (*others, self) if reflected else (self, *others)
        return self.tracer.create_proxy("call_function", function, args, {})

    operate.__name__ = f"__{'r' * reflected}{name.strip('_')}__"
    setattr(Proxy, operate.__name__, operate)


for _name in magic_methods:
    _define_operator(_name)
for _name in reflectable_magic_methods:
    _define_operator(_name, reflected=True)
