"""segmentation-models-pytorch: U-Net and FPN."""

import segmentation_models_pytorch as smp
import torch
from common import numbers, report, settle, train

x, y = numbers(2, 3, 64, 64), (numbers(2, 1, 64, 64, seed=3) > 0).float()
net = settle(smp.Unet("resnet18", encoder_weights=None, decoder_channels=(64, 32, 16, 8, 8)))
dice = smp.losses.DiceLoss("binary")
losses = train(net, lambda: dice(net(x), y))
other = settle(smp.FPN("resnet18", encoder_weights=None)).eval()
with torch.no_grad():
    report(losses=losses, other=other(x)[0, 0, 3])
