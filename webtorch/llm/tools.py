"""Calls of tools in answers: how models write them, which their chat templates show."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from webtorch.llm.grammar import Grammar


@dataclass(frozen=True)
class Call:
    """A call of a tool: its name, and its arguments in JSON."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}")


@dataclass(frozen=True)
class Form:
    """How a model writes calls: JSON between two texts."""

    begin: str
    end: str = ""
    arguments: str = "arguments"  # what they are called
    listed: bool = False  # calls are a list
    bare: bool = False  # an answer that is an object by itself is a call, too

    def grammar(self, tools: Sequence[dict[str, Any]], most: int = 8) -> Grammar:
        """Return the grammar of calls of some tools, after `begin`."""
        each = [self._schema(t["function"], i) for i, t in enumerate(tools)]
        one: dict[str, Any] = {"anyOf": each}
        whole = {"type": "array", "items": one, "minItems": 1, "maxItems": most}
        return Grammar.of_schema(whole if self.listed else one, plain=True)

    def _schema(self, function: dict[str, Any], number: int) -> dict[str, object]:
        path = f"{'/items' if self.listed else ''}/anyOf/{number}/properties/{self.arguments}"
        told = function.get("parameters") or {"type": "object", "properties": {}}
        return {
            "type": "object",
            "properties": {"name": {"const": function["name"]}, self.arguments: _moved(told, path)},
            "required": ["name", self.arguments],
            "additionalProperties": False,
        }

    def calls(self, text: str) -> list[Call] | None:
        """Return the calls of a text that begins with `begin`, or with an object; None where there are none."""
        found: list[Call] = []
        parts = text.split(self.begin) if self.begin and self.begin in text else [text]
        for part in parts:
            part = part.strip()
            if self.end:
                part = part.removesuffix(self.end).strip()
            if not part:
                continue
            try:
                value = json.loads(part)
            except (ValueError, RecursionError):
                return None
            for each in value if isinstance(value, list) else [value]:
                call = self._call(each)
                if call is None:
                    return None
                found.append(call)
        return found or None

    def _call(self, value: Any) -> Call | None:
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return None
        given = value.get(self.arguments, value.get("arguments", value.get("parameters", {})))
        text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        return Call(value["name"], text)


def _moved(schema: object, path: str) -> object:
    """Return a schema whose references are to parts of it, for a place within another one."""
    if isinstance(schema, list):
        return [_moved(s, path) for s in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        k: f"#{path}{v[1:]}" if k == "$ref" and isinstance(v, str) and v.startswith("#") else _moved(v, path)
        for k, v in schema.items()
    }  # fmt: skip


# Which of these a model writes is what its template has in it.
FORMS = (
    Form("[TOOL_CALLS]", listed=True),  # Mistral
    Form("<|tool_call|>", "<|/tool_call|>", listed=True),  # Phi 4, Granite 3
    Form("<tool_call>", "</tool_call>"),  # Qwen, SmolLM 3, Hermes
    Form("<|python_tag|>", arguments="parameters", bare=True),  # Llama 3
)


def form_of(template: str | None) -> Form | None:
    """Return how the model of a chat template writes calls; None where it knows no tools."""
    if template is None or "tools" not in template:
        return None
    found = [f for f in FORMS if f.begin in template]
    return found[0] if found else Form("", arguments="parameters", bare=True)


class Reader:
    """Takes an answer as it comes apart: what is said, and what are calls."""

    def __init__(self, form: Form, begun: str = "") -> None:
        """Begin; begun: what the answer begins with, and was no piece of it."""
        self.form, self.held, self.said = form, begun, False

    def feed(self, piece: str) -> str:
        """Take a piece; return what can be said of it."""
        self.held += piece
        held, begin = self.held, self.form.begin
        whole = not self.said and held.lstrip()[:1] == "{"
        if (self.form.bare and whole) or (self.form.bare and not self.said and not held.strip()):
            return ""
        at = held.find(begin) if begin else -1
        if at < 0:
            waits = max((n for n in range(1, len(begin)) if held.endswith(begin[:n])), default=0)
            at = len(held) - waits
        out, self.held = held[:at], held[at:]
        self.said = self.said or bool(out)
        return out

    def end(self) -> tuple[str, list[Call]]:
        """Return what is left to say, and the calls."""
        calls = self.form.calls(self.held) if self.held.strip() else None
        return ("", calls) if calls else (self.held, [])
