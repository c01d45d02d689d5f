"""Reading: blocking, awaited, and from several coroutines; and which device new tensors are on."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import webtorch
from tests.conftest import need_device
from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]


def test_awaited_reads_give_the_same_values(device: str) -> None:
    x = webtorch.arange(6.0, device=device).reshape(2, 3)

    async def main() -> list[Any]:
        return [
            await x.sum().item_async(),
            (await (x * 2).numpy_async()).tolist(),
            await x.t()[1].tolist_async(),
            await x[:0].tolist_async(),
            (await (x + 1)).tolist(),
        ]

    assert asyncio.run(main()) == [
        15.0,
        [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]],
        [1.0, 4.0],
        [],
        [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]],
    ]


def test_many_coroutines_read_at_once(device: str) -> None:
    x = webtorch.arange(8.0, device=device)

    async def one(i: int) -> float:
        return float(await (x * i).sum().item_async())

    async def main() -> list[float]:
        return await asyncio.gather(*[one(i) for i in range(12)])

    assert asyncio.run(main()) == [28.0 * i for i in range(12)]


def test_an_awaited_read_sees_the_value_of_its_moment(device: str) -> None:
    x = webtorch.zeros(3, device=device)

    async def main() -> list[Any]:
        tasks = []
        for _ in range(3):
            x.add_(1)
            tasks.append(asyncio.ensure_future(x.clone().tolist_async()))
        return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == [[1.0] * 3, [2.0] * 3, [3.0] * 3]


def test_errors_of_one_element_reads() -> None:
    x = webtorch.zeros(2)
    with pytest.raises(RuntimeError, match="2 elements"):
        asyncio.run(x.item_async())
    with pytest.raises(RuntimeError, match="requires grad"):
        webtorch.zeros(1, requires_grad=True).numpy()


def test_numpy_wants_a_tensor_on_the_cpu() -> None:
    need_device("webgpu")
    x = webtorch.ones(2, device="webgpu")
    with pytest.raises(TypeError, match=r"Use Tensor\.cpu\(\)"):
        x.numpy()
    assert x.numpy(force=True).tolist() == x.cpu().numpy().tolist() == [1.0, 1.0]


def _default(code: str = "", **environment: str) -> str:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    kept = {k: v for k, v in os.environ.items() if k != "WEBTORCH_DEVICE"}
    done = subprocess.run(
        [sys.executable, "-c", f"import webtorch as t\n{code}\nprint(t.zeros(1).device)"],
        cwd=ROOT,
        env={**kept, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def test_the_environment_chooses_the_default_device() -> None:
    assert _default(WEBTORCH_DEVICE="cpu") == "cpu"
    assert "Expected one of cpu, webgpu" in _default(WEBTORCH_DEVICE="gpu")
    assert _default("t.set_default_device('cpu')", WEBTORCH_DEVICE="webgpu") == "cpu"


def test_the_default_is_hardware_or_else_the_cpu() -> None:
    from webtorch.runtime.backends import webgpu

    hardware = any(adapter.is_hardware for adapter in webgpu.adapters())
    assert _default() == ("webgpu:0" if hardware else "cpu")


def test_set_default_device_and_the_context() -> None:
    need_device("webgpu")
    webtorch.set_default_device("webgpu")
    assert webtorch.get_default_device().type == "webgpu"
    assert webtorch.ones(1).device == webtorch.device("webgpu:0")
    assert webtorch.tensor([1]).is_webgpu
    with webtorch.device("cpu"):
        assert webtorch.ones(1).is_cpu
        assert webtorch.nn.Linear(1, 1).weight.is_cpu
        with webtorch.device("webgpu"):
            assert webtorch.ones(1).is_webgpu
        assert webtorch.ones(1).is_cpu
        assert webtorch.ones(1, device="webgpu").is_webgpu
    assert webtorch.ones_like(webtorch.ones(1, device="cpu")).is_cpu


def test_the_context_belongs_to_its_thread() -> None:
    need_device("webgpu")
    seen: list[str] = []
    with webtorch.device("webgpu"):
        thread = threading.Thread(target=lambda: seen.append(webtorch.get_default_device().type))
        thread.start()
        thread.join()
    assert seen == ["cpu"]


def test_nothing_is_opened_at_import() -> None:
    code = "from webtorch.runtime.backends import opened\nassert opened() == (), opened()"
    assert _default(code, WEBTORCH_DEVICE="cpu") == "cpu"
    code = "import sys\nassert not {'numpy', 'wgpu', 'torch', 'numba'} & set(sys.modules)"
    assert _default(code, WEBTORCH_DEVICE="cpu") == "cpu"
