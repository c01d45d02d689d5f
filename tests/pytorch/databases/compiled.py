"""Calls through `torch.compile(backend="webgpu")`, for the checks of PyTorch's databases.

PyTorch judges its own compiler so (`test_torchinductor_opinfo.py`): every operation as one graph, `fullgraph=True`,
compiled afresh for each sample. What PyTorch's tracer itself cannot take, which `backend="aot_eager"` on the CPU shows,
is no matter of a backend: it may break into several graphs, or is left out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.opinfo.core import OpInfo

Function = Callable[..., Any]


def _seeded(op: Function, *args: Any, **kwargs: Any) -> Any:
    """Call an operation that draws numbers. The database's own form sets a seed, which is not traced."""
    return op(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class Compiled:
    """How functions are compiled, for each call anew. `whole`: as one graph. `dynamic`: sizes are symbols."""

    whole: bool = True
    dynamic: bool | None = None

    def __call__(self, fn: Function, device: str) -> Function:
        """Return a function, compiled for the device; for "cpu" only traced."""
        backend = "aot_eager_default_partitioner" if device == "cpu" else device

        # PyTorch compiles Python functions, and what these call.
        def traced(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

        def run(*args: Any, **kwargs: Any) -> Any:
            torch._dynamo.reset()
            common_methods_invocations.wrapper_set_seed = _seeded
            # Sizes and numbers that values decide are traced, as PyTorch's tests of whole graphs have it.
            settings = {
                "capture_scalar_outputs": self.whole,
                "capture_dynamic_output_shape_ops": self.whole,
            }
            with torch._dynamo.config.patch(settings):
                compiled = torch.compile(
                    traced, backend=backend, dynamic=self.dynamic, fullgraph=self.whole
                )
                return compiled(*args, **kwargs)

        return run


# The ways in which a call is tried, one after another while PyTorch's tracer refuses it.
WAYS = {
    "compiled": (Compiled(), Compiled(whole=False)),
    "dynamic": (Compiled(dynamic=True), Compiled(dynamic=True, whole=False)),
}


@functools.cache
def higher_order() -> dict[str, OpInfo]:
    """Return PyTorch's database of operators that take functions: title -> entry."""
    from torch.testing._internal.hop_db import hop_db

    def write_both(x: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.add_(5)
        z.add_(5)
        return x.clone(), z.clone(), x + z

    # The database has kernels of its custom operator for its own devices.
    torch.library.impl("testlib::mutating_custom_op", "PrivateUse1")(write_both)
    return {f"higher order: {o.name} ({o.variant_test_name})": o for o in hop_db}


def shared(inputs: list[torch.Tensor], results: list[torch.Tensor]) -> list[tuple[int, int]]:
    """Return which results lie in the memory of which inputs."""
    places: dict[int, int] = {}
    for i, x in enumerate(inputs):
        if x.layout is torch.strided and x.untyped_storage().nbytes():
            places.setdefault(x.untyped_storage().data_ptr(), i)
    found = ((j, places.get(r.untyped_storage().data_ptr())) for j, r in enumerate(results))
    return [(j, i) for j, i in found if i is not None]
