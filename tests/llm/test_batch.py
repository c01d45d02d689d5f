"""Texts that grow together: greedy tokens as transformers' generate, whoever else is there; pieces, places that are
kept, what prompts share, sampling.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import webtorch
from tests.llm.models import TOKENS, folder, reference
from webtorch.llm import (
    Batch,
    Config,
    ContextFullError,
    Model,
    Rope,
    Sampling,
    load_model,
    quantize_,
)

GREEDY = Sampling(temperature=0.0)


def greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    """Return the tokens of transformers' generate."""
    given = torch.tensor([prompt])
    out = model.generate(
        given,
        attention_mask=torch.ones_like(given),
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=[],
    )
    return out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("name", ["llama", "gemma3", "mixtral", "gpt_oss"])
def test_greedy_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = load_model(folder(name, tmp_path), device="cpu")
    batch = Batch(model, 64, compile=name == "llama")
    prompt = TOKENS[0] + TOKENS[0][::-1]
    wanted = greedy(reference(name), prompt, 12)
    assert list(batch.generate(prompt, 12, GREEDY)) == wanted
    # What the next prompt begins with is in the cache.
    assert batch.texts[0].tokens == prompt + wanted[:-1]


def test_pieces_and_types_of_the_cache_change_little(tmp_path: Path) -> None:
    name = "llama, biases"
    model = load_model(folder(name, tmp_path), device="cpu")
    prompt = (TOKENS[0] * 5)[:57]
    wanted = greedy(reference(name), prompt, 3)
    for context, dtype in ((60, None), (64, webtorch.float16), (64, webtorch.int8)):
        batch = Batch(model, context, 1, dtype, compile=False)
        assert list(batch.generate(prompt, 3, GREEDY)) == wanted
    batch = Batch(model, 60, compile=False)
    assert len(list(batch.generate(prompt, 99, GREEDY))) == 4
    # Another text that begins alike.
    other = [*prompt[:20], 1, 2, 3]
    assert batch._shared(batch.texts[0], other) == 20
    assert list(batch.generate(other, 3, GREEDY)) == greedy(reference(name), other, 3)
    with pytest.raises(ContextFullError, match="the prompt has 60 tokens and the context 60"):
        batch.generate([1] * 60, 1, GREEDY)
    with pytest.raises(ValueError, match="tokens are 0 to 95"):
        batch.generate([96], 1, GREEDY)


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_an_answer_does_not_depend_on_who_else_is_there(name: str, tmp_path: Path) -> None:
    model = load_model(folder(name, tmp_path), device="cpu")
    prompts = [TOKENS[0][i:] + TOKENS[0][: 3 * i] for i in range(5)]
    wanted = [greedy(reference(name), p, 8 + i) for i, p in enumerate(prompts)]
    batch = Batch(model, 64, texts=3, compile=name == "llama")
    # In turns: they join and leave at different times, and two wait for a place.
    following = {i: batch.generate(p, 8 + i, GREEDY) for i, p in enumerate(prompts)}
    found: dict[int, list[int]] = {i: [] for i in following}
    left = dict(following)
    while left:
        for i, tokens in list(left.items()):
            token = next(tokens, None)
            if token is None:
                del left[i]
            else:
                found[i].append(token)
    assert list(found.values()) == wanted and batch.running == 0
    # In threads; one goes away.
    gone = batch.generate(prompts[0], 40, GREEDY)
    next(gone)
    found = {}
    threads = [
        threading.Thread(target=lambda i=i, p=p: found.update({i: list(batch.generate(p, 8 + i, GREEDY))}))
        for i, p in enumerate(prompts)
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    gone.close()  # type: ignore[attr-defined]
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(5)] == wanted and batch.running == 0


def test_drawn_tokens_do_not_depend_on_who_else_is_there(tmp_path: Path) -> None:
    model = load_model(folder("llama", tmp_path), device="cpu")
    batch = Batch(model, 64, texts=2, compile=False)
    drawn = Sampling(2.0, 0, 1.0, 0.0, 1.2, seed=5, frequency_penalty=0.5, bias={3: 2.0})
    alone = list(batch.generate(TOKENS[0], 8, drawn))
    other = batch.generate(TOKENS[0][::-1], 12, GREEDY)
    first = next(other)
    assert list(batch.generate(TOKENS[0], 8, drawn)) == alone
    assert [first, *other] == greedy(reference("llama"), TOKENS[0][::-1], 12)
    never = Sampling(0.0, bias=dict.fromkeys(greedy(reference("llama"), TOKENS[0], 1), -100.0))
    assert not set(never.bias) & set(batch.generate(TOKENS[0], 8, never))
    plain = Sampling(2.0, 0, 1.0, 0.0, seed=5)
    anew = Batch(model, 64, texts=1, compile=False)
    assert list(batch.generate(TOKENS[0], 8, plain)) == list(anew.generate(TOKENS[0], 8, plain))


def test_what_texts_begin_with_is_read_once(tmp_path: Path) -> None:
    model = load_model(folder("mistral", tmp_path), device="cpu")
    batch = Batch(model, 64, texts=2, compile=False)
    shared = TOKENS[0] + TOKENS[0][::-1]
    first = batch.generate([*shared, 7], 20, GREEDY)
    began = [next(first)]
    # The other text is being made: what it shares is copied.
    read: list[int] = []
    piece = batch._piece

    def counted(texts: Any) -> Any:
        """Read a piece, and say where it begins."""
        read.extend(len(t.tokens) for t in texts)
        return piece(texts)

    batch._piece = counted  # type: ignore[method-assign]
    # One token that is left is read by the step of all.
    for rest, begins in ([9, 8], [len(shared)]), ([9], []):
        read.clear()
        answer = greedy(reference("mistral"), [*shared, *rest], 5)
        assert list(batch.generate([*shared, *rest], 5, GREEDY)) == answer
        assert read == begins
    assert began + list(first) == greedy(reference("mistral"), [*shared, 7], 20)


def test_packed_weights_are_unpacked_once_for_a_short_prompt(tmp_path: Path) -> None:
    model = quantize_(load_model(folder("llama", tmp_path), device="cpu"), "Q8_0")
    sizes: dict[bool, list[int]] = {}
    answers = []
    for packed in (True, False):
        batch = Batch(model, 64, compile=False)
        assert batch._packed
        batch._packed, read = packed, sizes.setdefault(packed, [])
        piece = batch._piece

        def counted(texts: Any, piece: Any = piece, read: list[int] = read) -> Any:
            """Read a piece, and say of how many tokens."""
            found = piece(texts)
            read.append(found[0])
            return found

        batch._piece = counted  # type: ignore[method-assign]
        answers.append(
            [
                list(batch.generate((TOKENS[0] * 3)[i : i + n], 9, GREEDY))
                for i, n in ((0, 30), (1, 17), (2, 9))
            ]
        )
    assert answers[0] == answers[1]
    assert sizes == {True: [30, 16, 9], False: [16, 14, 16, 9]}


def test_short_prompts_are_read_in_one_round(tmp_path: Path) -> None:
    model = load_model(folder("llama", tmp_path), device="cpu")
    batch = Batch(model, 64, texts=3, compile=False)
    runs = [batch.begin(TOKENS[0][i:], 5, GREEDY) for i in range(3)]
    batch.waiting.extend(runs)
    batch._round()
    # The token after its prompt, and one of a step of all.
    assert [run.made for run in runs] == [2, 2, 2]
    for i, run in enumerate(runs):
        assert list(run.out) == greedy(reference("llama"), TOKENS[0][i:], 2)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [((23, 26, 29, 32, 35), [4, 1]), ((20, 25, 18, 24, 31), [5]), ((9, 40, 12), [3])],
    ids=["four of 64", "eight of 32, not full", "by the longest"],
)
def test_prompts_as_short_are_read_in_one_piece_on_a_card(
    lengths: tuple[int, ...], expected: list[int]
) -> None:
    """A piece that is not full has a prompt several times, whose token counts once."""
    count = len(lengths)
    plain, batch = (Batch(small(d), 96, texts=count, compile=False) for d in ("cpu", "webgpu"))
    prompts = [[5 + i, 9, 77, *range(n - 3)] for i, n in enumerate(lengths)]
    counting = Sampling(temperature=0.0, frequency_penalty=2.0)
    wanted = [list(plain.generate(p, 3, counting)) for p in prompts]
    pieces: list[int] = []
    piece = batch._piece

    def counted(texts: Any) -> Any:
        """Read a piece, and say of how many texts."""
        pieces.append(len(texts))
        return piece(texts)

    batch._piece = counted  # type: ignore[method-assign]
    runs = [batch.begin(p, 3, counting) for p in prompts]
    batch.waiting.extend(runs)
    while not all(run.ended for run in runs):
        batch._round()
    assert [list(run.out) for run in runs] == wanted and pieces == expected
    sums = [batch.chooser.seen[i].floor().sum().item() for i in range(count)]
    assert sums == [3.0] * count


def test_log_probabilities_are_those_of_the_model(tmp_path: Path) -> None:
    model = load_model(folder("llama", tmp_path), device="cpu")
    batch = Batch(model, 64, compile=False)
    run = batch.begin(TOKENS[0], 3, GREEDY, told=True)
    made = list(batch.follow(run))
    with torch.no_grad():
        logits = reference("llama")(torch.tensor([TOKENS[0] + made])).logits[0, -4:-1]
    wanted = torch.log_softmax(logits, -1)
    for token, likely, row in zip(made, run.likely, wanted, strict=True):
        assert likely.value == pytest.approx(row[token].item(), abs=1e-4)
        values, which = row.topk(20)
        assert [i for i, _ in likely.top[:3]] == which[:3].tolist()
        assert [v for _, v in likely.top] == pytest.approx(values.tolist(), abs=1e-4)


def small(device: str, noise: float = 0.0) -> Model:
    """Return a random model of one layer with a window; noise: how much its weights differ from others'."""
    config = Config(
        "llama", 96, 32, 64, 1, 4, 2, 8, 64, sliding_window=5, sliding=(True,)
    )  # fmt: skip
    model, draw = Model(config).eval(), webtorch.Generator().manual_seed(1)
    with webtorch.no_grad():
        for p in model.parameters():
            p.copy_(webtorch.randn(p.shape, generator=draw) * 0.5)
            p.add_(webtorch.randn(p.shape, generator=draw) * noise)
    return model.to(device)


def test_steps_that_are_begun_before_the_last_is_read() -> None:
    plain, batch = (Batch(small(d), 64, texts=2, compile=False) for d in ("cpu", "webgpu"))
    wanted = [list(plain.generate(p, 6 + i, GREEDY)) for i, p in enumerate(([5, 9, 77], [3, 12]))]
    first = batch.generate([5, 9, 77], 6, GREEDY)
    began = [next(first), next(first), next(first)]
    assert batch._ahead is not None
    # Another text joins, and goes on when the first one has ended.
    other = batch.generate([3, 12], 7, GREEDY)
    second = [next(other)]
    assert [began + list(first), second + list(other)] == wanted


def test_one_who_is_interrupted_leaves_others_as_they_were() -> None:
    batch = Batch(small("cpu"), 64, texts=2, compile=False)
    wanted = [list(batch.generate(p, 9, GREEDY)) for p in ([5, 9, 77], [3, 12])]
    other = batch.generate([3, 12], 9, GREEDY)
    began = [next(other)]
    take, calls = batch._take, iter(range(99))

    def interrupted(*given: Any) -> None:
        """Take a token, but not the fourth."""
        if next(calls) == 3:
            raise KeyboardInterrupt
        take(*given)

    batch._take = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        list(batch.generate([5, 9, 77], 9, GREEDY))
    assert list(batch.generate([5, 9, 77], 9, GREEDY)) == wanted[0]
    assert began + list(other) == wanted[1] and batch.running == 0


def test_drafts_change_no_answer() -> None:
    model, draft = small("cpu"), small("cpu", 0.02)
    prompts = [TOKENS[0], TOKENS[0][::-1]]
    plain = Batch(model, 64, texts=2)
    batch = Batch(model, 64, texts=2, draft=draft)
    rounds: list[int] = []
    step = batch._drafted_step

    def counted(live: Any, rows: int) -> None:
        """Make a step, and count it."""
        rounds.append(rows)
        step(live, rows)

    batch._drafted_step = counted  # type: ignore[method-assign]
    drawn = Sampling(1.0, 0, 1.0, 0.0, seed=4, bias={3: 2.0})
    wanted = [list(plain.generate(p, 17, s)) for p, s in zip(prompts, (GREEDY, drawn), strict=True)]
    following = [batch.generate(p, 17, s) for p, s in zip(prompts, (GREEDY, drawn), strict=True)]
    began = [[next(f)] for f in following]
    assert [b + list(f) for b, f in zip(began, following, strict=True)] == wanted
    assert 3 < len(rounds) < 16
    # To the end of the context, and with tokens that are told, which are not drafted.
    assert list(batch.generate(prompts[0], 99, GREEDY)) == list(
        plain.generate(prompts[0], 99, GREEDY)
    )
    run = batch.begin(prompts[0], 5, GREEDY, told=True)
    assert list(batch.follow(run)) == wanted[0][:5] and len(run.likely) == 5
    assert list(batch.generate(prompts[0], 9, GREEDY)) == wanted[0][:9]


def test_texts_close_up_when_others_leave(tmp_path: Path) -> None:
    model = load_model(folder("llama", tmp_path), device="cpu")
    batch = Batch(model, 64, texts=4, compile=False)
    drawn = Sampling(2.0, 0, 1.0, 0.0, 1.2, seed=5)
    alone = list(batch.generate(TOKENS[0], 12, drawn))
    others = [batch.generate([i, 9, 4], 12, GREEDY) for i in range(3)]
    for other in others:
        next(other)
    last = batch.generate(TOKENS[0], 12, drawn)
    first = [next(last)]
    row = next(i for i, t in enumerate(batch.texts) if t.tokens[:14] == TOKENS[0])
    for other in others:
        other.close()  # type: ignore[attr-defined]
    assert first + list(last) == alone
    assert row > 0 and batch.texts[0].tokens[:14] == TOKENS[0]


def test_experts_compute_the_tokens_that_chose_them() -> None:
    config = Config(
        "mixtral", 96, 32, 64, 2, 4, 2, 8, 160, rope=Rope(dim=8), num_experts=16, num_experts_per_tok=2,
        moe_intermediate_size=16,
    )  # fmt: skip
    model = Model(config).eval()
    draw = webtorch.Generator().manual_seed(0)
    with webtorch.no_grad():
        for p in model.parameters():
            p.copy_(webtorch.randn(p.shape, generator=draw) * 0.3)
    # A text of many words, and one of a single word, whose experts have more tokens than places.
    for prompt in ([(7 * i) % 96 for i in range(130)], [5] * 130):
        batch, whole = (Batch(model, 160, compile=False) for _ in range(2))
        whole._mixtures = []
        wanted = list(whole.generate(prompt, 3, GREEDY))
        assert list(batch.generate(prompt, 3, GREEDY)) == wanted
        used = {places for _, _, _, places in batch._made}
        assert (
            used == ({16, None} if len(set(prompt)) == 1 else {16, 32, None} & used) and 16 in used
        )
        for (a, b), (c, d) in zip(batch.cache.layers, whole.cache.layers, strict=True):
            for one, other in ((a, c), (b, d)):
                assert (one[0][:130] - other[0][:130]).abs().max().item() < 1e-4
