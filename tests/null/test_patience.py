"""Tests wait for as long as tests/patience.py says, or for so short a time that the waiting is what they test."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]
# What waits for seconds that are its last argument, and the names of such arguments of any call.
_WAITS = {"acquire", "communicate", "join", "result", "timedelta", "wait", "wait_for"}
_NAMES = {"patience", "timeout"}
# No machine is so slow that a test of what takes too long may say more.
_SHORT = 5
# They run other projects' tests, for hours, and give up those that take long.
_RUNNERS = {"conformance", "databases", "meet", "upstream"}


def _bounds(call: ast.Call) -> list[ast.expr]:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    named = [k.value for k in call.keywords if k.arg in _NAMES or name in _WAITS]
    return named + (call.args[-1:] if name in _WAITS else [])


def test_what_hangs_is_ended_after_the_same_time_everywhere() -> None:
    found = []
    for file in sorted(TESTS.rglob("*.py")):
        if _RUNNERS & set(file.parts):
            continue
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call):
                found += [
                    f"{file.relative_to(TESTS)}:{call.lineno}: {ast.unparse(call)[:80]}"
                    for bound in _bounds(call)
                    if isinstance(bound, ast.Constant)
                    and isinstance(bound.value, (int, float))
                    and bound.value > _SHORT
                ]
    assert not found, "say PATIENCE:\n" + "\n".join(found)
