"""GradScaler: keeps gradients of float16 products in range. May import floors 0 to 4.

The scale, the count of good steps and whether gradients overflowed stay on the device. Nothing is
read back: webtorch's optimizers take a step back on the device where `found_inf` says so, so that a
compiled step with a scaler is one program. Parameters count as written then, as with PyTorch's fused
optimizers: a backward pass that saved them before says so.
"""

from __future__ import annotations

import inspect
import warnings
from collections import defaultdict
from collections.abc import Iterable
from enum import Enum
from typing import Any

from webtorch.dispatch.call import Args, Callee, Kwargs
from webtorch.functions import public as webtorch
from webtorch.ir.lines import user_depth
from webtorch.tensors.autocast import restored, snapshot
from webtorch.tensors.base import wraps
from webtorch.tensors.host import RunAsUsual, host_scalar, tracing
from webtorch.tensors.tensor import Tensor
from webtorch.tensors.whole import as_one

__all__ = ["GradScaler", "OptState"]


class OptState(Enum):
    """How far an optimizer has come since the last `update`."""

    READY = 0
    UNSCALED = 1
    STEPPED = 2


def _refresh_per_optimizer_state() -> dict[str, object]:
    """Return what is known of one optimizer since the last `update`: of each device a 0-d float tensor, 1 where a
    gradient was infinite or NaN.
    """
    return {"stage": OptState.READY, "found_inf_per_device": {}}


class GradScaler:
    """Multiplies the loss by a scale that follows what the gradients allow.

    Call `scaler.scale(loss).backward()`, `scaler.step(optimizer)`, `scaler.update()`. Gradients are
    divided by the scale before the step, which does not happen where one of them is infinite or
    NaN; then the scale is multiplied by `backoff_factor`. After `growth_interval` good steps in
    sequence it is multiplied by `growth_factor`. With enabled=False everything passes through.
    `device` is accepted as in PyTorch; the scale is kept where the losses are.
    """

    def __init__(
        self,
        device: str | None = None,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        if device == "cuda" and enabled:
            warnings.warn(
                "torch.cuda.amp.GradScaler is enabled, but CUDA is not available.  Disabling.",
                stacklevel=user_depth(),
            )
            enabled = False
        self._device = device
        self._enabled = enabled
        if not enabled:
            return
        assert growth_factor > 1.0, "The growth factor must be > 1.0."
        assert backoff_factor < 1.0, "The backoff factor must be < 1.0."
        self._init_scale = init_scale
        self._scale: Tensor | None = None
        self._growth_factor = growth_factor
        self._backoff_factor = backoff_factor
        self._growth_interval = growth_interval
        self._init_growth_tracker = 0
        self._growth_tracker: Tensor | None = None
        self._per_optimizer_states: defaultdict[int, dict[str, Any]] = defaultdict(
            _refresh_per_optimizer_state
        )

    # -- scaling --------------------------------------------------------------------------------

    def scale(self, outputs: object) -> Any:
        """Return a tensor, or the tensors of an iterable, multiplied by the scale."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            if self._scale is None:
                self._start(outputs.device)
            assert self._scale is not None
            return outputs * self._scale.to(outputs.device)
        if isinstance(outputs, Iterable):
            scaled = map(self.scale, outputs)
            return type(outputs)(scaled) if isinstance(outputs, (list, tuple)) else scaled
        raise ValueError("outputs must be a Tensor or an iterable of Tensors")

    def _start(self, device: Any) -> None:
        if tracing.active:
            # A program would begin anew at every replay: the next call is captured.
            tracing.refused = "the scaler's scale began in this call"
        self._scale = webtorch.full((), self._init_scale, dtype=webtorch.float32, device=device)
        self._growth_tracker = webtorch.full(
            (), self._init_growth_tracker, dtype=webtorch.int32, device=device
        )

    def _started(self, name: str) -> tuple[Tensor, Tensor]:
        fix = (
            "This may indicate your script did not use scaler.scale(loss or outputs) earlier in the "
            "iteration."
        )
        assert self._scale is not None, f"Attempted {name} but _scale is None.  {fix}"
        assert self._growth_tracker is not None, (
            f"Attempted {name} but _growth_tracker is None.  {fix}"
        )
        return self._scale, self._growth_tracker

    def unscale_(self, optimizer: object) -> None:
        """Divide the gradients of an optimizer by the scale, and note whether one is not finite.

        For what looks at gradients before the step, such as clipping. Raises RuntimeError when
        called twice, or after `step`; ValueError for float16 gradients.
        """
        if not self._enabled:
            return
        scale, _ = self._started("unscale_")
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.UNSCALED:
            raise RuntimeError(
                "unscale_() has already been called on this optimizer since the last update()."
            )
        if state["stage"] is OptState.STEPPED:
            raise RuntimeError("unscale_() is being called after step().")
        state["found_inf_per_device"] = self._unscale_grads_(
            optimizer, scale.reciprocal(), None, False
        )
        state["stage"] = OptState.UNSCALED

    def _unscale_grads_(
        self, optimizer: Any, inv_scale: Tensor | None, found_inf: Tensor | None, allow_fp16: bool
    ) -> dict[Any, Tensor]:
        """Multiply gradients by `inv_scale`, if given; return for each device whether one is not finite. What PyTorch
        writes to `found_inf` is new here.
        """
        # By what the parameters lie with: to ask each gradient of a step that follows a script takes longer than all.
        grads: dict[Any, list[Tensor]] = {}
        for group in optimizer.param_groups:
            for param in group["params"]:
                grad = param.grad
                if grad is None:
                    continue
                if grad.dtype is webtorch.float16 and not allow_fp16:
                    raise ValueError("Attempting to unscale FP16 gradients.")
                if type(grad) is not Tensor and grad.layout is webtorch.sparse_coo:
                    # Sums at one place may be too large for the type, where none of the values is.
                    grad = param.grad = grad.coalesce()
                    grad = grad._values()
                grads.setdefault(param._storage.runtime, []).append(grad)
        found = {}
        for each in grads.values():
            device = each[0].device
            inverse = None if inv_scale is None else inv_scale.to(device)
            flag: Any = as_one(_UNSCALE, each, inverse)
            # All processes that have parts of gradients decide alike.
            found[device] = flag.full_tensor() if type(flag) is not Tensor and wraps(flag) else flag
        return found

    # -- stepping -------------------------------------------------------------------------------

    def step(self, optimizer: Any, *args: object, **kwargs: object) -> Any:
        """Unscale the gradients unless that has been done, and step unless one is not finite.

        An optimizer of webtorch.optim decides on the device; of another one (without PyTorch's
        `_step_supports_amp_scaling`) the gradients are awaited. Returns what optimizer.step returns.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs:
            raise RuntimeError("Closure use is not currently supported if GradScaler is enabled.")
        scale, _ = self._started("step")
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.STEPPED:
            raise RuntimeError("step() has already been called since the last update().")
        takes_back = hasattr(optimizer, "_can_take_back") and optimizer._can_take_back()
        fused = not takes_back and getattr(optimizer, "_step_supports_amp_scaling", False)
        if fused and "grad_scaler" in inspect.signature(optimizer.step).parameters:
            warnings.warn(
                "GradScaler is going to stop passing itself as a keyword argument to the passed optimizer. In "
                "the near future GradScaler registers `grad_scale: Tensor` and `found_inf: Tensor` to the passed "
                "optimizer and let the optimizer use them directly.",
                FutureWarning,
                stacklevel=user_depth(),
            )
            result = optimizer.step(*args, **kwargs, grad_scaler=self)
            state["stage"] = OptState.STEPPED
            return result
        unscaled = state["stage"] is OptState.UNSCALED
        if fused and not unscaled:
            state["found_inf_per_device"] = self._unscale_grads_(optimizer, None, None, True)
        elif not unscaled:
            self.unscale_(optimizer)
        assert state["found_inf_per_device"], "No inf checks were recorded for this optimizer."
        if takes_back or fused:
            optimizer.grad_scale = None if takes_back or unscaled else scale
            optimizer.found_inf = self._together(
                state["found_inf_per_device"].values(), scale.device
            )
            try:
                result = optimizer.step(*args, **kwargs)
            finally:
                del optimizer.grad_scale, optimizer.found_inf
        else:
            if tracing.active:
                # The call begins anew.
                self._per_optimizer_states.clear()
                raise RunAsUsual
            found = sum(f.item() for f in state["found_inf_per_device"].values())
            result = None if found else optimizer.step(*args, **kwargs)
        state["stage"] = OptState.STEPPED
        return result

    @staticmethod
    def _together(found: Iterable[Tensor], device: object) -> Tensor:
        first, *rest = (f.to(device) for f in found)
        for one in rest:
            first = webtorch.maximum(first, one)
        return first

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Let the scale follow what the steps since the last update found, or set it to `new_scale`."""
        if not self._enabled:
            return
        scale, tracker = self._started("update")
        if isinstance(new_scale, Tensor):
            assert new_scale.numel() == 1 and not new_scale.requires_grad, (
                "new_scale should be a float or a 1-element torch.FloatTensor with "
                "requires_grad=False."
            )
            with webtorch.no_grad(), _without_autocast():
                scale.copy_(new_scale.reshape(()))
        elif new_scale is not None:
            with webtorch.no_grad():
                scale.fill_(new_scale)
        else:
            found = [
                f
                for state in self._per_optimizer_states.values()
                for f in state["found_inf_per_device"].values()
            ]
            assert found, "No inf checks were recorded prior to update."
            options = map(self._live, ("_growth_interval", "_growth_factor", "_backoff_factor"))
            as_one(_FOLLOW, scale, tracker, self._together(found, scale.device), *options)
        # Emptied, not replaced: a compiled step refers to this one.
        self._per_optimizer_states.clear()

    def _live(self, name: str) -> Any:
        """Return an option as a number that a compiled step reads anew."""
        return host_scalar(self.__dict__, name) if tracing.active else self.__dict__[name]

    # -- settings -------------------------------------------------------------------------------

    def get_scale(self) -> float:
        """Return the scale, 1.0 if not enabled. Waits for the device."""
        if not self._enabled:
            return 1.0
        return float(self._init_scale if self._scale is None else self._scale.item())

    def get_growth_factor(self) -> float:
        """Return what the scale is multiplied by after good steps."""
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Set what the scale is multiplied by after good steps."""
        self._growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        """Return what the scale is multiplied by after a bad step."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set what the scale is multiplied by after a bad step."""
        self._backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        """Return how many good steps in sequence make the scale grow."""
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Set how many good steps in sequence make the scale grow."""
        self._growth_interval = new_interval

    def _get_growth_tracker(self) -> int:
        if not self._enabled:
            return 0
        tracker = self._growth_tracker
        return int(self._init_growth_tracker if tracker is None else tracker.item())

    def is_enabled(self) -> bool:
        """Return whether this scaler does anything."""
        return self._enabled

    # -- checkpoints ----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return scale, factors, interval and count, as numbers; {} if not enabled. Waits for the device."""
        if not self._enabled:
            return {}
        return {
            "scale": self.get_scale(),
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._get_growth_tracker(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what `state_dict` returned. Raises RuntimeError for that of a disabled scaler."""
        if not self._enabled:
            return
        if not state_dict:
            raise RuntimeError(
                "The source state dict is empty, possibly because it was saved from a disabled "
                "instance of GradScaler."
            )
        self._init_scale = state_dict["scale"]
        self._growth_factor = state_dict["growth_factor"]
        self._backoff_factor = state_dict["backoff_factor"]
        self._growth_interval = state_dict["growth_interval"]
        self._init_growth_tracker = state_dict["_growth_tracker"]
        with webtorch.no_grad():
            if self._scale is not None:
                self._scale.fill_(self._init_scale)
            if self._growth_tracker is not None:
                self._growth_tracker.fill_(self._init_growth_tracker)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        if self._enabled:
            assert not self._per_optimizer_states, (
                "A GradScaler instance may only be pickled at the beginning of an iteration, or at "
                "the end after scaler.update()."
            )
            state["_init_scale"] = self.get_scale()
            state["_init_growth_tracker"] = self._get_growth_tracker()
            state["_scale"] = state["_growth_tracker"] = None
        return state

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)


def _unscale(args: Args, kwargs: Kwargs) -> Tensor:
    """Multiply gradients of one device by a number, if there is one; return 1 where one is not finite, else 0."""
    grads, inv_scale = args
    with webtorch.no_grad(), _without_autocast():
        finite = []
        for grad in grads:
            finite.append(grad.isfinite().all())
            if inv_scale is not None:
                grad.mul_(inv_scale)
        return 1.0 - webtorch.stack(finite).all().to(webtorch.float32)


def _follow(args: Args, kwargs: Kwargs) -> None:
    """Let a scale follow what was found."""
    scale, tracker, found, interval, growth, backoff = args
    with webtorch.no_grad(), _without_autocast():
        overflowed = found > 0
        good = tracker + 1
        due = good == interval
        grown = scale * growth
        # A scale that is no number any more would never come back.
        grown = webtorch.where(due & grown.isfinite(), grown, scale)
        count = webtorch.where(overflowed | due, 0, good)
        scale.copy_(webtorch.where(overflowed, scale * backoff, grown))
        tracker.copy_(count)


_UNSCALE = Callee("unscale_", _unscale)
_FOLLOW = Callee("update", _follow)


def _without_autocast() -> Any:
    """Scales and gradients keep their types, also where a whole step runs under autocast."""
    _, chosen, cached = snapshot()
    return restored(({}, chosen, cached))
