"""How many tokens a second 1, 4 and 8 clients of one model get together: `python -m benchmarks.llm.clients`.

A random model of the Llama kind answers as many prompts of 24 tokens at once. One step reads the weights once for all
of them, so that the aim is well above what one client gets. Times are of the process (`time.process_time`, one thread
computes), as machines are busy.
"""

from __future__ import annotations

import argparse
import threading
import time

import webtorch
from webtorch.llm import Batch, Config, Model, Rope, Sampling, quantize_

GREEDY = Sampling(temperature=0.0)


def made(batch: Batch, clients: int, tokens: int) -> tuple[float, float]:
    """Return the seconds, of a clock and of the process, in which each client gets so many tokens."""
    prompts = [[1 + i, 2, 3] * 8 for i in range(clients)]
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
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--format", help="of packed weights (Q4_0, ...)")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    told = parser.parse_args()
    width = told.width
    webtorch.set_num_threads(1)
    config = Config(
        "llama", told.vocabulary, width, 3 * width, told.layers, width // 64, max(width // 256, 1), 64, 512,
        rope=Rope(dim=64),
    )  # fmt: skip
    webtorch.manual_seed(0)
    with webtorch.device(told.device):
        model = Model(config).requires_grad_(False).eval()
    if told.format:
        quantize_(model, told.format)
    batch = Batch(model, 256, texts=8)
    best: dict[int, tuple[float, float]] = {}
    for turn in range(told.rounds + 1):
        for clients in (1, 4, 8):
            found = made(batch, clients, told.tokens)
            if turn:  # the first compiles
                best[clients] = min(best.get(clients, found), found, key=lambda f: f[1])
    one = told.tokens / best[1][1]
    for clients, (clock, used) in best.items():
        rate = clients * told.tokens / used
        print(
            f"{clients} clients: {rate:8.1f} tokens a second of the process ({rate / one:.2f} times one client's), "
            f"{clients * told.tokens / clock:8.1f} of the clock"
        )


if __name__ == "__main__":
    main()
