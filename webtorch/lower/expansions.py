"""Accurate scalar functions written with simpler ones, for targets that lack them. Floor 2; imports floor 0 only."""

from __future__ import annotations

from collections.abc import Callable

from webtorch.ir.expr import Expr

EXPANSIONS: dict[str, tuple[Callable[..., Expr], int]] = {}
