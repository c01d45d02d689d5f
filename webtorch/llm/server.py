"""A language model behind OpenAI's interface: /v1/chat/completions, /v1/completions, /v1/embeddings, /v1/models.

Needs starlette. What a client asks for and is not there is refused, not left out.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import hmac
import json
import logging
import struct
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from webtorch.errors import WebtorchError
from webtorch.llm.batch import ContextFullError
from webtorch.llm.grammar import Grammar
from webtorch.llm.language import Answer, LanguageModel
from webtorch.llm.sampling import MOST_LIKELY, Sampling
from webtorch.llm.template import Message, TemplateError
from webtorch.llm.tokens import bytes_of
from webtorch.llm.tools import Call, Form, Reader, form_of

# An object of JSON.
Json = dict[str, Any]

# Longer bodies are no conversation.
_MOST_BYTES = 1 << 25
# How many answers a request may ask for, and how many may be made or wait in all; texts to be made vectors.
_MOST_ANSWERS, _MOST_WAITING, _MOST_TEXTS = 16, 256, 2048
# Seconds after which it is looked again whether a client is still there.
_LOOK = 0.25
# Texts that end an answer, and their letters.
_MOST_STOPS, _LONGEST_STOP = 16, 1024
# Nobody's log probability is less; JSON has no infinity.
_LEAST = -9999.0
# What may be asked for only with these values.
_ONLY: dict[str, tuple[object, ...]] = {
    "best_of": (None, 1), "echo": (None, False), "suffix": (None, ""), "functions": (None, []), "dimensions": (None,),
    "encoding_format": (None, "float", "base64"), "audio": (None,), "modalities": (None, ["text"]),
}  # fmt: skip


class _RefusedError(Exception):
    """A request that is answered by an error: its status, a message, and what the message is about."""

    def __init__(
        self, message: str, status: int = 400, param: str | None = None, code: str | None = None
    ) -> None:
        """Take all of them."""
        super().__init__(message)
        self.status, self.param, self.code = status, param, code


_KINDS = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error"}


def _told(message: str, status: int, param: str | None = None, code: str | None = None) -> Json:
    kind = _KINDS.get(status, "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _error(
    message: str, status: int, param: str | None = None, code: str | None = None
) -> JSONResponse:
    return JSONResponse(_told(message, status, param, code), status)


async def _body(request: Request) -> Json:
    """Return the object that a request sends."""
    if "json" not in request.headers.get("content-type", ""):
        raise _RefusedError("the content type must be application/json", 415)
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > _MOST_BYTES:
            raise _RefusedError("the request is too long", 413)
    try:
        body = json.loads(bytes(data))
    except (ValueError, RecursionError):
        raise _RefusedError("the request is no JSON") from None
    if not isinstance(body, dict):
        raise _RefusedError("the request must be an object")
    for name, values in _ONLY.items():
        if body.get(name) not in values:
            raise _RefusedError(f"{name} is {body[name]!r}, which is not available here")
    for name, kind in (("stream", bool), ("stream_options", dict)):
        if not isinstance(body.get(name), (kind, type(None))):
            raise _RefusedError(f"{name} is {body[name]!r}, which it cannot be")
    return body


def _number(body: Json, name: str, default: Any, kind: type = float) -> Any:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, kind)):
        raise _RefusedError(f"{name} is {value!r}; a number is wanted")
    return value


def _sampling(body: Json) -> Sampling:
    usual = Sampling()
    told: Json = {
        name: _number(body, name, getattr(usual, name))
        for name in (
            "temperature", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty",
        )
    }  # fmt: skip
    bias = body.get("logit_bias") or {}
    if not isinstance(bias, dict):
        raise _RefusedError("logit_bias must be an object: numbers of tokens, and what is added")
    try:
        added = {int(k): _number(bias, k, 0.0) for k in bias}
    except ValueError:
        raise _RefusedError(
            "logit_bias must be an object: numbers of tokens, and what is added"
        ) from None
    return Sampling(
        **told, top_k=_number(body, "top_k", usual.top_k, int), seed=_number(body, "seed", None, int), bias=added,
    )  # fmt: skip


def _each(body: Json, sampling: Sampling) -> list[Sampling]:
    """Return how each of the answers (n) is drawn."""
    count = _number(body, "n", 1, int)
    if not 1 <= count <= _MOST_ANSWERS:
        raise _RefusedError(f"n is {count}; 1 to {_MOST_ANSWERS} is wanted")
    seed = sampling.seed
    seeds = [None if seed is None else seed + i for i in range(count)]
    return [dataclasses.replace(sampling, seed=s) for s in seeds]


def _likely(body: Json, chat: bool) -> int | None:
    """Return of how many tokens in each place the log probabilities are wanted; None: of no token."""
    wanted = body.get("logprobs")
    if chat:
        if wanted not in (None, True, False):
            raise _RefusedError(f"logprobs is {wanted!r}; true or false is wanted")
        count = _number(body, "top_logprobs", 0, int)
        if count and not wanted:
            raise _RefusedError("top_logprobs is only there with logprobs")
        found = count if wanted else None
    else:
        found = None if wanted is False else _number(body, "logprobs", None, int)
    if found is not None and not 0 <= found <= MOST_LIKELY:
        raise _RefusedError(f"{found} log probabilities are wanted; there are up to {MOST_LIKELY}")
    return found


def _grammar(body: Json) -> Grammar | None:
    """Return what an answer may be."""
    told, text = body.get("response_format"), body.get("grammar")
    kind = told.get("type") if isinstance(told, dict) else None
    if told is not None and kind not in ("text", "json_object", "json_schema"):
        raise _RefusedError("response_format must have a type: text, json_object or json_schema")
    if text is not None:
        if not isinstance(text, str) or kind not in (None, "text"):
            raise _RefusedError("grammar must be a text, with no other response_format")
        return Grammar.of_gbnf(text)
    if kind in (None, "text"):
        return None
    if kind == "json_object":
        return Grammar.of_schema()
    assert isinstance(told, dict)
    schema = told.get("json_schema")
    if not isinstance(schema, dict) or not isinstance(schema.get("schema"), dict):
        raise _RefusedError("json_schema must have a schema, an object")
    return Grammar.of_schema(schema["schema"])


@dataclass(frozen=True)
class _Tools:
    """What a request says of tools: how calls are written, and which must be called."""

    form: Form | None = None
    names: Json = field(default_factory=dict)  # for the template
    called: Grammar | None = None
    most: int | None = None  # calls, where there may be only so many


def _tools(body: Json, template: str | None) -> _Tools:
    tools, choice = body.get("tools"), body.get("tool_choice")
    tools = [] if tools is None else tools
    fine = isinstance(tools, list) and all(
        isinstance(t, dict)
        and t.get("type") == "function"
        and isinstance(t.get("function"), dict)
        and isinstance(t["function"].get("name"), str)
        and isinstance(t["function"].get("parameters") or {}, dict)
        for t in tools
    )
    if not fine:
        raise _RefusedError("tools must be a list of functions, each with a name and parameters")
    if choice not in (None, "none", "auto", "required") and not isinstance(choice, dict):
        raise _RefusedError("tool_choice must be none, auto, required or a function")
    if not tools:
        if choice not in (None, "none", "auto"):
            raise _RefusedError("tool_choice asks for a call, and there are no tools")
        return _Tools()
    if choice == "none":
        return _Tools()
    form = form_of(template)
    if form is None:
        raise _RefusedError(
            "the chat template of this model knows no tools, or none that are read here"
        )
    names = {"tools": tools}
    most = 1 if isinstance(choice, dict) or body.get("parallel_tool_calls") is False else None
    if choice in (None, "auto"):
        return _Tools(form, names, most=most)
    wanted = tools
    if isinstance(choice, dict):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else function
        wanted = [t for t in tools if t["function"]["name"] == name]
        if not wanted:
            raise _RefusedError(f"tool_choice is {name!r}, which is none of the tools")
    if body.get("response_format") or body.get("grammar"):
        raise _RefusedError("a call that must be cannot have another form")
    return _Tools(form, names, form.grammar(wanted, most or 8), most)


def _limits(body: Json, usual: int | None) -> tuple[int | None, list[str]]:
    """Return how many tokens there may be, and the texts that end an answer."""
    most = _number(body, "max_completion_tokens", _number(body, "max_tokens", usual, int), int)
    if most is not None and most < 1:
        raise _RefusedError(f"max_tokens is {most}; at least 1 is wanted")
    stop = body.get("stop") or []
    stop = [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or not all(isinstance(s, str) for s in stop):
        raise _RefusedError("stop must be a text, or a list of them")
    if len(stop) > _MOST_STOPS or any(len(s) > _LONGEST_STOP for s in stop):
        raise _RefusedError(f"stop has at most {_MOST_STOPS} texts of {_LONGEST_STOP} letters")
    return most, stop


def _messages(body: Json) -> list[Message]:
    """Return a conversation; a content of parts is their text."""
    found = body.get("messages")
    if not isinstance(found, list) or not found:
        raise _RefusedError("messages must be a list that is not empty")
    out = []
    for message in found:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _RefusedError("a message must have a role and a content")
        content = message.get("content")
        if isinstance(content, list):
            parts = [
                p.get("text") for p in content if isinstance(p, dict) and p.get("type") == "text"
            ]
            if len(parts) != len(content) or not all(isinstance(p, str) for p in parts):
                raise _RefusedError("a content must be text")
            content = "".join(p for p in parts if isinstance(p, str))
        calls = message.get("tool_calls")
        if content is None and calls:
            content = ""
        if not isinstance(content, str):
            raise _RefusedError("a message must have a role and a content")
        made = {**message, "content": content}
        out.append(made if not calls else {**made, "tool_calls": _said_calls(calls)})
    return out


def _said_calls(calls: object) -> list[Json]:
    """Return the calls of a message as templates read them: arguments are an object."""
    out: list[Json] = []
    for call in calls if isinstance(calls, list) else [None]:
        if not isinstance(call, dict):
            raise _RefusedError("tool_calls must be a list of calls of functions")
        function = call.get("function")
        if not isinstance(function, dict):
            raise _RefusedError("tool_calls must be a list of calls of functions")
        given = function.get("arguments")
        if isinstance(given, str):
            with contextlib.suppress(ValueError):
                given = json.loads(given)
        out.append({**call, "function": {**function, "arguments": given}})
    return out


def _inputs(body: Json, name: str) -> list[str | list[int]]:
    """Return texts, or lists of tokens, of which there may be one or a list."""
    value = body.get(name)
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if _are_tokens(value):
            return [value]
        if all(isinstance(v, str) or (isinstance(v, list) and _are_tokens(v)) for v in value):
            return value
    raise _RefusedError(f"{name} must be a text, tokens, or a list of these")


def _are_tokens(value: list[Any]) -> bool:
    return all(type(v) is int for v in value)


async def _pieces(
    answers: Sequence[Answer], request: Request | None = None
) -> AsyncIterator[tuple[int, str | None]]:
    """Yield numbers of answers and their text as it comes, None at their end. Threads make them, which end when
    nobody waits any more: where this is closed, or the client of the request has gone.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[int, str | BaseException | None]] = asyncio.Queue()

    def put(number: int, item: str | BaseException | None) -> None:
        """Hand something over, unless the server has ended."""
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(queue.put_nowait, (number, item))

    def work(number: int, answer: Answer) -> None:
        """Make an answer."""
        end: BaseException | None = None
        try:
            for piece in answer:
                put(number, piece)
        except Exception as error:
            end = error
        finally:
            answer.close()
            put(number, end)

    for given in enumerate(answers):
        threading.Thread(target=work, args=given, name="webtorch answer", daemon=True).start()
    left, due = len(answers), loop.time() + _LOOK
    try:
        while left:
            found = None
            with contextlib.suppress(TimeoutError):
                wait = None if request is None else max(0.0, due - loop.time())
                found = await asyncio.wait_for(queue.get(), wait)
            # Also while pieces come.
            if request is not None and loop.time() >= due:
                if await request.is_disconnected():
                    return
                due = loop.time() + _LOOK
            if found is None:
                continue
            number, item = found
            if isinstance(item, BaseException):
                raise item
            left -= item is None
            yield number, item
    finally:
        for answer in answers:
            answer.end()


class _Choice:
    """An answer as it comes: its text, its calls, and the log probabilities of its tokens."""

    def __init__(
        self, model: LanguageModel, answer: Answer, chat: bool, top: int | None, tools: _Tools
    ) -> None:
        """Begin."""
        self.answer, self.chat, self.top, self.tokens = answer, chat, top, model.tokenizer
        begun = tools.form.begin if tools.form is not None and tools.called is not None else ""
        self.reader = None if tools.form is None else Reader(tools.form, begun)
        self.calls, self.most = list[Call](), tools.most
        self.told = self.at = 0

    def feed(self, piece: str | None) -> str:
        """Take a piece, or None for the end; return what it says."""
        if self.reader is None:
            return piece or ""
        if piece is not None:
            return self.reader.feed(piece)
        out, calls = self.reader.end()
        self.calls = calls[: self.most]
        return out

    @property
    def finish(self) -> str:
        """Return why it ended."""
        return "tool_calls" if self.calls else self.answer.finish

    def likely(self) -> Json | None:
        """Return the log probabilities of the tokens that came since the last call."""
        if self.top is None:
            return None
        found = self.answer.likely[self.told : len(self.answer.tokens)]
        pairs = list(zip(self.answer.tokens[self.told :], found, strict=False))
        self.told += len(pairs)
        if self.chat:
            content = [
                self._token(t, p.value)
                | {"top_logprobs": [self._token(*top) for top in p.top[: self.top]]}
                for t, p in pairs
            ]
            return {"content": content, "refusal": None}
        texts = [self._text(t) for t, _ in pairs]
        offsets = []
        for text in texts:
            offsets.append(self.at)
            self.at += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [max(p.value, _LEAST) for _, p in pairs],
            "top_logprobs": [
                {self._text(t): max(v, _LEAST) for t, v in p.top[: self.top]} for _, p in pairs
            ],
            "text_offset": offsets,
        }

    def _text(self, token: int) -> str:
        return bytes_of(self.tokens, token).decode("utf-8", "replace")

    def _token(self, token: int, value: float) -> Json:
        bits = list(bytes_of(self.tokens, token))
        return {"token": self._text(token), "logprob": max(value, _LEAST), "bytes": bits}


def _usage(prompts: Sequence[list[int]], answers: Sequence[Answer]) -> dict[str, int]:
    read, made = sum(map(len, prompts)), sum(len(a.tokens) for a in answers)
    return {"prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made}


def _said_call(call: Call, index: int | None = None) -> Json:
    place = {} if index is None else {"index": index}
    function = {"name": call.name, "arguments": call.arguments}
    return {**place, "id": call.id, "type": "function", "function": function}


class _Kind:
    """What differs between chats and completions: names, and how a text is put into a choice."""

    def __init__(self, chat: bool, name: str) -> None:
        """Begin an answer."""
        self.chat = chat
        self.head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": name,
        }
        self.object = "chat.completion" if chat else "text_completion"

    def whole(self, texts: Sequence[str], choices: Sequence[_Choice]) -> list[Json]:
        """Return whole answers."""
        out = []
        for i, (text, choice) in enumerate(zip(texts, choices, strict=True)):
            said: Json = {"text": text}
            if self.chat:
                message: Json = {"role": "assistant", "content": text}
                if choice.calls:
                    message |= {"content": text.strip() or None}
                    message |= {"tool_calls": [_said_call(c) for c in choice.calls]}
                said = {"message": message}
            ending = {"finish_reason": choice.finish, "logprobs": choice.likely()}
            out.append({"index": i, **said, **ending})
        return out

    def part(
        self, said: str | Json | None, choice: _Choice, index: int, ends: bool = False
    ) -> Json:
        """Return a piece of an answer: a text, or calls; None: only its end."""
        if self.chat:
            given = {"content": said} if isinstance(said, str) else said or {}
            told: Json = {"delta": {"role": "assistant", **given} if given else {}}
        else:
            told = {"text": said or ""}
        ending = {"finish_reason": choice.finish if ends else None, "logprobs": choice.likely()}
        return self.event([{"index": index, **told, **ending}])

    def event(self, choices: list[Json]) -> Json:
        """Return what an event of a stream has."""
        name = f"{self.object}.chunk" if self.chat else self.object
        return {**self.head, "object": name, "choices": choices}


def _event(data: Json) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"


async def _stream(
    kind: _Kind, choices: Sequence[_Choice], prompts: Sequence[list[int]], usage: bool
) -> AsyncIterator[str]:
    """Yield the events of answers, as they come."""
    answers = [c.answer for c in choices]
    try:
        async with contextlib.aclosing(_pieces(answers)) as pieces:  # type: ignore[type-var]
            async for index, piece in pieces:
                choice = choices[index]
                said = choice.feed(piece)
                if said:
                    yield _event(kind.part(said, choice, index))
                if piece is None:
                    if choice.calls:
                        calls = [_said_call(c, i) for i, c in enumerate(choice.calls)]
                        yield _event(kind.part({"tool_calls": calls}, choice, index))
                    yield _event(kind.part(None, choice, index, ends=True))
    except WebtorchError as error:
        yield _event(_told(str(error), 500))
        return
    if usage:
        yield _event({**kind.event([]), "usage": _usage(prompts, answers)})
    yield "data: [DONE]\n\n"


async def _answered(
    request: Request,
    body: Json,
    kind: _Kind,
    choices: Sequence[_Choice],
    prompts: Sequence[list[int]],
) -> Response:
    if body.get("stream"):
        usage = bool((body.get("stream_options") or {}).get("include_usage"))
        return StreamingResponse(
            _stream(kind, choices, prompts, usage),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache"},
        )
    texts = [""] * len(choices)
    answers = [c.answer for c in choices]
    async with contextlib.aclosing(_pieces(answers, request)) as pieces:  # type: ignore[type-var]
        async for index, piece in pieces:
            texts[index] += choices[index].feed(piece)
    told = kind.whole(texts, choices)
    usage_told = _usage(prompts, answers)
    return JSONResponse({**kind.head, "object": kind.object, "choices": told, "usage": usage_told})


Endpoint = Callable[[Request], Awaitable[Response]]


class _Server:
    """The endpoints of a model, which clients call `name`; `key`: what they must send."""

    def __init__(self, model: LanguageModel, name: str, key: str | None) -> None:
        """Take all three."""
        self.model, self.name, self.key = model, name, key

    def guarded(self, endpoint: Endpoint) -> Endpoint:
        """Return an endpoint that asks for the key, and answers what is refused."""

        async def answer(request: Request) -> Response:
            """Answer a request."""
            scheme, _, given = request.headers.get("authorization", "").partition(" ")
            told = scheme.lower() == "bearer" and hmac.compare_digest(
                given.encode(), (self.key or "").encode()
            )
            if self.key is not None and not told:
                return _error("the API key is missing or wrong", 401)
            try:
                return await endpoint(request)
            except _RefusedError as error:
                return _error(str(error), error.status, error.param, error.code)
            except (ContextFullError, TemplateError, ValueError) as error:
                return _error(str(error), 400)
            except asyncio.CancelledError:
                return _error("the server ends", 503)
            except RecursionError:
                return _error("the request is too deep", 400)
            except Exception as error:
                logging.getLogger("uvicorn.error").exception("a request failed")
                return _error(f"{type(error).__name__}: {error}", 500)

        return answer

    def _refuse_others(self, name: object) -> None:
        """Refuse what is asked of another model; who names none means this one."""
        if name not in (None, "", self.name):
            raise _RefusedError(
                f"the model {name!r} does not exist: this server has {self.name!r}",
                404, "model", "model_not_found",
            )  # fmt: skip

    async def _asked(self, request: Request) -> Json:
        """Return what a request asks of this model."""
        body = await _body(request)
        self._refuse_others(body.get("model"))
        return body

    async def models(self, request: Request) -> Response:
        """List the model, or tell of it."""
        asked = request.path_params.get("name")
        self._refuse_others(asked)
        entry = {"id": self.name, "object": "model", "created": 0, "owned_by": "webtorch"}
        return JSONResponse(entry if asked else {"object": "list", "data": [entry]})

    def _refuse_many(self, count: int) -> None:
        """Refuse what would wait for too long."""
        if count + self.model.batch.running > _MOST_WAITING:
            raise _RefusedError("too many answers are asked for; try again later", 429)

    async def chat(self, request: Request) -> Response:
        """Answer a conversation."""
        body = await self._asked(request)
        most, stop = _limits(body, None)
        each, top, messages = _each(body, _sampling(body)), _likely(body, True), _messages(body)
        self._refuse_many(len(each))

        def begin() -> list[_Choice]:
            """Begin the answers; grammars and templates take their time."""
            tools, grammar = _tools(body, self.model.template), _grammar(body)
            form = tools.form
            names: Json = dict(tools.names)
            if form is not None:
                names["shown"] = [t for t in (form.begin, form.end) if t]
                names["begun"] = form.begin if tools.called is not None else ""
            answers = [
                self.model.chat(
                    messages, s, most=most, stop=stop, grammar=tools.called or grammar, likely=top is not None,
                    **names,
                )
                for s in each
            ]  # fmt: skip
            return [_Choice(self.model, a, True, top, tools) for a in answers]

        choices = await asyncio.to_thread(begin)
        prompts = [choices[0].answer.prompt]
        return await _answered(request, body, _Kind(True, self.name), choices, prompts)

    async def completions(self, request: Request) -> Response:
        """Go on with texts."""
        body = await self._asked(request)
        most, stop = _limits(body, 16)
        each, prompts = _each(body, _sampling(body)), _inputs(body, "prompt")
        top = _likely(body, False)
        self._refuse_many(len(each) * len(prompts))

        def begin() -> list[_Choice]:
            """Begin the answers."""
            grammar = _grammar(body)
            answers = [
                self.model.generate(
                    p, s, most=most, stop=stop, grammar=grammar, likely=top is not None
                )
                for p in prompts
                for s in each
            ]
            return [_Choice(self.model, a, False, top, _Tools()) for a in answers]

        choices = await asyncio.to_thread(begin)
        read = [c.answer.prompt for c in choices[:: len(each)]]
        return await _answered(request, body, _Kind(False, self.name), choices, read)

    async def embeddings(self, request: Request) -> Response:
        """Return texts as vectors."""
        body = await self._asked(request)
        inputs = _inputs(body, "input")
        if len(inputs) > _MOST_TEXTS:
            raise _RefusedError(f"there are {len(inputs)} texts; at most {_MOST_TEXTS} are wanted")
        data, count = [], 0
        for i, text in enumerate(inputs):
            given = (
                await asyncio.to_thread(self.model.encode, text) if isinstance(text, str) else text
            )
            count += len(given)
            vector: Any = (await asyncio.to_thread(self.model.embed, given)).tolist()
            if body.get("encoding_format") == "base64":
                vector = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
            data.append({"object": "embedding", "index": i, "embedding": vector})
            if await request.is_disconnected():
                break
        usage = {"prompt_tokens": count, "total_tokens": count}
        return JSONResponse({"object": "list", "data": data, "model": self.name, "usage": usage})


async def _unknown(request: Request, error: Exception) -> Response:
    """Say that there is no such place, or not by this method."""
    assert isinstance(error, HTTPException)
    said = f"there is no {request.method} {request.url.path} here: {error.detail}"
    made = _error(said, error.status_code, code="unknown_url")
    made.headers.update(error.headers or {})
    return made


def _is_fault(record: logging.LogRecord) -> bool:
    """Return whether a line of the log is of something else than a task that was ended."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


class Served(uvicorn.Server):
    """A server that ends what is being answered when it is told to end, so that nobody waits for the rest."""

    def __init__(self, model: LanguageModel, config: uvicorn.Config) -> None:
        """Take the model that the application answers with."""
        super().__init__(config)
        self.model = model
        # Who reads no more is cut off at the end, which is no fault of the server's.
        logging.getLogger("uvicorn.error").addFilter(_is_fault)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End answers, then as usual."""
        self.model.batch.stop()
        super().handle_exit(sig, frame)


def application(
    model: LanguageModel,
    name: str,
    key: str | None = None,
    hosts: Sequence[str] = ("127.0.0.1", "localhost"),
) -> Starlette:
    """Return the server of a model, an ASGI application.

    name: what the model is called. key: what clients must send (Authorization: Bearer ...). hosts: the names under
    which it may be asked ("*": any), so that pages in a browser do not reach it by a name of theirs.
    """
    server = _Server(model, name, key)
    routes = [
        Route("/v1/models", server.guarded(server.models)),
        Route("/v1/models/{name:path}", server.guarded(server.models)),
        Route("/v1/chat/completions", server.guarded(server.chat), methods=["POST"]),
        Route("/v1/completions", server.guarded(server.completions), methods=["POST"]),
        Route("/v1/embeddings", server.guarded(server.embeddings), methods=["POST"]),
    ]
    trusted = Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    return Starlette(
        routes=routes, middleware=[trusted], exception_handlers={HTTPException: _unknown}
    )
