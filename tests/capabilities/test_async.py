"""Capability rows O: reading without blocking, several threads and coroutines."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import webtorch
from tests.capabilities.same import close, ours, values

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")


@pytest.mark.covers("O2")
def test_values_are_awaited(device: str) -> None:
    async def read() -> tuple[Any, ...]:
        x = webtorch.arange(4.0, device=device)
        return await x.sum().item_async(), await (x * 2).tolist_async(), await (x + 1).numpy_async()

    number, listed, array = asyncio.run(read())
    assert number == 6 and listed == [0, 2, 4, 6] and array.tolist() == [1, 2, 3, 4]


@pytest.mark.covers("O3")
def test_the_event_loop_turns_while_the_device_works(need: Any) -> None:
    need("webgpu")

    async def main() -> tuple[float, int]:
        turns = 0

        async def tick() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        ticking = asyncio.ensure_future(tick())
        x = webtorch.ones(200, 200, device="webgpu")
        value = await (x @ x).sum().item_async()
        ticking.cancel()
        return value, turns

    value, turns = asyncio.run(main())
    assert value == 200.0**3 and turns >= 1


@pytest.mark.covers("O4")
def test_calls_from_many_threads_and_tasks_do_not_mix(device: str) -> None:
    wrong: list[Any] = []

    def work(seed: int) -> None:
        x = values(16, 16, seed=seed)
        mine = ours(x, device).requires_grad_()
        for _ in range(5):
            mine.grad = None
            (mine @ mine.softmax(1)).sum().backward()
        theirs = x.clone().requires_grad_()
        (theirs @ theirs.softmax(1)).sum().backward()
        try:
            close(mine.grad, theirs.grad, 1e-4, 1e-4)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong, wrong[0]

    async def reads() -> list[float]:
        xs = [webtorch.full((10,), float(i), device=device).sum() for i in range(8)]
        return await asyncio.gather(*(x.item_async() for x in xs))

    assert asyncio.run(reads()) == [10.0 * i for i in range(8)]


@pytest.mark.covers("O7")
def test_no_grad_around_awaiting(device: str) -> None:
    async def main() -> None:
        x = webtorch.ones(2, device=device, requires_grad=True)
        with webtorch.no_grad():
            assert await (x * 2).tolist_async() == [2, 2]
            assert not (x * 2).requires_grad
        assert (x * 2).requires_grad

    asyncio.run(main())
