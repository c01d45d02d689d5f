"""The look of all pages that webtorch writes: colours, light and dark, type, figures, cards. Standard library only."""

from __future__ import annotations

from importlib import resources

__all__ = ["style"]


def style(own: str = "") -> str:
    """Return the text of a style sheet: theme.css, then the page's own rules, which may override it."""
    return resources.files("webtorch.show").joinpath("theme.css").read_text(encoding="utf-8") + own
