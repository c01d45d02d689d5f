"""A module whose forward is the code of a graph."""

from __future__ import annotations

import contextlib
import copy
import itertools
import linecache
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from webtorch import nn
from webtorch.fx.codegen import BUILTINS, PythonCode, _PyTreeCodeGen
from webtorch.fx.graph import Graph
from webtorch.fx.naming import is_ours
from webtorch.fx.node import Node
from webtorch.io.checkpoint import save
from webtorch.ir.lines import is_internal, user_depth
from webtorch.nn import Module, Parameter
from webtorch.tensors.tensor import Tensor

if TYPE_CHECKING:
    from webtorch.fx._symbolic_trace import Tracer

__all__ = ["GraphModule", "reduce_graph_module"]

_USER_PRESERVED_ATTRIBUTES_KEY = "_user_preserved_attributes"
_HOOKS = ("_replace_hooks", "_create_node_hooks", "_erase_node_hooks", "_deepcopy_hooks")


class _Sources:
    """The text of generated code, so that tracebacks and `inspect` show it."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def keep(self, text: str, names: dict[str, object], origin: Mapping[str, object]) -> str:
        """Keep a text; return the name of the file that it is said to be."""
        key = f"<eval_with_key>.{len(self.texts)}"
        if len(origin) == 3:
            key += " from {co_filename}:{co_firstlineno} in {co_name}".format_map(origin)
        self.texts[key] = text
        told = {**names, "__file__": key, "__name__": key, "__loader__": self}
        linecache.lazycache(key, told)
        return key

    def get_source(self, module_name: str) -> str | None:
        """Return a text: what `linecache` asks a loader."""
        return self.texts.get(module_name)


_sources = _Sources()


def _forward_from_src(
    src: str, names: dict[str, Any], origin: Mapping[str, object] | None = None
) -> Callable[..., object]:
    """Return the function that a text defines as `forward`."""
    own = dict(names)
    key = _sources.keep(src, own, origin or {})
    exec(compile(src, key, "exec", dont_inherit=True), own)
    return own.pop("forward")


def _import_block(names: dict[str, Any]) -> str:
    """Return the statements that import the globals of some code."""
    found: set[str] = set()
    for name, obj in names.items():
        if name in BUILTINS:
            found.add(BUILTINS[name].import_str)
        elif is_ours(obj):
            found.add(BUILTINS["torch"].import_str)
        elif isinstance(obj, str):
            # An annotation that stands as text.
            found.add(f"{name} = {obj!r}")
        else:
            found.add(f"from {obj.__module__} import {obj.__qualname__} as {name}")
    return "\n".join(sorted(found))


class _CodeOnlyModule(Module):
    """A module with the attributes of another one, to trace code of it."""

    def __init__(self, body: dict[str, object]) -> None:
        super().__init__()
        self.__dict__ = body


def reduce_graph_module(body: dict[str, Any], import_block: str) -> Module:
    """Return the module that was pickled: its code is traced, which gives the graph."""
    code = body.get("_code") or body["code"]
    forward = _forward_from_src(import_block + code, {})
    return _deserialize_graph_module(forward, body)


def _deserialize_graph_module(forward: Callable[..., object], body: dict[str, Any]) -> Module:
    kind: Any = body.get("_tracer_cls") or _symbolic_trace().Tracer

    class KeepModules(kind):  # type: ignore[misc]
        """Enters no module: it was not entered when the code was made."""

        def is_leaf_module(self, *_: object) -> bool:
            """Return True."""
            return True

    # The tracer takes `forward` from the class.
    source = type("_CodeOnlyModule", (_CodeOnlyModule,), {"forward": forward})(body)
    graph = KeepModules().trace(source, **body.get("_tracer_extras", {}))
    traces = body.pop("_graphmodule_graph_node_meta_stack_trace", {})
    for node in graph.nodes:
        if node.name in traces:
            node.meta["stack_trace"] = traces[node.name]
    graph._tracer_cls = kind
    module = GraphModule(source, graph, body.get("_graphmodule_cls_name", "GraphModule"))
    for name, value in body.items():
        if not hasattr(module, name):
            setattr(module, name, value)
    return module


def _symbolic_trace() -> Any:
    return sys.modules["webtorch.fx._symbolic_trace"]


def _get_attr(model: object, attr_name: str) -> object:
    for part in attr_name.split("."):
        model = getattr(model, part)
    return model


def _copy_attr(from_module: object, to_module: object, target: str) -> None:
    """Give a module what another one has under a name; modules on the way to it are new ones."""
    *prefix, field = target.split(".")
    for part in prefix:
        source, found = getattr(from_module, part), getattr(to_module, part, None)
        if source is found:
            # The module around it is there already.
            return
        if found is None:
            found = Module()
            setattr(to_module, part, found)
        from_module, to_module = source, found
    _assign_attr(getattr(from_module, field), to_module, field)


def _assign_attr(value: object, module: Any, target: str) -> None:
    """Set an attribute of a qualified name; a tensor that is no parameter is a buffer."""
    *prefix, field = target.split(".")
    for part in prefix:
        found = getattr(module, part, None)
        if found is None:
            found = Module()
            setattr(module, part, found)
        module = found
    if isinstance(value, Tensor) and not isinstance(value, Parameter):
        module.register_buffer(field, value)
    else:
        setattr(module, field, value)


def _addindent(text: str, count: int) -> str:
    first, *rest = text.split("\n")
    return "\n".join([first, *(" " * count + line if line.strip() else "" for line in rest)])


class GraphModule(Module):
    """A module made of a graph. `graph` may be changed: `recompile()` makes the code anew. `code` shows it."""

    def __new__(cls, *args: object, **kwargs: object) -> GraphModule:
        """Make an object of a class of its own, which has its forward."""
        own = next(c for c in cls.__mro__ if c.__qualname__.split(".")[-1] != "GraphModuleImpl")
        kind = type("GraphModuleImpl", (own,), {"__module__": own.__module__})
        return super().__new__(kind)

    def __init__(
        self, root: Module | dict[str, object], graph: Graph, class_name: str = "GraphModule"
    ) -> None:
        """Take what the graph looks up and calls from a module, or from a dict by qualified name."""
        super().__init__()
        type(self).__name__ = class_name
        targets = [str(n.target) for n in graph.nodes if n.op in ("get_attr", "call_module")]
        if isinstance(root, Module):
            self.training = getattr(root, "training", self.training)
            if isinstance(root, _CodeOnlyModule):
                # A copy loses nothing, used or not.
                named = (root.named_children(), root.named_buffers(), root.named_parameters())
                targets = [name for table in named for name, _ in table] + targets
            for target in targets:
                _copy_attr(root, self, target)
        elif isinstance(root, dict):
            for node in graph.nodes:
                if node.op in ("get_attr", "call_module") and node.target not in root:
                    raise RuntimeError(
                        f"Node {node} referenced target {node.target} but that target was not "
                        "provided in ``root``!"
                    )
            # What is around comes before what is in it.
            for target in sorted(targets, key=lambda t: t.count(".")):
                _assign_attr(root[target], self, target)
        else:
            raise RuntimeError(f"Unsupported type {root} passed for root!")
        self.graph = graph
        kind = graph._tracer_cls
        # A class within a function cannot be pickled.
        known = kind is not None and "<locals>" not in kind.__qualname__
        self._tracer_cls: type[Tracer] | None = kind if known else None
        self._tracer_extras = graph._tracer_extras or {}
        self.meta: dict[str, Any] = {}
        for name in _HOOKS:
            setattr(self, name, [])

    @property
    def graph(self) -> Graph:
        """The graph. A new one is compiled at once."""
        return self._graph

    @graph.setter
    def graph(self, g: Graph) -> None:
        """Take another graph: its code is written anew."""
        if not isinstance(g, Graph):
            raise AssertionError(f"Expected a Graph instance, but got {type(g)}")
        self._graph = g
        g.owning_module = self
        self.recompile()

    @property
    def code(self) -> str:
        """The text of its forward."""
        return self._code

    def recompile(self) -> PythonCode:
        """Make the code of the graph anew: to be called when the graph was changed."""
        writer = self._graph._codegen
        if isinstance(writer, _PyTreeCodeGen):
            self._in_spec, self._out_spec = writer.pytree_info.in_spec, writer.pytree_info.out_spec
        code = self._graph.python_code(root_module="self")
        self._code, self._lineno_map = code.src, code._lineno_map
        self._prologue_start = code._prologue_start
        kind: Any = type(self)
        kind.forward = _forward_from_src(code.src, code.globals, self._graph._co_fields)
        for child in self.children():
            if isinstance(child, GraphModule):
                child.recompile()
        return code

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Run the code. An error that arose in it says at which line."""
        try:
            return super().__call__(*args, **kwargs)
        except Exception as error:
            # What the generated code called of the package's own is no place of the error.
            frames = traceback.walk_tb(error.__traceback__)
            users = ((f, n) for f, n in frames if not is_internal(f.f_code))
            where = traceback.StackSummary.extract(users)
            if not where or "eval_with_key" not in where[-1].filename:
                raise
            print(_told(where[-1]), file=sys.stderr)  # noqa: T201
            raise error.with_traceback(None) from None

    # -- submodules -------------------------------------------------------------------------------

    def add_submodule(self, target: str, m: Module) -> bool:
        """Add a submodule under a qualified name; return whether that was possible."""
        *prefix, field = target.split(".")
        owner: Any = self
        for part in prefix:
            found = getattr(owner, part, None)
            if found is None:
                found = Module()
                setattr(owner, part, found)
            if not isinstance(found, Module):
                return False
            owner = found
        owner.add_module(field, m)
        return True

    def delete_submodule(self, target: str) -> bool:
        """Take a submodule out; return whether there was one."""
        *prefix, field = target.split(".")
        owner: object = self
        for part in prefix:
            owner = getattr(owner, part, None)
            if not isinstance(owner, Module):
                return False
        if not isinstance(getattr(owner, field, None), Module):
            return False
        delattr(owner, field)
        return True

    def delete_all_unused_submodules(self) -> None:
        """Take out the submodules that the graph does not use."""
        used: set[str] = set()
        for node in self.graph.nodes:
            if node.op not in ("call_module", "get_attr"):
                continue
            target = str(node.target)
            used.update(itertools.accumulate(target.split("."), lambda a, b: f"{a}.{b}"))
            if node.op == "call_module":
                with contextlib.suppress(AttributeError):
                    inner = self.get_submodule(target).named_modules()
                    used.update(f"{target}.{name}" for name, _ in inner if name)
        for name in [name for name, _ in self.named_modules() if name not in used]:
            self.delete_submodule(name)

    # -- copies -----------------------------------------------------------------------------------

    def __reduce__(self) -> tuple[object, ...]:
        # The code is kept, and not the graph, whose classes may change.
        state = self.__dict__.copy()
        names = self.recompile().globals
        del state["_graph"]
        return reduce_graph_module, (state, _import_block(names))

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        return self.__reduce__()

    def __deepcopy__(self, memo: dict[int, object]) -> GraphModule:
        new: Any = type(self).__new__(type(self))
        memo[id(self)] = new
        state = copy.deepcopy(self.__dict__, memo)
        GraphModule.__init__(new, _CodeOnlyModule(state), state["_graph"])
        kept = ("_state_dict_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")
        for name in (*kept, *_HOOKS):
            if name in state:
                setattr(new, name, state[name])
        new.meta = state.get("meta", {})
        for name, value in new.meta.get(_USER_PRESERVED_ATTRIBUTES_KEY, {}).items():
            setattr(new, name, value)
        for hook in self._deepcopy_hooks:
            hook(new)
        return new

    def __copy__(self) -> GraphModule:
        new = GraphModule(self, self.graph)
        new.meta = self.meta
        return new

    def to_folder(self, folder: str | os.PathLike[str], module_name: str = "FxModule") -> None:
        """Write the module as a package of Python: its code, and what it looks up."""
        place = Path(folder)
        place.mkdir(exist_ok=True)
        save(self.state_dict(), place / "state_dict.pt")
        imports = "\n".join(b.import_str for b in BUILTINS.values())
        lines = [
            f"{imports}\n\nfrom webtorch.nn import *\n",
            f"class {module_name}(torch.nn.Module):",
            "    def __init__(self):",
            "        super().__init__()",
        ]
        pickled: list[str] = []
        for name, module in self.named_children():
            if type(module) in _WRITTEN:
                made = repr(module)
            else:
                save(module, place / f"{name}.pt")
                pickled.append(name)
                made = f"torch.load(r'{place / name}.pt', weights_only=False)"
            lines.append(f"        setattr(self, '{name}', {made})")
        for name, tensor in self._buffers.items():
            if tensor is not None:
                empty = f"torch.empty({list(tensor.shape)}, dtype={tensor.dtype})"
                lines.append(f"        self.register_buffer('{name}', {empty})")
        for name, tensor in self._parameters.items():
            if tensor is not None:
                empty = f"torch.empty({list(tensor.shape)}, dtype={tensor.dtype})"
                lines.append(f"        setattr(self, '{name}', torch.nn.Parameter({empty}))")
        lines.append(f"        self.load_state_dict(torch.load(r'{place}/state_dict.pt'))")
        lines.append(_addindent(self.code, 4))
        (place / "module.py").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (place / "__init__.py").write_text("from .module import *", encoding="utf-8")
        if pickled:
            warnings.warn(
                "Was not able to save the following children modules as reprs -"
                f"saved as pickled files instead: {pickled}",
                stacklevel=user_depth(),
            )

    # -- text -------------------------------------------------------------------------------------

    def print_readable(
        self,
        print_output: bool = True,
        include_stride: bool = False,
        include_device: bool = False,
        colored: bool = False,
        *,
        fast_sympy_print: bool = False,
        expanded_def: bool = False,
        additional_meta: list[str] | None = None,
    ) -> str:
        """Print the code with what is known of its values, and that of its graph modules; return the text."""
        options: dict[str, object] = {
            "include_stride": include_stride,
            "include_device": include_device,
            "colored": colored,
            "additional_meta": additional_meta,
        }
        text = _readable(self, self._get_name(), expanded_def=expanded_def, **options)
        if print_output:
            print(text)  # noqa: T201
        return text

    def __str__(self) -> str:
        hint = "# To see more debug info, please use `graph_module.print_readable()`"
        return "\n".join([super().__str__(), self._code, hint])

    # -- who is told of changes -------------------------------------------------------------------

    @contextlib.contextmanager
    def _set_replace_hook(self, f: Callable[..., object]) -> Iterator[None]:
        self._replace_hooks.append(f)
        try:
            yield
        finally:
            self._replace_hooks.remove(f)

    def _register_replace_node_hook(self, f: Callable[..., object]) -> None:
        self._replace_hooks.append(f)

    def _unregister_replace_node_hook(self, f: Callable[..., object]) -> None:
        self._replace_hooks.remove(f)

    def _register_create_node_hook(self, f: Callable[[Node], object]) -> None:
        self._create_node_hooks.append(f)

    def _unregister_create_node_hook(self, f: Callable[[Node], object]) -> None:
        self._create_node_hooks.remove(f)

    def _register_erase_node_hook(self, f: Callable[[Node], object]) -> None:
        self._erase_node_hooks.append(f)

    def _unregister_erase_node_hook(self, f: Callable[[Node], object]) -> None:
        self._erase_node_hooks.remove(f)

    def _register_deepcopy_hook(self, f: Callable[[GraphModule], object]) -> None:
        self._deepcopy_hooks.append(f)

    def _unregister_deepcopy_hook(self, f: Callable[[GraphModule], object]) -> None:
        self._deepcopy_hooks.remove(f)


# Layers whose text is the call that makes them.
_WRITTEN = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d,
)  # fmt: skip


def _readable(module: GraphModule, name: str, **options: object) -> str:
    code = module.graph.python_code(root_module="self", verbose=True, **options).src
    text = _addindent(f"class {name}(torch.nn.Module):\n" + code.lstrip("\n"), 4)
    options.pop("expanded_def", None)
    inner = [
        _readable(child, n, **options)
        for n, child in module.named_children()
        if isinstance(child, GraphModule)
    ]
    return text + _addindent("\n".join(["", *inner]), 4)


def _told(where: traceback.FrameSummary) -> str:
    """Return an error's traceback, and the line of generated code at which it arose."""
    number, lines = where.lineno or 1, linecache.getlines(where.filename)
    message = (
        f"Call using an FX-traced Module, line {number} of the traced Module's "
        "generated forward function:"
    )
    marker = "~" * len(where.line or "") + "~~~ <--- HERE"
    before, after = "".join(lines[number - 2 : number]), "\n".join(lines[number : number + 2])
    return "\n".join([traceback.format_exc(), message, before, marker, after])
