"""The server, asked by the official client: two at once, one that goes away, keys, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
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

from tests.patience import PATIENCE
from webtorch.llm import LanguageModel, Sampling, load
from webtorch.llm.server import Served, _pieces, application

SAID: Any = [{"role": "user", "content": "heap"}]
COUNT = 6


@pytest.fixture(scope="module")
def model(trained: Path) -> LanguageModel:
    return load(trained, "cpu", texts=2, compile=False)


@contextlib.contextmanager
def served(model: LanguageModel) -> Iterator[str]:
    """Serve a model as "stdlib"; gives the address."""
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
    thread.join(PATIENCE)


@pytest.fixture(scope="module")
def address(model: LanguageModel) -> Iterator[str]:
    with served(model) as address:
        yield address


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
            model="stdlib", messages=said, temperature=0, max_tokens=12, stream=True
        )
        found[question] = "".join(p.choices[0].delta.content or "" for p in stream)

    threads = [threading.Thread(target=ask, args=(q,)) for q in questions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[q] for q in questions] == wanted


def test_a_client_that_goes_away_leaves_its_place_to_others(
    client: openai.OpenAI, model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = model.batch._round

    def waiting() -> None:
        """Make no more than some tokens of an answer until it is known that nobody reads it."""
        end = time.monotonic() + PATIENCE
        for run in [t.run for t in model.batch.texts if t.run is not None]:
            while run.made > 9 and not run.ended and time.monotonic() < end:
                time.sleep(0.005)
        step()

    monkeypatch.setattr(model.batch, "_round", waiting)
    for _ in range(3):
        stream = client.chat.completions.create(
            model="stdlib", messages=SAID, stream=True, temperature=2
        )
        next(iter(stream))
        stream.close()
    # All places are free again, long before an answer of 100 tokens would have ended.
    found = client.completions.create(model="stdlib", prompt="def ", max_tokens=2)
    assert found.usage is not None and found.usage.completion_tokens == 2
    end = time.monotonic() + PATIENCE
    while model.batch.running and time.monotonic() < end:
        time.sleep(0.01)
    # Nobody went on with what nobody read.
    assert not model.batch.running and all(len(t.tokens) < 100 for t in model.batch.texts)


def _schema(schema: Any) -> dict[str, Any]:
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    }


SHAPE: Any = {
    "type": "object", "properties": {"kind": {"enum": ["heap", "list"]}, "count": {"type": "integer", "maximum": 9}},
    "required": ["kind", "count"], "additionalProperties": False,
}  # fmt: skip


def test_answers_have_the_form_that_is_asked_for(client: openai.OpenAI) -> None:
    hot: Any = {
        "model": "stdlib",
        "messages": SAID,
        "temperature": 1.5,
        "max_tokens": 110,
        "seed": 1,
    }
    found = client.chat.completions.create(**hot, n=3, **_schema(SHAPE))
    for choice in found.choices:
        said = json.loads(choice.message.content or "")
        assert (
            said["kind"] in ("heap", "list")
            and said["count"] <= 9
            and choice.finish_reason == "stop"
        )
    assert len({c.message.content for c in found.choices}) > 1
    told: Any = {"grammar": 'root ::= "yes" | "no " [0-9] "!"'}
    for stream in (False, True):
        made: Any = client.chat.completions.create(**hot, stream=stream, extra_body=told)
        text = (
            "".join(p.choices[0].delta.content or "" for p in made)
            if stream
            else made.choices[0].message.content
        )
        assert re.fullmatch(r"yes|no \d!", text)
    plain = client.completions.create(
        model="stdlib",
        prompt="x",
        max_tokens=60,
        extra_body={"response_format": {"type": "json_object"}},
    )
    assert plain.choices[0].text.lstrip().startswith("{")


def test_tools_are_called(client: openai.OpenAI, model: LanguageModel) -> None:
    tool: Any = {"type": "function", "function": {"name": "push", "parameters": SHAPE}}
    asked: Any = {
        "model": "stdlib",
        "messages": SAID,
        "tools": [tool],
        "temperature": 0,
        "max_tokens": 80,
    }
    found = client.chat.completions.create(**asked, tool_choice="required")
    choice = found.choices[0]
    assert (
        choice.finish_reason == "tool_calls"
        and choice.message.content is None
        and choice.message.tool_calls
    )
    call: Any = choice.message.tool_calls[0]
    assert call.function.name == "push" and json.loads(call.function.arguments)["kind"] in (
        "heap",
        "list",
    )
    name: Any = {"type": "function", "function": {"name": "push"}}
    parts = list(client.chat.completions.create(**asked, tool_choice=name, stream=True))
    streamed: Any = [p.choices[0].delta.tool_calls for p in parts if p.choices[0].delta.tool_calls]
    assert [c.function.arguments for (c,) in streamed] == [call.function.arguments]
    assert parts[-1].choices[0].finish_reason == "tool_calls"
    # The template sees tools, calls and what came of them; without a call an answer is an answer.
    said = [
        *SAID,
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "1"},
    ]
    again = client.chat.completions.create(**(asked | {"messages": said}))
    assert (
        again.usage.prompt_tokens > found.usage.prompt_tokens
        and again.choices[0].finish_reason != "tool_calls"
    )
    none = client.chat.completions.create(**asked, tool_choice="none")
    assert none.usage.prompt_tokens == len(model.prompt(SAID))
    with pytest.raises(openai.BadRequestError, match="'pop', which is none of the tools"):
        client.chat.completions.create(
            **asked, tool_choice={"type": "function", "function": {"name": "pop"}}
        )


def test_log_probabilities_and_biases(client: openai.OpenAI, model: LanguageModel) -> None:
    asked: Any = {"model": "stdlib", "messages": SAID, "temperature": 0, "max_tokens": 4}
    found = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
    content: Any = found.choices[0].logprobs.content
    assert "".join(c.token for c in content) == found.choices[0].message.content
    for each in content:
        assert len(each.top_logprobs) == 2 and each.top_logprobs[0].logprob == each.logprob <= 0.0
    parts = client.chat.completions.create(**asked, logprobs=True, stream=True)
    told = [c for p in parts for c in (p.choices[0].logprobs.content or [])]
    assert [c.token for c in told] == [c.token for c in content] and told[0].top_logprobs == []
    plain = client.completions.create(
        model="stdlib", prompt="def ", max_tokens=4, logprobs=1, temperature=0
    )
    shown: Any = plain.choices[0].logprobs
    assert "".join(shown.tokens) == plain.choices[0].text and shown.text_offset[1] == len(
        shown.tokens[0]
    )
    first = model.chat(SAID, Sampling(temperature=0), most=1)
    assert list(first) is not None
    other = client.chat.completions.create(**asked, logit_bias={str(first.tokens[0]): -100})
    assert other.choices[0].message.content != found.choices[0].message.content


def test_vectors_come_as_the_client_asks(client: openai.OpenAI, model: LanguageModel) -> None:
    found = client.embeddings.create(model="stdlib", input="heap")
    assert found.data[0].embedding == pytest.approx(model.embed("heap").tolist(), abs=1e-6)
    assert found.usage.prompt_tokens == len(model.tokenizer.encode("heap"))


def test_one_who_waits_and_goes_away_is_not_answered(address: str, model: LanguageModel) -> None:
    asked = {"messages": SAID, "max_tokens": 100, "temperature": 2, "n": 4}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{address}/chat/completions",
            json=asked,
            timeout=httpx.Timeout(PATIENCE, read=0.05),
            headers={"Authorization": "Bearer secret"},
        )
    end = time.monotonic() + PATIENCE
    while model.batch.running and time.monotonic() < end:
        time.sleep(0.01)
    assert not model.batch.running


def test_one_who_goes_away_while_pieces_come_is_noticed() -> None:
    class Endless:
        """An answer that goes on until it is told to end."""

        def __init__(self) -> None:
            self.ended = threading.Event()
            self.close, self.end = self.ended.set, self.ended.set

        def __iter__(self) -> Iterator[str]:
            while not self.ended.wait(0.001):
                yield "x"

    class Gone:
        """A request whose client has gone."""

        async def is_disconnected(self) -> bool:
            return True

    async def read(answer: Any, request: Any) -> int:
        return len([piece async for piece in _pieces([answer], request)])

    answer = Endless()
    assert asyncio.run(asyncio.wait_for(read(answer, Gone()), PATIENCE)) and answer.ended.is_set()


def test_who_ends_the_server_ends_its_answers(model: LanguageModel) -> None:
    config = uvicorn.Config(application(model, "stdlib", None), port=0, log_level="error")
    server = Served(model, config)
    answer = model.generate("def ", Sampling(temperature=0.0))
    next(iter(answer))
    server.handle_exit(signal.SIGTERM, None)
    assert server.should_exit and list(answer) and answer.finish == "length"
    assert len(answer.tokens) < 4


def test_what_is_refused_is_said(address: str, client: openai.OpenAI) -> None:
    with (
        openai.OpenAI(base_url=address, api_key="other") as other,
        pytest.raises(openai.AuthenticationError, match="API key"),
    ):
        other.models.list()
    assert client.models.retrieve("stdlib").id == "stdlib"
    for ask in (
        client.models.retrieve,
        lambda name: client.embeddings.create(model=name, input="x"),
    ):
        with pytest.raises(openai.NotFoundError, match="this server has 'stdlib'") as refused:
            ask("org/other")
        assert refused.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="the context 128"):
        client.completions.create(model="stdlib", prompt="heap " * 300)
    for wrong, message in (
        ({"n": 10**9}, "n is 1000000000; 1 to 16"), ({"temperature": -1}, "temperature is -1"),
        ({"logit_bias": {"x": 1}}, "logit_bias must be"), ({"logit_bias": {"99999": 1}}, "none of the vocabulary"),
        ({"top_logprobs": 3}, "only there with logprobs"), ({"logprobs": True, "top_logprobs": 99}, "up to 20"),
        ({"response_format": {"type": "xml"}}, "must have a type"), (_schema({"type": "nope"}), "Invalid type: nope"),
        (_schema({"type": "string", "pattern": "((("}), "unclosed group"), (_schema({"$ref": "#/x"}), "does not exist"),
        ({"extra_body": {"grammar": "root ::= ("}}, r"Expected '\)'"),
        ({"tool_choice": "required"}, "there are no tools"),
        ({"tools": [{"type": "function"}]}, "tools must be"), ({"frequency_penalty": 9}, "frequency_penalty is 9"),
        (_schema({"enum": ["x" * 999] * 2000}), "at most 1,048,576"),
        ({"max_tokens": 0}, "max_tokens is 0"), ({"messages": []}, "messages must be"),
        ({"stop": [1]}, "stop must be"), ({"stop": ["x"] * 99}, "stop has at most 16"), ({"stream": 3}, "stream is 3"),
        ({"stream_options": [1]}, "stream_options is"), ({"top_p": "x"}, "a number is wanted"),
        ({"messages": [{"role": "user", "content": "x" * 99999}]}, "letters"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "must be text"),
    ):  # fmt: skip
        given: Any = {"model": "stdlib", "messages": SAID} | wrong
        with pytest.raises(openai.BadRequestError, match=message):
            client.chat.completions.create(**given)
    key = {"Authorization": "Bearer secret"}
    post = f"{address}/chat/completions"
    # A page of another site may send forms and use a name of its own.
    assert httpx.post(post, content="{}", headers=key).status_code == 415
    assert (
        httpx.get(f"{address}/models", headers={**key, "Host": "evil.example"}).status_code == 400
    )
    tool = {"type": "function", "function": {"name": "f"}}
    for path, more in (
        ("chat/completions", {"tools": [tool], "tool_choice": {"function": 5}}), ("chat/completions", {"tools": {}}),
        ("completions", {"prompt": [[1.5]]}), ("embeddings", {"input": [["x"]]}),
    ):  # fmt: skip
        answer = httpx.post(
            f"{address}/{path}", json={"messages": SAID, "max_tokens": 1} | more, headers=key
        )
        assert answer.status_code == 400 and answer.json()["error"]["type"], path
    for told, status in (("bearer secret", 200), ("secret", 401), ("Basic secret", 401)):
        answer = httpx.get(f"{address}/models", headers={"Authorization": told})
        assert answer.status_code == status
    for body in ("[", "[]", "[" * 9999):
        answer = httpx.post(post, content=body, headers={**key, "Content-Type": "application/json"})
        assert answer.status_code == 400, body[:9]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/chat/completions", 405), ("POST", "/responses", 404), ("GET", "/../", 404)],
)
def test_places_that_are_not_there_are_said_as_openai_does(
    method: str, path: str, status: int, address: str
) -> None:
    answer = httpx.request(method, f"{address}{path}", headers={"Authorization": "Bearer secret"})
    assert answer.status_code == status
    said = answer.json()["error"]
    assert said["code"] == "unknown_url" and method in said["message"]
