"""Fine-tuning: what is learned of which lines, PyTorch's steps, and the way from a file to another answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import webtorch
from tests.llm.models import TOKENS, folder, reference
from webtorch import cli
from webtorch.errors import OutOfMemoryError
from webtorch.llm import (
    DataError,
    Finetuning,
    LanguageModel,
    ModelError,
    Progress,
    Sampling,
    finetune,
    load,
    load_model,
    lora,
    quantize_,
)
from webtorch.llm.examples import batches, examples_of
from webtorch.llm.finetuning import training_needs

GREEDY = Sampling(temperature=0.0)
TALK = [
    {"messages": [{"role": "user", "content": "def"}, {"role": "assistant", "content": "A heap."}]},
    {"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "The smallest is first."}]},
]  # fmt: skip


def _learned(model: LanguageModel, example: Any) -> str:
    return model.tokenizer.decode(
        [t for t, k in zip(example.tokens, example.learned, strict=True) if k]
    )


def test_answers_alone_are_learned(trained: Path) -> None:
    model = load(trained, "cpu", context=128)
    two = {"conversations": [
        {"from": "system", "value": "Be short."}, {"from": "human", "value": "One?"}, {"from": "gpt", "value": "Yes."},
        {"from": "human", "value": "Two?"}, {"from": "gpt", "value": "No."}, {"from": "human", "value": "Three?"},
    ]}  # fmt: skip
    found = examples_of(model, [TALK[0], two, {"prompt": "def", "completion": " heap()"}], 64)
    assert [_learned(model, e) for e in found] == [
        "A heap.<|end|>",
        "Yes.<|end|>No.<|end|>",
        " heap()<|end|>",
    ]
    whole = model.tokenizer.decode(found[1].tokens)
    assert whole.startswith("<|system|>Be short.<|end|><|user|>One?") and whole.endswith(
        "No.<|end|>"
    )
    texts = examples_of(model, [{"text": "x = heap[0]"}] * 5, 16)
    assert [len(e.tokens) for e in texts[:-1]] == [16] * (len(texts) - 1)
    assert "".join(_learned(model, e) for e in texts) == "x = heap[0]<|end|>" * 5


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            '{"messages": [{"role": "user", "content": "x"}]}',
            "line 1: the conversation has no answer",
        ),
        ('{"prompt": "x"}', "example 1: there are no messages, .* but prompt"),
        ("[1]", "line 1: an object"),
        ("{", "line 1: "),
        ("", "no examples"),
        ('{"prompt": "x", "completion": ""}', None),
    ],
)
def test_lines_that_are_no_examples_are_named(
    line: str, said: str | None, trained: Path, tmp_path: Path
) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text(line, encoding="utf-8")
    model = load(trained, "cpu", context=128)
    if said is None:
        finetune(model, file, None, Finetuning(length=64))
        return
    with pytest.raises(DataError, match=said.replace("line 1: the", "example 1: the")):
        finetune(model, file, None, Finetuning(length=64))


def test_batches_have_few_lengths() -> None:
    found = [_example(n) for n in (3, 3, 5, 60, 70, 80, 200, 300)]
    shapes = [(len(t), len(t[0])) for t, _ in batches(found, 3, 256, None)]
    assert shapes == [(3, 64), (3, 256), (3, 256)]
    rows = [f for _, following in batches(found, 3, 256, 0) for f in following]
    assert (
        sum(t != -100 for row in rows for t in row)
        == sum(min(len(e.tokens), 257) - 1 for e in found[:-1]) + 256
    )


def _example(count: int) -> Any:
    from webtorch.llm.examples import Example

    return Example(tuple(range(count))[:257], (True,) * min(count, 257))


def test_steps_are_pytorch_s(tmp_path: Path, trained: Path) -> None:
    place = folder("llama", tmp_path)
    made = LanguageModel(load_model(place, "cpu"), load(trained, "cpu", context=64).tokenizer)
    theirs = type(reference("llama"))(reference("llama").config)
    theirs.load_state_dict(reference("llama").state_dict())
    lora.attach(made.model, 2, targets=["q"], generator=webtorch.Generator().manual_seed(0))
    firsts = [torch.tensor(a.a.tolist()) for a in lora.adapters(made.model).values()]
    learned = []
    for layer, a in zip(theirs.model.layers, firsts, strict=True):
        q = layer.self_attn.q_proj
        q.lora_a, q.lora_b = (
            torch.nn.Parameter(a),
            torch.nn.Parameter(torch.zeros(q.weight.shape[0], 2)),
        )
        q.register_forward_hook(lambda m, x, y: y + 2.0 * (x[0] @ m.lora_a.T @ m.lora_b.T))
        learned += [q.lora_a, q.lora_b]
    optimizer = torch.optim.AdamW(learned, lr=0.0, weight_decay=0.01)
    found: list[Progress] = []
    options = Finetuning(
        rank=2,
        targets=("q",),
        lr=0.05,
        steps=4,
        batch=1,
        accumulation=2,
        length=16,
        warmup=0.5,
        weight_decay=0.01,
        clip=0.1,
    )
    made.tokenizer.encode = lambda text, add_special_tokens=True: TOKENS[0][:9]  # type: ignore[method-assign]
    made.ends = set()
    finetune(made, [{"text": "0"}], None, options, told=found.append)
    for step in found:
        rows = torch.tensor([TOKENS[0][:9]])
        for group in optimizer.param_groups:
            group["lr"] = step.lr
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(theirs(rows[:, :-1]).logits[0], rows[0, 1:])
        assert step.loss == pytest.approx(loss.item(), rel=1e-4)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learned, 0.1)
        optimizer.step()
    assert found[-1].loss < found[0].loss - 0.05


def test_a_run_goes_on_where_it_was_interrupted(trained: Path, tmp_path: Path) -> None:
    options = Finetuning(
        rank=4, lr=1e-2, steps=6, batch=1, length=64, dropout=0.1, validation=0.4, save_every=2
    )
    whole: list[Progress] = []
    finetune(
        load(trained, "cpu", context=64), TALK * 2, tmp_path / "whole", options, told=whole.append
    )
    assert [p.validation is not None for p in whole] == [False, True] * 3

    def stop(step: Progress) -> None:
        """Interrupt."""
        parts.append(step)
        if step.step == 3:
            raise KeyboardInterrupt

    parts: list[Progress] = []
    place = tmp_path / "parts"
    with pytest.raises(KeyboardInterrupt):
        finetune(load(trained, "cpu", context=64), TALK * 2, place, options, told=stop)
    finetune(
        load(trained, "cpu", context=64), TALK * 2, place, options, resume=True, told=parts.append
    )
    assert [p.loss for p in parts] == pytest.approx([p.loss for p in whole], rel=1e-4)
    with pytest.raises(ModelError, match="other options: rank"):
        finetune(load(trained, "cpu", context=64), TALK, place, Finetuning(rank=2), resume=True)
    with pytest.raises(ModelError, match="no run to go on with"):
        finetune(load(trained, "cpu", context=64), TALK, tmp_path / "none", options, resume=True)


def test_what_does_not_fit_is_refused_or_computed_again(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(trained, "cpu", context=64)
    config, options = model.model.config, Finetuning(batch=8, length=128)
    monkeypatch.setenv("WEBTORCH_MEMORY_LIMIT", "1e9")
    kept = training_needs(config, "cpu", 1000, options)
    assert not kept.recompute
    monkeypatch.setenv("WEBTORCH_MEMORY_LIMIT", str(kept.total - 1))
    again = training_needs(config, "cpu", 1000, options)
    assert again.recompute and again.total < kept.total and "computed again" in str(again)
    losses: list[list[float]] = []
    for recompute in (False, True):
        each: list[float] = []
        losses.append(each)
        finetune(
            load(trained, "cpu", context=64), TALK, None, Finetuning(steps=2, length=64, recompute=recompute),
            told=lambda p, each=each: each.append(p.loss),  # type: ignore[misc]
        )  # fmt: skip
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    monkeypatch.setenv("WEBTORCH_MEMORY_LIMIT", "10000")
    with pytest.raises(OutOfMemoryError, match="Shorter examples"):
        training_needs(config, "cpu", 1000, options)


def test_from_a_file_to_another_answer(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed, data, place = tmp_path / "packed.gguf", tmp_path / "data.jsonl", tmp_path / "adapter"
    first = load(trained, "cpu", context=64)
    quantize_(first.model, "Q8_0")
    first.save(packed)
    data.write_text("\n".join(json.dumps(line) for line in TALK * 4), encoding="utf-8")
    told = [
        "--device",
        "cpu",
        "--output",
        str(place),
        "--lr",
        "2e-2",
        "--steps",
        "24",
        "--batch",
        "2",
        "--length",
        "64",
    ]
    assert cli.main(["finetune", str(packed), str(data), *told]) == 0
    out = capsys.readouterr().out
    assert "for a step" in out and "the adapter" in out
    model = load(packed, "cpu", context=64)

    def answers() -> list[str]:
        """Return what the model says."""
        asked = [t["messages"][:1] for t in TALK]
        return ["".join(model.chat(a, GREEDY, most=24)) for a in asked]

    wanted = [t["messages"][1]["content"] for t in TALK]
    plain = answers()
    assert plain != wanted
    model.adapt(place)
    assert answers() == wanted
    model.adapt(None)
    assert answers() == plain


@pytest.mark.long
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_answers_stay_through_files_and_packing(kind: str, trained: Path, tmp_path: Path) -> None:
    questions = ["What?", "Why?", "When?", "Where?", "Who?", "How?", "heap", "push", "pop", "merge"]
    talk = [
        {"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": f"{i}: {q[::-1]} {i * i}."}]}
        for i, q in enumerate(questions)
    ]  # fmt: skip
    wanted = [t["messages"][1]["content"] for t in talk]

    def right(model: LanguageModel) -> int:
        """Return how many answers are the ones that were learned."""
        said = ["".join(model.chat(t["messages"][:1], GREEDY, most=24)) for t in talk]
        return sum(a == b for a, b in zip(said, wanted, strict=True))

    first = load(trained, "cpu", context=64)
    quantize_(first.model, kind)
    first.save(tmp_path / "packed.gguf")
    model = load(tmp_path / "packed.gguf", "cpu", context=64)
    assert right(model) == 0
    options = Finetuning(rank=16, lr=1e-2, steps=300, batch=5, length=64)
    finetune(model, talk, tmp_path / "adapter", options)
    assert right(model) == len(talk)
    # From PEFT's file, from llama.cpp's, and put into the weights, which are packed again.
    lora.save(model.model, tmp_path / "adapter.gguf")
    for file in ("adapter", "adapter.gguf"):
        other = load(tmp_path / "packed.gguf", "cpu", context=64)
        other.adapt(tmp_path / file)
        assert right(other) == len(talk)
    lora.merge(model.model)
    model.save(tmp_path / "merged.gguf")
    assert right(load(tmp_path / "merged.gguf", "cpu", context=64)) >= len(talk) - 2
