"""Writes the stub files that tell editors and the type checker what the op table adds.

    python tools/stubs.py            write them
    python tools/stubs.py --check    fail if they are not what the table says now

Nobody edits the stubs: they follow from the table.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib.util
import inspect
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import webtorch
from webtorch.functions.assign import CONVERSIONS
from webtorch.functions.bind import NAMESPACES, PROPERTIES
from webtorch.ops.record import TABLE, Elementwise, Op, public_name
from webtorch.tensors import calls

ROOT = Path(__file__).resolve().parent.parent / "webtorch"
HEADER = '"""{title} Written by tools/stubs.py from the op table; not edited by hand."""\n\n'
_OPERATORS = {
    "binary": """add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow and rand
        or ror xor rxor lshift rlshift rshift rrshift matmul rmatmul iadd isub imul itruediv
        ifloordiv imod ipow iand ior ixor ilshift irshift lt le gt ge""",
    "unary": "neg pos abs invert",
}
# Where the names come from that stubs use beside those of annotations.
_TENSOR = ("webtorch.tensors.tensor", "Tensor")
_OPERAND = ("webtorch.tensors.promotion", "Operand")
_MEMORY_FORMAT = ("webtorch.tensors.formats", "memory_format")
_SEQUENCE = ("collections.abc", "Sequence")
_COMMON = {"Sequence": _SEQUENCE, "Literal": ("typing", "Literal")}
# The module in whose terms the types of elementwise functions are written.
_FORMULAS = "webtorch.tensors.promotion"
# Where the options are written that functions which make tensors share.
_FACTORY = "webtorch.functions.factory"


@functools.cache
def _homes(module: str) -> dict[str, tuple[str, str]]:
    """Return where each name that a module imports or defines comes from: module and name there."""
    found: dict[str, tuple[str, str]] = {}
    path = inspect.getsourcefile(sys.modules[module])
    assert path is not None
    for node in ast.walk(ast.parse(Path(path).read_text())):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                found[alias.asname or alias.name] = (str(node.module), alias.name)
        elif isinstance(node, ast.ClassDef):
            found[node.name] = (module, node.name)
        elif isinstance(node, ast.Assign):
            found.update({t.id: (module, t.id) for t in node.targets if isinstance(t, ast.Name)})
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = (module, node.target.id)
    return found


class _Stub:
    """One stub file as it is written: its lines, and what they import."""

    def __init__(self, names: Iterable[str]) -> None:
        # A builtin of one of these names is another thing in the stub.
        self.names = {n for n in names if hasattr(builtins, n)}
        self.imports: set[str] = set()
        self.homes: dict[str, str] = {}

    def name(self, home: tuple[str, str]) -> str:
        """Return what the stub calls a name of another module; nobody imports it from the stub."""
        module, name = home
        alias = f"_{name}"
        if self.homes.setdefault(alias, module) != module:
            alias = f"_{module.rpartition('.')[2]}_{name}"
        self.imports.add(f"from {module} import {name} as {alias}")
        return alias

    def annotation(self, text: str, module: str) -> str:
        """Return an annotation of a function of `module` in the stub's terms."""
        assert isinstance(text, str), f"{module}: a function has no types: {text}"
        tree = ast.parse(text, mode="eval")
        homes = _COMMON | _homes(_FORMULAS) | _homes(_FACTORY) | _homes(module)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Name):
                continue
            if node.id in homes:
                node.id = self.name(homes[node.id])
            elif node.id in self.names:
                self.imports.add("import builtins")
                node.id = f"builtins.{node.id}"
            else:
                assert hasattr(builtins, node.id), f"{module}: what is {node.id} in {text}?"
        return ast.unparse(tree)

    def parameters(self, signature: inspect.Signature, module: str, *, method: bool) -> str:
        """Return the parameters of a function, as a stub has them."""
        parts: list[str] = []
        star = False
        for i, p in enumerate(signature.parameters.values()):
            if method and i == 0:
                parts.append("self")
                continue
            if p.kind is p.KEYWORD_ONLY and not star:
                parts.append("*")
            star |= p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
            stars = "*" * (p.kind is p.VAR_POSITIONAL) + "**" * (p.kind is p.VAR_KEYWORD)
            default = "" if p.default is p.empty else " = ..."
            parts.append(f"{stars}{p.name}: {self.annotation(p.annotation, module)}{default}")
        return ", ".join(parts)

    def function(
        self, name: str, op: Op, *, method: bool, out: bool = False, inplace: bool = False
    ) -> str:
        """Return what a stub says of an entry's function: one line, or one for each form."""
        module = _module(op)
        heads = []
        forms = _forms(op)
        for signature in forms:
            result = signature.return_annotation
            if method:
                signature = _without_out(signature)
            elif out and "out" not in signature.parameters:
                signature = _with_out(signature)
            if inplace:
                signature = _with_inplace(signature)
            given = self.parameters(signature, module, method=method)
            heads.append(f"def {name}({given}) -> {self.annotation(result, module)}: ...")
        if method and name in PROPERTIES:
            (signature,) = forms
            result = self.annotation(signature.return_annotation, module)
            return f"@property\n    def {name}(self) -> {result}: ..."
        if len(heads) == 1:
            return heads[0]
        self.imports.add("from typing import overload as _overload")
        return ("\n    " if method else "\n").join(
            f"@_overload\n{'    ' * method}{h}" for h in heads
        )

    def inplace(self, name: str, op: Op) -> str:
        """Return what a stub says of an entry's form in place."""
        given = self.parameters(_without_out(_forms(op)[0]), _module(op), method=True)
        return f"def {name}({given}) -> {self.name(_TENSOR)}: ..."

    def written(self, title: str, body: str) -> str:
        """Return the stub."""
        return HEADER.format(title=title) + "\n".join(sorted(self.imports)) + "\n\n" + body


def _module(op: Op) -> str:
    """Return the module in whose terms an entry's types are written."""
    return _FORMULAS if isinstance(op, Elementwise) else str(op.written.__module__)


def _forms(op: Op) -> list[inspect.Signature]:
    """Return the signatures of an entry with their types: more than one where the result's type follows from them."""
    if isinstance(op, Elementwise):
        return [_formula(op)]
    if op.forms:
        scope: dict[str, Any] = {}
        made = []
        for form in op.forms:
            exec(f"from __future__ import annotations\ndef f{form}: ...", {}, scope)
            made.append(inspect.signature(scope["f"]))
        return made
    return [inspect.signature(op.written)]


def _formula(op: Elementwise) -> inspect.Signature:
    """Return the signature of an elementwise function."""
    scope: dict[str, Any] = {}
    exec(f"def f{op.signature}: pass", {}, scope)
    plain = inspect.signature(scope["f"])
    many = len(op.tensors) > 1
    typed = []
    for p in plain.parameters.values():
        if p.name in op.tensors:
            number = {"none": False, "other": p.name != op.tensors[0], "both": True}[op.numbers_for]
            text = "Operand" if many and number else "Tensor"
        else:
            text = {"out": "Tensor | None", "rounding_mode": "str | None"}.get(p.name, "Number")
        optional = p.default is None and "None" not in text
        typed.append(p.replace(annotation=f"{text} | None" if optional else text))
    plain = plain.replace(parameters=typed, return_annotation="Tensor")
    # A parameter that stands by its name only is one of this entry's function, which has no other.
    named = any(p.kind is p.KEYWORD_ONLY for p in typed)
    return plain if named else _with_out(plain)


def _with_out(signature: inspect.Signature) -> inspect.Signature:
    """Return a signature that takes `out=` too, of as many tensors as there are results."""
    result = signature.return_annotation
    if result in ("bool", "None", "int", "float"):
        return signature
    kind = "Tensor | None" if result == "Tensor" else "tuple[Tensor, ...] | None"
    out = inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
    parameters = [*signature.parameters.values()]
    at = len(parameters) - (bool(parameters) and parameters[-1].kind is parameters[-1].VAR_KEYWORD)
    return signature.replace(parameters=[*parameters[:at], out, *parameters[at:]])


def _without_out(signature: inspect.Signature) -> inspect.Signature:
    kept = [p for p in signature.parameters.values() if p.name != "out"]
    return signature.replace(parameters=kept)


def _with_inplace(signature: inspect.Signature) -> inspect.Signature:
    """Return a signature that takes `inplace` after what may be given by position."""
    parameters = [*signature.parameters.values()]
    at = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    inplace = inspect.Parameter("inplace", kind, default=False, annotation="bool")
    return signature.replace(parameters=[*parameters[:at], inplace, *parameters[at:]])


def methods() -> str:
    """Return the stub of the Tensor's methods."""
    from webtorch.tensors import tensor as module
    from webtorch.tensors.tensor import Tensor

    (body,) = (
        n
        for n in ast.parse(inspect.getsource(module)).body
        if isinstance(n, ast.ClassDef) and n.name == "Tensor"
    )
    own = {n.name for n in body.body if isinstance(n, ast.FunctionDef)}
    stub = _Stub((*dir(Tensor), *own))
    found: dict[str, str] = {}
    for op in TABLE.values():
        for name in (op.name, *op.aliases):
            if "Tensor" in op.function_in and name.isidentifier():
                found[name] = stub.function(name, op, method=True)
                if op.inplace and hasattr(Tensor, f"{name}_"):
                    found[f"{name}_"] = stub.inplace(f"{name}_", op)
    tensor, operand = stub.name(_TENSOR), stub.name(_OPERAND)
    memory = stub.name(_MEMORY_FORMAT)
    for name in CONVERSIONS:
        found[name] = f"def {name}(self, memory_format: {memory} = ...) -> {tensor}: ..."
    found["where"] = f"def where(self, condition: {tensor}, other: {operand}) -> {tensor}: ..."
    integer = stub.annotation("int", _FORMULAS)
    for name in ("polygamma", "polygamma_"):
        found[name] = f"def {name}(self, n: {integer}) -> {tensor}: ..."
    for name in _OPERATORS["binary"].split():
        found[f"__{name}__"] = f"def __{name}__(self, other: {operand}) -> {tensor}: ..."
    for name in _OPERATORS["unary"].split():
        found[f"__{name}__"] = f"def __{name}__(self) -> {tensor}: ..."
    value = f"{operand} | {stub.name(_SEQUENCE)}[object]"
    found["__getitem__"] = f"def __getitem__(self, index: object) -> {tensor}: ..."
    found["__setitem__"] = f"def __setitem__(self, index: object, value: {value}) -> None: ..."
    for name in ("real", "imag"):
        found[name] = (
            f"@property\n    def {name}(self) -> {tensor}: ...\n"
            f"    @{name}.setter\n    def {name}(self, value: object) -> None: ..."
        )
    kept = [found[n] for n in sorted(found) if n not in own or n.startswith("__")]
    body_text = "class TensorMethods:\n" + "".join(f"    {text}\n" for text in kept)
    return stub.written("The methods that the op table gives to tensors.", body_text)


def _owners(place: str) -> dict[str, tuple[Op, str]]:
    """Return the entries of a module's functions, and which of their forms these are: "", "out" or "in place"."""
    found: dict[str, tuple[Op, str]] = {}
    for op in TABLE.values():
        for name in (op.name, *op.aliases):
            if place in op.function_in:
                out = isinstance(op, Elementwise) or calls.takes_out(op, place)
                found[public_name(name, place)] = (op, "out" if out else "")
            if f"{place}.{name}_" in op.inplace_functions:
                found[f"{name}_"] = (op, "in place")
        for name in op.also:
            where, _, public = name.rpartition(".")
            if where == place:
                out = isinstance(op, Elementwise) or calls.takes_out(op, "torch")
                found[public] = (op, "out" if out else "")
    return found


def functions(place: str, stub: _Stub) -> str:
    """Return the lines of a module's functions that come from the table."""
    owners = _owners(place)
    assert owners.keys() == NAMESPACES[place].keys()
    lines = []
    for name, (op, form) in sorted(owners.items()):
        if form == "in place":
            text = stub.inplace(name, op).replace(
                "(self", f"({op.positional()[0]}: {stub.name(_TENSOR)}", 1
            )
        else:
            inplace = place == "nn.functional" and op.inplace and "inplace" not in op.signature
            text = stub.function(name, op, method=False, out=form == "out", inplace=inplace)
        lines.append(text + "\n")
    return "".join(lines)


def public() -> str:
    """Return the stub of functions.public: what public.py imports, then the table's functions."""
    head: list[str] = []
    renamed: list[str] = []
    stub = _Stub((*NAMESPACES["torch"], "float", "int", "bool"))
    for node in ast.parse((ROOT / "functions" / "public.py").read_text()).body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                public = alias.asname or alias.name
                if public.startswith("_"):
                    continue
                if public == alias.name:
                    head.append(f"from {node.module} import {public} as {public}\n")
                else:
                    # A stub exports `name as name` only; another name needs an assignment.
                    head.append(f"from {node.module} import {alias.name} as _{public}_\n")
                    renamed.append(f"{public} = _{public}_\n")
    head += renamed
    names = "float double half long short int cfloat cdouble"
    head += [f"{n}: dtype\n" for n in names.split()]
    number = stub.annotation("float", _FORMULAS)
    head += [f"{n}: {number}\n" for n in ("inf", "nan", "pi", "e")]
    head += ["newaxis: None\n\n"]
    body = "".join(head) + functions("torch", stub)
    return stub.written("PyTorch's names of tensors on webtorch's engine.", body)


def top() -> str:
    """Return the stub of the package itself: the public names of tensors, rooms, and the rooms' names."""
    lines = [HEADER.format(title="PyTorch's names on webtorch's engine.")]
    lines.append("from webtorch.functions.public import *\n")
    lines += [
        f"from {module.rpartition('.')[0]} import {name} as {name}\n"
        for name, module in vars(webtorch)["_ROOMS"].items()
        if module.endswith(f".{name}")
    ]
    lines += [
        f"from {home} import {name} as {name}\n" for name, home in vars(webtorch)["_HOMES"].items()
    ]
    return "".join(lines) + "__version__: str\n"


def functional() -> str:
    """Return the stub of nn.functional: the table's functions and those that the package writes itself."""
    names = NAMESPACES["nn.functional"]
    stub = _Stub(names)
    lines = [functions("nn.functional", stub)]
    for name, function in sorted(vars(webtorch.nn.functional).items()):
        if callable(function) and not name.startswith("_") and name not in names:
            signature, module = inspect.signature(function), function.__module__
            given = stub.parameters(signature, module, method=False)
            result = stub.annotation(signature.return_annotation, module)
            lines.append(f"def {name}({given}) -> {result}: ...\n")
    return stub.written("PyTorch's functions of neural networks.", "".join(lines))


def simple(place: str) -> str:
    """Return the stub of webtorch.linalg and the like."""
    stub = _Stub(NAMESPACES[place])
    return stub.written(f"torch.{place}'s names.", functions(place, stub))


def stubs() -> dict[Path, str]:
    """Return every stub file with its text, formatted."""
    made = {
        ROOT / "tensors" / "methods.pyi": methods(),
        ROOT / "__init__.pyi": top(),
        ROOT / "functions" / "public.pyi": public(),
        ROOT / "nn" / "functional" / "__init__.pyi": functional(),
        ROOT / "linalg" / "__init__.pyi": simple("linalg"),
        ROOT / "fft" / "__init__.pyi": simple("fft"),
        ROOT / "special" / "__init__.pyi": simple("special"),
    }
    return {path: _formatted(text) for path, text in made.items()}


def _formatted(text: str) -> str:
    for words in (["check", "--select", "I", "--fix", "--quiet"], ["format", "--quiet"]):
        ruff = [sys.executable, "-m", "ruff", *words, "--stdin-filename", "stub.pyi", "-"]
        done = subprocess.run(ruff, input=text, text=True, capture_output=True, check=True)
        text = done.stdout
    return text


def main() -> int:
    """Write or check the stubs; return the exit code."""
    stale = []
    for path, text in stubs().items():
        if not path.exists() or path.read_text() != text:
            stale.append(path)
            if "--check" not in sys.argv:
                path.write_text(text)
    for path in stale:
        print(
            ("stale: " if "--check" in sys.argv else "written: ")
            + str(path.relative_to(ROOT.parent))
        )
    if importlib.util.find_spec("torch") and "--check" not in sys.argv:
        # The page of PyTorch's names that do not exist follows from the table too.
        subprocess.run([sys.executable, str(Path(__file__).with_name("names.py"))], check=True)
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    raise SystemExit(main())
