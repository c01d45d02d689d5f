"""Layers of one input: the time on the device of a layer in one dispatch, and in one for each.

    python -m benchmarks.gpu.joint [--quick]

A layer is its linear ones and what joins them into the next layer's input. Each has weights of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import webtorch
from benchmarks.gpu.device import OURS, describe, device_seconds
from webtorch.nn import functional as F
from webtorch.tensors.device import resolve

_LAYERS = 6
# Rows, columns of the input, of the outputs; whether the second is gated by the first.
_SHAPES: list[tuple[int, int, tuple[int, ...], bool]] = [
    (1, 896, (896, 128, 128), False), (1, 896, (4864, 4864), True),
    (16, 896, (896, 128, 128), False), (128, 896, (896, 128, 128), False),
    (256, 896, (896,) * 3, False), (512, 384, (384,) * 3, False),
    (512, 896, (896, 128, 128), False), (512, 1024, (1024,) * 3, False),
    (1024, 512, (512,) * 3, False), (1024, 768, (768,) * 3, False),
    (2048, 384, (384,) * 3, False), (8192, 256, (256, 64, 64), False),
]  # fmt: skip


def network(
    k: int, ns: tuple[int, ...], gated: bool, dtype: Any
) -> Callable[[webtorch.Tensor], webtorch.Tensor]:
    """Return several layers, one after the other."""

    def weight(n: int, m: int) -> Any:
        return (webtorch.randn(n, m, device=OURS) / m**0.5).to(dtype)

    layers = [[weight(n, k) for n in ns] for _ in range(_LAYERS)]
    back = [weight(k, ns[0]) for _ in range(_LAYERS if gated else 0)]

    def run(x: webtorch.Tensor) -> webtorch.Tensor:
        for i, weights in enumerate(layers):
            if gated:
                x = F.linear(F.silu(F.linear(x, weights[0])) * F.linear(x, weights[1]), back[i])
            else:
                q, k, v = (F.linear(x, w) for w in weights)
                x = F.softmax(q, -1) * k.sum(-1, keepdim=True) + v.amax(-1, keepdim=True)
        return x

    return run


def main(quick: bool) -> None:
    """Print a line for each shape."""
    runtime = resolve(OURS)
    backend: Any = runtime.backend
    limits = backend.limits
    print(describe())
    for name in ("float32", "float16"):
        dtype = getattr(webtorch, name)
        for m, k, ns, gated in _SHAPES[: 3 if quick else None]:
            webtorch.manual_seed(0)
            function = network(k, ns, gated, dtype)
            x = webtorch.randn(m, k, device=OURS).to(dtype)
            times, results = [], []
            for on in (False, True):
                backend.limits = replace(limits, has_joint_products=on)
                runtime.programs.clear()
                step = webtorch.compile(function)
                for _ in range(2):
                    results.append(step(x).float())
                executable = step.latest().executable
                times.append(device_seconds(executable, 0.03) / _LAYERS)
            scale = float(results[0].abs().max().item())
            far = float((results[0] - results[-1]).abs().max().item()) / max(scale, 1e-30)
            shape = f"{name} {m} x {k} to {' and '.join(map(str, ns))}{', gated' * gated}"
            print(f"{shape}: {times[0] * 1e6:.1f} -> {times[1] * 1e6:.1f} us, {far:.0e} apart")
    backend.limits = limits


if __name__ == "__main__":
    main("--quick" in sys.argv)
