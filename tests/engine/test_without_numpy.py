"""webtorch with the standard library only, as in a page: its CPU is plain Python, and agrees with PyTorch."""

from __future__ import annotations

import inspect
import json
import math
import subprocess
import sys
from typing import Any

import pytest
import torch

import webtorch
from tests.patience import PATIENCE
from webtorch.runtime.backends.plain import PlainBackend


def program(torch: Any) -> list[Any]:
    """Compute many things with PyTorch or with webtorch; give their values."""
    functional = torch.nn.functional
    inf, nan = math.inf, math.nan
    x = torch.tensor([[0.5, -1.25, 3.0, nan], [inf, -inf, -0.0, 2.5]])
    y = torch.tensor([[2.0, -0.75, 0.0, 1.0], [0.0, 1.5, 3.0, -2.0]])
    n = torch.tensor([7, -7, 2**31 - 1, -5, 0], dtype=torch.int32)
    wide = torch.tensor([2**62, -(2**63), 3, -1])
    small = torch.arange(12, dtype=torch.float32).reshape(3, 4).sub(5.0).div(3)
    found = [
        x / y, x // y, x % y, torch.fmod(x, y), x * y, torch.maximum(x, y), x.pow(y), torch.atan2(x, y),
        x.exp(), x.log(), x.sqrt(), x.tanh(), x.round(), x.sign(), torch.sigmoid(x), x.sinh(), torch.expm1(x),
        x.max(dim=1)[1], x.argmin(), x.sum(0), x.prod(1), x.isnan().any(1), (x > y).all(), x == 0.5, x.abs().amax(),
        n + n, n * n, n // 3, n % 4, torch.div(n, 2, rounding_mode="trunc"), n << 3, n >> 1, ~n, n.sum(), n & 12,
        wide + wide, wide * 3, wide.abs(), n.to(torch.int8), n.to(torch.uint8), x.nan_to_num().to(torch.int64),
        small.half() * 1.001, small.to(torch.bfloat16) + 0.01, small.double() / 3, (small > 0) ^ (small < 0.4),
        x.flatten().sort(descending=True)[1], x.flatten().sort()[0], small.flatten().topk(3)[0],
        small.cumsum(1), small.cummax(0)[0],
        small.gather(1, torch.tensor([[3, 0], [1, 1], [2, 3]])), small[[2, 0], 1:], small.t()[::2],
        torch.zeros(5).index_add(0, torch.tensor([1, 1, 4]), torch.tensor([1.0, 2.0, 3.0])),
        torch.zeros(4).scatter_reduce(0, torch.tensor([0, 0, 2]), torch.tensor([3.0, -1.0, 5.0]), "amax"),
        torch.ones(0, 3).sum(0), torch.tensor(2.5) * 2, torch.nn.functional.one_hot(torch.tensor([2, 0]), 3),
        torch.where(small > 0, small, -1.0), small.std(1), small.logsumexp(1), small @ small.t(), small.bool().sum(),
    ]  # fmt: skip
    image = small.reshape(1, 1, 3, 4).clone().requires_grad_()
    kernel = torch.linspace(-1, 1, 8).reshape(2, 1, 2, 2).requires_grad_()
    out = functional.conv2d(image, kernel, stride=(1, 2), padding=1)
    functional.max_pool2d(functional.gelu(out), 2).square().sum().backward()
    found += [out, image.grad, kernel.grad]
    for causal, mask in (
        (True, None),
        (False, torch.tensor([[True, False, True], [True, True, False]])),
    ):
        q = torch.linspace(-1, 2, 16).reshape(1, 2, 2, 4).requires_grad_()
        k = torch.linspace(2, -1, 24).reshape(1, 2, 3, 4).requires_grad_()
        v = torch.linspace(0, 1, 30).reshape(1, 2, 3, 5).requires_grad_()
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        (out * out).sum().backward()
        found += [out, q.grad, k.grad, v.grad]
    weight = torch.linspace(-0.5, 0.5, 20).reshape(5, 4).requires_grad_()
    optimizer = torch.optim.AdamW([weight], lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        scores = functional.layer_norm(small, (4,)) @ weight.t()
        loss = functional.cross_entropy(scores, torch.tensor([1, 4, 0]))
        loss.backward()
        optimizer.step()
    return [t.detach().tolist() for t in [*found, loss, weight]]


SCRIPT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("numpy", "numba", "llvmlite", "wgpu", "wgpudawn", "torch", "cffi", "rich"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
import json, math
from typing import Any
before = set(sys.modules)
import webtorch
new = {n.split(".")[0] for n in set(sys.modules) - before if not n.startswith("_sysconfigdata")}
outside = sorted(new - sys.stdlib_module_names - {"webtorch"})
webtorch.set_default_device("cpu")
"""


def _run(body: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + body],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def _same(ours: Any, theirs: Any, number: int) -> None:
    if isinstance(theirs, list):
        assert len(ours) == len(theirs), number
        for a, b in zip(ours, theirs):
            _same(a, b, number)
    else:
        assert type(ours) is type(theirs), number
        assert ours == pytest.approx(theirs, rel=2e-5, abs=2e-6, nan_ok=True), number


def test_plain_python_agrees_with_pytorch() -> None:
    text = inspect.getsource(program)
    text += "\nprint(json.dumps([outside, webtorch.ones(1).device.type, program(webtorch)]))\n"
    outside, device, ours = _run(text)
    assert outside == [], "the standard library is enough"
    assert device == "cpu"
    theirs = program(torch)
    assert len(ours) == len(theirs)
    for number, (a, b) in enumerate(zip(ours, theirs)):
        _same(a, b, number)


def test_what_needs_numpy_says_so() -> None:
    text = """
said = []
for call in (
    lambda: webtorch.linalg.eigh(webtorch.eye(3))[0].tolist(),
    lambda: webtorch.ones(3).numpy(),
    lambda: webtorch.ones(3)[webtorch.tensor([4])].tolist(),
    lambda: webtorch.ones(2, device="webgpu"),
):
    try:
        call()
        said.append("nothing was raised")
    except Exception as error:
        said.append(f"{type(error).__name__}: {error}")
print(json.dumps(said))
"""
    lapack, array, index, webgpu = _run(text)
    assert "LAPACK" in lapack
    assert "NumPy" in lapack
    assert array.startswith("RuntimeError: Numpy is not available")
    assert index.startswith("IndexOutOfRangeError: ")
    assert "DeviceError" in webgpu
    assert "pip install" in webgpu


def test_the_backend_counts_memory_and_shows_source() -> None:
    backend = PlainBackend(0)
    buffer = backend.upload(b"\x01\x02\x03\x04", webtorch.uint8, 4)
    assert backend.memory_allocated() >= 4
    assert bytes(backend.download(buffer)) == b"\x01\x02\x03\x04"
    with pytest.raises(webtorch.OutOfMemoryError, match="is more memory than there is"):
        backend.allocate(webtorch.float64, 1 << 60)
