"""ema-pytorch and rotary-embedding-torch."""

import torch
from common import numbers, report, settle, train
from ema_pytorch import EMA
from rotary_embedding_torch import RotaryEmbedding

model = settle(torch.nn.Linear(6, 2))
ema = EMA(model, beta=0.9, update_after_step=0, update_every=1)
x = numbers(8, 6)
for _ in range(4):
    losses = train(
        model, lambda: (model(x) ** 2).mean(), 1, torch.optim.SGD(model.parameters(), lr=0.1)
    )
    ema.update()
rotary = settle(RotaryEmbedding(dim=8))
turned = rotary.rotate_queries_or_keys(numbers(1, 2, 6, 16))
report(losses=losses, averaged=ema(x)[0], turned=turned[0, 0, 3])
