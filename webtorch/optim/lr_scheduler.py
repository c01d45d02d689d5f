"""Learning rate schedules: they write each group's "lr" (and momentum), on the host.

May import floors 0 to 4. Attribute names are PyTorch's, since `state_dict()` consists of them.
"""

from __future__ import annotations

import math
import types
import warnings
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, SupportsFloat

from webtorch.ir.lines import user_depth
from webtorch.optim.optimizer import Optimizer, StateDict
from webtorch.optim.scheduler_base import (
    EPOCH_DEPRECATION_WARNING,
    LRScheduler,
    Rate,
    Rates,
    check_optimizer,
    each_group,
    write_momentum,
    write_option,
)

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]


# PyTorch's old name of the base.
_LRScheduler = LRScheduler


class _Lambdas(LRScheduler):
    """A schedule with a function of the epoch for each group."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Any, last_epoch: int = -1) -> None:
        """Take one function for all groups, or one for each."""
        self.optimizer = optimizer
        groups = len(optimizer.param_groups)
        if not isinstance(lr_lambda, (list, tuple)):
            self.lr_lambdas: list[Callable[[int], float]] = [lr_lambda] * groups
        elif len(lr_lambda) != groups:
            raise ValueError(f"Expected {groups} lr_lambdas, but got {len(lr_lambda)}")
        else:
            self.lr_lambdas = list(lr_lambda)
        super().__init__(optimizer, last_epoch)

    def state_dict(self) -> StateDict:
        """Return the attributes; functions are left out, callable objects give theirs."""
        state = super().state_dict()
        state["lr_lambdas"] = [
            None if isinstance(one, types.FunctionType) else one.__dict__.copy()
            for one in state.pop("lr_lambdas")
        ]
        return state

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Take back what `state_dict` returned."""
        rest = {key: value for key, value in state_dict.items() if key != "lr_lambdas"}
        self.__dict__.update(rest)
        for one, saved in zip(self.lr_lambdas, state_dict["lr_lambdas"], strict=True):
            if saved is not None:
                one.__dict__.update(saved)


class LambdaLR(_Lambdas):
    """The initial learning rate times `lr_lambda(epoch)`."""

    def get_lr(self) -> list[Rate]:
        """Return the learning rates at `last_epoch`."""
        self._warn_unless_asking()
        return [
            base * function(self.last_epoch)
            for function, base in zip(self.lr_lambdas, self.base_lrs, strict=True)
        ]


class MultiplicativeLR(_Lambdas):
    """The learning rate before times `lr_lambda(epoch)`."""

    def __init__(self, optimizer: Optimizer, lr_lambda: object, last_epoch: int = -1) -> None:
        """Take one function for all groups, or one for each."""
        for one in lr_lambda if isinstance(lr_lambda, (list, tuple)) else [lr_lambda]:
            if not callable(one):
                raise TypeError(f"lr_lambda should be a function, but got {type(one).__name__}")
        super().__init__(optimizer, lr_lambda, last_epoch)

    def get_lr(self) -> list[Rate]:
        """Return the learning rates at `last_epoch`."""
        self._warn_unless_asking()
        if self._is_initial:
            return self._current()
        return [
            group["lr"] * function(self.last_epoch)
            for function, group in zip(self.lr_lambdas, self.optimizer.param_groups, strict=True)
        ]


class StepLR(LRScheduler):
    """Times `gamma` every `step_size` epochs."""

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        """Take the period and the factor."""
        self.step_size = step_size
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Rate]:
        """Return the learning rates at `last_epoch`."""
        self._warn_unless_asking()
        if self.last_epoch == 0 or self.last_epoch % self.step_size != 0:
            return self._current()
        return self._scaled(self.gamma)

    def _get_closed_form_lr(self) -> list[Rate]:
        """Return the learning rates at `last_epoch`, whatever came before."""
        factor = self.gamma ** (self.last_epoch // self.step_size)
        return [base * factor for base in self.base_lrs]


class MultiStepLR(LRScheduler):
    """Times `gamma` at each of the `milestones`."""

    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Iterable[int],
        gamma: float = 0.1,
        last_epoch: int = -1,
    ) -> None:
        """Take the epochs (one given twice counts twice) and the factor."""
        self.milestones = Counter(milestones)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Rate]:
        """Return the learning rates at `last_epoch`."""
        self._warn_unless_asking()
        if self.last_epoch not in self.milestones:
            return self._current()
        return self._scaled(self.gamma ** self.milestones[self.last_epoch])

    def _get_closed_form_lr(self) -> list[Rate]:
        """Return the learning rates at `last_epoch`, whatever came before."""
        passed = bisect_right(sorted(self.milestones.elements()), self.last_epoch)
        return [base * self.gamma**passed for base in self.base_lrs]


class ConstantLR(LRScheduler):
    """Times `factor` for the first `total_iters` epochs."""

    def __init__(
        self,
        optimizer: Optimizer,
        factor: float = 1.0 / 3,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        """Take the factor and how long it holds."""
        if factor > 1.0 or factor < 0:
            raise ValueError("Constant multiplicative factor expected to be between 0 and 1.")
        self.factor = factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Rate]:
        """Return the learning rates at `last_epoch`."""
        self._warn_unless_asking()
        if self.last_epoch == 0:
            return self._scaled(self.factor)
        if self.last_epoch != self.total_iters:
            return self._current()
        return self._scaled(1.0 / self.factor)

    def _get_closed_form_lr(self) -> list[Rate]:
        """Return the learning rates at `last_epoch`, whatever came before."""
        factor = 1 if self.last_epoch >= self.total_iters else self.factor
        return [base * factor for base in self.base_lrs]


class LinearLR(LRScheduler):
    """Times a factor that goes linearly from `start_factor` to `end_factor`."""

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        """Take the factors and the number of epochs between them."""
        if start_factor > 1.0 or start_factor <= 0:
            raise ValueError(
                "Starting multiplicative factor expected to be greater than 0 and less or equal "
                "to 1."
            )
        if end_factor > 1.0 or end_factor < 0:
            raise ValueError("Ending multiplicative factor expected to be between 0 and 1.")
        self.start_factor = start_factor
        self.end_factor = end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Rate]:
        """Return the learning rates at `last_epoch`."""
        self._warn_unless_asking()
        if self.last_epoch == 0:
            return self._scaled(self.start_factor)
        if self._is_initial or self.last_epoch > self.total_iters:
            return self._current()
        # From factor(n - 1) to factor(n), so that the schedule chains with others.
        rise = self.end_factor - self.start_factor
        before = self.total_iters * self.start_factor + (self.last_epoch - 1) * rise
        return self._scaled(1.0 + rise / before)

    def _get_closed_form_lr(self) -> list[Rate]:
        """Return the learning rates at `last_epoch`, whatever came before."""
        done = min(self.total_iters, self.last_epoch)
        rise = (self.end_factor - self.start_factor) * done / self.total_iters
        return [base * (self.start_factor + rise) for base in self.base_lrs]


class ExponentialLR(LRScheduler):
    """Times `gamma` every epoch."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        """Take the factor."""
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Rate]:
        """Return the learning rates at `last_epoch`."""
        self._warn_unless_asking()
        return self._current() if self._is_initial else self._scaled(self.gamma)

    def _get_closed_form_lr(self) -> list[Rate]:
        """Return the learning rates at `last_epoch`, whatever came before."""
        return [base * self.gamma**self.last_epoch for base in self.base_lrs]


class PolynomialLR(LRScheduler):
    """Falls to 0 over `total_iters` epochs as (1 - epoch / total_iters) ** power."""

    def __init__(
        self,
        optimizer: Optimizer,
        total_iters: int = 5,
        power: float = 1.0,
        last_epoch: int = -1,
    ) -> None:
        """Take the number of epochs and the power."""
        self.total_iters = total_iters
        self.power = power
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Rate]:
        """Return the learning rates at `last_epoch`."""
        self._warn_unless_asking()
        if self._is_initial or self.last_epoch > self.total_iters:
            return self._current()
        now = 1.0 - self.last_epoch / self.total_iters
        before = 1.0 - (self.last_epoch - 1) / self.total_iters
        return self._scaled((now / before) ** self.power)

    def _get_closed_form_lr(self) -> list[Rate]:
        """Return the learning rates at `last_epoch`, whatever came before."""
        done = min(self.total_iters, self.last_epoch) / self.total_iters
        return [base * (1.0 - done) ** self.power for base in self.base_lrs]


class CosineAnnealingLR(LRScheduler):
    """Half a cosine from the initial learning rate to `eta_min` over `T_max` epochs, and back.

    Loshchilov and Hutter, 2017, without its restarts.
    """

    def __init__(
        self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        """Take the number of epochs and the least learning rate."""
        self.T_max = T_max
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def _height(self, epoch: float) -> float:
        """Return 1 + cos at an epoch: from 2 at the start to 0 at T_max."""
        return 1 + math.cos(math.pi * epoch / self.T_max)

    def get_lr(self) -> list[Rate]:
        """Return the learning rates at `last_epoch`."""
        self._warn_unless_asking()
        groups = self.optimizer.param_groups
        if self._is_initial:
            return self._current()
        if self._step_count == 1 and self.last_epoch > 0:
            return self._get_closed_form_lr()
        if (self.last_epoch - 1 - self.T_max) % (2 * self.T_max) == 0:
            # The epoch before was the bottom, where the chained form would divide by 0.
            first = (1 - math.cos(math.pi / self.T_max)) / 2
            return [
                group["lr"] + (base - self.eta_min) * first
                for base, group in zip(self.base_lrs, groups, strict=True)
            ]
        ratio = self._height(self.last_epoch) / self._height(self.last_epoch - 1)
        return [ratio * (group["lr"] - self.eta_min) + self.eta_min for group in groups]

    def _get_closed_form_lr(self) -> list[Rate]:
        """Return the learning rates at `last_epoch`, whatever came before."""
        height = self._height(self.last_epoch)
        return [self.eta_min + (base - self.eta_min) * height / 2 for base in self.base_lrs]


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half cosines of `T_0`, `T_0 * T_mult`, ... epochs, each from the initial learning rate.

    Loshchilov and Hutter, 2017: SGDR.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        T_0: object,
        T_mult: object = 1,
        eta_min: object = 0.0,
        last_epoch: int = -1,
    ) -> None:
        """Take the first period, the factor of its growth, and the least learning rate."""
        if not isinstance(T_0, int) or T_0 <= 0:
            raise ValueError(f"Expected positive integer T_0, but got {T_0}")
        if not isinstance(T_mult, int) or T_mult < 1:
            raise ValueError(f"Expected integer T_mult >= 1, but got {T_mult}")
        if not isinstance(eta_min, (float, int)):
            raise ValueError(
                f"Expected float or int eta_min, but got {eta_min} of type {type(eta_min)}"
            )
        self.T_0 = T_0
        self.T_i = T_0
        self.T_mult = T_mult
        self.eta_min = eta_min
        self.T_cur: float = last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Rate]:
        """Return the learning rates at `T_cur` of a period of `T_i`."""
        self._warn_unless_asking()
        height = 1 + math.cos(math.pi * self.T_cur / self.T_i)
        return [self.eta_min + (base - self.eta_min) * height / 2 for base in self.base_lrs]

    def step(self, epoch: float | None = None) -> None:
        """Set the next learning rates; `epoch` may be a fraction, as `epoch + i / batches`."""
        if epoch is None and self.last_epoch < 0:
            epoch = 0
        if epoch is None:
            epoch = self.last_epoch + 1
            self.T_cur = self.T_cur + 1
            if self.T_cur >= self.T_i:
                self.T_cur = self.T_cur % self.T_i
                self.T_i = self.T_i * self.T_mult
        elif epoch < 0:
            raise ValueError(f"Expected non-negative epoch, but got {epoch}")
        else:
            self._jump(epoch)
        self.last_epoch = math.floor(epoch)
        with self._asking():
            rates = self.get_lr()
        self._set(rates)

    def _jump(self, epoch: float) -> None:
        """Set period and place for an epoch, whatever came before."""
        if epoch < self.T_0:
            self.T_i, self.T_cur = self.T_0, epoch
        elif self.T_mult == 1:
            self.T_cur = epoch % self.T_0
        else:
            n = int(math.log(epoch / self.T_0 * (self.T_mult - 1) + 1, self.T_mult))
            done = self.T_0 * (self.T_mult**n - 1) / (self.T_mult - 1)
            self.T_i, self.T_cur = self.T_0 * self.T_mult**n, epoch - done


def _check_members(
    owner: LRScheduler, optimizer: Optimizer | None, schedulers: Sequence[LRScheduler]
) -> None:
    """Raise unless the schedules can be combined."""
    name = type(owner).__name__
    for position, one in enumerate(schedulers):
        if not hasattr(one, "optimizer"):
            raise TypeError(f"{name} at index {position} should have `optimizer` as its attribute.")
        if isinstance(one, ReduceLROnPlateau):
            raise ValueError(
                f"{name} does not support `ReduceLROnPlateau` scheduler as it requires additional "
                "kwargs to be specified when calling `step`, but got one at index "
                f"{position} in the given schedulers sequence."
            )
        if optimizer is not one.optimizer:
            raise ValueError(
                f"{name} expects all schedulers to belong to the same optimizer, but got "
                f"scheduler {type(one).__name__} at index {position} has {one.optimizer}, which "
                f"is different from {type(optimizer).__name__}."
            )


class _Combined(LRScheduler):
    """A schedule made of others."""

    _schedulers: Sequence[LRScheduler]

    def state_dict(self) -> StateDict:
        """Return the attributes, and the states of the members."""
        state = super().state_dict()
        state.pop("_schedulers")
        state["_schedulers"] = [one.state_dict() for one in self._schedulers]
        return state

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Take back what `state_dict` returned."""
        rest = {key: value for key, value in state_dict.items() if key != "_schedulers"}
        self.__dict__.update(rest)
        for one, saved in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            one.load_state_dict(saved)


class SequentialLR(_Combined):
    """One schedule after the other, changing at the `milestones`."""

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: list[LRScheduler],
        milestones: list[int],
        last_epoch: int = -1,
    ) -> None:
        """Take the schedules and, one fewer, the epochs at which the next one begins."""
        if len(schedulers) < 1:
            raise ValueError(
                f"{type(self).__name__} expects at least one scheduler, but got no scheduler."
            )
        _check_members(self, optimizer, schedulers)
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(
                "Sequential Schedulers expects number of schedulers provided to be one more than "
                f"the number of milestone points, but got number of schedulers {len(schedulers)} "
                f"and the number of milestones to be equal to {len(milestones)}"
            )
        self._schedulers = schedulers
        self._milestones = milestones
        self.last_epoch = last_epoch + 1
        self.optimizer = optimizer
        # Every member has set its first learning rate already: undo that, then start the first.
        for group in optimizer.param_groups:
            write_option(group, "lr", group["initial_lr"])
        self.recursive_undo()
        first = schedulers[bisect_right(milestones, 0)]
        first._initial_step()
        self._last_lr = first.get_last_lr()

    def recursive_undo(self, sched: object = None) -> None:
        """Take back the first step of all members, and of theirs."""
        one = self if sched is None else sched
        if hasattr(one, "_schedulers"):
            for member in one._schedulers:
                self.recursive_undo(member)
        elif hasattr(one, "last_epoch"):
            one.last_epoch -= 1

    def step(self) -> None:
        """Set the next learning rates by the schedule whose turn it is."""
        self.last_epoch += 1
        turn = bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[turn]
        if turn > 0 and self._milestones[turn - 1] == self.last_epoch:
            scheduler._update_lr(0)
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()


class ChainedScheduler(_Combined):
    """Several schedules at once, each acting on what the one before left."""

    def __init__(
        self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None
    ) -> None:
        """Take the schedules."""
        if len(schedulers) < 1:
            raise ValueError(
                f"{type(self).__name__} expects at least one scheduler to be chained, but got no "
                "scheduler."
            )
        optimizer = optimizer or schedulers[0].optimizer
        _check_members(self, optimizer, schedulers)
        self._schedulers = schedulers
        self.optimizer = optimizer
        self._last_lr = self._current()

    def step(self) -> None:
        """Step every schedule."""
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = self._current()


class ReduceLROnPlateau(LRScheduler):
    """Times `factor` when a metric has not got better for `patience` epochs."""

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: Rates = 0,
        eps: float = 1e-8,
    ) -> None:
        """Take what counts as better (`mode`, `threshold`), and what then happens."""
        if factor >= 1.0:
            raise ValueError("Factor should be < 1.0.")
        self.factor = factor
        check_optimizer(optimizer)
        self.optimizer = optimizer
        groups = len(optimizer.param_groups)
        if isinstance(min_lr, (list, tuple)):
            if len(min_lr) != groups:
                raise ValueError(f"expected {groups} min_lrs, got {len(min_lr)}")
            self.default_min_lr: Any = None
            self.min_lrs = list(min_lr)
        else:
            self.default_min_lr = min_lr
            self.min_lrs = [min_lr] * groups
        self.patience = patience
        self.cooldown = cooldown
        self.eps = eps
        self.last_epoch = 0
        self._last_lr = self._current()
        if mode not in ("min", "max"):
            raise ValueError(f"mode {mode} is unknown!")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(f"threshold mode {threshold_mode} is unknown!")
        self.mode_worse = math.inf if mode == "min" else -math.inf
        self.mode = mode
        self.threshold = threshold
        self.threshold_mode = threshold_mode
        self._reset()

    def _reset(self) -> None:
        """Forget the metrics so far."""
        self.best = self.mode_worse
        self.cooldown_counter = 0
        self.num_bad_epochs = 0

    def step(self, metrics: SupportsFloat, epoch: float | None = None) -> None:
        """Take an epoch's metric, and reduce the learning rates if it is time."""
        current = float(metrics)
        if epoch is None:
            epoch = self.last_epoch + 1
        else:
            warnings.warn(EPOCH_DEPRECATION_WARNING, UserWarning, stacklevel=user_depth())
        self.last_epoch = epoch
        if self._is_better(current, self.best):
            self.best = current
            self.num_bad_epochs = 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0  # an epoch of the cooldown is never a bad one
        if self.num_bad_epochs > self.patience:
            self._reduce_lr(epoch)
            self.cooldown_counter = self.cooldown
            self.num_bad_epochs = 0
        self._last_lr = self._current()

    def _reduce_lr(self, epoch: float) -> None:
        """Reduce the learning rates, down to their least."""
        groups = self.optimizer.param_groups
        if len(groups) != len(self.min_lrs):
            if self.default_min_lr is None:
                raise RuntimeError(
                    f"The number of param groups in the `optimizer` ({len(groups)}) differs from "
                    f"when `ReduceLROnPlateau` was initialized ({len(self.min_lrs)}), usually due "
                    "to a new param group being added to the optimizer. Please modify the "
                    "`min_lrs` field to match the length of the `optimizer` param groups."
                )
            self.min_lrs = [self.default_min_lr] * len(groups)
        for group, least in zip(groups, self.min_lrs, strict=True):
            old = float(group["lr"])
            new = max(old * self.factor, least)
            if old - new > self.eps:
                write_option(group, "lr", new)

    @property
    def in_cooldown(self) -> bool:
        """Return whether a reduction is too recent for the next."""
        return self.cooldown_counter > 0

    def _is_better(self, a: float, best: float) -> bool:
        """Return whether `a` is better than `best` by the threshold."""
        sign = -1.0 if self.mode == "min" else 1.0
        if self.threshold_mode == "rel":
            wanted = best * (1.0 + sign * self.threshold)
        else:
            wanted = best + sign * self.threshold
        return a < wanted if self.mode == "min" else a > wanted


def _check_momentum(optimizer: Optimizer) -> bool:
    """Return whether the momentum is the first beta; raise ValueError if there is none."""
    if "momentum" not in optimizer.defaults and "betas" not in optimizer.defaults:
        raise ValueError(
            "optimizer must support momentum or beta1 with `cycle_momentum` option enabled"
        )
    return "betas" in optimizer.defaults


class CyclicLR(LRScheduler):
    """Up and down between `base_lr` and `max_lr`, momentum the other way. Smith, 2017."""

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: Rates,
        max_lr: Rates,
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: Rates = 0.8,
        max_momentum: Rates = 0.9,
        last_epoch: int = -1,
    ) -> None:
        """Take the bounds, the steps up and down, and how the height changes over the cycles."""
        check_optimizer(optimizer)
        self.optimizer = optimizer
        base_lrs = each_group("base_lr", optimizer, base_lr)
        if last_epoch == -1:
            for rate, group in zip(base_lrs, optimizer.param_groups, strict=True):
                write_option(group, "lr", rate)
        self.max_lrs = each_group("max_lr", optimizer, max_lr)
        up = float(step_size_up)
        down = up if step_size_down is None else float(step_size_down)
        self.total_size = up + down
        self.step_ratio = up / self.total_size
        if mode not in ("triangular", "triangular2", "exp_range") and scale_fn is None:
            raise ValueError("mode is invalid and scale_fn is None")
        self.mode = mode
        self.gamma = gamma
        self._scale_fn_custom = scale_fn
        self.scale_mode = scale_mode
        if scale_fn is None:
            self.scale_mode = "iterations" if mode == "exp_range" else "cycle"
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self.use_beta1 = _check_momentum(optimizer)
            self.base_momentums = each_group("base_momentum", optimizer, base_momentum)
            self.max_momentums = each_group("max_momentum", optimizer, max_momentum)
            if last_epoch == -1:
                _start_momentum(optimizer, self.use_beta1, self.base_momentums, self.max_momentums)
        super().__init__(optimizer, last_epoch)
        self.base_lrs = base_lrs

    def scale_fn(self, x: float) -> float:
        """Return the height of a cycle, or of an iteration."""
        return (self._scale_fn_custom or self._scale_fn_ref)(x)

    @property
    def _scale_fn_ref(self) -> Callable[[float], float]:
        """What gives the height by the mode."""
        if self.mode == "triangular":
            return lambda _: 1.0
        if self.mode == "triangular2":
            return lambda x: 1 / (2.0 ** (x - 1))
        return lambda x: self.gamma**x

    def get_lr(self) -> list[Rate]:
        """Return the learning rates at `last_epoch`, and set the momenta."""
        self._warn_unless_asking()
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        if x <= self.step_ratio:
            place = x / self.step_ratio
        else:
            place = (x - 1) / (self.step_ratio - 1)
        scale = self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            for group, base, most in zip(
                self.optimizer.param_groups, self.base_momentums, self.max_momentums, strict=True
            ):
                write_momentum(group, self.use_beta1, most - (most - base) * place * scale)
        return [
            base + (most - base) * place * scale
            for base, most in zip(self.base_lrs, self.max_lrs, strict=True)
        ]

    def state_dict(self) -> StateDict:
        """Return the attributes; a scale function is left out, a callable object gives its own."""
        state = super().state_dict()
        function = state.pop("_scale_fn_custom")
        state["_scale_fn_custom"] = None
        if function is not None and not isinstance(function, types.FunctionType):
            state["_scale_fn_custom"] = function.__dict__.copy()
        return state

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Take back what `state_dict` returned."""
        rest = {key: value for key, value in state_dict.items() if key != "_scale_fn_custom"}
        super().load_state_dict(rest)
        saved = state_dict.get("_scale_fn_custom")
        if saved is not None and self._scale_fn_custom is not None:
            self._scale_fn_custom.__dict__.update(saved)


def _start_momentum(
    optimizer: Optimizer, use_beta1: bool, base: list[Rate], most: list[Rate]
) -> None:
    """Set the groups' momenta to their greatest, and write both bounds into the groups."""
    for group, low, high in zip(optimizer.param_groups, base, most, strict=True):
        write_momentum(group, use_beta1, high)
        group["max_momentum"] = high
        group["base_momentum"] = low


def _cosine(start: Rate, end: Rate, place: float) -> Rate:
    """Return the value at `place` (0 to 1) of half a cosine."""
    return end + (start - end) / 2.0 * (math.cos(math.pi * place) + 1)


def _line(start: Rate, end: Rate, place: float) -> Rate:
    """Return the value at `place` (0 to 1) of a line."""
    return (end - start) * place + start


class OneCycleLR(LRScheduler):
    """Up to `max_lr`, then far below where it began, momentum the other way; once.

    Smith and Topin, 2018: Super-convergence.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: Rates,
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: object = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: Rates = 0.85,
        max_momentum: Rates = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        """Take the peak, the number of steps, and the shape of the phases."""
        check_optimizer(optimizer)
        self.optimizer = optimizer
        self.total_steps = _total_steps(total_steps, epochs, steps_per_epoch)
        if not isinstance(pct_start, float) or pct_start < 0 or pct_start > 1:
            raise ValueError(f"Expected float between 0 and 1 pct_start, but got {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}"
            )
        top = float(pct_start * self.total_steps) - 1
        last = self.total_steps - 1
        phases = [(top, "initial_lr", "max_lr", "max_momentum", "base_momentum")]
        if three_phase:
            bottom = float(2 * pct_start * self.total_steps) - 2
            phases += [
                (bottom, "max_lr", "initial_lr", "base_momentum", "max_momentum"),
                (last, "initial_lr", "min_lr", "max_momentum", "max_momentum"),
            ]
        else:
            phases += [(last, "max_lr", "min_lr", "base_momentum", "max_momentum")]
        names = ("end_step", "start_lr", "end_lr", "start_momentum", "end_momentum")
        self._schedule_phases: list[dict[str, Any]] = [
            dict(zip(names, phase, strict=True)) for phase in phases
        ]
        self._anneal_func_type = anneal_strategy
        peaks = each_group("max_lr", optimizer, max_lr)
        if last_epoch == -1:
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["initial_lr"] = peak / div_factor
                group["max_lr"] = peak
                group["min_lr"] = group["initial_lr"] / final_div_factor
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self.use_beta1 = _check_momentum(optimizer)
            if last_epoch == -1:
                _start_momentum(
                    optimizer,
                    self.use_beta1,
                    each_group("base_momentum", optimizer, base_momentum),
                    each_group("max_momentum", optimizer, max_momentum),
                )
        super().__init__(optimizer, last_epoch)

    _annealing_cos = staticmethod(_cosine)
    _annealing_linear = staticmethod(_line)

    def _anneal_func(self, start: Rate, end: Rate, place: float) -> Rate:
        """Return the value at `place` (0 to 1). A state that PyTorch wrote long ago brings the function itself."""
        kind = getattr(self, "_anneal_func_type", None)
        if kind is None:
            found: Rate = self.anneal_func(start, end, place)  # type: ignore[attr-defined]
            return found
        return _cosine(start, end, place) if kind == "cos" else _line(start, end, place)

    def get_lr(self) -> list[Rate]:
        """Return the learning rates at `last_epoch`, and set the momenta."""
        self._warn_unless_asking()
        step = self.last_epoch
        if step > self.total_steps:
            raise ValueError(
                f"Tried to step {step} times. The specified number of total steps is "
                f"{self.total_steps}"
            )
        anneal = self._anneal_func
        start: object = 0.0
        phase = self._schedule_phases[0]
        for phase in self._schedule_phases:
            if step <= phase["end_step"]:
                break
            if phase is not self._schedule_phases[-1]:
                start = phase["end_step"]
        place = (step - start) / (phase["end_step"] - start)
        rates = []
        for group in self.optimizer.param_groups:
            rates.append(anneal(group[phase["start_lr"]], group[phase["end_lr"]], place))
            if self.cycle_momentum:
                low, high = group[phase["start_momentum"]], group[phase["end_momentum"]]
                write_momentum(group, self.use_beta1, anneal(low, high, place))
        return rates


def _total_steps(total: object, epochs: Any, per_epoch: Any) -> int:
    """Return the number of steps; raise ValueError unless one form is given, and positive."""
    if total is not None:
        if not isinstance(total, int) or total <= 0:
            raise ValueError(f"Expected positive integer total_steps, but got {total}")
        return total
    if epochs is None or per_epoch is None:
        raise ValueError("You must define either total_steps OR (epochs AND steps_per_epoch)")
    for name, value in (("epochs", epochs), ("steps_per_epoch", per_epoch)):
        if not isinstance(value, int) or value <= 0:
            raise ValueError(f"Expected positive integer {name}, but got {value}")
    return epochs * per_epoch
