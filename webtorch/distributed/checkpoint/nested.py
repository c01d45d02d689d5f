"""Entries of nested dicts and lists, by their paths. Floor 6."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from webtorch.distributed.checkpoint.metadata import STATE_DICT_TYPE
from webtorch.tensors.tensor import Tensor

Path = tuple[str | int, ...]


def _is_entry(value: object) -> bool:
    """Whether a value is one entry: no dict, and no list that holds tensors or dicts somewhere."""
    if isinstance(value, Mapping):
        return False
    if not isinstance(value, list):
        return True
    return not any(
        isinstance(v, Tensor) or (isinstance(v, (Mapping, list)) and not _is_entry(v))
        for v in value
    )


def entries(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Give each entry of nested dicts and lists with its path."""
    if isinstance(value, Mapping):
        for key, v in value.items():
            yield from entries(v, (*path, str(key)))
    elif _is_entry(value):
        yield path, value
    else:
        for i, v in enumerate(value):
            yield from entries(v, (*path, i))


def flatten_state_dict(state_dict: STATE_DICT_TYPE) -> tuple[STATE_DICT_TYPE, dict[str, Path]]:
    """Return the entries by their paths joined by dots, and the paths. Raises ValueError where two have one name."""
    found: STATE_DICT_TYPE = {}
    paths: dict[str, Path] = {}
    for path, value in entries(state_dict):
        name = ".".join(map(str, path))
        if name in found:
            raise ValueError(f"duplicated flatten key {name}")
        found[name], paths[name] = value, path
    return found, paths


def set_element(root: Any, path: Path, value: object) -> None:
    """Put a value in its place in nested dicts and lists, which are made where they are missing."""
    at = root
    for key, following in pairwise(path):
        if isinstance(at, list) and isinstance(key, int):
            at += [None] * (key + 1 - len(at))
            if at[key] is None:
                at[key] = [] if isinstance(following, int) else {}
            at = at[key]
        else:
            at = at.setdefault(key, [] if isinstance(following, int) else {})
    last = path[-1]
    if isinstance(at, list) and isinstance(last, int):
        at += [None] * (last + 1 - len(at))
    at[last] = value


def mapped(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """Return nested dicts and lists whose tensors are what a function makes of them."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {k: mapped(v, function) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(mapped(v, function) for v in value)
    return value
