"""`webtorch.optim`: PyTorch's optimizers and learning rate schedules. May import floors 0 to 4."""

from __future__ import annotations

from webtorch.optim import lr_scheduler
from webtorch.optim.adagrad import Adagrad
from webtorch.optim.adam import Adam, AdamW
from webtorch.optim.optimizer import Optimizer
from webtorch.optim.rmsprop import RMSprop
from webtorch.optim.sgd import SGD

__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "Optimizer", "RMSprop", "lr_scheduler"]
