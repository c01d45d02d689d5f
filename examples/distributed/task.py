"""What all examples here learn: on which arm of three spirals a point lies."""

from __future__ import annotations

import torch
from torch import nn

POINTS, CLASSES = 1536, 3


def points() -> tuple[torch.Tensor, torch.Tensor]:
    """Return points and their classes, the same in every process."""
    generator = torch.Generator().manual_seed(0)
    label = torch.arange(POINTS) % CLASSES
    along = torch.rand(POINTS, generator=generator)
    angle = 5 * along + label * (2 * torch.pi / CLASSES)
    angle = angle + 0.1 * torch.randn(POINTS, generator=generator)
    return torch.stack([along * angle.cos(), along * angle.sin()], 1) * 2, label


def dataset() -> torch.utils.data.TensorDataset:
    """Return them as a dataset."""
    return torch.utils.data.TensorDataset(*points())


def network() -> nn.Sequential:
    """Return a network, the same in every process."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(2, 64), nn.ReLU()]
    for _ in range(2):
        layers += [nn.Linear(64, 64), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(64, CLASSES))
