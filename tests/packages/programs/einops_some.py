"""einops: its functions and layers."""

import einops
import torch
from common import numbers, report, settle, train
from einops import pack, rearrange, reduce, repeat, unpack
from einops.layers.torch import EinMix, Rearrange, Reduce

x = numbers(2, 3, 8, 8)
net = settle(
    torch.nn.Sequential(
        Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=4, q=4),
        EinMix("b t i -> b t o", weight_shape="i o", bias_shape="o", i=48, o=8),
        torch.nn.GELU(),
        Reduce("b t c -> b c", "mean"),
    )
)
losses = train(net, lambda: (net(x) ** 2).mean())
packed, shapes = pack([x, x[:, :1]], "b * h w")
first, second = unpack(packed, shapes, "b * h w")
report(
    losses=losses,
    flat=rearrange(x, "b c h w -> b (h w) c")[0, 5],
    pooled=reduce(x, "b c (h 2) (w 2) -> b c h w", "max")[0, 0, 1],
    wide=repeat(x[0, 0, 0], "w -> w r", r=2),
    second=second[0, 0, 0],
    sums=einops.einsum(x, x, "b c h w, b c v w -> b h v")[0, 1],
)
