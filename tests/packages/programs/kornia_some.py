"""kornia: filters, geometry, colour, morphology, and the gradient of them."""

import kornia
import torch
from common import numbers, report

x = (numbers(1, 3, 16, 16) / 2 + 0.5).requires_grad_()
blurred = kornia.filters.gaussian_blur2d(x, (5, 5), (1.5, 1.5))
edges = kornia.filters.sobel(x)
turned = kornia.geometry.rotate(x, torch.tensor([30.0]))
gray = kornia.color.rgb_to_grayscale(x)
hsv, lab = kornia.color.rgb_to_hsv(x), kornia.color.rgb_to_lab(x)
ssim = kornia.metrics.ssim(x, blurred, 5).mean()
(blurred.sum() + edges.sum() + turned.sum() + lab.mean() + ssim).backward()
opened = kornia.morphology.opening(x, torch.ones(3, 3))
report(
    blurred=blurred[0, 0, 3],
    edges=edges[0, 0, 3],
    turned=turned[0, 0, 3],
    gray=gray[0, 0, 3],
    hsv=hsv[0, :, 3, 3],
    lab=lab[0, :, 3, 3],
    ssim=ssim,
    grad=x.grad[0, 0, 4],
    opened=opened[0, 0, 2],
)
