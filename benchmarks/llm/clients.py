"""How many tokens a second 1, 4 and 8 clients of one model get together: `python -m benchmarks.llm.clients`.

On a card: `python -m benchmarks.llm.clients --device webgpu --shape 8b --clients 1 8 32`, by the clock.

A random model of the Llama kind answers as many prompts of 24 tokens at once. One step reads the weights once for all
of them, so that the aim is well above what one client gets. Times are of the process (`time.process_time`, one thread
computes), as machines are busy.
"""

from __future__ import annotations

import argparse
import threading
import time

import webtorch
from benchmarks.llm.random_models import SHAPES, build
from webtorch.llm import Batch, Config, Model, Rope, Sampling, quantize_

GREEDY = Sampling(temperature=0.0)


def made(batch: Batch, clients: int, tokens: int, turn: int = 0) -> tuple[float, float]:
    """Return the seconds, of a clock and of the process, in which each client gets so many tokens."""
    # None begins as one of a turn before, which would be in the cache.
    prompts = [[1 + i, 2 + turn, 3 + clients] * 8 for i in range(clients)]
    begun = [batch.generate(p, tokens, GREEDY) for p in prompts]
    threads = [threading.Thread(target=list, args=(b,)) for b in begun]
    start, used = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start, time.process_time() - used


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--shape", choices=SHAPES, help="of random_models, as Q4_K_M, in float16")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--format", help="of packed weights (Q4_0, ...)")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    told = parser.parse_args()
    webtorch.set_num_threads(1)
    webtorch.set_default_device(told.device)
    most = max(told.clients)
    if told.shape:
        model, _ = build(told.shape, webtorch.float16, told.layers)
        batch = Batch(model, 256, most, webtorch.float16)
    else:
        width = told.width
        config = Config(
            "llama", told.vocabulary, width, 3 * width, told.layers, width // 64, max(width // 256, 1), 64, 512,
            rope=Rope(dim=64),
        )  # fmt: skip
        webtorch.manual_seed(0)
        model = Model(config).requires_grad_(False).eval()
        if told.format:
            quantize_(model, told.format)
        batch = Batch(model, 256, most)
    best: dict[int, tuple[float, float]] = {}
    # What counts: on a CPU time of the process.
    which = int(told.device == "cpu")
    for turn in range(told.rounds + 1):
        for clients in told.clients:
            found = made(batch, clients, told.tokens, turn)
            if turn:  # the first compiles
                best[clients] = min(best.get(clients, found), found, key=lambda f: f[which])
    one = told.clients[0] * told.tokens / best[told.clients[0]][which]
    for clients, (clock, used) in best.items():
        rates = [clients * told.tokens / seconds for seconds in (clock, used)]
        print(
            f"{clients} clients: {rates[1]:8.1f} tokens a second of the process, {rates[0]:8.1f} of the clock "
            f"({rates[which] / one:.2f} times those of {told.clients[0]})"
        )


if __name__ == "__main__":
    main()
