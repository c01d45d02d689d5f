"""The look of all pages that webtorch writes: colours, light and dark, type, figures, cards. Standard library only."""

from __future__ import annotations

from html import escape
from importlib import resources


def style(own: str = "") -> str:
    """Return the text of a style sheet: theme.css, then the page's own rules, which may override it."""
    return resources.files("webtorch.show").joinpath("theme.css").read_text(encoding="utf-8") + own


def framed(page: str, height: int = 600) -> str:
    """Return a page as a part of a notebook, `height` pixels high."""
    return (
        f'<iframe srcdoc="{escape(page)}" sandbox="allow-scripts" '
        f'style="width:100%;height:{height}px;border:0"></iframe>'
    )
