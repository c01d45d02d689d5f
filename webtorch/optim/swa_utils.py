"""Averages of models over training: AveragedModel, its averages, SWALR, update_bn. May import floors 0 to 5."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from webtorch.functions import public as webtorch
from webtorch.ir.dtype import DType
from webtorch.ir.lines import user_depth
from webtorch.nn.module import Module
from webtorch.nn.norm import _BatchNorm
from webtorch.optim.optimizer import Optimizer
from webtorch.optim.scheduler_base import LRScheduler, each_group
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.host import reads
from webtorch.tensors.tensor import Tensor

__all__ = [
    "SWALR",
    "AveragedModel",
    "get_ema_avg_fn",
    "get_ema_multi_avg_fn",
    "get_swa_avg_fn",
    "get_swa_multi_avg_fn",
    "update_bn",
]

# (averaged, current, how many were averaged before) -> the new average
Average = Callable[[Tensor, Tensor, Any], Tensor]
# The same for lists, in place.
MultiAverage = Callable[[Sequence[Tensor], Sequence[Tensor], Any], None]


def _check_decay(decay: float) -> None:
    """Raise ValueError unless `decay` is a part of one."""
    if not 0.0 <= decay <= 1.0:
        raise ValueError(
            f"Invalid decay value {decay} provided. Please provide a value in [0,1] range."
        )


def get_ema_avg_fn(decay: float = 0.999) -> Average:
    """Return the exponential moving average: decay * average + (1 - decay) * current."""
    _check_decay(decay)

    @webtorch.no_grad()
    def ema_update(ema_param: Tensor, current_param: Tensor, num_averaged: object) -> Tensor:
        """Return `decay` parts of the average and the rest of the new value."""
        return decay * ema_param + (1 - decay) * current_param

    return ema_update


def get_ema_multi_avg_fn(decay: float = 0.999) -> MultiAverage:
    """Return the exponential moving average of lists, in place."""
    one = get_ema_avg_fn(decay)

    @webtorch.no_grad()
    def ema_update(
        ema_param_list: Sequence[Tensor], current_param_list: Sequence[Tensor], _: object
    ) -> None:
        """Change the averages in place; integers are rounded down, as PyTorch rounds them."""
        for average, current in zip(ema_param_list, current_param_list, strict=True):
            if average.is_floating_point():
                average.lerp_(current, 1 - decay)
            else:
                average.copy_(one(average, current, None))

    return ema_update


def get_swa_avg_fn() -> Average:
    """Return the plain average over all models."""

    @webtorch.no_grad()
    def swa_update(averaged_param: Tensor, current_param: Tensor, num_averaged: Any) -> Tensor:
        """Return the average of `num_averaged` values and one more."""
        return averaged_param + (current_param - averaged_param) / (num_averaged + 1)

    return swa_update


def get_swa_multi_avg_fn() -> MultiAverage:
    """Return the plain average over all models of lists, in place."""
    one = get_swa_avg_fn()

    @webtorch.no_grad()
    def swa_update(
        averaged_param_list: Sequence[Tensor],
        current_param_list: Sequence[Tensor],
        num_averaged: object,
    ) -> None:
        """Change the averages in place."""
        for average, current in zip(averaged_param_list, current_param_list, strict=True):
            average.copy_(one(average, current, num_averaged))

    return swa_update


class AveragedModel(Module):
    """A copy of a model whose parameters are averages of the model's over training.

    Without a function the average is the plain one (Izmailov et al., 2018); `use_buffers` averages
    the buffers too, which are copied otherwise.
    """

    n_averaged: Tensor

    def __init__(
        self,
        model: Module,
        device: DeviceLike = None,
        avg_fn: Average | None = None,
        multi_avg_fn: MultiAverage | None = None,
        use_buffers: bool = False,
    ) -> None:
        """Copy the model, to `device` if one is given."""
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise AssertionError("Only one of avg_fn and multi_avg_fn should be provided")
        self.module = copy.deepcopy(model)
        if device is not None:
            self.module = self.module.to(device)
        self.register_buffer("n_averaged", webtorch.tensor(0, dtype=webtorch.int64, device=device))
        self.avg_fn = avg_fn
        self.multi_avg_fn = multi_avg_fn
        self.use_buffers = use_buffers

    def forward(self, *args: object, **kwargs: object) -> Any:
        """Call the averaged model."""
        return self.module(*args, **kwargs)

    @webtorch.no_grad()
    def update_parameters(self, model: Module) -> None:
        """Take the model's parameters of now into the average; the first time they are copied."""
        averages: list[Tensor] = list(self.module.parameters())
        currents: list[Tensor] = list(model.parameters())
        kept, new = list(self.module.buffers()), list(model.buffers())
        if self.use_buffers:
            averages, currents = averages + kept, currents + new
        averages = [average.detach() for average in averages]
        currents = [
            current.detach().to(average.device)
            for average, current in zip(averages, currents, strict=True)
        ]
        began = self.n_averaged == 0
        if reads.possible and bool(began):
            for average, current in zip(averages, currents, strict=True):
                average.copy_(current)
        elif self.avg_fn is not None:
            for average, current in zip(averages, currents, strict=True):
                average.copy_(self.avg_fn(average, current, self.n_averaged.to(average.device)))
        else:
            update = self.multi_avg_fn or get_swa_multi_avg_fn()
            groups: dict[tuple[object, DType], tuple[list[Tensor], list[Tensor]]] = {}
            for average, current in zip(averages, currents, strict=True):
                place = groups.setdefault((average.device, average.dtype), ([], []))
                place[0].append(average)
                place[1].append(current)
            for (device, _), (some, others) in groups.items():
                update(some, others, self.n_averaged.to(device))
        if not reads.possible:
            # A program cannot know whether it is the first time: it computes both.
            for average, current in zip(averages, currents, strict=True):
                average.copy_(webtorch.where(began.to(average.device), current, average))
        if not self.use_buffers:
            for buffer, current in zip(kept, new, strict=True):
                buffer.detach().copy_(current.detach().to(buffer.device))
        self.n_averaged.add_(1)


@webtorch.no_grad()
def update_bn(loader: Iterable[Any], model: Module, device: object = None) -> None:
    """Set the running statistics of batch norms to plain averages over the batches of `loader`.

    A batch is a tensor, or a list or tuple whose first entry is the model's input.
    """
    momenta = {one: one.momentum for one in model.modules() if isinstance(one, _BatchNorm)}
    if not momenta:
        return
    was_training = model.training
    model.train()
    for module in momenta:
        module.reset_running_stats()
        module.momentum = None
    for batch in loader:
        given = batch[0] if isinstance(batch, (list, tuple)) else batch
        model(given if device is None else given.to(device))
    for module, momentum in momenta.items():
        module.momentum = momentum
    model.train(was_training)


class SWALR(LRScheduler):
    """Go from each group's learning rate to `swa_lr` in `anneal_epochs` steps, and stay there."""

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: Any,
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        last_epoch: int = -1,
    ) -> None:
        """Take the options; `anneal_strategy` is "cos" or "linear"."""
        rates = each_group("swa_lr", optimizer, swa_lr)
        for rate, group in zip(rates, optimizer.param_groups, strict=True):
            group["swa_lr"] = rate
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}"
            )
        given: object = anneal_epochs
        if not isinstance(given, int) or given < 0:
            raise ValueError(f"anneal_epochs must be equal or greater than 0, got {anneal_epochs}")
        self._anneal_strategy = anneal_strategy
        self.anneal_epochs = anneal_epochs
        super().__init__(optimizer, last_epoch)

    def anneal_func(self, t: float) -> float:
        """Return the part of the way that is done when `t` of the time is over."""
        return t if self._anneal_strategy == "linear" else (1 - math.cos(math.pi * t)) / 2

    def get_lr(self) -> list[Any]:
        """Return the learning rates of the next step, from those of now."""
        if not self._get_lr_called_within_step:
            warnings.warn(
                "To get the last learning rate computed by the scheduler, please use "
                "`get_last_lr()`.",
                UserWarning,
                stacklevel=user_depth(),
            )
        step, length = self._step_count - 1, max(1, self.anneal_epochs)
        if self.anneal_epochs == 0:
            step = max(1, step)
        before = self.anneal_func(max(0, min(1, (step - 1) / length)))
        after = self.anneal_func(max(0, min(1, step / length)))

        def next_rate(lr: Any, goal: Any) -> object:
            """Return the rate a step further on the way from where annealing began to `goal`."""
            start = goal if before == 1 else (lr - before * goal) / (1 - before)
            return goal * after + start * (1 - after)

        return [next_rate(group["lr"], group["swa_lr"]) for group in self.optimizer.param_groups]
