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
    # Mistral's templates refuse others than nine letters and digits.
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:9])


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

    def calls(self, text: str) -> tuple[list[Call], str] | None:
        """Return the calls of a text, from `begin` or an object on, and what is said after them; None where
        there are none.
        """
        found: list[Call] = []
        said, decoder = "", json.JSONDecoder()
        for part in text.split(self.begin) if self.begin else [text]:
            rest = part.strip()
            while rest:
                try:
                    value, end = decoder.raw_decode(rest)
                except (ValueError, RecursionError):
                    return None
                calls = [self._call(v) for v in (value if isinstance(value, list) else [value])]
                found += [c for c in calls if c is not None]
                if None in calls:
                    return None
                rest = rest[end:].lstrip()
                if self.end and rest.startswith(self.end):
                    said += rest.removeprefix(self.end)
                    break
                # Llama writes ; between calls.
                rest = rest.removeprefix(";").lstrip()
        return (found, said.strip()) if found else None

    def _call(self, value: Any) -> Call | None:
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return None
        given: Any = next(
            (
                value[n]
                for n in (self.arguments, "arguments", "parameters")
                if value.get(n) is not None
            ),
            {},
        )
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
    # What gpt-oss writes is not read here.
    if template is None or "tools" not in template or "<|channel|>" in template:
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
        calls, said = self.form.calls(self.held) or ([], self.held)
        return said, calls
