"""timm: ResNet, vision transformer, MobileNet, ConvNeXt."""

import timm
import torch
from common import numbers, report, settle, train
from timm.models import create_feature_extractor

x, y = numbers(4, 3, 64, 64), torch.tensor([1, 3, 0, 2])
resnet = settle(timm.create_model("resnet18", num_classes=5))
losses = train(resnet, lambda: torch.nn.functional.cross_entropy(resnet(x), y))
vit = settle(timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=5, depth=2))
more = train(vit, lambda: torch.nn.functional.cross_entropy(vit(x), y))
net = settle(timm.create_model("mobilenetv3_small_050", num_classes=5)).eval()
convnext = settle(timm.create_model("convnext_atto", num_classes=5)).eval()
with torch.no_grad():
    features = create_feature_extractor(convnext, ["stages.1"])(x)
    report(
        losses=losses,
        more=more,
        mobile=net(x),
        convnext=convnext(x),
        features=features["stages.1"][:1],
    )
