"""The mean of parameters over processes. Floor 5."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from webtorch.distributed.collectives import all_reduce
from webtorch.distributed.reduction import ReduceOp
from webtorch.distributed.world import Group, member
from webtorch.functions.joining import cat
from webtorch.tensors.modes import no_grad
from webtorch.tensors.tensor import Tensor

__all__ = [
    "average_parameters",
    "average_parameters_or_parameter_groups",
    "get_params_to_average",
]

# Parameters, or the groups of an optimizer.
Parameters = Iterable[Tensor] | Iterable[Mapping[str, Any]]


def average_parameters(params: Iterable[Tensor], process_group: Group) -> None:
    """Let parameters become the mean of those of all processes; they travel as one tensor."""
    found = member(process_group, "average_parameters")
    given = list(params)
    if found is None or not given:
        return
    with no_grad():
        flat = cat([p.reshape(-1) for p in given])
        all_reduce(flat, ReduceOp.AVG, found)
        for p, part in zip(given, flat.split([p.numel() for p in given]), strict=True):
            p.copy_(part.reshape(p.shape))


def get_params_to_average(params: Parameters) -> list[Tensor]:
    """Return the parameters that have gradients. Raises NotImplementedError for what are no parameters or groups."""
    found: list[Tensor] = []
    for each in params:
        if isinstance(each, Tensor):
            found.append(each)
        elif isinstance(each, Mapping):
            found += each["params"]
        else:
            raise NotImplementedError(f"Parameter input of type {type(each)} is not supported")
    return [p for p in found if p.grad is not None]


def average_parameters_or_parameter_groups(params: Parameters, process_group: Group) -> None:
    """Let parameters, or those of an optimizer's groups, become the mean of those of all processes."""
    average_parameters(get_params_to_average(params), process_group)
