"""Chat templates: what a conversation looks like to a model. They are programs of a file, and run in a sandbox."""

from __future__ import annotations

import datetime
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from webtorch.errors import WebtorchError

Message = dict[str, Any]  # "role" ("system", "user", "assistant") and "content"
# For models without a template of their own.
DEFAULT = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class TemplateError(WebtorchError, ValueError):
    """A chat template is damaged, refuses a conversation, or wants what it may not have."""


def _said(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


# What there always is, as in transformers: templates ask whether it is none.
_ABSENT = {"tools": None, "documents": None}

# What a template may take: turns of loops and calls, seconds, and the letters or bits of what it multiplies.
MOST_TURNS = 200_000
MOST_SECONDS = 5.0
_MOST_SIZE = 1 << 20


class _Counted:
    """What a loop goes through, each turn of which is counted."""

    def __init__(self, count: Callable[[], None], items: Iterable[object]) -> None:
        """Take what counts, and the items."""
        self.count, self.items = count, items

    def __iter__(self) -> Iterator[object]:
        for item in self.items:
            self.count()
            yield item

    def __len__(self) -> int:
        return len(self.items)  # type: ignore[arg-type]


def _length(operator: str, left: Any, right: Any) -> float:
    """Return about how many letters or bits an operator gives."""
    if operator == "%":
        return math.inf if isinstance(left, str) and re.search(r"\d{5}|\*", left) else 0.0
    times = [t for t in (left, right) if isinstance(t, int)]
    if not times:
        return 0.0
    if operator == "**":
        return left.bit_length() * right if len(times) == 2 else 0.0
    if len(times) == 2:
        return left.bit_length() + right.bit_length()
    other = right if isinstance(left, int) else left
    return len(other) * times[0] if hasattr(other, "__len__") else 0.0


def _environment() -> Any:
    """Return where a template runs: a sandbox in which loops and calls come to an end."""
    import jinja2
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Learned(Extension):
        """Reads `{% generation %}`, by which templates mark what is learned, and which says nothing of the text."""

        def parse(self, parser: Any) -> nodes.Node:
            """Return what is marked, in a scope of its own."""
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), True), lineno=line)

    Learned.tags = {"generation"}

    class Bounded(ImmutableSandboxedEnvironment):
        """Counts turns of loops and calls, and looks at what is multiplied."""

        intercepted_binops = frozenset(("*", "**", "%"))

        def __init__(self) -> None:
            more = ["jinja2.ext.loopcontrols", Learned]
            super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=more)
            self.turns, self.end = 0, time.monotonic() + MOST_SECONDS
            self.filters["_counted"] = lambda items: _Counted(self.count, items)

        def count(self) -> None:
            """Count a turn; stop where there are too many."""
            self.turns += 1
            if self.turns > MOST_TURNS or time.monotonic() > self.end:
                raise jinja2.TemplateError(f"it was stopped after {self.turns:,} turns and calls")

        def _parse(self, *source: Any) -> nodes.Template:
            tree = super()._parse(*source)
            for loop in tree.find_all(nodes.For):
                loop.iter = nodes.Filter(loop.iter, "_counted", [], [], None, None)
            tree.set_environment(self)
            return tree

        def call(self, *given: Any, **names: Any) -> Any:
            """Call a function of a template."""
            self.count()
            return super().call(*given, **names)

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> object:
            """Compute a product, a power or a remainder, of what is no longer than it may be."""
            if _length(operator, left, right) > _MOST_SIZE:
                raise jinja2.TemplateError(f"what {operator!r} gives is too long")
            return super().call_binop(context, operator, left, right)

    return Bounded()


def render(template: str, messages: Sequence[Message], **names: object) -> str:
    """Return a conversation as text, with the beginning of an answer.

    names: what the template may read besides (bos_token, eos_token, tools; add_generation_prompt=False: without that
    beginning). Needs the package jinja2. Raises
    TemplateError, also for what the template itself refuses.
    """
    try:
        import jinja2
    except ImportError:
        raise TemplateError("chat templates need jinja2: pip install jinja2") from None

    def refuse(message: str) -> None:
        """Refuse a conversation, as a template says."""
        raise jinja2.TemplateError(message)

    def now(form: str) -> str:
        """Return the time."""
        return datetime.datetime.now().strftime(form)

    environment = _environment()
    environment.filters["tojson"] = _said
    environment.globals.update(raise_exception=refuse, strftime_now=now)
    try:
        return environment.from_string(template).render(
            **{**_ABSENT, "messages": list(messages), "add_generation_prompt": True, **names}
        )
    except (jinja2.TemplateError, TypeError, KeyError, ValueError, AttributeError) as error:
        raise TemplateError(f"the chat template: {error}") from None
    except (RecursionError, OverflowError, MemoryError, ZeroDivisionError, IndexError) as error:
        raise TemplateError(f"the chat template fails: {type(error).__name__}") from None
