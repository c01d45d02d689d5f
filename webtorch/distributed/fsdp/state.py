"""What a sharded module does around its forward and its backward pass, by hooks."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Sequence
from typing import Any

from webtorch.distributed.fsdp.group import FSDPCommContext, FSDPParamGroup, TrainingState
from webtorch.distributed.fsdp.policy import MixedPrecisionPolicy
from webtorch.distributed.fsdp.values import cast, mapped, with_gradients
from webtorch.ir.lines import user_depth
from webtorch.nn.module import Module
from webtorch.tensors.engine import queue_callback
from webtorch.tensors.function import Function
from webtorch.tensors.host import RunAsUsual, tracing
from webtorch.tensors.modes import is_grad_enabled
from webtorch.tensors.tensor import Tensor

_VIEW = (
    "FSDP2-wrapped module ({}) returned a view tensor. "
    "An in-place op on this view (e.g., `x += y`) will silently "
    "drop the pre-backward hook and skip the all-gather, which "
    "can cause backward to fail or produce wrong gradients. "
    "Use out-of-place ops (`out = out + y`, not `out += y`) or "
    "`.clone()` the output before any in-place op."
)
_states: weakref.WeakKeyDictionary[Module, FSDPState] = weakref.WeakKeyDictionary()


def _get_module_fsdp_state(module: Module) -> FSDPState | None:
    """Return what a sharded module has, None of others."""
    return _states.get(module)


class FSDPStateContext:
    """What the sharded modules of one model share."""

    def __init__(self) -> None:
        self.all_states: list[FSDPState] = []
        # Whose forward pass is the outermost one that runs.
        self.iter_forward_root: FSDPState | None = None
        self.post_backward_final_callback_queued = False
        self.is_last_backward = True


class FSDPState:
    """What a sharded module has; several that travel together have one."""

    def __init__(
        self,
        modules: Sequence[Module],
        device: Any,
        mp_policy: MixedPrecisionPolicy,
        auto_reshard_after_forward: bool,
    ) -> None:
        """Put hooks around the modules' forward."""
        self._fsdp_param_groups: list[FSDPParamGroup] = []
        # Known when the first forward begins.
        self._is_root: bool | None = None
        self._state_ctx, self._comm_ctx = FSDPStateContext(), FSDPCommContext()
        self._training_state = TrainingState.IDLE
        self._states_to_forward_prefetch: list[FSDPState] = []
        self._states_to_backward_prefetch: list[FSDPState] = []
        # Of several modules, those that have not run in this pass.
        self._modules_to_run_forward: set[Module] = set()
        self._modules, self._device = tuple(modules), device
        self._mp_policy = mp_policy
        self._auto_reshard_after_forward = auto_reshard_after_forward
        for module in modules:
            _states[module] = self
            module.register_forward_pre_hook(self._before, prepend=True, with_kwargs=True)
            module.register_forward_hook(self._after, always_call=len(modules) > 1)

    @property
    def _fsdp_param_group(self) -> FSDPParamGroup | None:
        """The group of parameters, where there is one."""
        if len(self._fsdp_param_groups) > 1:
            raise AssertionError(
                "Expected at most 1 param group for backward compatibility, but got "
                f"{len(self._fsdp_param_groups)}. Use `_fsdp_param_groups` (plural)."
            )
        return self._fsdp_param_groups[0] if self._fsdp_param_groups else None

    # -- beginning --------------------------------------------------------------------------------

    def _lazy_init(self) -> None:
        """Find the sharded modules of the model, of which this one's is the root."""
        if self._is_root is not None:
            return
        self._is_root = True
        if len(self._modules) > 1:
            raise RuntimeError(f"FSDP requires a single root module but got {self._modules}")
        (root,) = self._modules
        found: dict[FSDPState, None] = {}
        for name, module in root.named_modules():
            state = _states.get(module)
            if state is None:
                continue
            if module is not root:
                if state not in found and state._is_root is not None:
                    raise RuntimeError(
                        f"FSDP state has already been lazily initialized for {name}\n"
                        "FSDP requires running forward through the root module first"
                    )
                state._is_root = False
            found[state] = None
        self._state_ctx.all_states = list(found)
        if self._auto_reshard_after_forward:
            # Its parameters would be let go of and gathered again at once.
            for group in self._fsdp_param_groups:
                group.post_forward_mesh_info = None
        self._name(root)
        seen: set[int] = set()
        for state in found:
            state._state_ctx, state._comm_ctx = self._state_ctx, self._comm_ctx
            for group in state._fsdp_param_groups:
                group.comm_ctx = self._comm_ctx
                for param in group.fsdp_params:
                    if param._orig_param_uid in seen:
                        raise ValueError(
                            f"Parameter '{param._param_fqn}' is shared with a "
                            f"parameter already managed by another FSDP group. "
                            f"For shared/tied parameters, use "
                            f"fully_shard([module_a, module_b]) to place them in "
                            f"the same FSDP group."
                        )
                    seen.add(param._orig_param_uid)
        for state in found:
            for group in state._fsdp_param_groups:
                group.lazy_init()

    def _name(self, root: Module) -> None:
        """Note the names of parameters and modules, for errors."""
        names = {id(p): name for name, p in root.named_parameters()}
        modules = {module: name for name, module in root.named_modules()}
        for state in self._state_ctx.all_states:
            for group in state._fsdp_param_groups:
                group._module_fqn = ", ".join([modules.get(m, "?") for m in group.modules])
                for param in group.fsdp_params:
                    param._param_fqn = names.get(id(param.sharded_param))

    # -- forward ----------------------------------------------------------------------------------

    def _before(self, module: Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        if len(self._modules) > 1 and not self._modules_to_run_forward:
            self._modules_to_run_forward.update(self._modules)
        return self._pre_forward(module, args, kwargs)

    def _after(self, module: Module, args: Any, output: Any) -> Any:
        if len(self._modules) > 1:
            if module not in self._modules_to_run_forward:
                return self._cast_output_dtype(output)
            self._modules_to_run_forward.remove(module)
            if self._modules_to_run_forward:
                return self._cast_output_dtype(output)
        return self._post_forward(module, args, output)

    def _pre_forward(self, module: Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        _run_as_usual()
        if self._training_state is TrainingState.PRE_BACKWARD:
            # Computed again within the backward pass, which gathers.
            for group in self._fsdp_param_groups:
                if not group.is_unsharded:
                    group.unshard()
                    group.wait_for_unshard()
            return self._cast_forward_inputs(args, kwargs)
        is_first = self._training_state is not TrainingState.FORWARD
        self._training_state = TrainingState.FORWARD
        if is_first:
            self._lazy_init()
            if self._state_ctx.iter_forward_root is None:
                self._state_ctx.iter_forward_root = self
                if self._device.type != "cpu":
                    args, kwargs = mapped((args, kwargs), lambda x: x.to(self._device))
        args, kwargs = self._cast_forward_inputs(args, kwargs)
        for group in self._fsdp_param_groups:
            if group.pre_forward():
                args, kwargs = _followed(group, args, kwargs)
        if is_first:
            for state in self._states_to_forward_prefetch:
                for group in state._fsdp_param_groups:
                    group.prefetch(TrainingState.FORWARD)
        return args, kwargs

    def _post_forward(self, module: Module | None, args: Any, output: Any) -> Any:
        if self._training_state is TrainingState.PRE_BACKWARD:
            return self._cast_output_dtype(output)
        for group in self._fsdp_param_groups:
            group.post_forward()
        self._register_pre_backward_hook(output)
        self._training_state = TrainingState.IDLE
        if self._state_ctx.iter_forward_root is self:
            output = self._force_complete_incomplete_states(output)
            self._state_ctx.iter_forward_root = None
        return self._cast_output_dtype(output)

    def _force_complete_incomplete_states(self, output: Any) -> Any:
        """Let go of the parameters of modules that travel together and have not all run."""
        for state in reversed(self._state_ctx.all_states):
            if state is self or not state._modules_to_run_forward:
                continue
            for group in state._fsdp_param_groups:
                group.post_forward()
            state._register_pre_backward_hook(output)
            state._training_state = TrainingState.IDLE
            output = state._cast_output_dtype(output)
            state._modules_to_run_forward.clear()
        return output

    def _cast_forward_inputs(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        dtype = self._mp_policy.param_dtype if self._mp_policy.cast_forward_inputs else None
        return cast(args, dtype), cast(kwargs, dtype)

    def _cast_output_dtype(self, output: Any) -> Any:
        return cast(output, self._mp_policy.output_dtype)

    # -- backward ---------------------------------------------------------------------------------

    def _register_pre_backward_hook(self, output: Any) -> None:
        if not is_grad_enabled():
            return
        for x in with_gradients(output):
            if x._base is not None:
                names = ", ".join(type(m).__name__ for m in self._modules)
                warnings.warn(_VIEW.format(names), UserWarning, stacklevel=user_depth())
            x.register_hook(self._pre_backward)

    def _pre_backward(self, grad: Tensor) -> Tensor:
        _run_as_usual()
        self._training_state = TrainingState.PRE_BACKWARD
        context = self._state_ctx
        if not context.post_backward_final_callback_queued:
            context.post_backward_final_callback_queued = True
            queue_callback(self._root_post_backward_final_callback)
        for group in self._fsdp_param_groups:
            group.pre_backward(not self._states_to_backward_prefetch)
        for state in self._states_to_backward_prefetch:
            for group in reversed(state._fsdp_param_groups):
                group.prefetch(TrainingState.PRE_BACKWARD)
        return grad

    def _root_post_backward_final_callback(self) -> None:
        context = self._state_ctx
        context.iter_forward_root = None
        for state in context.all_states:
            state._modules_to_run_forward.clear()
            for group in reversed(state._fsdp_param_groups):
                if group._training_state is not TrainingState.POST_BACKWARD:
                    # Its inputs need no gradients, so nothing has told that its backward pass was done.
                    group.post_backward()
                group._training_state = TrainingState.IDLE
            state._training_state = TrainingState.IDLE
            if context.is_last_backward:
                for group in state._fsdp_param_groups:
                    group.finalize_backward()
        if context.is_last_backward:
            self._comm_ctx.post_forward_order.clear()
        self._comm_ctx.settle()
        context.post_backward_final_callback_queued = False

    def _reset_iter_state(self) -> None:
        """Let the next pass begin anew, after an error in one."""
        if self._is_root is False:
            raise RuntimeError("reset_iter_state must be called on the root FSDP module")
        self._comm_ctx.under_way.clear()
        self._comm_ctx.post_forward_order.clear()
        for state in self._state_ctx.all_states:
            state._modules_to_run_forward.clear()
            state._training_state = TrainingState.IDLE
            for group in state._fsdp_param_groups:
                group.reset_iter_state()
        self._state_ctx.iter_forward_root = None
        self._state_ctx.post_backward_final_callback_queued = False


def _run_as_usual() -> None:
    """Let a function that is captured run as it is: a program would hold the parameters that are gathered in it."""
    if tracing.active:
        raise RunAsUsual(
            "a module under fully_shard gathers its parameters around its forward and backward pass"
        )


def _followed(group: FSDPParamGroup, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return a module's inputs behind an identity, which the backward pass comes to when it is done with the module."""
    inputs = with_gradients((args, kwargs)) if is_grad_enabled() else []
    if not inputs:
        return args, kwargs
    made = _Followed.apply(group, *inputs)
    turned = dict(zip(map(id, inputs), made if isinstance(made, tuple) else (made,), strict=True))
    found: tuple[Any, Any] = mapped((args, kwargs), lambda x: turned.get(id(x), x))
    return found


class _Followed(Function):
    """The identity; on the way back, a group of parameters is done with."""

    @staticmethod
    def forward(ctx: Any, group: FSDPParamGroup, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return views of the inputs, which keep the function in the graph."""
        ctx.group = group
        ctx.set_materialize_grads(False)
        return tuple([x.view_as(x) for x in inputs])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        """Send the group's gradients."""
        ctx.group.post_backward()
        return (None, *grads)
