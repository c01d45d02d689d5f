"""The server, asked by the official client: two at once, one that goes away, keys, and what is refused."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import uvicorn

from webtorch.llm import LanguageModel, Sampling, load
from webtorch.llm.server import application

SAID: Any = [{"role": "user", "content": "heap"}]
COUNT = 6


@pytest.fixture(scope="module")
def model(trained: Path) -> LanguageModel:
    return load(trained, "cpu", texts=2, compile=False)


@pytest.fixture(scope="module")
def address(model: LanguageModel) -> Iterator[str]:
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    config = uvicorn.Config(
        application(model, "stdlib", "secret"), log_level="error", lifespan="off"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [taken]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
    server.should_exit = True
    thread.join(10)


@pytest.fixture
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=address, api_key="secret", max_retries=0) as client:
        yield client


@pytest.mark.covers("L7")
def test_chats_completions_and_vectors(client: openai.OpenAI, model: LanguageModel) -> None:
    greedy: Any = {"model": "stdlib", "max_tokens": COUNT, "temperature": 0}
    wanted = model.chat(SAID, Sampling(temperature=0), most=COUNT)
    text = "".join(wanted)
    found = client.chat.completions.create(messages=SAID, **greedy)
    assert found.choices[0].message.content == text
    assert found.choices[0].finish_reason == wanted.finish
    assert found.usage is not None and found.usage.completion_tokens == len(wanted.tokens)
    stream = client.chat.completions.create(
        messages=SAID, stream=True, stream_options={"include_usage": True}, **greedy
    )
    parts = list(stream)
    assert "".join(p.choices[0].delta.content or "" for p in parts if p.choices) == text
    assert parts[-1].usage == found.usage and parts[-2].choices[0].finish_reason == wanted.finish
    plain = client.completions.create(prompt=["def ", "import "], **greedy)
    assert [c.text for c in plain.choices] == [
        "".join(model.generate(p, Sampling(temperature=0), most=COUNT)) for p in ("def ", "import ")
    ]
    vectors = client.embeddings.create(
        model="stdlib", input=["heap", "def"], encoding_format="float"
    )
    assert vectors.data[0].embedding == pytest.approx(model.embed("heap").tolist(), abs=1e-6)
    assert [m.id for m in client.models.list()] == ["stdlib"]


def test_two_clients_at_once_each_have_their_own_answer(address: str, model: LanguageModel) -> None:
    questions = ["heap", "def"]
    wanted = [
        "".join(model.chat([{"role": "user", "content": q}], Sampling(temperature=0), most=12))
        for q in questions
    ]
    found: dict[str, str] = {}

    def ask(question: str) -> None:
        """Ask as a client of its own."""
        client = openai.OpenAI(base_url=address, api_key="secret")
        said: Any = [{"role": "user", "content": question}]
        stream = client.chat.completions.create(
            model="any", messages=said, temperature=0, max_tokens=12, stream=True
        )
        found[question] = "".join(p.choices[0].delta.content or "" for p in stream)

    threads = [threading.Thread(target=ask, args=(q,)) for q in questions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[q] for q in questions] == wanted


def test_a_client_that_goes_away_leaves_its_place_to_others(
    client: openai.OpenAI, model: LanguageModel
) -> None:
    for _ in range(3):
        stream = client.chat.completions.create(
            model="stdlib", messages=SAID, stream=True, temperature=2
        )
        next(iter(stream))
        stream.close()
    # All places are free again, long before an answer of 100 tokens would have ended.
    found = client.completions.create(model="stdlib", prompt="def ", max_tokens=2)
    assert found.usage is not None and found.usage.completion_tokens == 2
    end = time.monotonic() + 5
    while model.batch.running and time.monotonic() < end:
        time.sleep(0.01)
    # Nobody went on with what nobody read.
    assert not model.batch.running and all(len(t.tokens) < 100 for t in model.batch.texts)


def test_what_is_refused_is_said(address: str, client: openai.OpenAI) -> None:
    with (
        openai.OpenAI(base_url=address, api_key="other") as other,
        pytest.raises(openai.AuthenticationError, match="API key"),
    ):
        other.models.list()
    with pytest.raises(openai.BadRequestError, match="the context 128"):
        client.completions.create(model="stdlib", prompt="heap " * 300)
    for wrong, message in (
        ({"n": 2}, "n is 2, which is not available"), ({"temperature": -1}, "temperature is -1"),
        ({"max_tokens": 0}, "max_tokens is 0"), ({"messages": []}, "messages must be"),
        ({"stop": [1]}, "stop must be"), ({"top_p": "x"}, "a number is wanted"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "must be text"),
    ):  # fmt: skip
        with pytest.raises(openai.BadRequestError, match=message):
            client.chat.completions.create(**({"model": "stdlib", "messages": SAID} | wrong))  # type: ignore[call-overload]
    key = {"Authorization": "Bearer secret"}
    post = f"{address}/chat/completions"
    # A page of another site may send forms and use a name of its own.
    assert httpx.post(post, content="{}", headers=key).status_code == 415
    assert (
        httpx.get(f"{address}/models", headers={**key, "Host": "evil.example"}).status_code == 400
    )
    for body in ("[", "[]", "[" * 9999):
        answer = httpx.post(post, content=body, headers={**key, "Content-Type": "application/json"})
        assert answer.status_code == 400, body[:9]
