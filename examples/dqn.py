"""Deep Q-learning (Mnih et al., 2015) balances a pole on a cart, both written here.

    python examples/dqn.py                          # --device cpu or webgpu, --compile, --quick

Change the first import to `import torch` and the file runs in PyTorch.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections import deque
from typing import Any

import webtorch as torch

nn, F = torch.nn, torch.nn.functional

# A bar that moves on a terminal, lines elsewhere.
END = "\r" if sys.stdout.isatty() else "\n"

LONGEST, BATCH, DISCOUNT = 200, 64, 0.98


class CartPole:
    """A pole on a cart that is pushed left or right (Barto, Sutton and Anderson, 1983)."""

    def __init__(self, seed: int) -> None:
        """Take the seed of the first places."""
        self.draw = random.Random(seed)
        self.state = [0.0] * 4
        self.steps = 0

    def reset(self) -> list[float]:
        """Begin, and return the cart's place and speed, the pole's angle and its speed."""
        self.state = [self.draw.uniform(-0.05, 0.05) for _ in range(4)]
        self.steps = 0
        return self.state

    def step(self, right: int) -> tuple[list[float], bool]:
        """Push for 20 ms, and return the state and whether the pole has fallen."""
        x, speed, angle, turning = self.state
        cos, sin = math.cos(angle), math.sin(angle)
        pushed = ((10.0 if right else -10.0) + 0.05 * turning**2 * sin) / 1.1
        turn = (9.8 * sin - cos * pushed) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        self.state = [
            x + 0.02 * speed,
            speed + 0.02 * (pushed - 0.05 * turn * cos / 1.1),
            angle + 0.02 * turning,
            turning + 0.02 * turn,
        ]
        self.steps += 1
        return self.state, abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.21


def build() -> Any:
    """Return the model: states (N, 4) to the values (N, 2) of pushing left and right."""
    return nn.Sequential(
        nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
    )


def batch(step: int, size: int = BATCH) -> tuple[Any, ...]:
    """Return what happened in `size` random pushes: states, pushes, next states, and falls (0 or 1)."""
    cart, rows = CartPole(step), []
    state = cart.reset()
    for _ in range(size):
        push = cart.draw.randrange(2)
        after, fell = cart.step(push)
        rows.append((state, push, after, float(fell)))
        state = cart.reset() if fell else after
    return tuple(torch.tensor(column) for column in zip(*rows, strict=True))


def loss_of(model: Any, x: Any, push: Any, after: Any, fell: Any, target: Any = None) -> Any:
    """Return how far values are from the reward plus the best value afterwards (double Q-learning)."""
    value = model(x).gather(1, push.unsqueeze(1)).squeeze(1)
    with torch.no_grad():
        best = model(after).argmax(1, keepdim=True)
        later = (target or model)(after).gather(1, best).squeeze(1)
        wanted = 1 + DISCOUNT * (1 - fell) * later
    return F.smooth_l1_loss(value, wanted)


def train(episodes: int, device: str, compiled: bool = False) -> tuple[Any, list[int]]:
    """Return the trained model and how long the pole stood in each episode."""
    torch.manual_seed(0)
    model, target = build().to(device), build().to(device)
    target.load_state_dict(model.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, amsgrad=True)
    cart, memory, lasted, pushes = CartPole(0), deque(maxlen=10_000), [], 0

    def update(*happened: Any) -> None:
        loss = loss_of(model, *happened, target=target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.01)

    if compiled:
        update = torch.compile(update)
    for episode in range(episodes):
        state, fell = cart.reset(), False
        while not fell and cart.steps < LONGEST:
            if cart.draw.random() < 0.05 + 0.95 * math.exp(-pushes / 400):
                push = cart.draw.randrange(2)
            else:
                with torch.no_grad():
                    push = int(model(torch.tensor([state], device=device)).argmax())
            after, fell = cart.step(push)
            memory.append((state, push, after, float(fell)))
            state, pushes = after, pushes + 1
            if len(memory) >= BATCH:
                columns = zip(*cart.draw.sample(memory, BATCH), strict=True)
                update(*(torch.tensor(column, device=device) for column in columns))
        lasted.append(cart.steps)
        if (done := 30 * (episode + 1) // episodes) > 30 * episode // episodes:
            print(
                f"[{'#' * done:30}] {episode + 1}/{episodes}  stood {cart.steps:3}",
                end=END,
                flush=True,
            )
    print()
    return model, lasted


def main() -> None:
    """Train, and draw how long the pole stood, and a run without chance."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or webgpu")
    parser.add_argument("--compile", action="store_true", help="capture the training step")
    parser.add_argument("--quick", action="store_true", help="a few episodes only")
    options = parser.parse_args()
    model, lasted = train(50 if options.quick else 150, options.device, options.compile)
    for level in range(LONGEST, 0, -25):
        print(f"{level:4} |" + "".join("#" if steps >= level else " " for steps in lasted))
    cart = CartPole(1)
    state, fell, angles = cart.reset(), False, []
    while not fell and cart.steps < 500:
        with torch.no_grad():
            push = int(model(torch.tensor([state], device=options.device)).argmax())
        state, fell = cart.step(push)
        angles.append(state[2])
    print(f"a run without chance stood {len(angles)} steps")


if __name__ == "__main__":
    main()
