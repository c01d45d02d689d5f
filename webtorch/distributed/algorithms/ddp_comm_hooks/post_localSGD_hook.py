"""Gradients that are the mean of all processes at first, and of a subgroup, or of nobody, later. Floor 5."""

from __future__ import annotations

from webtorch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from webtorch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from webtorch.distributed.bucket import GradBucket
from webtorch.distributed.group import ProcessGroup
from webtorch.distributed.world import new_subgroups
from webtorch.futures import Future
from webtorch.tensors.tensor import Tensor

__all__ = ["PostLocalSGDState", "post_localSGD_hook"]


class PostLocalSGDState:
    """How long gradients are of all processes (of `process_group`), and whether they are of `subgroup` then."""

    def __init__(
        self,
        process_group: ProcessGroup | None,
        subgroup: ProcessGroup | None,
        start_localSGD_iter: int,
        post_local_gradient_allreduce: bool = True,
    ) -> None:
        self.process_group, self.subgroup = process_group, subgroup
        self.start_localSGD_iter = start_localSGD_iter
        self.post_local_gradient_allreduce = post_local_gradient_allreduce
        self.iter = 0

    def maybe_increase_iter(self, bucket: GradBucket) -> None:
        """Count a step, at its last bucket."""
        self.iter += bucket.is_last()


def post_localSGD_hook(state: PostLocalSGDState, bucket: GradBucket) -> Future[Tensor]:
    """Return the mean of all processes' gradients, and after some steps that of the subgroup's, or the process's own.

    Parameters are to be averaged between steps then.
    """
    early = state.iter < state.start_localSGD_iter
    state.maybe_increase_iter(bucket)
    if early:
        return allreduce_hook(state.process_group, bucket)
    if not state.post_local_gradient_allreduce:
        return noop_hook(None, bucket)
    if state.subgroup is None:
        # As in PyTorch, the processes of a machine.
        found, _ = new_subgroups()
        assert isinstance(found, ProcessGroup)
        state.subgroup = found
    return allreduce_hook(state.subgroup, bucket)
