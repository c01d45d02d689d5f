"""torch.utils.checkpoint: a checkpoint that keeps the results of some operators, by a policy. Floor 6."""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Self

from webtorch.aten.dispatch import OpOverload, OpOverloadPacket, aten
from webtorch.tensors.tensor import Tensor
from webtorch.utils._python_dispatch import TorchDispatchMode
from webtorch.utils._pytree import tree_map

__all__ = [
    "SAC_IGNORED_OPS",
    "CheckpointPolicy",
    "SelectiveCheckpointContext",
    "create_selective_checkpoint_contexts",
]

# A checkpoint calls them more or less often the second time.
SAC_IGNORED_OPS = {aten.detach.default}
_DIFFERS = (
    "This can happen if the operations in the checkpointed region are nondeterministic or depend on global state that "
    "changed between forward and backward."
)


class CheckpointPolicy(enum.Enum):
    """What becomes of an operator's result: kept (on the CPU with CPU_OFFLOAD), or computed again.

    MUST and PREFER do the same here: nothing overrides a policy.
    """

    MUST_SAVE = 0
    PREFER_SAVE = 1
    MUST_RECOMPUTE = 2
    PREFER_RECOMPUTE = 3
    MUST_CPU_OFFLOAD = 4
    PREFER_CPU_OFFLOAD = 5


_RECOMPUTED = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)
_ON_THE_CPU = (CheckpointPolicy.MUST_CPU_OFFLOAD, CheckpointPolicy.PREFER_CPU_OFFLOAD)
Policy = Callable[..., CheckpointPolicy | bool]


class SelectiveCheckpointContext:
    """What a policy is given first: the operator's result. `is_recompute` is False: no policy is asked in backward."""

    def __init__(self, *, is_recompute: bool, op_output: object = None) -> None:
        self.is_recompute, self.op_output = is_recompute, op_output


class _Saved:
    """A tensor that is kept, and the device that it is wanted on."""

    def __init__(self, tensor: Tensor, on_cpu: bool) -> None:
        self.device = tensor.device
        self.tensor = tensor.cpu() if on_cpu else tensor.detach()
        self.version = self.tensor._version

    def value(self, may_be_written: bool) -> Tensor:
        """Return the tensor. Raises RuntimeError where it has been written since."""
        if self.tensor._version != self.version and not may_be_written:
            raise RuntimeError(
                "Tensor cached during selective activation checkpoint has been mutated"
            )
        return self.tensor.to(self.device)


_COMPUTE, _USED = object(), object()
Results = Mapping[OpOverload, list[object]]


class _Saving(TorchDispatchMode):
    """The first computation: keeps what the policy chooses."""

    def __init__(self, policy: Policy, results: Results) -> None:
        super().__init__()
        self.policy, self.results = policy, results

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Return the operator's result, and keep it or note that it is computed again."""
        result = func(*args, **(kwargs or {}))
        if func in SAC_IGNORED_OPS:
            return result
        context = SelectiveCheckpointContext(is_recompute=False, op_output=result)
        policy = self.policy(context, func, *args, **(kwargs or {}))
        if policy is False or policy in _RECOMPUTED:
            self.results[func].append(_COMPUTE)
            return result
        on_cpu = policy in _ON_THE_CPU
        self.results[func].append(
            tree_map(lambda x: _Saved(x, on_cpu) if isinstance(x, Tensor) else x, result)
        )
        return result


class _Taking(TorchDispatchMode):
    """The second computation: takes what the first one kept."""

    def __init__(self, results: Results, may_be_written: bool) -> None:
        super().__init__()
        self.results, self.may_be_written = results, may_be_written
        self.calls: Counter[OpOverload] = Counter()

    def __enter__(self) -> Self:
        self.calls.clear()
        return super().__enter__()

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Return what was kept of this call, or else the operator's result.

        Raises RuntimeError for a call that the first computation did not make, and for results that a backward pass
        has used already.
        """
        if func in SAC_IGNORED_OPS:
            return func(*args, **(kwargs or {}))
        number, results = self.calls[func], self.results.get(func)
        self.calls[func] += 1
        if results is None or number >= len(results):
            place = "" if results is None else f" invocation index {number}"
            raise RuntimeError(
                f"{func}{place} encountered during backward but not found in storage. {_DIFFERS}"
            )
        kept = results[number]
        if kept is _USED:
            raise RuntimeError(
                "Trying to backward an extra time. You are only allowed to backward once on any region computed under "
                "selective activation checkpoint."
            )
        if kept is _COMPUTE:
            return func(*args, **(kwargs or {}))
        results[number] = _USED
        return tree_map(
            lambda x: x.value(self.may_be_written) if isinstance(x, _Saved) else x, kept
        )


def create_selective_checkpoint_contexts(
    policy_fn_or_list: Policy | list[OpOverload], allow_cache_entry_mutation: bool = False
) -> tuple[TorchDispatchMode, TorchDispatchMode]:
    """Return the two contexts of a checkpoint that keeps the results of some operators.

    `checkpoint(f, x, use_reentrant=False, context_fn=functools.partial(create_selective_checkpoint_contexts, choice))`
    asks `policy(context, op, *args, **kwargs)`, which returns a CheckpointPolicy, or keeps what the operators of a list
    give (`torch.ops.aten.mm.default`). Raises ValueError for what is no operator in a list, and TypeError for a choice
    that is neither.
    """
    policy: Policy
    if isinstance(policy_fn_or_list, list):
        listed = policy_fn_or_list
        for op in listed:
            if not isinstance(op, OpOverload):
                raise ValueError(
                    f"Expected op in `op_list` to be an OpOverload but got: {op} of type {type(op)}. "
                    + _PACKET * isinstance(op, OpOverloadPacket)
                )

        def policy(
            context: SelectiveCheckpointContext, op: OpOverload, *args: object, **kwargs: object
        ) -> bool:
            """Whether the operator is one of the list."""
            return op in listed

    elif callable(policy_fn_or_list):
        policy = policy_fn_or_list
    else:
        raise TypeError("policy_fn_or_list must be either a function or a list of ops.")
    results: Results = defaultdict(list)
    return _Saving(policy, results), _Taking(results, allow_cache_entry_mutation)


_PACKET = (
    "Please update the OpOverloadPacket to a specific OpOverload. For example, if you have `torch.ops.aten.mm`, change "
    "it to `torch.ops.aten.mm.default`."
)
