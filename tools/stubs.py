"""Writes the stub files that tell editors and the type checker what the op table adds.

    python tools/stubs.py            write them
    python tools/stubs.py --check    fail if they are not what the table says now

Nobody edits the stubs: they follow from the table.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import webtorch
from webtorch.functions.bind import NAMESPACES, PROPERTIES
from webtorch.ops.record import TABLE, Elementwise, Op

ROOT = Path(__file__).resolve().parent.parent / "webtorch"
HEADER = '"""{title} Written by tools/stubs.py from the op table; not edited by hand."""\n\n'
# What the entries' annotations may name, and what stubs write for it.
_KNOWN = {"int", "float", "bool", "str", "None", "Any", "Tensor"}
_OPERATORS = {
    "binary": """add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow and rand
        or ror xor rxor lshift rlshift rshift rrshift matmul rmatmul iadd isub imul itruediv
        ifloordiv imod ipow iand ior ixor ilshift irshift lt le gt ge""",
    "unary": "neg pos abs invert",
}


def _annotation(text: Any) -> str:
    """Return an annotation in terms that a stub knows, or Any."""
    if not isinstance(text, str):
        text = getattr(text, "__name__", "Any")
    names = {n.id for n in ast.walk(ast.parse(text, mode="eval")) if isinstance(n, ast.Name)}
    return text if names <= _KNOWN else "Any"


def _parameters(signature: inspect.Signature, *, method: bool) -> str:
    parts: list[str] = []
    star = False
    for i, p in enumerate(signature.parameters.values()):
        if method and i == 0:
            parts.append("self")
            continue
        if p.kind is p.VAR_POSITIONAL:
            parts.append(f"*{p.name}: Any")
            star = True
            continue
        if p.kind is p.VAR_KEYWORD:
            parts.append(f"**{p.name}: Any")
            continue
        if p.kind is p.KEYWORD_ONLY and not star:
            parts.append("*")
            star = True
        default = "" if p.default is p.empty else " = ..."
        kind = _annotation(p.annotation) if p.annotation is not p.empty else "Any"
        parts.append(f"{p.name}: {kind}{default}")
    return ", ".join(parts)


def _signature(op: Op) -> inspect.Signature:
    if isinstance(op, Elementwise):
        scope: dict[str, Any] = {}
        exec(f"def f{op.signature}: pass", {}, scope)
        plain = inspect.signature(scope["f"])
        if any(p.kind is p.KEYWORD_ONLY for p in plain.parameters.values()):
            return plain
        out = inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None)
        return plain.replace(parameters=[*plain.parameters.values(), out])
    return inspect.signature(op.function)


def _returns(op: Op) -> str:
    if isinstance(op, Elementwise):
        return "Tensor"
    found = _annotation(inspect.signature(op.function).return_annotation)
    return "Any" if found == "_empty" else found


def _function(name: str, op: Op, *, method: bool) -> str:
    """Return one line of a stub."""
    text = f"def {name}({_parameters(_signature(op), method=method)}) -> {_returns(op)}: ..."
    return (
        f"@property\n    def {name}(self) -> {_returns(op)}: ..."
        if method and name in PROPERTIES
        else text
    )


def _by_function() -> dict[int, Op]:
    return {id(op.function): op for op in TABLE.values()}


def methods() -> str:
    """Return the stub of the Tensor's methods."""
    from webtorch.tensors.tensor import Tensor

    lines = [
        HEADER.format(title="The methods that the op table gives to tensors."),
        "from typing import Any\n\n",
    ]
    lines.append("from webtorch.tensors.tensor import Tensor\n\nclass TensorMethods:\n")
    (body,) = (
        n for n in ast.walk(ast.parse(inspect.getsource(Tensor))) if isinstance(n, ast.ClassDef)
    )
    own = {n.name for n in body.body if isinstance(n, ast.FunctionDef)}
    found: dict[str, str] = {}
    for op in TABLE.values():
        for name in (op.name, *op.aliases):
            if "Tensor" in op.function_in and name.isidentifier():
                found[name] = _function(name, op, method=True)
                if op.inplace and hasattr(Tensor, f"{name}_"):
                    found[f"{name}_"] = (
                        f"def {name}_(self, *args: Any, **kwargs: Any) -> Tensor: ..."
                    )
    for name in (
        "float",
        "double",
        "half",
        "bfloat16",
        "long",
        "int",
        "short",
        "char",
        "byte",
        "bool",
        "where",
    ):
        found[name] = f"def {name}(self, *args: Any) -> Tensor: ..."
    for name in _OPERATORS["binary"].split():
        found[f"__{name}__"] = f"def __{name}__(self, other: Any) -> Tensor: ..."
    for name in _OPERATORS["unary"].split():
        found[f"__{name}__"] = f"def __{name}__(self) -> Tensor: ..."
    found["__getitem__"] = "def __getitem__(self, index: Any) -> Tensor: ..."
    found["__setitem__"] = "def __setitem__(self, index: Any, value: Any) -> None: ..."
    lines += [
        f"    {found[name]}\n" for name in sorted(found) if name not in own or name.startswith("__")
    ]
    text = "".join(lines)
    at = text.index("\nclass ")
    return _with_builtins(text[:at], text[at:])


def _entry(by_function: dict[int, Op], function: Any) -> Op | None:
    """Return the entry whose function this is, below what it is wrapped in."""
    while function is not None:
        if id(function) in by_function:
            return by_function[id(function)]
        function = getattr(function, "__wrapped__", None)
    return None


def namespace(place: str, title: str, head: str) -> str:
    """Return the stub of a module whose functions come from the table."""
    by_function = _by_function()
    lines = [HEADER.format(title=title), head]
    for name, function in sorted(NAMESPACES[place].items()):
        op = _entry(by_function, function)
        if op is None:
            lines.append(f"def {name}(*args: Any, **kwargs: Any) -> Any: ...\n")
        else:
            lines.append(_function(name, op, method=False) + "\n")
    return "".join(lines)


def public() -> str:
    """Return the stub of functions.public: what public.py imports, then the table's functions."""
    head = ["from typing import Any\n"]
    renamed: list[str] = []
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
    names = "float double half long short int"
    head += [f"{n}: dtype\n" for n in names.split()]
    head += ["inf: Any\nnan: Any\npi: Any\ne: Any\nnewaxis: None\n\n"]
    text = namespace("torch", "PyTorch's names of tensors on webtorch's engine.", "".join(head))
    body_at = text.index("\ndef ")
    return _with_builtins(text[:body_at], text[body_at:])


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


def _with_builtins(head: str, body: str) -> str:
    """Write int, float and bool of `body` under other names: here they are dtypes or methods."""
    for name in ("float", "int", "bool"):
        for before in (": ", "-> ", "| "):
            body = body.replace(before + name, f"{before}_{name}")
    imports = "import builtins\nfrom typing import Any\n"
    names = "".join(f"_{name} = builtins.{name}\n" for name in ("float", "int", "bool"))
    return head.replace("from typing import Any\n", imports, 1) + "\n" + names + body


def functional() -> str:
    """Return the stub of nn.functional: the table's functions and those that the package writes itself."""
    names = NAMESPACES["nn.functional"]
    extra = sorted(
        n
        for n, f in vars(webtorch.nn.functional).items()
        if callable(f) and not n.startswith("_") and n not in names
    )
    text = namespace(
        "nn.functional",
        "PyTorch's functions of neural networks.",
        "from typing import Any\n\nfrom webtorch.tensors.tensor import Tensor\n\n",
    )
    return text + "".join(f"def {n}(*args: Any, **kwargs: Any) -> Any: ...\n" for n in extra)


def simple(place: str) -> str:
    """Return the stub of webtorch.linalg and the like."""
    return namespace(
        place,
        f"torch.{place}'s names.",
        "from typing import Any\n\nfrom webtorch.tensors.tensor import Tensor\n\n",
    )


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
