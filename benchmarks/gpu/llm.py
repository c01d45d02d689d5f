"""A language model of packed weights: what a token and a prompt take, and the share of the card that they use.

python -m benchmarks.gpu.llm [--shape 8b|0.5b|tiny] [--dtype float16|float32] [--prompt 2048] [--tokens 64] [--layers N]
    [--kernels] [--rows 1 8 32] [--profile]

The weights are random, packed as Q4_K_M packs them. A token reads all of them once: its bytes a second are set against
what a copy of a large tensor moves. A prompt is set against float16 products of the same sizes. With --kernels each
dispatch of a token's step is timed alone, and of steps of --rows texts, and with --layers there are as many layers.
--profile: of the thread.
"""

from __future__ import annotations

import argparse
import cProfile
import itertools
import pstats
import time
from typing import Any

import numpy as np

import webtorch
from benchmarks.gpu.device import device_seconds, timeline
from benchmarks.llm.clients import made as answered
from benchmarks.llm.random_models import SHAPES, build
from webtorch.llm.batch import Batch
from webtorch.llm.model import Model
from webtorch.llm.sampling import Sampling
from webtorch.nn import functional as F


def bandwidth() -> float:
    """Return the bytes a second of a copy of 1 GiB, read and written."""
    x = webtorch.randn(1 << 28)
    copy = webtorch.compile(lambda x: x + 1)
    for _ in range(2):
        webtorch.realize(copy(x))
    return 2 * x.nbytes / device_seconds(copy.latest().executable)


def products(model: Model, count: int) -> float:
    """Return the seconds of float16 products of `count` rows by weights of a layer's shapes, of all layers."""
    total = 0.0
    for name, module in model.layers[0].named_modules():
        shape = getattr(module, "shape", None)
        if shape is None or len(shape) != 2:
            continue
        weight = webtorch.randn(*shape).half()
        x = webtorch.randn(count, shape[1]).half()
        product = webtorch.compile(lambda x, weight=weight: F.linear(x, weight))
        for _ in range(2):
            webtorch.realize(product(x))
        total += device_seconds(product.latest().executable)
        del name
    return total * len(model.layers)


def kernels(batch: Batch, prompt: list[int]) -> None:
    """Print what the steps of texts, and of a prompt's piece (0 rows), take on the device, whole, and by dispatches."""
    made: Any = batch._made
    held: list[Any] = []
    read = batch._read

    def reading(given: Any, *rest: Any) -> Any:
        """Read a piece, and keep what it reads: positions that are garbage would be reported by all invocations."""
        held[:] = given
        return read(given, *rest)

    batch._read = reading  # type: ignore[assignment, method-assign]
    next(batch.generate(prompt, 1, Sampling(temperature=0.0)))
    for (rows, *_), step in made.items():
        executable = step.latest().executable
        if rows >= 0 and executable is not None:
            whole = device_seconds(executable)
            shares = timeline(executable)
            total = sum(s.seconds for s in shares)
            print(
                f"{rows} rows: {len(shares)} dispatches, {whole * 1e6:.0f} us, apart {total * 1e6:.0f} us"
            )
            for s in shares:
                print(f"{s.step:4} {s.seconds * 1e6:8.2f} us {s.grid!s:18} {s.name}")


def main() -> None:
    """Print a line for a token, one for a prompt."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--dtype", choices=("float16", "float32"), default="float16")
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--rows", type=int, nargs="+", default=[1])
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    webtorch.set_default_device("webgpu")
    moved = bandwidth()
    print(f"a copy of 1 GiB moves {moved / 1e9:.0f} GB/s")
    started = time.perf_counter()
    model, nbytes = build(options.shape, getattr(webtorch, options.dtype), options.layers)
    made = time.perf_counter() - started
    print(
        f"{options.shape}, {options.dtype}: {nbytes / 1e9:.2f} GB of weights, made in {made:.0f} s"
    )
    batch = Batch(
        model, options.prompt + 2 * options.tokens + 64, max(options.rows), webtorch.float16
    )
    rng = np.random.default_rng(0)
    vocabulary = model.config.vocab_size
    first, until = list[float](), 0.0
    # After a rest a card's clock is low: an H200 takes some 0.3 s to be at work.
    while len(first) < 3 or time.perf_counter() < until:
        prompt = rng.integers(0, vocabulary, options.prompt).tolist()
        started = time.perf_counter()
        next(batch.generate(prompt, 1, Sampling(temperature=0.0)))
        first.append(time.perf_counter() - started)
        until = until or time.perf_counter() + 1.5
    wanted = products(model, 256) * options.prompt / 256
    fastest = min(first)
    print(
        f"a prompt of {options.prompt}: {fastest * 1e3:.0f} ms, {options.prompt / fastest:.0f} tokens/s (the first "
        f"{first[0]:.1f} s, the second {first[1] * 1e3:.0f} ms), "
        f"{wanted / fastest:.2f} of float16 products alone ({wanted * 1e3:.0f} ms)"
    )
    for _ in range(2):
        times, thread = [time.perf_counter()], time.thread_time()
        for _ in batch.generate(prompt[:16], options.tokens, Sampling(temperature=0.0)):
            times.append(time.perf_counter())
        thread = (time.thread_time() - thread) / options.tokens
    steps = sorted(b - a for a, b in itertools.pairwise(times[2:]))
    mean = (times[-1] - times[2]) / len(steps)
    print(
        f"a token: {mean * 1e3:.2f} ms (median {steps[len(steps) // 2] * 1e3:.2f}), {1 / mean:.0f} tokens/s, "
        f"{nbytes / mean / 1e9:.0f} GB/s of weights, {nbytes / mean / moved:.2f} of a copy; "
        f"thread {thread * 1e3:.2f} ms"
    )
    if options.profile:
        with cProfile.Profile() as profile:
            for _ in batch.generate(prompt[:16], options.tokens, Sampling(temperature=0.0)):
                pass
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)
    for texts in options.rows:
        if texts > 1:
            clock, _ = answered(batch, texts, options.tokens)
            clock, _ = answered(batch, texts, options.tokens)
            print(
                f"{texts} texts: {texts * options.tokens / clock:.0f} tokens/s, with their prompts of 24"
            )
    if options.kernels:
        kernels(batch, prompt)


if __name__ == "__main__":
    main()
