"""What the programs of this folder share: weights that both libraries start from, and numbers printed."""

import json
import os
import sys

import torch


def settle(model):
    """Save the weights of a model to the file named on the command line, or load them from it.

    The first call of a program uses argv[1] + ".0", the next ".1": the order of calls is that of the program.
    """
    path = f"{sys.argv[1]}.{settle.count}"
    settle.count += 1
    if os.path.exists(path):
        model.load_state_dict(torch.load(path))
    else:
        torch.save(model.state_dict(), path)
    return model


settle.count = 0


def numbers(*shape, seed=0, scale=1.0):
    """Return a tensor of numbers that are the same in every library."""
    count = 1
    for size in shape:
        count *= size
    values, state = [], 12345 + seed
    for _ in range(count):
        state = (1103515245 * state + 12345) % 2**31
        values.append(scale * (state / 2**30 - 1))
    return torch.tensor(values).reshape(shape)


def codes(*shape, below, seed=0):
    """Return a tensor of whole numbers in [0, below), the same in every library."""
    return ((numbers(*shape, seed=seed) + 1) / 2 * below).long().clamp(0, below - 1)


def train(model, loss_of, steps=3, optimizer=None):
    """Return the losses of a few steps."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def report(**found):
    """Print what was computed, as JSON."""

    def plain(value):
        if isinstance(value, torch.Tensor):
            return value.detach().cpu().tolist()
        return value

    print("RESULT", json.dumps({name: plain(value) for name, value in found.items()}))
