"""LRScheduler: what all learning rate schedules have in common. May import floors 0 to 4.

Attribute names are PyTorch's, since `state_dict()` consists of them.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from webtorch.ir.lines import user_depth
from webtorch.optim.optimizer import Group, Optimizer, StateDict
from webtorch.tensors.host import host_scalar, tracing
from webtorch.tensors.tensor import Tensor

# A learning rate, or a momentum: a tensor keeps its identity when it is set.
Rate = float | Tensor
# One for all groups, or one for each.
Rates = Rate | list[float] | list[Tensor] | tuple[Rate, ...]

_ORDER_PAGE = (
    "See more details at https://pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate"
)
EPOCH_DEPRECATION_WARNING = (
    "The epoch parameter in `scheduler.step()` was not necessary and is being deprecated where "
    "possible. Please use `scheduler.step()` to step the scheduler. During the deprecation, if "
    "epoch is different from None, the closed form is used instead of the new chainable form, "
    "where available. Please open an issue if you are unable to replicate your use case: "
    "https://github.com/pytorch/pytorch/issues/new/choose."
)


def each_group(name: str, optimizer: Optimizer, value: Rates) -> list[Rate]:
    """Return one value for each group: the given list, or the one number for all."""
    groups = len(optimizer.param_groups)
    values = value if isinstance(value, (list, tuple)) else [value] * groups
    if len(values) != groups:
        raise ValueError(
            f"{name} must have the same length as optimizer.param_groups. {name} has "
            f"{len(values)} values, param_groups has {groups}."
        )
    return [one.clone() if isinstance(one, Tensor) else one for one in values]


def read_option(optimizer: Optimizer, key: str) -> list[Rate]:
    """Return an option of every group; tensors as copies, for they change in place."""
    found = [group[key] for group in optimizer.param_groups]
    return [one.clone() if isinstance(one, Tensor) else one for one in found]


def write_option(group: Group, key: str, value: Rate) -> None:
    """Set an option; a tensor keeps its identity."""
    if isinstance(group[key], Tensor):
        if isinstance(value, Tensor):
            value = value.reshape(())
        group[key].fill_(value)
    else:
        group[key] = value


def write_momentum(group: Group, use_beta1: bool, momentum: Rate) -> None:
    """Set a group's momentum, which is its first beta in the Adam family."""
    if use_beta1:
        group["betas"] = (momentum, *group["betas"][1:])
    else:
        group["momentum"] = momentum


def noted(step: Callable[..., object]) -> Callable[..., Any]:
    """Return a schedule's `step` that a running capture takes down: each replay does it again."""

    @functools.wraps(step)
    def run(self: LRScheduler, *args: object, **kwargs: object) -> Any:
        """Do the step; while a capture runs, note it, so that each replay does it again."""
        if not tracing.active or tracing.acting:
            return step(self, *args, **kwargs)
        with tracing.plain_options():
            tracing.undo.append(_restorer(self))
            tracing.acting = True
            try:
                return step(self, *args, **kwargs)
            finally:
                tracing.acting = False
                tracing.actions.append(functools.partial(step, self, *args, **kwargs))

    run.noted = True  # type: ignore[attr-defined]
    return run


def _restorer(scheduler: LRScheduler) -> Callable[[], None]:
    """Return what gives a schedule, and the groups that it writes, the state of this moment back."""
    parts = [scheduler, *getattr(scheduler, "_schedulers", ())]
    tables = [vars(part) for part in parts]
    tables += [group for part in parts for group in part.optimizer.param_groups]
    states = [(table, dict(table)) for table in tables]

    def restore() -> None:
        """Put the tables back to what they held."""
        for table, state in states:
            table.clear()
            table.update(state)

    return restore


class _LastRates(Mapping[int, float]):
    """The learning rates that a schedule set last, by the number of the group."""

    def __init__(self, scheduler: LRScheduler) -> None:
        self.scheduler = scheduler

    def __getitem__(self, number: int) -> float:
        return float(self.scheduler._last_lr[number])

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return len(self.scheduler._last_lr)


class LRScheduler:
    """Base of the schedules: each `step()` asks `get_lr()` for every group's learning rate."""

    _get_lr_called_within_step = False
    _is_initial = False

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Have captures take down the `step` that a subclass defines."""
        super().__init_subclass__(**kwargs)
        if "step" in cls.__dict__ and not getattr(cls.step, "noted", False):
            cls.step = noted(cls.step)  # type: ignore[method-assign]

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        """Start at step 0; `last_epoch` resumes where each group has an "initial_lr"."""
        check_optimizer(optimizer)
        self.optimizer = optimizer
        for position, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                rate = group["lr"]
                group.setdefault("initial_lr", rate.clone() if isinstance(rate, Tensor) else rate)
            elif "initial_lr" not in group:
                raise KeyError(
                    f"param 'initial_lr' is not specified in param_groups[{position}] when "
                    "resuming scheduler with last_epoch >= 0.\nThis typically happens when:\n"
                    "1. You're trying to resume training from a checkpoint but haven't properly "
                    "loaded the optimizer state\n2. You're using last_epoch >= 0 for a fresh "
                    "training run (not recommended)"
                )
        self.base_lrs: list[Rate] = read_option(optimizer, "initial_lr")
        self.last_epoch: Any = last_epoch
        _watch_steps(optimizer)
        self._initial_step()

    def _initial_step(self) -> None:
        """Set the first learning rates."""
        self._step_count = 0
        self._is_initial = True
        try:
            self.step()
        finally:
            self._is_initial = False

    def state_dict(self) -> StateDict:
        """Return every attribute but the optimizer."""
        return {key: value for key, value in self.__dict__.items() if key != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        """Take back what `state_dict` returned."""
        self.__dict__.update(state_dict)

    def get_last_lr(self) -> list[Rate]:
        """Return the learning rates that the last step set."""
        if tracing.active and not tracing.acting:
            if any(isinstance(rate, Tensor) for rate in self._last_lr):
                return self._last_lr
            rates = _LastRates(self)
            return [host_scalar(rates, number, "lr") for number in rates]
        return self._last_lr

    def get_lr(self) -> list[Rate]:
        """Return the learning rate of each group at `last_epoch`; every schedule defines it."""
        raise NotImplementedError

    @noted
    def step(self, epoch: float | None = None) -> None:
        """Set the next learning rates; call it after `optimizer.step()`."""
        if self._step_count == 1:
            if not hasattr(self.optimizer.step, "_wrapped_by_lr_sched"):
                warnings.warn(
                    "Seems like `optimizer.step()` has been overridden after learning rate "
                    "scheduler initialization. Please, make sure to call `optimizer.step()` "
                    f"before `lr_scheduler.step()`. {_ORDER_PAGE}",
                    UserWarning,
                    stacklevel=user_depth(),
                )
            elif not getattr(self.optimizer, "_opt_called", False):
                warnings.warn(
                    "Detected call of `lr_scheduler.step()` before `optimizer.step()`. In PyTorch "
                    "1.1.0 and later, you should call them in the opposite order: "
                    "`optimizer.step()` before `lr_scheduler.step()`.  Failure to do this will "
                    "result in PyTorch skipping the first value of the learning rate schedule. "
                    f"{_ORDER_PAGE}",
                    UserWarning,
                    stacklevel=user_depth(),
                )
        self._step_count += 1
        if epoch is not None:
            warnings.warn(EPOCH_DEPRECATION_WARNING, UserWarning, stacklevel=user_depth())
        self._update_lr(epoch)

    def _update_lr(self, epoch: float | None = None) -> None:
        """Set the learning rates of the next epoch, or of a given one in closed form."""
        with self._asking():
            if epoch is None:
                self.last_epoch += 1
                rates = self.get_lr()
            else:
                self.last_epoch = epoch
                closed = getattr(self, "_get_closed_form_lr", self.get_lr)
                rates = closed()
        self._set(rates)

    def _set(self, rates: Sequence[Rate]) -> None:
        """Write the learning rates into the groups."""
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            write_option(group, "lr", rate)
        self._last_lr: list[Rate] = read_option(self.optimizer, "lr")

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """Let `get_lr` know that the schedule itself asks."""
        self._get_lr_called_within_step = True
        try:
            yield
        finally:
            self._get_lr_called_within_step = False

    def _warn_unless_asking(self) -> None:
        """Warn a user who calls `get_lr` for the current learning rate."""
        if not self._get_lr_called_within_step:
            warnings.warn(
                "To get the last learning rate computed by the scheduler, please use "
                "`get_last_lr()`.",
                UserWarning,
                stacklevel=user_depth(),
            )

    def _current(self) -> list[Rate]:
        """Return the groups' learning rates as they are."""
        return read_option(self.optimizer, "lr")

    def _scaled(self, factor: float) -> list[Rate]:
        """Return the groups' learning rates times `factor`."""
        return [group["lr"] * factor for group in self.optimizer.param_groups]


def check_optimizer(optimizer: object) -> None:
    """Raise TypeError unless it is an optimizer."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")


def _watch_steps(optimizer: Optimizer) -> None:
    """Have the optimizer remember that its step was called."""
    if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        return
    # Weak: the wrapper hangs on the optimizer, which would otherwise keep itself alive.
    owner, function = weakref.ref(optimizer), optimizer.step.__func__  # type: ignore[attr-defined]

    @functools.wraps(function)
    def step(*args: object, **kwargs: object) -> Any:
        """Note that the optimizer has stepped, and step."""
        alive = owner()
        assert alive is not None
        alive._opt_called = True  # type: ignore[attr-defined]
        return function(alive, *args, **kwargs)

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = step  # type: ignore[method-assign]
