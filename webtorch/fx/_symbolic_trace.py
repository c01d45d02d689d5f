"""A graph of what a function or module does, made by running it with proxies."""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from itertools import chain
from types import CodeType, FunctionType, ModuleType
from typing import Any, ClassVar

from webtorch.functions.check import _assert
from webtorch.fx.codegen import _PyTreeCodeGen, _PyTreeInfo
from webtorch.fx.graph import Graph
from webtorch.fx.graph_module import GraphModule
from webtorch.fx.node import Argument, base_types
from webtorch.fx.proxy import ParameterProxy, Proxy, Scope, ScopeContextManager, TracerBase
from webtorch.fx.tracing import trace
from webtorch.fx.wrapping import Places, find_proxy, wrap, wrapped_functions
from webtorch.ir.lines import user_depth
from webtorch.nn import Module, Parameter, Sequential
from webtorch.tensors.tensor import Tensor
from webtorch.utils import _pytree as pytree

__all__ = ["PH", "ProxyableClassMeta", "Tracer", "is_fx_tracing", "symbolic_trace", "wrap"]

_VARIABLE = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
_proxyable_classes: dict[type, None] = {}


def is_fx_tracing() -> bool:
    """Whether a symbolic trace is on in this thread."""
    return trace.on


def is_fx_symbolic_tracing() -> bool:
    """Whether a symbolic trace is on in this thread, and no compiler's."""
    return trace.on


class ProxyableClassMeta(type):
    """The metaclass of classes whose making can be traced."""

    def __init__(cls, name: str, bases: tuple[type, ...], attrs: dict[str, object]) -> None:
        _proxyable_classes.setdefault(cls)
        super().__init__(name, bases, attrs)

    def __call__(cls, *args: object, **kwargs: object) -> Any:
        proxy = find_proxy(args, kwargs) if trace.on else None
        if proxy is not None:
            return proxy.tracer.create_proxy("call_function", cls, args, kwargs)
        instance = cls.__new__(cls)  # type: ignore[call-overload]
        cls.__init__(instance, *args, **kwargs)  # type: ignore[misc]
        return instance


class PHBase:
    """A place in `concrete_args` that is no constant."""

    def __repr__(self) -> str:
        return "PH"


PH = PHBase()


class PHWithMeta(PHBase):
    """One whose attributes go to the node of its placeholder."""

    def __init__(self, ph_key: str | None = None) -> None:
        """Take a key to know it by."""
        self.ph_key = ph_key


def _with_plain_parameters(function: Any, count: int) -> FunctionType:
    """Return a function that takes `*args` and `**kwargs` as two parameters like others."""
    code: CodeType = function.__code__
    plain = code.replace(
        co_argcount=count,
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
        co_flags=code.co_flags & ~_VARIABLE,
    )
    return FunctionType(
        plain, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )


class Tracer(TracerBase):
    """Makes a graph of a module or a function. Subclasses say what is a leaf, and what becomes of what is met."""

    root: Module
    _qualname_counter: ClassVar[dict[str, int]] = defaultdict(int)

    def __init__(
        self,
        autowrap_modules: tuple[ModuleType, ...] = (math,),
        autowrap_functions: tuple[Callable[..., object], ...] = (),
        param_shapes_constant: bool = False,
    ) -> None:
        """Take modules and functions whose calls are nodes, and whether shapes of parameters are constants."""
        everything = chain.from_iterable(vars(m).items() for m in autowrap_modules)
        self._autowrap_function_ids = {
            id(value) for n, value in everything if not n.startswith("_") and callable(value)
        } | {id(f) for f in autowrap_functions}
        self._autowrap_search = list(autowrap_modules)
        self.param_shapes_constant = param_shapes_constant
        self.submodule_paths: dict[Module, str] | None = None
        self.root_module_name = ""
        self.scope = Scope("", None)
        self.module_stack = OrderedDict()
        self.num_calls: dict[str, int] = {}
        self.node_name_to_scope = {}
        self.tensor_attrs: dict[object, str] = {}
        self._places: Places | None = None

    def get_fresh_qualname(self, prefix: str) -> str:
        """Return a name that the root has no attribute of."""
        if not hasattr(self.root, f"{prefix}0"):
            self._qualname_counter[prefix] = 0
            return f"{prefix}0"
        number = self._qualname_counter[prefix]
        while hasattr(self.root, f"{prefix}{number}"):
            number += 1
        self._qualname_counter[prefix] = number + 1
        return f"{prefix}{number}"

    def create_arg(self, a: object) -> Argument:
        """Return an argument as a node keeps it; parameters, buffers, modules and other tensors are looked up."""
        if isinstance(a, Parameter):
            for name, p in self.root.named_parameters():
                if a is p:
                    return self.create_node("get_attr", name, (), {})
            raise NameError("parameter is not a member of this module")
        if isinstance(a, (Tensor, Module)):
            root = self.root
            table: Any = root.named_buffers() if isinstance(a, Tensor) else root.named_modules()
            for name, value in table:
                if a is value:
                    return self.create_node("get_attr", name, (), {})
        if isinstance(a, tuple) and hasattr(a, "_fields"):
            parts = tuple(self.create_arg(x) for x in a)
            return self.create_node("call_function", type(a), parts, {})
        if isinstance(a, (Tensor, pytree.TreeSpec)):
            # A constant: kept as an attribute of the root, once.
            if a not in self.tensor_attrs:
                kind = "tensor" if isinstance(a, Tensor) else "tree_spec"
                self.tensor_attrs[a] = self.get_fresh_qualname(f"_{kind}_constant")
                setattr(self.root, self.tensor_attrs[a], a)
            return self.create_node("get_attr", self.tensor_attrs[a], (), {})
        if type(a) in _proxyable_classes:
            name = self.get_fresh_qualname(f"_{type(a).__name__}_constant_")
            setattr(self.root, name, a)
            return self.create_node("get_attr", name, (), {})
        return super().create_arg(a)

    def is_leaf_module(self, m: Module, module_qualified_name: str) -> bool:
        """Whether a call of a module is a node: of those of `nn`, but for `Sequential`."""
        return m.__module__.startswith(("webtorch.nn", "torch.nn")) and not isinstance(
            m, Sequential
        )

    def path_of_module(self, mod: Module) -> str:
        """Return where a module is in the root. Raises NameError if it is not."""
        if self.submodule_paths:
            if mod in self.submodule_paths:
                return self.submodule_paths[mod]
        else:
            for name, m in self.root.named_modules():
                if mod is m:
                    return name
        raise NameError("module is not installed as a submodule")

    def call_module(
        self,
        m: Module,
        forward: Callable[..., Any],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> Any:
        """Make a node of a call of a leaf, or run the module's code by `forward`."""
        path = self.path_of_module(m)
        with ScopeContextManager(self.scope, Scope(path, type(m))):
            calls = self.num_calls.get(path, 0)
            self.num_calls[path] = calls + 1
            key = f"{path}@{calls}" if calls else path
            self.module_stack[key] = path, type(m)
            if self.is_leaf_module(m, path):
                result = self.create_proxy("call_module", path, args, kwargs)
            else:
                result = forward(*args, **kwargs)
            self.module_stack.popitem(last=True)
        return result

    def before_module(self, m: Module) -> None:
        """Let the functions that are always wrapped be nodes in a module's code, too."""
        if self._places is not None:
            names = getattr(getattr(m, "forward", m), "__globals__", {})
            self._places.search(names, self._autowrap_function_ids)

    def getattr(self, attr: str, attr_val: object, parameter_proxy_cache: dict[str, Proxy]) -> Any:
        """Return what a look at an attribute of a module gives: of a parameter a proxy, the same one each time."""
        if isinstance(attr_val, Parameter):
            found = self._proxy_of(attr_val, self.root.named_parameters(), parameter_proxy_cache)
            if found is not None:
                return found
        if self.proxy_buffer_attributes and isinstance(attr_val, Tensor):
            found = self._proxy_of(attr_val, self.root.named_buffers(), parameter_proxy_cache)
            if found is not None:
                return found
        return attr_val

    def _proxy_of(
        self, value: Any, table: Iterable[tuple[str, Tensor]], proxies: dict[str, Proxy]
    ) -> Proxy | None:
        name = next((n for n, v in table if v is value), None)
        if name is None:
            return None
        if name not in proxies:
            options: dict[str, Any] = {}
            if self.param_shapes_constant:
                options["proxy_factory_fn"] = lambda node: ParameterProxy(self, node, name, value)
            proxies[name] = self.create_proxy("get_attr", name, (), {}, **options)
        return proxies[name]

    # -- tracing ----------------------------------------------------------------------------------

    def create_args_for_root(
        self,
        root_fn: Callable[..., object],
        is_module: bool,
        concrete_args: dict[str, object] | tuple[object, ...] | None = None,
    ) -> tuple[Any, list[Any]]:
        """Add the placeholders of a function's parameters; return what to call, and with what."""
        inner: Any = inspect.unwrap(root_fn)
        code, signature = inner.__code__, inspect.signature(inner)
        count = code.co_argcount + code.co_kwonlyargcount
        names = iter(code.co_varnames)
        args: list[object] = []
        if is_module:
            if count == 0:
                raise RuntimeError("``self`` argument cannot be part of *args expansion!")
            next(names)
            args.append(self.root)
        variable = bool(code.co_flags & _VARIABLE)
        if isinstance(concrete_args, tuple) and concrete_args and variable and count == 1:
            for i, arg in enumerate(concrete_args):
                out = self.create_proxy("placeholder", f"input_{i}", (), {})
                _take_attributes(arg, out)
                args.append(out)
            return root_fn, args
        own = [next(names) for _ in range(len(args), count)]
        if isinstance(concrete_args, tuple):
            if len(own) != len(concrete_args):
                raise RuntimeError(
                    f"Tracing expected {len(own)} arguments but got {len(concrete_args)} concrete arguments"
                )
            concrete_args = dict(zip(own, concrete_args))
        known = concrete_args or {}
        args += [self._placeholder(n, known, signature, inner) for n in own]
        if code.co_kwonlyargcount or variable:
            for flag, stars in ((inspect.CO_VARARGS, "*"), (inspect.CO_VARKEYWORDS, "**")):
                if code.co_flags & flag:
                    args.append(self._placeholder(stars + next(names), known, signature, inner))
            root_fn = _with_plain_parameters(root_fn, len(args))
        flat, spec = pytree.tree_flatten(tuple(args))
        if all(child.is_leaf() for child in spec.children()):
            return root_fn, args
        # Something among the arguments is nested: the graph's own are flat.
        writer = _PyTreeCodeGen(_PyTreeInfo(list(code.co_varnames[:count]), spec, None))
        self.graph._codegen = writer

        def flatten_fn(*leaves: object) -> object:
            """Return the leaves of the result, given the leaves of the arguments."""
            out = root_fn(*pytree.tree_unflatten(list(leaves), spec))
            results, nesting = pytree.tree_flatten(out)
            writer.pytree_info = writer.pytree_info._replace(out_spec=nesting)
            return results

        return flatten_fn, flat

    def _placeholder(
        self, name: str, known: dict[str, object], signature: inspect.Signature, function: object
    ) -> object:
        """Add a parameter's placeholder; what is given as a constant is checked, and returned as it is."""
        default: tuple[object, ...] = ()
        if not name.startswith("*"):
            given = signature.parameters[name].default
            default = () if given is inspect.Parameter.empty else (given,)
        if name not in known:
            kind = function.__annotations__.get(name)
            return self.create_proxy("placeholder", name, default, {}, type_expr=kind)
        count = 0

        def replace(x: object) -> object:
            """Return the placeholder of a leaf, which is compared with the constant that was given for it."""
            nonlocal count
            count += 1
            out = self.create_proxy("placeholder", f"{name}_{count}", default, {})
            if isinstance(x, PHBase):
                _take_attributes(x, out)
                return out
            what = f"{name} has been specialized to have value {x} but got another value"
            if type(x) in base_types and not isinstance(x, Tensor):
                _assert(out == x, what)
            elif x is None:
                self.create_proxy("call_function", _assert_is_none, (out, what), {})
            else:
                warnings.warn(
                    f"Was not able to add assertion to guarantee correct input {name} to "
                    "specialized function. It is up to the user to make sure that your inputs match the "
                    "inputs you specialized the function with.",
                    stacklevel=user_depth(),
                )
            return x

        return pytree.tree_map(replace, known[name])

    def trace(
        self, root: Module | Callable[..., object], concrete_args: dict[str, object] | None = None
    ) -> Graph:
        """Return the graph of a module or function. Arguments in `concrete_args` are constants."""
        function: object = root
        if isinstance(root, Module):
            if not hasattr(type(root), self.traced_func_name):
                raise AssertionError(
                    f"traced_func_name={self.traced_func_name} doesn't exist in {type(root).__name__}"
                )
            function = getattr(type(root), self.traced_func_name)
            self.root = root
            self.root_module_name = root._get_name()
            self.submodule_paths = {m: name for name, m in root.named_modules()}
        else:
            self.root = Module()
        self.graph = Graph(tracer_cls=type(self))
        code = getattr(function, "__code__", None)
        if code is not None:
            fields = ("co_name", "co_filename", "co_firstlineno")
            self.graph._co_fields = {field: getattr(code, field) for field in fields}
        self.tensor_attrs = {
            value: f"{path}.{name}".lstrip(".")
            for path, m in self.root.named_modules()
            for name, value in vars(m).items()
            if isinstance(value, (Tensor, pytree.TreeSpec))
        }
        if not isinstance(function, FunctionType):
            raise AssertionError(f"Expected FunctionType, got {type(function)}")
        names = function.__globals__
        with trace.by(self), wrapped_functions() as places:
            called, args = self.create_args_for_root(
                function, isinstance(root, Module), concrete_args
            )
            self._places = places
            for searched in (names, *(vars(m) for m in self._autowrap_search)):
                places.search(searched, self._autowrap_function_ids)
            nested = isinstance(self.graph._codegen, _PyTreeCodeGen)
            types = {} if nested else inspect.get_annotations(inspect.unwrap(called))
            try:
                result = self.create_arg(called(*args))
                self.create_node("output", "output", (result,), {}, type_expr=types.get("return"))
            finally:
                self._places = None
        self.submodule_paths = None
        return self.graph

    def __deepcopy__(self, memo: dict[int, object]) -> Tracer:
        new = Tracer.__new__(Tracer)
        for k, v in vars(self).items():
            # Modules of Python cannot be copied.
            shallow = k == "_autowrap_search"
            vars(new)[k] = copy.copy(v) if shallow else copy.deepcopy(v, memo)
        return new


def _take_attributes(source: object, proxy: Proxy) -> None:
    """Give a placeholder's node what users have set on what stands for it in `concrete_args`."""
    if isinstance(source, PHBase) and source is not PH:
        for name, value in vars(source).items():
            if not callable(value) and not hasattr(proxy.node, name):
                setattr(proxy.node, name, value)


def symbolic_trace(
    root: Module | Callable[..., object], concrete_args: dict[str, object] | None = None
) -> GraphModule:
    """Return a module that does what `root` does, with its graph: what is called is recorded, with proxies for the
    arguments. Arguments in `concrete_args` are constants; `PH` in nested ones stands for what is none.
    """
    tracer = Tracer()
    graph = tracer.trace(root, concrete_args)
    name = type(root).__name__ if isinstance(root, Module) else root.__name__
    return GraphModule(tracer.root, graph, name)


@wrap
def _assert_is_none(value: object, msg: str) -> None:
    if value is not None:
        raise AssertionError(msg)
