"""tinygrad's WebGPU device on the matrix product and the GPT step that webtorch is measured on.

tinygrad and webtorch run one after the other in processes of their own, on the same card. tinygrad wants Dawn as a
shared library: `pip install tinygrad dawn-python`, or WEBGPU_PATH names one.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from benchmarks.harness import Row, main

# The GPT of benchmarks/models.py: layers, channels, heads, context, vocabulary; then the batch.
GPT = (6, 384, 6, 256, 96, 32)
SMALL = (2, 32, 2, 16, 96, 2)
REACH = 1 / 5


def _theirs(quick: bool) -> dict[str, float]:
    """Return tinygrad's seconds, in this process."""
    import time
    from typing import Any

    import numpy as np
    from tinygrad import Device, Tensor, TinyJit, nn

    def seconds(run: Any, count: int) -> float:
        for _ in range(3):
            run()
        Device[Device.DEFAULT].synchronize()
        best = math.inf
        for _ in range(3):
            started = time.perf_counter()
            for _ in range(count):
                run()
            Device[Device.DEFAULT].synchronize()
            best = min(best, (time.perf_counter() - started) / count)
        return best

    rng = np.random.default_rng(0)
    n = 64 if quick else 4096
    a, b = (Tensor(rng.standard_normal((n, n), dtype=np.float32)).realize() for _ in range(2))
    product = TinyJit(lambda a, b: (a @ b).realize())
    found = {"matmul": seconds(lambda: product(a, b), 2 if quick else 10)}
    # The last line counts; this one is for those who do not wait for the other.
    print(json.dumps(found), flush=True)

    layers, channels, heads, context, vocabulary, batch = SMALL if quick else GPT

    class Block:
        def __init__(self) -> None:
            self.norm_1, self.norm_2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
            self.qkv = nn.Linear(channels, 3 * channels)
            self.out = nn.Linear(channels, channels)
            self.up, self.down = (
                nn.Linear(channels, 4 * channels),
                nn.Linear(4 * channels, channels),
            )

        def __call__(self, x: Any) -> Any:
            size = (batch, context, heads, channels // heads)
            q, k, v = (
                y.reshape(size).transpose(1, 2) for y in self.qkv(self.norm_1(x)).chunk(3, dim=-1)
            )
            y = q.scaled_dot_product_attention(k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(batch, context, channels))
            y = self.up(self.norm_2(x))
            # The gelu that PyTorch's default is, by the error function.
            return x + self.down(y * 0.5 * (1 + (y * math.sqrt(0.5)).erf()))

    class Network:
        def __init__(self) -> None:
            self.token, self.position = (
                nn.Embedding(vocabulary, channels),
                nn.Embedding(context, channels),
            )
            self.blocks = [Block() for _ in range(layers)]
            self.norm = nn.LayerNorm(channels)

        def __call__(self, ids: Any) -> Any:
            x = self.token(ids) + self.position(Tensor.arange(context))
            for block in self.blocks:
                x = block(x)
            return self.norm(x) @ self.token.weight.T

    model = Network()
    optimizer = nn.optim.Adam(nn.state.get_parameters(model), lr=1e-3)
    text = rng.integers(0, vocabulary, (batch, context + 1)).astype(np.int32)
    x, y = Tensor(text[:, :-1].copy()).realize(), Tensor(text[:, 1:].copy()).realize()

    @TinyJit
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).sparse_categorical_crossentropy(y).backward()
        optimizer.step()
        return loss.realize()

    found["gpt"] = seconds(lambda: step(x, y), 1 if quick else 2)
    return found


def _ours(quick: bool) -> dict[str, float]:
    """Return webtorch's seconds, in this process."""
    import numpy as np

    import webtorch
    from benchmarks.gpu.device import OURS, enqueued
    from benchmarks.models import work
    from benchmarks.training import batches, initial_weights, our_step, to_ours

    n = 64 if quick else 4096
    rng = np.random.default_rng(0)
    a, b = (
        webtorch.tensor(rng.standard_normal((n, n), dtype=np.float32), device=OURS)
        for _ in range(2)
    )
    product = webtorch.compile(lambda a, b: a @ b)
    found = {"matmul": enqueued(lambda: product(a, b))[0]}
    job = work("gpt", quick)
    run = our_step(job, initial_weights(job), OURS, True)
    ((x, y),) = to_ours(batches(job, 1), OURS)
    found["gpt"] = enqueued(lambda: run(x, y))[0]
    return found


def measure(quick: bool = False) -> list[Row]:
    """Return the rows of both works; tinygrad's time is the peer's."""
    found = {}
    for side in ("ours", "theirs"):
        environment = {**os.environ, "DEV": "WEBGPU", "TRAINING": "1"}
        spec = find_spec("pydawn")
        if "WEBGPU_PATH" not in environment and spec is not None and spec.origin is not None:
            (library,) = Path(spec.origin).parent.glob("lib/libwebgpu_dawn_x86_64.so")
            environment["WEBGPU_PATH"] = str(library)
        command = [sys.executable, "-m", "benchmarks.gpu.tinygrad", side, *(["q"] if quick else [])]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{side}: {done.stderr[-2000:]}")
        found[side] = json.loads(done.stdout.splitlines()[-1])
    names = {"matmul": "matmul 4096, f32", "gpt": "GPT step of 6 layers, f32, compiled"}
    return [
        Row(f"{name}, tinygrad as the peer", ours, ours, theirs, theirs, reach=REACH,
            note=f"{theirs / ours:.1f} times as fast as tinygrad")
        for key, name in names.items()
        for ours, theirs in ((found["ours"][key], found["theirs"][key]),)
    ]  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:2] in (["ours"], ["theirs"]):
        one = _ours if sys.argv[1] == "ours" else _theirs
        print(json.dumps(one("q" in sys.argv)))
    else:
        main(__doc__ or "", measure)
