"""Real PyTorch on WebGPU: train a CNN on images of shapes, eagerly or compiled.

    pip install ".[torch]"
    python examples/pytorch/cnn.py              # compiled, on "webgpu"
    python examples/pytorch/cnn.py --eager
    python examples/pytorch/cnn.py --quick      # a few steps, to see that it runs

Nothing of webtorch is imported here: `import torch` finds the installed device by itself.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

CLASSES = ("square", "frame", "cross", "stripes")


def shapes(count: int, seed: int, size: int = 16) -> TensorDataset:
    """Return noisy images (count, 1, size, size) of the classes at random places, and labels."""
    g = torch.Generator().manual_seed(seed)
    images = 0.3 * torch.randn(count, 1, size, size, generator=g)
    labels = torch.randint(0, len(CLASSES), (count,), generator=g)
    corners = torch.randint(1, size - 8, (count, 2), generator=g)
    for image, label, (y, x) in zip(images, labels.tolist(), corners.tolist(), strict=True):
        patch = torch.zeros(7, 7)
        if label == 0:
            patch[:] = 1
        elif label == 1:
            patch[0], patch[-1], patch[:, 0], patch[:, -1] = 1, 1, 1, 1
        elif label == 2:
            patch[3], patch[:, 3] = 1, 1
        else:
            patch[::2] = 1
        image[0, y : y + 7, x : x + 7] += patch
    return TensorDataset(images, labels)


def network() -> nn.Module:
    """Return convolutions with batch norm, then a linear layer."""
    layers: list[nn.Module] = []
    for before, after in ((1, 16), (16, 32), (32, 32)):
        layers += [
            nn.Conv2d(before, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.1), nn.Linear(32 * 4, len(CLASSES)))


def main(argv: list[str] | None = None) -> float:
    """Train; print the loss and the accuracy on images not seen; return that accuracy."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few steps")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    parser.add_argument("--device", default="webgpu")
    options = parser.parse_args(argv)
    torch.manual_seed(0)
    model = network().to(options.device)
    compiled = options.device == "webgpu" and not options.eager
    forward = torch.compile(model, backend="webgpu") if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    epochs, count = (2, 256) if options.quick else (6, 2048)
    batches = DataLoader(shapes(count, 1), batch_size=64, shuffle=True, drop_last=True)
    for epoch in range(epochs):
        total = torch.zeros((), device=options.device)
        for x, y in batches:
            loss = F.cross_entropy(forward(x.to(options.device)), y.to(options.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        # The only read of an epoch: nothing waits for the device before.
        print(f"epoch {epoch}  loss {total.item() / len(batches):.4f}", flush=True)
    model.eval()
    x, y = shapes(256, 2).tensors
    with torch.no_grad():
        right = (forward(x.to(options.device)).argmax(1).cpu() == y).float().mean().item()
    print(f"accuracy on images not seen: {right:.3f}")
    return right


if __name__ == "__main__":
    main()
