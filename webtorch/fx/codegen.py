"""A graph as Python: each node is a line, and values are let go of after their last use."""

from __future__ import annotations

import enum
import inspect
import itertools
import math
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from webtorch.fx import _pytree as fx_pytree
from webtorch.fx.naming import Namespace, is_ours, qualified_name, reserve, type_repr
from webtorch.fx.node import Node, short_name
from webtorch.tensors.device import device
from webtorch.tensors.tensor import Tensor
from webtorch.utils import _pytree as pytree

if TYPE_CHECKING:
    from webtorch.fx.graph import NodeList

TransformCodeFunc = Callable[[list[str]], list[str]]


class Builtin(NamedTuple):
    """What the code of every graph finds among its globals: the statement that imports it, and the object."""

    import_str: str
    obj: object


BUILTINS: dict[str, Builtin] = {
    "inf": Builtin("from math import inf", math.inf),
    "nan": Builtin("from math import nan", math.nan),
    "NoneType": Builtin("NoneType = type(None)", type(None)),
    "torch": Builtin("import webtorch as torch", sys.modules["webtorch"]),
    "device": Builtin("from webtorch import device", device),
    "fx_pytree": Builtin("import webtorch.fx._pytree as fx_pytree", fx_pytree),
    "pytree": Builtin("import webtorch.utils._pytree as pytree", pytree),
}
for _name, _builtin in BUILTINS.items():
    reserve(_name, _builtin.obj)

# Python's signs of two operands, and its functions of these (`div` is of Python 2). With "i" in front a function writes
# over its first operand.
_SIGNS = {
    "+": "add", "-": "sub", "*": "mul", "//": "floordiv", "/": "truediv", "%": "mod", "**": "pow", "<<": "lshift",
    ">>": "rshift", "&": "and_", "|": "or_", "^": "xor", "@": "matmul",
}  # fmt: skip
_COMPARISONS = {"==": "eq", "!=": "ne", "<": "lt", ">": "gt", "<=": "le", ">=": "ge"}
reflectable_magic_methods = {name: f"{{}} {sign} {{}}" for sign, name in _SIGNS.items()} | {
    "div": "{} / {}",
    "getitem": "{}[{}]",
}
magic_methods = {
    **{name: f"{{}} {sign} {{}}" for sign, name in _COMPARISONS.items()},
    "pos": "+{}",
    "neg": "-{}",
    "invert": "~{}",
    **reflectable_magic_methods,
}
inplace_methods = {f"i{n.rstrip('_')}": f"{{}} {sign}= {{}}" for sign, n in _SIGNS.items()} | {
    "setitem": "{}[{}] = {}"
}

# Built-in containers as `typing` calls them, as which older annotations are written.
_TYPING = {
    list: typing.List,  # noqa: UP006
    dict: typing.Dict,  # noqa: UP006
    set: typing.Set,  # noqa: UP006
    frozenset: typing.FrozenSet,  # noqa: UP006
    tuple: typing.Tuple,  # noqa: UP006
}
_COUNTER = re.compile(r"# COUNTER: (\d+)")
_COLOURS = {"dim": "\033[2m", "red": "\033[31m", "blue": "\033[34m", "dim_green": "\033[2m\033[32m"}


@dataclass
class PythonCode:
    """A graph's function as source text, and the globals that it needs."""

    src: str
    globals: dict[str, Any]
    # The function's line -> the number of its node; lines begin at `_prologue_start` of the text.
    _lineno_map: dict[int, int | None] | None = None
    _prologue_start: int = 0


def format_target(base: str, target: str) -> str:
    """Return the expression for an attribute of a qualified name."""
    for part in target.split("."):
        base = f"{base}.{part}" if part.isidentifier() else f'getattr({base}, "{part}")'
    return base


def last_uses(nodes: Iterable[Node]) -> dict[Node, list[Node]]:
    """Return for each node those whose value nobody uses after it. `nodes` come last first."""
    seen: set[Node] = set()
    found: dict[Node, list[Node]] = {}
    for user in nodes:
        for used in user._input_nodes:
            if used not in seen:
                seen.add(used)
                found.setdefault(user, []).append(used)
    return found


class CodeGen:
    """Writes a graph's function. Subclasses change how it is called and what it returns."""

    def __init__(self) -> None:
        """Take nothing."""
        self._body_transformer: TransformCodeFunc | None = None
        self._func_name = "forward"

    def gen_fn_def(
        self, free_vars: list[str], maybe_return_annotation: str, *, expanded_def: bool = False
    ) -> str:
        """Return the function's head; `free_vars` are its parameters."""
        if not free_vars or free_vars[0] != "self":
            free_vars.insert(0, "self")
        if not expanded_def:
            return f"def {self._func_name}({', '.join(free_vars)}){maybe_return_annotation}:"
        lines = []
        for var in free_vars:
            name, mark, comment = var.partition("#")
            lines.append(f"    {name.rstrip()},{mark and '  # '}{comment.lstrip()}\n")
        return f"def {self._func_name}(\n{''.join(lines)}){maybe_return_annotation}:"

    def generate_output(
        self,
        output_args: object,
        *,
        descs: Sequence[str] | None = None,
        repr_fn: Callable[[object], str] | None = None,
    ) -> str:
        """Return the statement that returns the results; `descs` are comments, one for each."""
        write = repr_fn or repr
        if descs is None or not isinstance(output_args, (list, tuple)):
            return f"return {write(output_args)}"
        start, end = "()" if isinstance(output_args, tuple) else "[]"
        lines = [f"    {write(x)},  # {d}\n" for x, d in zip(output_args, descs)]
        return f"return {start}\n{''.join(lines)}{end}"

    def process_inputs(self, *args: object) -> Any:
        """Return what the graph's placeholders are given when its function is called with `args`."""
        return args

    def process_outputs(self, outputs: object) -> Any:
        """Return what the function returns when the graph gives `outputs`."""
        return outputs

    def additional_globals(self) -> list[tuple[str, Any]]:
        """Return more globals that the code needs, by name."""
        return []

    def _gen_python_code(
        self, nodes: NodeList, root_module: str, namespace: Namespace, **options: Any
    ) -> PythonCode:
        return _Writer(self, nodes, root_module, namespace, **options).write()


class _PyTreeInfo(NamedTuple):
    """The function's own parameters, and how its arguments and results are nested."""

    orig_args: list[str]
    in_spec: Any
    out_spec: Any


class _PyTreeCodeGen(CodeGen):
    """Writes a function whose arguments and results are nested, of a graph in which they are flat."""

    def __init__(self, pytree_info: _PyTreeInfo) -> None:
        super().__init__()
        self.pytree_info = pytree_info

    def process_inputs(self, *inputs: object) -> Any:
        """Return the leaves of the arguments."""
        return pytree.arg_tree_leaves(*inputs)

    def process_outputs(self, outputs: object) -> Any:
        """Nest the results."""
        if self.pytree_info.out_spec is None:
            return outputs
        leaves = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        return pytree.tree_unflatten(leaves, self.pytree_info.out_spec)

    def gen_fn_def(
        self, free_vars: list[str], maybe_return_annotation: str, *, expanded_def: bool = False
    ) -> str:
        """Return the head of a function with its own parameters, and the line that flattens them."""
        own = self.pytree_info.orig_args
        if own and own[0] == "self":
            free_vars.insert(0, "self")
        head = super().gen_fn_def(own[:], maybe_return_annotation, expanded_def=expanded_def)
        if not free_vars:
            return head
        typed = [v for v in free_vars if ":" in v]
        if typed:
            head += "\n    " + "".join(f"{v}; " for v in typed) + "\n"
        plain = [v.split(":")[0].split("#")[0] for v in free_vars]
        return f"{head}\n    {', '.join(plain)}, = fx_pytree.tree_flatten_spec({self._given(own)})"

    def _given(self, own: list[str]) -> str:
        spec = self.pytree_info.in_spec
        children = spec.children()
        pairs = spec.type is tuple and [c.type for c in children] == [tuple, dict]
        if not pairs:
            return f"[{', '.join(own)}], self._in_spec"
        count = children[0].num_children
        named = zip(children[1].context, own[count:])
        kwargs = ", ".join(f"'{k}':{v}" for k, v in named)
        return f"([{', '.join(own[:count])}], {{{kwargs}}}), self._in_spec"

    def generate_output(
        self,
        output_args: object,
        *,
        descs: Sequence[str] | None = None,
        repr_fn: Callable[[object], str] | None = None,
    ) -> str:
        """Return the statement that returns the results, nested."""
        if not self.pytree_info.out_spec:
            return super().generate_output(output_args, descs=descs, repr_fn=repr_fn)
        return f"return pytree.tree_unflatten({(repr_fn or repr)(output_args)}, self._out_spec)"


class _Writer:
    """The text of one graph's function, while it is written."""

    def __init__(
        self,
        codegen: CodeGen,
        nodes: NodeList,
        root_module: str,
        namespace: Namespace,
        *,
        verbose: bool = False,
        include_stride: bool = False,
        include_device: bool = False,
        colored: bool = False,
        expanded_def: bool = False,
        record_func: bool = False,
        additional_meta: list[str] | None = None,
    ) -> None:
        self.codegen, self.nodes, self.root = codegen, nodes, root_module
        self.namespace, self.verbose, self.expanded = namespace, verbose, expanded_def
        self.include_stride, self.include_device = include_stride, include_device
        self.colored, self.additional_meta = colored, additional_meta or []
        self.free_vars: list[str] = []
        self.body: list[str] = []
        self.globals: dict[str, object] = {}
        # Names of functions that the code has to wrap again where it is traced.
        self.wrapped: dict[str, None] = {}
        self.annotation = ""
        self.told = ""

    def write(self) -> PythonCode:
        """Return the text."""
        for name, builtin in BUILTINS.items():
            self.add_global(name, builtin.obj)
        unused = last_uses(reversed(self.nodes))
        for i, node in enumerate(self.nodes):
            if self.verbose:
                self._tell_origin(node)
            # Tells which node a line is of; taken out at the end.
            self.body.append(f"# COUNTER: {i}\n")
            line = self._line(node)
            if line is not None:
                self.body.append(line + self._end(node, unused.get(node, [])))
        body = self.body or ["pass\n"]
        wrapping = ""
        if self.wrapped:
            wrap = self.add_global("wrap", _wrap())
            wrapping = "\n".join(f'{wrap}("{name}")' for name in self.wrapped)
        if self.codegen._body_transformer:
            body = self.codegen._body_transformer(body)
        for name, value in self.codegen.additional_globals():
            self.add_global(name, value)
        head = _call(
            self.codegen.gen_fn_def, self.free_vars, self.annotation, expanded_def=self.expanded
        )
        places: dict[int, int | None] = {}
        lines: list[str] = []
        current = None
        for line in "".join(body).split("\n"):
            counter = _COUNTER.search(line)
            if counter is not None:
                current = int(counter.group(1))
            else:
                places[len(lines) + head.count("\n") + 1] = current
                lines.append(line)
        code = "\n".join("    " + line for line in "\n".join(lines).lstrip("\n").split("\n"))
        # Four empty or wrapping lines come before the head.
        start = wrapping.count("\n") + 4
        return PythonCode(f"\n{wrapping}\n\n{head}\n{code}", self.globals, places, start)

    def add_global(self, hint: str, obj: Any) -> str:
        """Return the name by which the code reaches an object from outside."""
        if is_ours(obj) and obj is not device:
            return qualified_name(obj)
        name = self.namespace.create_name(hint, obj)
        if self.globals.setdefault(name, obj) is not obj and self.globals[name] != obj:
            raise AssertionError(f"Global name {name} already assigned to different object")
        return name

    def type_name(self, kind: object) -> str:
        """Return how the code writes a type."""
        if kind == ():
            return "()"
        if isinstance(kind, types.UnionType):
            return "|".join(self.type_name(a) for a in typing.get_args(kind))
        origin = getattr(kind, "__origin__", None)
        if origin is None:
            return self.add_global(type_repr(kind), kind)
        if isinstance(kind, typing._GenericAlias):  # type: ignore[attr-defined]
            origin = _TYPING.get(origin, origin)
        name = self.add_global(type_repr(origin), origin)
        args = ",".join(self.type_name(a) for a in typing.get_args(kind))
        return f"{name}[{args}]" if args else name

    def text(self, arg: object) -> str:
        """Return how the code writes an argument."""
        if isinstance(arg, Node):
            return repr(arg)
        if isinstance(arg, tuple) and hasattr(arg, "_fields"):
            return f"{self.add_global(qualified_name(type(arg)), type(arg))}{tuple(arg)!r}"
        if isinstance(arg, enum.Enum):
            return f"{self.add_global(type(arg).__name__, type(arg))}.{arg.name}"
        if isinstance(arg, Tensor):
            kind = str(arg.dtype).rpartition(".")[2]
            return f"torch.Tensor(size={list(arg.size())}, dtype={kind})"
        if isinstance(arg, tuple):
            parts = ", ".join(map(self.text, arg))
            return f"({parts},)" if len(arg) == 1 else f"({parts})"
        if isinstance(arg, list):
            return f"[{', '.join(map(self.text, arg))}]"
        if isinstance(arg, slice):
            return f"slice({self.text(arg.start)}, {self.text(arg.stop)}, {self.text(arg.step)})"
        return self.coloured("blue", repr(arg))

    def given(self, args: Iterable[object], kwargs: dict[str, object]) -> str:
        """Return how the code writes the arguments of a call."""
        parts = [*map(self.text, args), *(f"{k} = {self.text(v)}" for k, v in kwargs.items())]
        return ", ".join(parts)

    def coloured(self, colour: str, text: str) -> str:
        """Return text that a terminal shows in a colour, if any is wanted."""
        return f"{_COLOURS[colour]}{text}\033[0m" if self.colored else text

    def _line(self, node: Node) -> str | None:
        """Return a node's statement, without what follows it; None of one that needs none."""
        typed = "" if node.type is None else f" : {self.type_name(node.type)}"
        if self.verbose:
            typed = self._annotation(node) or typed
        target: Any = node.target
        name, args = repr(node), node.args
        described = node.meta.get("desc") if self.expanded else None
        match node.op:
            case "placeholder":
                default = f" = {self.text(args[0])}" if args else ""
                comment = f"  # {described}" if described is not None else ""
                self.free_vars.append(f"{target}{typed}{default}{comment}")
                plain = target.replace("*", "")
                if plain != name:
                    self.body.append(f"{name} = {plain}\n")
                return None
            case "output":
                if node.type is not None:
                    self.annotation = f" -> {self.type_name(node.type)}"
                return _call(
                    self.codegen.generate_output, args[0], descs=described, repr_fn=self.text
                )
            case "get_attr":
                return f"{name}{typed} = {format_target(self.root, target)}"
            case "call_module":
                called = format_target(self.root, target)
                return f"{name}{typed} = {called}({self.given(args, node.kwargs)})"
            case "call_method":
                called = format_target(self.text(args[0]), target)
                return f"{name}{typed} = {called}({self.given(args[1:], node.kwargs)})"
        if getattr(target, "__module__", "") == "_operator":
            operands = [self.text(a) for a in args]
            if target.__name__ in magic_methods:
                return f"{name}{typed} = {magic_methods[target.__name__].format(*operands)}"
            if target.__name__ in inplace_methods:
                written = inplace_methods[target.__name__].format(*operands)
                return f"{written};  {name}{typed} = {operands[0]}"
        called = self.add_global(qualified_name(target), target)
        if called == "getattr" and len(args) == 2 and str(args[1]).isidentifier():
            return f"{name}{typed} = {format_target(self.text(args[0]), args[1])}"
        if node.meta.get("is_wrapped", False):
            self.wrapped.setdefault(called)
        return f"{name}{typed} = {called}({self.given(args, node.kwargs)})"

    def _end(self, node: Node, unused: list[Node]) -> str:
        """Return what follows a statement: values that nobody needs any more are let go of."""
        if node.op == "output":
            return "\n"
        # One that nobody uses and that has to stay all the same.
        gone = [*unused] if node.users else [*unused, node]
        if not gone:
            return "\n"
        return f";  {self.coloured('dim', ' = '.join([*map(repr, gone), 'None']))}\n"

    def _annotation(self, node: Node) -> str:
        """Return what is known of a node's value, as an annotation."""
        meta = node.meta
        value = meta.get("val", meta.get("tensor_meta", meta.get("example_value")))
        if isinstance(value, Tensor):
            strides = (
                self.coloured("dim_blue", str(list(value.stride()))) if self.include_stride else ""
            )
            place = self.coloured("dim_green", str(value.device)) if self.include_device else ""
            kind = self.coloured("red", short_name(value.dtype))
            return f': "{kind}{self.coloured("blue", str(list(value.shape)))}{strides}{place}"'
        if value is not None and hasattr(value, "memory_format"):
            return f': "{short_name(value.dtype)}{list(value.shape)}"'
        return ""

    def _tell_origin(self, node: Node) -> None:
        """Write a comment that says where a node comes from, if the node before does not come from there too."""
        if node.op in ("placeholder", "output"):
            return
        known = [f"{k}: {node.meta[k]}" for k in self.additional_meta if k in node.meta]
        note = f"# {', '.join(known)} " if known else ""
        custom = {k: _cut(v) for k, v in node.meta.get("custom", {}).items()}
        annotation = f" Annotation: {custom}" if custom else ""
        trace = _innermost(node.stack_trace or "") or "No stacktrace found for following nodes"
        text = f"\n{self.coloured('dim', f'{note}#{annotation} {trace}')}\n"
        if text != self.told:
            self.told = text
            self.body.append(text)


def _cut(value: object) -> object:
    text = str(value)
    return f"{text[:40]}..." if len(text) > 40 else value


def _innermost(trace: str) -> str:
    """Return the last place of a stack trace: "File: model.py:12 in forward, code: return x"."""
    lines = [line.strip() for line in trace.strip().split("\n")]
    for line, code in reversed(list(itertools.pairwise(lines))):
        found = re.match(r"^File \"(.+)\", line (\d+), in (.+)$", line)
        if found:
            return f"File: {found[1]}:{found[2]} in {found[3]}, code: {code}"
    return ""


def _call(method: Callable[..., str], *args: object, **kwargs: object) -> str:
    """Call a method with those options that it takes: subclasses may be older than some."""
    taken = inspect.signature(method).parameters
    return method(*args, **{k: v for k, v in kwargs.items() if k in taken})


def _wrap() -> object:
    return sys.modules["webtorch.fx._symbolic_trace"].wrap
