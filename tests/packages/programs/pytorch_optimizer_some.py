"""pytorch-optimizer: a few steps of many of its optimizers."""

import pytorch_optimizer
import torch
from common import numbers, report, settle, train

found = {}
x, y = numbers(8, 6), numbers(8, 2, seed=4)
names = [
    "AdaBelief",
    "AdaBound",
    "AdaHessian",
    "AdamP",
    "AdaPNM",
    "ADOPT",
    "Adan",
    "Amos",
    "Apollo",
    "CAME",
    "DAdaptAdam",
    "DiffGrad",
    "Lamb",
    "LARS",
    "Lion",
    "MADGRAD",
    "NovoGrad",
    "PNM",
    "Prodigy",
    "QHAdam",
    "Ranger",
    "Ranger21",
    "ScheduleFreeAdamW",
    "Shampoo",
    "SignSGD",
    "SM3",
    "SOAP",
    "SophiaH",
    "StableAdamW",
    "SWATS",
    "Tiger",
    "Yogi",
    "Muon",
]
for name in names:
    kind = getattr(pytorch_optimizer, name, None)
    if kind is None or name in ("AdaHessian", "SophiaH"):
        continue
    model = settle(
        torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    )
    extra = {"num_iterations": 10} if name == "Ranger21" else {}
    try:
        optimizer = kind(model.parameters(), lr=1e-2, **extra)
        if hasattr(optimizer, "train"):
            optimizer.train()
        found[name] = train(model, lambda model=model: ((model(x) - y) ** 2).mean(), 4, optimizer)
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
report(**found)
