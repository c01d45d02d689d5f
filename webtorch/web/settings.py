"""How the numbers of a captured program follow settings that a page may change. Floor 6; may import floors 0 to 4.

An optimizer hands numbers to a program that are options of a group ("lr") or derived from them by a Python function
("-lr", "1-lr*weight_decay"). The page has no Python: such a function is recovered as a polynomial,
linear in each option, from its values at a few points, and checked at another. What is no such
polynomial stays fixed at its present value.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

from webtorch.tensors.host import HostScalar
from webtorch.web.program_json import Json

# A sum of coefficients times products of settings: [coefficient, [names]].
Terms = list[tuple[float, tuple[str, ...]]]
_MOST_SETTINGS = 2


class Settings:
    """The settings that the numbers of one captured program follow, by name, with their present values.

    An optimizer with several groups has "groups.0.lr", "groups.1.lr", ...; with one it has "lr".
    """

    def __init__(self, numbers: list[HostScalar]) -> None:
        self.values: dict[str, float] = {}
        self._groups: dict[int, int] = {}
        for number in numbers:
            group = _group(number)
            if group is not None:
                self._groups.setdefault(id(group), len(self._groups))

    def terms(self, number: HostScalar) -> Terms | None:
        """Return how `number` follows the settings, or None when it is fixed."""
        group = _group(number)
        if group is None:
            return None
        found = _polynomial(number.source, number.key, group)
        if found is None:
            return None
        prefix = "" if len(self._groups) == 1 else f"groups.{self._groups[id(group)]}."
        out: Terms = []
        for coefficient, names in found:
            for name in names:
                self.values[prefix + name] = float(group[name])
            out.append((coefficient, tuple(prefix + name for name in names)))
        return out


def _group(number: HostScalar) -> Json | None:
    group = getattr(number.source, "group", None)
    return group if isinstance(group, dict) else None


def _polynomial(source: Mapping[str, object], key: str, group: Json) -> Terms | None:
    options = [
        k
        for k, v in group.items()
        if isinstance(v, (int, float)) and v is not True and v is not False
    ]
    if key in options:
        return [(1.0, (key,))]
    here = _at(source, key, group, {})
    names = [k for k in options if _at(source, key, group, {k: 2 * float(group[k]) + 1}) != here]
    if not names or len(names) > _MOST_SETTINGS:
        return None
    # Values at the corners of a cube give the coefficients by inclusion and exclusion.
    terms: Terms = []
    for count in range(len(names) + 1):
        for chosen in itertools.combinations(names, count):
            coefficient = 0.0
            for size in range(count + 1):
                for ones in itertools.combinations(chosen, size):
                    value = _at(source, key, group, {n: float(n in ones) for n in names})
                    if value is None:
                        return None
                    coefficient += (-1) ** (count - size) * value
            if coefficient:
                terms.append((coefficient, chosen))
    for trial in ({}, dict(zip(names, (0.37, 0.83)))):
        point = {n: trial.get(n, float(group[n])) for n in names}
        expected = _at(source, key, group, trial)
        actual = sum(c * math.prod(point[n] for n in product) for c, product in terms)
        if expected is None or not math.isclose(actual, expected, rel_tol=1e-9, abs_tol=1e-12):
            return None
    return terms


def _at(source: Mapping[str, Any], key: str, group: Json, other: dict[str, float]) -> float | None:
    """Return `source[key]` as it would be with other options, or None when that cannot be computed."""
    before = {name: group[name] for name in other}
    group.update(other)
    try:
        return float(source[key])
    except (ValueError, ArithmeticError, TypeError):
        return None
    finally:
        group.update(before)
