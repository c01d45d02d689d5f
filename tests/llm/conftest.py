"""A small Llama that learned the source of Python's standard library for a second, as a GGUF file."""

from __future__ import annotations

import heapq
import inspect
from pathlib import Path

import pytest

import webtorch
from webtorch import nn
from webtorch.io import Tokenizer
from webtorch.llm import Config, LanguageModel, Model, Rope

TEMPLATE = (
    "{% for t in tools or [] %}<|system|>{{ t.function.name }} <tool_call>{% endfor %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def learn(path: Path, width: int, lr: float) -> Path:
    """Train a model and write its file."""
    text = inspect.getsource(heapq)[:6000]
    special = ["<|user|>", "<|assistant|>", "<|system|>", "<|end|>"]
    tokenizer = Tokenizer.train([text], 320, special=special)
    rope = Rope(dim=16)
    config = Config(
        "llama", len(tokenizer), width, 2 * width, 2, width // 16, width // 32, 16, 128, rope=rope,
        tie_word_embeddings=True,
    )  # fmt: skip
    webtorch.manual_seed(0)
    with webtorch.device("cpu"):
        model = Model(config)
        nn.init.normal_(model.embed.weight, std=0.1)
        numbers = webtorch.tensor(tokenizer.encode(text))
        optimizer = webtorch.optim.AdamW(model.parameters(), lr=lr)
        for step in range(24):
            begin = step * 60 % (len(numbers) - 520)
            rows = numbers[begin : begin + 520].view(8, 65)
            loss = nn.functional.cross_entropy(
                model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert loss.item() < 5.0
    LanguageModel(model, tokenizer, template=TEMPLATE).save(path)
    return path


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file."""
    return learn(tmp_path_factory.mktemp("llm") / "stdlib.gguf", 32, 1e-2)
