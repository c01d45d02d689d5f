"""denoising-diffusion-pytorch: its U-Net and loss."""

import torch
from common import numbers, report, settle, train
from denoising_diffusion_pytorch import GaussianDiffusion, Unet

net = Unet(dim=16, dim_mults=(1, 2), flash_attn=False, channels=3)
diffusion = settle(GaussianDiffusion(net, image_size=16, timesteps=50))
images, noise = numbers(2, 3, 16, 16) / 2 + 0.5, numbers(2, 3, 16, 16, seed=8)
times = torch.tensor([7, 30])
losses = train(
    diffusion, lambda: diffusion.p_losses(diffusion.normalize(images), times, noise=noise)
)
diffusion.eval()
with torch.no_grad():
    made = net(images, times)
report(losses=losses, made=made[0, 0, 0])
