"""Chat templates: what a conversation looks like to a model. They are programs of a file, and run in a sandbox."""

from __future__ import annotations

import datetime
import functools
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeGuard

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

# What a template may take: turns of loops and calls, seconds, and letters of texts and items of lists that it makes.
MOST_TURNS = 200_000
MOST_SECONDS = 5.0
MOST_MADE = 1 << 25
# Functions and filters that may make as much as the first of their arguments times the largest of the others.
_LONG = {
    "batch", "center", "expandtabs", "format", "indent", "join", "ljust", "replace", "rjust", "slice", "string",
    "tojson", "zfill",
}  # fmt: skip
# Filters and functions that take long for what they are given, and that no conversation needs.
_LEFT_OUT = ("pprint", "urlize", "wordwrap")
# Widths of what is formatted that are large, or come from elsewhere.
_WIDE = re.compile(r"\d{5}|\*|\{[^{}]*\{")


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


def _size(value: object) -> int:
    """Return about how many letters a value has as text, or more than MOST_MADE."""
    if isinstance(value, (str, bytes)):
        return len(value)
    size = 1
    for each in value.values() if isinstance(value, dict) else value if _is_list(value) else ():
        size += _size(each)
        if size > MOST_MADE:
            break
    return size


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, (list, tuple))


def _grown(name: str, first: object, others: Sequence[object]) -> float:
    """Return about how long what a function of _LONG gives is at most."""
    if name == "format" and isinstance(first, str) and _WIDE.search(first):
        return math.inf
    counted = [o if isinstance(o, int) and name != "format" else _size(o) for o in others]
    return _size(first) * max(1, *counted, 1)


def _length(operator: str, left: Any, right: Any) -> float:
    """Return about how many letters or bits an operator gives."""
    if operator == "%":
        return _grown("format", left, [right]) if isinstance(left, str) else 0.0
    times = [t for t in (left, right) if isinstance(t, int)]
    if operator == "+":
        return 0.0 if times or isinstance(left, float) else len(left) + len(right)
    if not times:
        return 0.0
    if operator == "**":
        return left.bit_length() * right if len(times) == 2 else 0.0
    if len(times) == 2:
        return left.bit_length() + right.bit_length()
    other = right if isinstance(left, int) else left
    return len(other) * times[0] if hasattr(other, "__len__") else 0.0


def _limited(bounded: Any, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function or a filter of a `Bounded` environment that makes no more than it may."""
    import jinja2
    from jinja2.nodes import EvalContext

    @functools.wraps(function)
    def call(*given: Any, **names: Any) -> Any:
        """Call it."""
        if name in _LONG:
            first = getattr(getattr(function, "__wrapped__", function), "__self__", None)
            values = [*([] if first is None else [first]), *given, *names.values()]
            values = [v for v in values if not isinstance(v, (jinja2.Environment, EvalContext))]
            if values and _grown(name, values[0], values[1:]) > MOST_MADE:
                raise jinja2.TemplateError(f"what {name!r} gives is too long")
        out = function(*given, **names)
        bounded.spend(len(out) if isinstance(out, (str, bytes, list)) else 0)
        return out

    return call


def _filter(tree: Any) -> None:
    """Let what loops of a template go through, and what `~` joins, pass through filters that count."""
    from jinja2 import nodes

    for loop in tree.find_all(nodes.For):
        loop.iter = nodes.Filter(loop.iter, "_counted", [], [], None, None)
    for whole in list(tree.find_all(nodes.Concat)):
        parts = nodes.List(whole.nodes)
        whole.nodes = [nodes.Filter(parts, "_joined", [], [], None, None)]


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
        """Counts turns of loops and calls, and how much they make."""

        intercepted_binops = frozenset(("+", "*", "**", "%"))

        def __init__(self) -> None:
            more = ["jinja2.ext.loopcontrols", Learned]
            super().__init__(
                trim_blocks=True, lstrip_blocks=True, extensions=more, finalize=self.shown
            )
            self.turns, self.made, self.end = 0, 0.0, time.monotonic() + MOST_SECONDS
            for name in _LEFT_OUT:
                del self.filters[name]
            del self.globals["lipsum"]
            self.filters["tojson"] = _said
            self.filters = {n: _limited(self, n, f) for n, f in self.filters.items()}
            self.filters["_counted"] = lambda items: _Counted(self.count, items)
            self.filters["_joined"] = lambda parts: self.concat(map(str, parts))

        def count(self) -> None:
            """Count a turn; stop where there are too many."""
            self.turns += 1
            if self.turns > MOST_TURNS or time.monotonic() > self.end:
                raise jinja2.TemplateError(f"it was stopped after {self.turns:,} turns and calls")

        def spend(self, size: float) -> None:
            """Count what is made; stop where it is too much."""
            self.made += size
            if self.made > MOST_MADE:
                raise jinja2.TemplateError(f"what it makes is too long, above {MOST_MADE:,}")

        def shown(self, value: object) -> object:
            """Return what is shown, if its text is no longer than it may be."""
            if not isinstance(value, str):
                self.spend(_size(value))
            return value

        def concat(self, parts: Iterable[str]) -> str:
            """Return texts as one."""
            held = list(parts)
            self.spend(sum(map(len, held)))
            return "".join(held)

        def _parse(self, *source: Any) -> nodes.Template:
            tree = super()._parse(*source)
            _filter(tree)
            tree.set_environment(self)
            return tree

        def call(self, context: Any, function: Any, *given: Any, **names: Any) -> Any:
            """Call a function of a template."""
            self.count()
            name = getattr(function, "__name__", "")
            if name in _LONG:
                function = _limited(self, name, function)
            return super().call(context, function, *given, **names)

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> object:
            """Compute a sum, a product, a power or a remainder, of what is no longer than it may be."""
            size = _length(operator, left, right)
            if size > MOST_MADE:
                raise jinja2.TemplateError(f"what {operator!r} gives is too long")
            self.spend(size)
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
    environment.globals.update(raise_exception=refuse, strftime_now=now)
    try:
        return environment.from_string(template).render(
            **{**_ABSENT, "messages": list(messages), "add_generation_prompt": True, **names}
        )
    except jinja2.TemplateError as error:
        raise TemplateError(f"the chat template: {error}") from None
    except Exception as error:
        # It is a program, of which any error is its own.
        raise TemplateError(f"the chat template fails: {type(error).__name__}: {error}") from None
