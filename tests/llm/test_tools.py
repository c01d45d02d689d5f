"""How answers are taken apart: what is said, and what are calls of tools."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from webtorch.llm.tools import FORMS, Call, Reader, form_of

ONE = '{"name": "f", "arguments": {"a": 1}}'
OTHER = '{"name": "g", "parameters": {}}'


def read(text: str, template: str, step: int = 1) -> tuple[str, list[tuple[str, Any]]]:
    """Return what is said and called, of a text that comes in pieces."""
    form = form_of(f"tools {template}")
    assert form is not None
    reader = Reader(form)
    said = "".join(reader.feed(text[i : i + step]) for i in range(0, len(text), step))
    left, calls = reader.end()
    return said + left, [(c.name, json.loads(c.arguments)) for c in calls]


@pytest.mark.parametrize("step", [1, 5, 999])
def test_calls_of_each_form(step: int) -> None:
    calls = [("f", {"a": 1}), ("g", {})]
    assert read(f"Yes. <tool_call>\n{ONE}\n</tool_call><tool_call>{OTHER}</tool_call>", "<tool_call>", step) == (
        "Yes. ", calls
    )  # fmt: skip
    assert read(f"[TOOL_CALLS][{ONE}, {OTHER}]", "[TOOL_CALLS]", step) == ("", calls)
    assert read(f"<|tool_call|>[{ONE}]", "<|tool_call|>", step) == ("", calls[:1])
    assert read(f"<|python_tag|>{ONE}", "<|python_tag|>", step) == ("", calls[:1])
    assert read(f" {OTHER}", "<|python_tag|>", step) == ("", calls[1:])
    assert read(f"{ONE}; {OTHER}", "<|python_tag|>", step) == ("", calls)
    assert read(f"{ONE} so", "<|python_tag|>", step) == (f"{ONE} so", [])
    assert read(f"<tool_call>{ONE}</tool_call>\nDone.", "<tool_call>", step) == ("Done.", calls[:1])
    assert read('<tool_call>{"name": "g", "arguments": null}', "<tool_call>", step) == (
        "",
        calls[1:],
    )
    for text in ("1 < 2 <tool", "<tool_call>{", '<tool_call>{"x": 1}</tool_call>', "{}", ""):
        assert read(text, "<tool_call>", step) == (text, []), text
    assert read("{1: 2}", "parameters", step) == ("{1: 2}", [])
    assert read("so {", "parameters", step) == ("so {", [])


def test_a_template_without_tools_has_no_form() -> None:
    assert form_of("{{ messages }}") is None and form_of(None) is None
    # What gpt-oss writes is refused, not lost.
    assert form_of("{% if tools %}{% endif %}<|channel|>final") is None
    # Templates of Mistral take no other ids.
    assert re.fullmatch("[0-9a-z]{9}", Call("f", "{}").id)
    schema = {"$defs": {"x": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/x"}}}
    for form in FORMS:
        text = form.grammar([{"function": {"name": "f", "parameters": schema}}]).text
        assert f"/anyOf/0/properties/{form.arguments}/$defs/x" in text
