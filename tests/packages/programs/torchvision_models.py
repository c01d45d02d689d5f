"""torchvision: models and transforms without its compiled operators."""

import torch
import torchvision
from common import numbers, report, settle, train
from torchvision.models.feature_extraction import create_feature_extractor
from torchvision.transforms import v2

x, y = numbers(4, 3, 64, 64), torch.tensor([1, 3, 0, 2])
net = settle(torchvision.models.resnet18(num_classes=5))
losses = train(net, lambda: torch.nn.functional.cross_entropy(net(x), y))
small = settle(torchvision.models.mobilenet_v2(num_classes=5)).eval()
vit = settle(torchvision.models.VisionTransformer(64, 16, 2, 4, 32, 64, num_classes=5)).eval()
resized = v2.Normalize([0.5] * 3, [0.5] * 3)(v2.CenterCrop(24)(v2.Resize(32, antialias=True)(x)))
grid = torchvision.utils.make_grid(x, padding=1)
with torch.no_grad():
    found = create_feature_extractor(small, {"features.3.add": "mid"})(x)
    report(
        losses=losses,
        small=small(x),
        vit=vit(x),
        resized=resized[0, 0, 0],
        grid=grid[0, 5],
        mid=found["mid"],
    )
