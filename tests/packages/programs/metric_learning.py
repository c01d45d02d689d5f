"""pytorch-metric-learning: losses with gradients, and miners."""

import torch
from common import numbers, report
from pytorch_metric_learning import losses, miners

points, labels, found = numbers(16, 8).requires_grad_(), torch.arange(16) % 4, {}
for name in (
    "TripletMarginLoss",
    "MultiSimilarityLoss",
    "ContrastiveLoss",
    "NTXentLoss",
    "CircleLoss",
    "SupConLoss",
):
    points.grad = None
    loss = getattr(losses, name)()(points, labels)
    loss.backward()
    found[name] = [loss.item(), points.grad.norm().item()]
hard = miners.BatchHardMiner()(points, labels)
report(**found, hard=losses.TripletMarginLoss()(points, labels, hard), mined=[len(h) for h in hard])
