"""Programs as JSON text and back. Standard library only.

Expressions are shared parts of one table, so the text is about as long as the program is printed;
numbers are exact.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from webtorch.ir import expr as ex
from webtorch.ir import kernel as kernels
from webtorch.ir.dtype import DType, by_name
from webtorch.ir.expr import Expr

FORMAT = "webtorch.Program"
VERSION = 1

_RECORDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        kernels.BufferSlot,
        kernels.Reduce,
        kernels.Store,
        kernels.Check,
        kernels.Kernel,
        kernels.Several,
        kernels.Matmul,
        kernels.Products,
        kernels.Convolution,
        kernels.Scan,
        kernels.Attention,
        kernels.Sort,
        kernels.Host,
    )
}


def register(kind: type) -> type:
    """Make a record (a frozen dataclass) part of the format; returns it."""
    _RECORDS[kind.__name__] = kind
    return kind


def dump(value: object) -> str:
    """Return a record as JSON text."""
    writer = _Writer()
    body = writer.write(value)
    whole = {"format": FORMAT, "version": VERSION, "exprs": writer.exprs, "value": body}
    return json.dumps(whole, separators=(",", ":"), allow_nan=False)


def load(text: str | bytes) -> Any:
    """Return the record that `dump` wrote. Raises ValueError for another format or version."""
    whole = json.loads(text)
    if not isinstance(whole, dict) or whole.get("format") != FORMAT:
        raise ValueError(f"Program.from_json: this is not a program: its format is not {FORMAT!r}")
    if whole.get("version") != VERSION:
        raise ValueError(
            f"Program.from_json: the text has version {whole.get('version')}, this webtorch reads "
            f"version {VERSION}: write it again with to_json()"
        )
    reader = _Reader()
    for op, dtype, args, value in whole["exprs"]:
        parts = tuple(reader.exprs[a] for a in args)
        reader.exprs.append(ex.make(op, by_name(dtype), parts, reader.read(value)))
    return reader.read(whole["value"])


class _Writer:
    def __init__(self) -> None:
        self.exprs: list[object] = []
        self.numbers: dict[Expr, int] = {}

    def write(self, x: Any) -> Any:
        """Return the JSON form of a value."""
        match x:
            case None | bool() | int() | str():
                return x
            case float():
                return x if math.isfinite(x) else {"float": repr(x)}
            case DType():
                return {"dtype": x.name}
            case Expr():
                return {"expr": self.number(x)}
            case tuple():
                return [self.write(v) for v in x]
        kind = type(x).__name__
        if kind not in _RECORDS:
            raise TypeError(f"Program.to_json: a {kind} has no JSON form")
        return {kind: [self.write(getattr(x, f.name)) for f in dataclasses.fields(x)]}

    def number(self, x: Expr) -> int:
        """Return the number of an expression, adding it and its parts to the table if new."""
        stack = [x]
        while stack:
            e = stack[-1]
            if e in self.numbers:
                stack.pop()
                continue
            waiting = [a for a in e.args if a not in self.numbers]
            if waiting:
                stack.extend(waiting)
                continue
            stack.pop()
            self.numbers[e] = len(self.exprs)
            args = [self.numbers[a] for a in e.args]
            self.exprs.append([e.op, e.dtype.name, args, self.write(e.value)])
        return self.numbers[x]


class _Reader:
    def __init__(self) -> None:
        self.exprs: list[Expr] = []

    def read(self, x: object) -> Any:
        """Return the value of a JSON form."""
        if isinstance(x, list):
            return tuple([self.read(v) for v in x])
        if not isinstance(x, dict):
            return x
        ((kind, body),) = x.items()
        match kind:
            case "float":
                return float(body)
            case "dtype":
                return by_name(body)
            case "expr":
                return self.exprs[body]
        record = _RECORDS.get(kind)
        if record is None:
            raise ValueError(f"Program.from_json: there is no record {kind!r}")
        return record(*[self.read(v) for v in body])
