"""Real PyTorch on WebGPU: denoising with classifier-free guidance, in the shape of Stable Diffusion.

A small latent diffusion model: a U-Net with cross attention to a condition predicts the noise, is trained
for a little while, and denoises latents step by step (DDIM), twice the batch at each step. With diffusers
installed its UNet2DConditionModel takes the network's place unchanged.

    pip install ".[torch]"
    python examples/pytorch/denoise.py [--quick] [--eager] [--half]
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn import functional as F

STEPS, SIDE, WIDTH, CONTEXT = 1000, 16, 32, 16
# What is left of the image, squared, after each step of noise.
KEPT = torch.cumprod(1 - torch.linspace(1e-4, 2e-2, STEPS), 0)


class Attention(nn.Module):
    """Places of an image read the condition."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, width)
        self.q, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.kv = nn.Linear(CONTEXT, 2 * width)

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        y = self.norm(x).flatten(2).transpose(1, 2)  # (B, places, D)
        parts = (self.q(y), *self.kv(context).chunk(2, -1))
        q, k, v = (p.unflatten(-1, (4, -1)).transpose(1, 2) for p in parts)
        y = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + y.transpose(1, 2).reshape(x.shape)


class Residual(nn.Module):
    """Two convolutions, told the time, then attention to the condition."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, before), nn.Conv2d(before, after, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, after), nn.Conv2d(after, after, 3, padding=1)
        self.time = nn.Linear(4 * WIDTH, after)
        self.side = nn.Conv2d(before, after, 1)
        self.attention = Attention(after)

    def forward(self, x: torch.Tensor, time: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        y = self.side(x) + self.conv2(F.silu(self.norm2(y)))
        return self.attention(y, context)


class UNet(nn.Module):
    """Predicts the noise in latents (B, 4, SIDE, SIDE) at times (B,), for conditions (B, T, CONTEXT)."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.SiLU(), nn.Linear(4 * WIDTH, 4 * WIDTH)
        )
        self.into, self.out = nn.Conv2d(4, WIDTH, 3, padding=1), nn.Conv2d(WIDTH, 4, 3, padding=1)
        self.down = nn.ModuleList([Residual(WIDTH, WIDTH), Residual(WIDTH, 2 * WIDTH)])
        self.smaller = nn.Conv2d(WIDTH, WIDTH, 3, stride=2, padding=1)
        self.up = nn.ModuleList([Residual(2 * WIDTH, WIDTH), Residual(2 * WIDTH, WIDTH)])

    def forward(self, x: torch.Tensor, time: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        rates = torch.exp(-9.2 * torch.arange(WIDTH // 2, device=x.device) / (WIDTH // 2))
        angles = time[:, None] * rates
        t = self.time(torch.cat((angles.sin(), angles.cos()), -1).to(x.dtype))
        wide = self.down[0](self.into(x), t, context)
        small = self.up[0](self.down[1](self.smaller(wide), t, context), t, context)
        large = F.interpolate(small, scale_factor=2.0, mode="nearest")
        return self.out(self.up[1](torch.cat((large, wide), 1), t, context))


def latents(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return latents with a bright disc, and the condition that says where it is; some say nothing."""
    g = torch.Generator().manual_seed(seed)
    place = torch.rand(count, 2, generator=g) * 8 + 4
    ys, xs = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    far = (ys - place[:, :1, None]) ** 2 + (xs - place[:, 1:, None]) ** 2
    image = (2 * torch.exp(-far / 8) - 0.5)[:, None].repeat(1, 4, 1, 1)
    said = torch.rand(count, generator=g) > 0.1
    return image, condition(place) * said[:, None, None]


def condition(place: torch.Tensor) -> torch.Tensor:
    """Return what stands for a text: (B, 2, CONTEXT), waves of the place's coordinates."""
    waves = torch.arange(1, CONTEXT // 2 + 1) / 8
    return torch.cat(((place[..., None] * waves).sin(), (place[..., None] * waves).cos()), -1)


@torch.no_grad()
def denoise(
    forward: nn.Module, place: torch.Tensor, steps: int, device: str, dtype: torch.dtype
) -> torch.Tensor:
    """Return latents for a place (1, 2), from noise; guided by what the condition changes."""
    x = torch.randn(1, 4, SIDE, SIDE, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    said = condition(place)
    context = torch.cat((torch.zeros_like(said), said)).to(device, dtype)
    times = torch.linspace(STEPS - 1, 0, steps).long().tolist()
    for now, after in zip(times, [*times[1:], -1], strict=True):
        time = torch.full((2,), float(now), device=device)
        without, given = forward(torch.cat((x, x)), time, context).chunk(2)
        noise = without + 2.0 * (given - without)
        kept, then = KEPT[now].item(), KEPT[after].item() if after >= 0 else 1.0
        clean = (x - (1 - kept) ** 0.5 * noise) / kept**0.5
        x = then**0.5 * clean.clamp(-2, 2) + (1 - then) ** 0.5 * noise
    return x


def main(argv: list[str] | None = None) -> float:
    """Train and denoise; return how far the disc is from where it was asked for, in places."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few steps")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    parser.add_argument("--half", action="store_true", help="denoise in float16")
    parser.add_argument("--device", default="webgpu")
    options = parser.parse_args(argv)
    device, compiled = options.device, options.device == "webgpu" and not options.eager
    torch.manual_seed(0)
    model = UNet().to(device)
    forward = torch.compile(model, backend="webgpu") if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    steps = 4 if options.quick else 400
    for step in range(steps):
        image, context = latents(16, step)
        g = torch.Generator().manual_seed(step)
        time = torch.randint(0, STEPS, (16,), generator=g)
        noise = torch.randn(image.shape, generator=g)
        kept = KEPT[time][:, None, None, None]
        noisy = kept.sqrt() * image + (1 - kept).sqrt() * noise
        found = forward(noisy.to(device), time.float().to(device), context.to(device))
        loss = F.mse_loss(found, noise.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step:3}  loss {loss.item():.4f}", flush=True)
    dtype = torch.float16 if options.half else torch.float32
    model.to(dtype)
    place = torch.tensor([[5.0, 10.0]])
    image = denoise(forward, place, 4 if options.quick else 25, device, dtype)
    weights = image.float().cpu().mean((0, 1)).clamp(min=0)
    ys, xs = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    total = weights.sum().clamp(min=1e-6)
    y, x = (float((weights * p).sum() / total) for p in (ys, xs))
    far = ((y - 5) ** 2 + (x - 10) ** 2) ** 0.5
    print(f"the disc was asked for at (5, 10) and is at ({y:.1f}, {x:.1f})")
    return far


if __name__ == "__main__":
    main()
