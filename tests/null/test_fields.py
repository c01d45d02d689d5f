"""Every fact of an operation is a field of its entry: nothing else in the package lists operations by name.

Read from the source text. The rooms of entries, `ops/` and `functions/`, may list what they declare, and `ir/`
its scalar functions, which have records and a test of their own (test_scalar_functions.py).
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import webtorch  # noqa: F401  (declares the entries)
from webtorch.ir.graph import KINDS
from webtorch.ir.reducer import REDUCERS
from webtorch.ops.record import TABLE

ROOT = Path(__file__).resolve().parents[2] / "webtorch"
ENTRIES = ("ops", "functions")
SCALARS = ("ir",)
# So many names make a list.
FEWEST = 4
# Words of the graph's own that operations are called by too: kinds of nodes, of reductions, of what scatters.
WORDS = {*KINDS, *REDUCERS, *(r.combine for r in REDUCERS.values())}
NAMES = {n for op in TABLE.values() for n in (op.name, *op.aliases) if n.isidentifier()} - WORDS
# (file, the first name of a list) -> why it stands there.
ALLOWED = {
    (
        "as_torch/names/foreach.py",
        "clone",
    ): "PyTorch's lists of tensors have these in one form only",
    ("runtime/backends/plain/assembly.py", "eq"): "WebAssembly's instructions that compare",
}


def _strings(node: ast.AST) -> list[str]:
    """Return the texts that a literal lists: its elements, its keys, or the words of a string."""
    if isinstance(node, ast.Constant):
        return node.value.split() if isinstance(node.value, str) else []
    items: list[ast.expr | None] = []
    if isinstance(node, (ast.List, ast.Set, ast.Tuple)):
        items = [*node.elts]
    elif isinstance(node, ast.Dict):
        items = [*node.keys]
    return [i.value for i in items if isinstance(i, ast.Constant) and isinstance(i.value, str)]


def _names(node: ast.AST) -> list[str]:
    found = _strings(node)
    names = [t for t in found if t.partition(".")[0].strip("_") in NAMES or t in NAMES]
    # Prose has operations' names among its words.
    prose = isinstance(node, ast.Constant) and len(names) < 0.6 * len(found)
    return [] if prose else names


def lists(source: str) -> Iterator[tuple[int, list[str]]]:
    """Yield line and names of every list of operations in a source, save `__all__`: what a file itself declares."""
    tree = ast.parse(source)
    public = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and "__all__" in ast.unparse(node)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        names = [] if id(node) in public else _names(node)
        if len(names) >= FEWEST:
            yield getattr(node, "lineno", 0), names


def test_only_entries_list_operations() -> None:
    used = set()
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        place = path.relative_to(ROOT)
        if place.parts[0] in (*ENTRIES, *SCALARS):
            continue
        for line, names in lists(path.read_text()):
            key = (place.as_posix(), names[0])
            used.add(key)
            if key not in ALLOWED:
                wrong.append(f"{place}:{line} lists {len(names)}: {', '.join(names[:4])} ...")
    assert not wrong, "make these a field of their entries:\n" + "\n".join(wrong)
    assert used >= set(ALLOWED), "allowed, and not there any more"


def test_what_a_list_of_operations_is() -> None:
    assert [n for _, n in lists('X = ("softmax", "gelu", "addmm", "cat")')]
    assert [n for _, n in lists('X = {"softmax.int": 1, "gelu": 2, "addmm.out": 3, "cat_": 4}')]
    assert [n for _, n in lists('X = "softmax gelu addmm cat".split()')]
    assert not list(lists('X = ("softmax", "gelu", "addmm")'))
    assert not list(lists('__all__ = ["softmax", "gelu", "addmm", "cat"]'))
    assert not list(lists('X = "this is where a softmax, a gelu or a cat of parts is made"'))


def _read(rule: ast.Lambda | ast.FunctionDef) -> set[str]:
    body = [rule.body] if isinstance(rule, ast.Lambda) else rule.body
    return {n.id for part in body for n in ast.walk(part) if isinstance(n, ast.Name)}


def test_rules_name_what_they_read() -> None:
    """A gradient rule's parameters are saved for the backward pass, but those whose names begin with an underscore."""
    written = [inspect.unwrap(rule) for op in TABLE.values() for rule in op.rules()]
    rules = {(r.__code__.co_filename, r.__code__.co_firstlineno): r.__code__ for r in written}
    wrong = []
    checked = 0
    for file in sorted({str(file) for file, _ in rules}):
        for node in ast.walk(ast.parse(Path(file).read_text())):
            if not isinstance(node, (ast.Lambda, ast.FunctionDef)):
                continue
            parameters = [a.arg for a in node.args.args]
            code = rules.get((file, node.lineno))
            if code is None or list(code.co_varnames[: code.co_argcount]) != parameters:
                continue
            checked += 1
            read = _read(node)
            parameters += [node.args.vararg.arg] if node.args.vararg else []
            wrong += [
                f"{file}:{node.lineno} {name}"
                for name in parameters
                if (name in read) == name.startswith("_")
            ]
    assert checked > 60
    assert not wrong, wrong


def test_fields_that_name_operators_are_told_apart() -> None:
    """Two entries may not claim one operator of PyTorch as their own."""
    owner: dict[str, str] = {}
    for op in TABLE.values():
        for name in (*op.aten, *op.operators, *op.geometry, *op.lapack):
            assert owner.setdefault(name, op.name) == op.name, f"{name}: {owner[name]}, {op.name}"
