"""Tokens a second of one GGUF file, here and in llama.cpp, in turns: `python -m benchmarks.llm.llama_cpp`.

It needs llama-cpp-python, built for this processor from its source package. The file has random weights of a 0.5B
shape, packed as Q4_K_M. Times are of the clock and of the process (all of its threads, those that wait in turns too),
as machines are busy: what counts is the ratio of the best of some rounds.
"""

from __future__ import annotations

import argparse
import importlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import webtorch
from benchmarks.llm.random_models import SHAPES, build
from webtorch.io import Tokenizer
from webtorch.llm import Batch, Sampling
from webtorch.llm.loading import load_model
from webtorch.llm.tokens import gguf_tokens
from webtorch.llm.weights import save

GREEDY = Sampling(temperature=0.0)
Times = tuple[float, float]


def written(shape: str, path: Path) -> None:
    """Write the file."""
    model, _ = build(shape, webtorch.float32)
    told = gguf_tokens(Tokenizer.train(["a few words"], 260))
    more = model.config.vocab_size - len(told["tokenizer.ggml.tokens"])
    told["tokenizer.ggml.tokens"] += [f"<unused {i}>" for i in range(more)]
    told["tokenizer.ggml.token_type"] += [5] * more
    save(model, path, told)


def timed(work: Callable[[], object]) -> Times:
    """Return the seconds of the clock and of the process that something takes."""
    start, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start, time.process_time() - used


class Ours:
    """The file in webtorch."""

    def __init__(self, path: Path, context: int, threads: int) -> None:
        webtorch.set_num_threads(threads)
        self.batch = Batch(load_model(path, "cpu"), context, 1)

    def round(self, prompt: list[int], tokens: int) -> tuple[Times, Times]:
        """Return what the prompt takes, with the first token, and what each token does that follows."""
        for text in self.batch.texts:
            text.tokens = []
        made = self.batch.generate(prompt, tokens + 2, GREEDY)
        first = timed(lambda: next(made))
        next(made)  # the first step is no prompt's piece
        clock, used = timed(lambda: [next(made) for _ in range(tokens)])
        return first, (clock / tokens, used / tokens)


class Theirs:
    """The file in llama.cpp."""

    def __init__(self, path: Path, context: int, threads: int) -> None:
        self.llama = importlib.import_module("llama_cpp").Llama(
            str(path), n_ctx=context, n_batch=512, n_threads=threads, n_threads_batch=threads, verbose=False
        )  # fmt: skip

    def round(self, prompt: list[int], tokens: int) -> tuple[Times, Times]:
        """Return the same; none is chosen, as that would be Python's time."""
        self.llama.reset()
        first = timed(lambda: self.llama.eval(prompt))
        self.llama.eval([1])
        clock, used = timed(lambda: [self.llama.eval([2 + i]) for i in range(tokens)])
        return first, (clock / tokens, used / tokens)


def main() -> None:
    """Print a line for the prompt and one for a token, of the clock and of the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="0.5b")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--file", type=Path, help="another file, or where this one is kept")
    told = parser.parse_args()
    path = told.file or Path(tempfile.mkdtemp()) / "random.gguf"
    if not path.exists():
        written(told.shape, path)
    context = told.prompt + told.tokens + 64
    sides = {
        "webtorch": Ours(path, context, told.threads),
        "llama.cpp": Theirs(path, context, told.threads),
    }
    prompt = [3 + i % 200 for i in range(told.prompt)]
    found: dict[str, list[tuple[Times, Times]]] = {name: [] for name in sides}
    for turn in range(told.rounds + 1):
        for name, side in sides.items():
            if turn or name == "webtorch":  # the first one compiles
                found[name].append(side.round(prompt, told.tokens))
    found["webtorch"].pop(0)
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")
    for part, what in enumerate(("a token of the prompt", "a token of the answer")):
        for clock, of in enumerate(("the clock", "the process")):
            each = told.prompt if part == 0 else 1
            ours, theirs = (min(r[part][clock] for r in found[n]) / each for n in sides)
            print(
                f"{what}, {of}: {ours * 1e3:.2f} ms, llama.cpp {theirs * 1e3:.2f}: {theirs / ours:.2f} of its speed"
            )


if __name__ == "__main__":
    main()
