"""`webtorch.optim`: PyTorch's optimizers and learning rate schedules.

May import floors 0 to 4.

    import webtorch as torch

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(torch.ones(4, 2)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

from webtorch.optim import lr_scheduler, swa_utils
from webtorch.optim.adadelta import Adadelta
from webtorch.optim.adafactor import Adafactor
from webtorch.optim.adagrad import Adagrad
from webtorch.optim.adam import Adam, AdamW
from webtorch.optim.adamax import Adamax
from webtorch.optim.asgd import ASGD
from webtorch.optim.lbfgs import LBFGS
from webtorch.optim.muon import Muon
from webtorch.optim.nadam import NAdam
from webtorch.optim.optimizer import Optimizer
from webtorch.optim.radam import RAdam
from webtorch.optim.rmsprop import RMSprop
from webtorch.optim.rprop import Rprop
from webtorch.optim.sgd import SGD
from webtorch.optim.sparse_adam import SparseAdam
from webtorch.tensors.absent import missing_names as _missing_names

__all__ = [
    "ASGD",
    "LBFGS",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Muon",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SparseAdam",
    "lr_scheduler",
    "swa_utils",
]

__getattr__ = _missing_names(__name__, "optim")
