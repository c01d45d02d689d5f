"""Chat templates: what a conversation looks like to a model. They are programs of a file, and run in a sandbox."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from typing import Any

from webtorch.errors import WebtorchError

__all__ = ["DEFAULT", "Message", "TemplateError", "render"]

Message = dict[str, Any]  # "role" ("system", "user", "assistant") and "content"
# For models without a template of their own.
DEFAULT = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class TemplateError(WebtorchError, ValueError):
    """A chat template is damaged, refuses a conversation, or wants what it may not have."""


def _said(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def render(template: str, messages: Sequence[Message], **names: Any) -> str:
    """Return a conversation as text, with the beginning of an answer.

    names: what the template may read besides (bos_token, eos_token, tools). Needs the package jinja2. Raises
    TemplateError, also for what the template itself refuses.
    """
    try:
        import jinja2
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise TemplateError("chat templates need jinja2: pip install jinja2") from None

    def refuse(message: str) -> None:
        """Refuse a conversation, as a template says."""
        raise jinja2.TemplateError(message)

    def now(form: str) -> str:
        """Return the time."""
        return datetime.datetime.now().strftime(form)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _said
    environment.globals.update(raise_exception=refuse, strftime_now=now)
    try:
        return environment.from_string(template).render(
            messages=list(messages), add_generation_prompt=True, **names
        )
    except (jinja2.TemplateError, TypeError, KeyError, ValueError, AttributeError) as error:
        raise TemplateError(f"the chat template: {error}") from None
    except (RecursionError, OverflowError, MemoryError, ZeroDivisionError, IndexError) as error:
        raise TemplateError(f"the chat template fails: {type(error).__name__}") from None
