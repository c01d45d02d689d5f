"""Threads that use tensors at once, for webtorch and for PyTorch's device: what each computes is compared
with exact numbers, or with the same work done by one thread alone.
"""

from __future__ import annotations

import concurrent.futures
import gc
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.patience import PATIENCE

# A scene is called with the number of turns, and raises where it saw a wrong value.
Scene = Callable[[int], None]


@contextmanager
def switching() -> Iterator[None]:
    """Let threads take turns a thousand times as often as usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def together(scenes: list[Scene], turns: int, patience: float = PATIENCE) -> None:
    """Run scenes in a thread each; raise what the first of them raised, or TimeoutError if one hangs."""
    errors: list[BaseException] = []

    def run(scene: Scene) -> None:
        try:
            scene(turns)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(s,), daemon=True) for s in scenes]
    with switching():
        for thread in threads:
            thread.start()
        end = time.monotonic() + patience
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
    if errors:
        raise errors[0]
    if any(thread.is_alive() for thread in threads):
        raise TimeoutError("threads wait for each other")


def reads_in_a_pool(t: Any, device: str, turns: int) -> None:
    """One thread writes and records, another reads: no write is lost, no read sees a later one."""
    w = t.zeros(8, device=device)
    with concurrent.futures.ThreadPoolExecutor(1) as pool, switching():
        losses = []
        for _ in range(turns):
            w.add_(1)
            losses.append(pool.submit(float, (w * w).mean()))
        assert [f.result(PATIENCE) for f in losses] == [float((i + 1) ** 2) for i in range(turns)]
    assert w.tolist() == [float(turns)] * 8


def scenes(t: Any, device: str, capture: Callable[[Any], Any]) -> list[Scene]:
    """Return what eight threads do at once. `capture` compiles a function."""

    def model(seed: int, kind: str, turns: int) -> list[Any]:
        x = (t.arange(12.0).reshape(4, 3) * seed / 16).to(device)
        w = t.full((3, 2), 0.25).to(device).requires_grad_()
        b = t.zeros(2).to(device).requires_grad_()
        if kind == "sgd":
            optimizer = t.optim.SGD([w, b], lr=0.015625, momentum=0.5)
        else:
            optimizer = t.optim.Adam([w, b], lr=0.01)
        out: list[Any] = []
        for i in range(turns):
            loss = ((x @ w + b).tanh() - 0.5).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if i % 3 == 0:
                out.append(float(loss.detach()))
        return out + [v for row in w.detach().tolist() for v in row] + b.detach().tolist()

    def trainer(seed: int, kind: str) -> Scene:
        alone: dict[int, list[Any]] = {}

        def train(turns: int) -> None:
            got = model(seed, kind, turns)
            # What is computed together follows from who reads when, and rounds by that.
            assert all(abs(g - a) <= 1e-5 * (1 + abs(a)) for g, a in zip(got, alone[turns]))

        def prepare(turns: int) -> None:
            alone[turns] = model(seed, kind, turns)

        train.prepare = prepare  # type: ignore[attr-defined]
        return train

    def writer(turns: int) -> None:
        losses: queue.Queue[Any] = queue.Queue()
        got: list[float] = []

        def read() -> None:
            while (loss := losses.get()) is not None:
                got.append(float(loss))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        w = t.zeros(8, device=device)
        for _ in range(turns):
            w.add_(1)
            losses.put((w * w).mean())
        losses.put(None)
        reader.join(PATIENCE)
        assert got == [float((i + 1) ** 2) for i in range(turns)]
        assert w.tolist() == [float(turns)] * 8

    def views(turns: int) -> None:
        x = t.zeros(4, 3, device=device)
        row, column = x[1], x[:, 2]
        kept = []
        for i in range(turns):
            row.add_(1)
            column.mul_(1).sub_(1)
            kept.append(x.clone())
            if len(kept) == 7:
                n = i + 1
                assert [k[1].tolist() for k in kept] == [[m, m, 0] for m in range(n - 6, n + 1)]
                assert kept[-1][:, 2].tolist() == [-n, 0, -n, -n]
                kept.clear()

    def captures(turns: int) -> None:
        for i in range(0, turns, 10):
            w, n = t.full((4,), float(i), device=device), t.zeros(4, device=device)

            def step(x: Any, w: Any = w, n: Any = n) -> Any:
                n.add_(1)
                return x * w + n

            compiled = capture(step)
            for k in range(3):
                y = compiled(t.full((4,), float(k), device=device))
                assert y.tolist() == [float(k * i + k + 1)] * 4
            assert n.tolist() == [3.0] * 4

    def collector(turns: int) -> None:
        for _ in range(turns):
            x = t.ones(16, device=device)
            circle: list[Any] = [x * 2, x]
            circle.append(circle)
            del circle, x
            if _ % 5 == 0:
                gc.collect()

    def mover(turns: int) -> None:
        for i in range(turns):
            there = t.full((32,), float(i)).to(device) * 2
            assert (there.cpu() + 1).tolist() == [2.0 * i + 1] * 32

    def sharer(turns: int) -> None:
        for i in range(turns):
            x = t.zeros(4)
            seen = x.numpy()
            x.add_(i)
            y = x + 1
            seen[0] = 9
            assert x.tolist() == [9, i, i, i] and y.tolist() == [i + 1] * 4

    return [
        trainer(1, "sgd"),
        trainer(2, "adam"),
        writer,
        views,
        captures,
        collector,
        mover,
        sharer,
    ]


def a_crowd(t: Any, device: str, turns: int, capture: Callable[[Any], Any]) -> None:
    """Do all scenes at once."""
    found = scenes(t, device, capture)
    for scene in found:
        prepare = getattr(scene, "prepare", None)
        if prepare is not None:
            prepare(turns)
    together(found, turns)
