"""`webtorch.random`: seeds and states of the default generators, as torch.random has them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from webtorch.functions.bind import NAMESPACES
from webtorch.functions.random import Generator
from webtorch.functions.random import default_generator as _default_generator
from webtorch.tensors.absent import missing_names as _missing_names

_functions = NAMESPACES["torch"]
manual_seed = _functions["manual_seed"]
seed = _functions["seed"]
initial_seed = _functions["initial_seed"]
get_rng_state = _functions["get_rng_state"]
set_rng_state = _functions["set_rng_state"]


@contextlib.contextmanager
def fork_rng(
    devices: Iterable[Any] | None = None, enabled: bool = True, device_type: str = "webgpu"
) -> Iterator[None]:
    """Restore the random states of the CPU and of `devices` after the block."""
    places = ["cpu", *(devices or ())] if enabled else []
    generators: list[Generator] = [
        _default_generator(f"{device_type}:{p}" if isinstance(p, int) else p) for p in places
    ]
    states = [g.get_state() for g in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


__all__ = ["fork_rng", "get_rng_state", "initial_seed", "manual_seed", "seed", "set_rng_state"]

_missing = _missing_names(__name__, "random")


def __getattr__(name: str) -> Any:
    # Made when it is asked for, as it reads a seed.
    return _default_generator("cpu") if name == "default_generator" else _missing(name)
