"""`torch.distributed.tensor.experimental`: functions of plain tensors, and plain tensors, among DTensors. Floor 5."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from webtorch.distributed.device_mesh import DeviceMesh
from webtorch.distributed.tensor.calls import state
from webtorch.distributed.tensor.dtensor import DTensor
from webtorch.distributed.tensor.placement_types import Placement
from webtorch.tensors.tensor import Tensor
from webtorch.utils._pytree import tree_flatten, tree_unflatten

__all__ = ["implicit_replication", "local_map"]

# Of one tensor; and of all that a function takes or gives, in the order of the flattened structure.
_Lies = Sequence[Placement] | None
_AllLie = Sequence[_Lies] | None


@contextlib.contextmanager
def implicit_replication() -> Iterator[None]:
    """A block in which operations take plain tensors beside DTensors, as replicas: all processes must have the same."""
    before, state.implicit = state.implicit, True
    try:
        yield
    finally:
        state.implicit = before


def local_map(
    func: Callable[..., object] | None = None,
    out_placements: Any = None,
    in_placements: _AllLie = None,
    in_grad_placements: _AllLie = None,
    device_mesh: DeviceMesh | None = None,
    *,
    redistribute_inputs: bool = False,
) -> Any:
    """Return a function of DTensors that calls `func` with their parts; without `func` a decorator.

    What it returns are DTensors that lie as `out_placements` say: placements, or a tuple of placements for several
    results (None for what is no tensor). Without DTensors among its positional arguments it is `func`. They must lie as
    `in_placements` say, and are redistributed with `redistribute_inputs`; their gradients lie as `in_grad_placements`
    say. The mesh is that of the first DTensor unless one is given.

    Raises AssertionError where placements are not as many as arguments or results or are given for what is no tensor,
    ValueError for a DTensor that lies otherwise.
    """
    if func is None:
        return lambda found: local_map(
            found, out_placements, in_placements, in_grad_placements, device_mesh,
            redistribute_inputs=redistribute_inputs,
        )  # fmt: skip

    @functools.wraps(func)
    def mapped(*args: object, **kwargs: object) -> object:
        """Call the function with parts."""
        given, form = tree_flatten(args)
        if in_placements is not None and len(in_placements) != len(given):
            raise AssertionError(
                f"in_placements length {len(in_placements)} does not match the number of input args {len(given)}!"
            )
        whole = [x for x in given if isinstance(x, DTensor)]
        parts = [
            _part(x, i, in_placements, in_grad_placements, redistribute_inputs)
            for i, x in enumerate(given)
        ]
        out = func(*tree_unflatten(parts, form), **kwargs)
        return _wrapped(out, out_placements, device_mesh or whole[0].device_mesh) if whole else out

    return mapped


def _part(x: object, i: int, lies: _AllLie, gradients: _AllLie, redistribute: bool) -> object:
    """Return what a function of parts is given for argument `i`."""
    if not isinstance(x, DTensor):
        if lies is not None and not isinstance(x, Tensor) and lies[i] is not None:
            raise AssertionError(
                f"Non-Tensor input {x} expects None placements but received {lies[i]}!"
            )
        return x
    if lies is not None:
        to = lies[i]
        if to is None:
            raise AssertionError(f"DTensor input {x} expects placements but received {to}!")
        if x.placements != tuple(to):
            if not redistribute:
                raise ValueError(
                    f"arg {x} in local_map has a mismatched placements: arg placements is {x.placements} but the "
                    f"input placements is {tuple(to)}! If redistribute_inputs is wanted, set redistribute_inputs=True "
                    "to local_map."
                )
            x = x.redistribute(placements=to)
    if gradients is None:
        return x.to_local()
    if gradients[i] is None:
        raise AssertionError(f"DTensor input {x} expects in grad placements but received None!")
    return x.to_local(grad_placements=gradients[i])


def _wrapped(out: object, placements: Any, mesh: DeviceMesh) -> object:
    """Return what a function of parts gave as DTensors."""
    found, form = tree_flatten(out)
    lies = placements if isinstance(placements, tuple) else (placements,)
    if len(found) != len(lies):
        raise AssertionError(
            f"local_map requires one PlacementType be provided for each output value, received {len(lies)} "
            f"out_placements but {len(found)} is expected!"
        )
    made = []
    for x, to in zip(found, lies, strict=True):
        if isinstance(x, DTensor):
            raise AssertionError(f"torch.Tensor output expected but received {type(x)}: {x}")
        if not isinstance(x, Tensor) and to is not None:
            raise AssertionError(
                f"Non-tensor output {x} expects None placements but received {to}!"
            )
        made.append(
            DTensor.from_local(x, mesh, to, run_check=False) if isinstance(x, Tensor) else x
        )
    return tree_unflatten(made, form)
