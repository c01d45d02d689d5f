"""lion-pytorch."""

import torch
from common import numbers, report, settle, train
from lion_pytorch import Lion

x, y = numbers(8, 6), numbers(8, 2, seed=4)
model = settle(torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)))
report(
    losses=train(
        model,
        lambda: ((model(x) - y) ** 2).mean(),
        6,
        Lion(model.parameters(), lr=1e-2, weight_decay=0.1),
    )
)
