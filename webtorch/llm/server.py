"""A language model behind OpenAI's interface: /v1/chat/completions, /v1/completions, /v1/embeddings, /v1/models.

Needs starlette. What a client asks for and is not there is refused, not left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from webtorch.llm.batch import ContextFullError
from webtorch.llm.language import Answer, LanguageModel
from webtorch.llm.sampling import Sampling
from webtorch.llm.template import Message, TemplateError

__all__ = ["application"]

# Longer bodies are no conversation.
_MOST_BYTES = 1 << 25
# What may be asked for only with these values.
_ONLY: dict[str, tuple[object, ...]] = {
    "n": (None, 1), "best_of": (None, 1), "logprobs": (None, False, 0), "top_logprobs": (None, 0),
    "echo": (None, False), "suffix": (None, ""), "tools": (None, []), "functions": (None, []), "logit_bias": (None, {}),
    "frequency_penalty": (None, 0), "presence_penalty": (None, 0), "response_format": (None, {"type": "text"}),
    "dimensions": (None,), "encoding_format": (None, "float"),
}  # fmt: skip


class _RefusedError(Exception):
    """A request that is answered by an error: its status and a message."""

    def __init__(self, message: str, status: int = 400) -> None:
        """Take both."""
        super().__init__(message)
        self.status = status


def _error(message: str, status: int) -> JSONResponse:
    kind = "authentication_error" if status == 401 else "invalid_request_error"
    told = {"message": message, "type": kind, "param": None, "code": None}
    return JSONResponse({"error": told}, status)


async def _body(request: Request) -> dict[str, Any]:
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
    return body


def _number(body: dict[str, Any], name: str, default: Any, kind: type = float) -> Any:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, kind)):
        raise _RefusedError(f"{name} is {value!r}; a number is wanted")
    return value


def _sampling(body: dict[str, Any]) -> Sampling:
    usual = Sampling()
    told: dict[str, Any] = {
        name: _number(body, name, getattr(usual, name))
        for name in ("temperature", "top_p", "min_p", "repetition_penalty")
    }
    return Sampling(
        **told,
        top_k=_number(body, "top_k", usual.top_k, int),
        seed=_number(body, "seed", None, int),
    )


def _limits(body: dict[str, Any], usual: int | None) -> tuple[int | None, list[str]]:
    """Return how many tokens there may be, and the texts that end an answer."""
    most = _number(body, "max_completion_tokens", _number(body, "max_tokens", usual, int), int)
    if most is not None and most < 1:
        raise _RefusedError(f"max_tokens is {most}; at least 1 is wanted")
    stop = body.get("stop") or []
    stop = [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or not all(isinstance(s, str) for s in stop):
        raise _RefusedError("stop must be a text, or a list of them")
    return most, stop


def _messages(body: dict[str, Any]) -> list[Message]:
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
            if len(parts) != len(content):
                raise _RefusedError("a content must be text")
            content = "".join(map(str, parts))
        if not isinstance(content, str):
            raise _RefusedError("a message must have a role and a content")
        out.append({**message, "content": content})
    return out


def _inputs(body: dict[str, Any], name: str) -> list[str | list[int]]:
    """Return texts, or lists of tokens, of which there may be one or a list."""
    value = body.get(name)
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if all(isinstance(v, int) and not isinstance(v, bool) for v in value):
            return [value]
        if all(isinstance(v, (str, list)) for v in value):
            return value
    raise _RefusedError(f"{name} must be a text, tokens, or a list of these")


async def _pieces(answer: Answer) -> AsyncIterator[str]:
    """Yield an answer's text. A thread makes it; it ends when nobody waits any more."""
    loop, gone = asyncio.get_running_loop(), threading.Event()
    queue: asyncio.Queue[str | BaseException | None] = asyncio.Queue()

    def put(item: str | BaseException | None) -> None:
        """Hand something over, unless the server has ended."""
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(queue.put_nowait, item)

    def work() -> None:
        """Make the answer."""
        end: BaseException | None = None
        try:
            for piece in answer:
                if gone.is_set():
                    break
                put(piece)
        except Exception as error:
            end = error
        finally:
            answer.close()
            put(end)

    threading.Thread(target=work, name="webtorch answer", daemon=True).start()
    try:
        while (item := await queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        gone.set()


def _usage(answers: Sequence[Answer]) -> dict[str, int]:
    read, made = sum(len(a.prompt) for a in answers), sum(len(a.tokens) for a in answers)
    return {"prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made}


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

    def whole(self, texts: Sequence[str], answers: Sequence[Answer]) -> dict[str, Any]:
        """Return a whole answer."""
        choices = []
        for i, (text, answer) in enumerate(zip(texts, answers, strict=True)):
            said = (
                {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
            )
            choices.append({"index": i, **said, "finish_reason": answer.finish, "logprobs": None})
        return {**self.head, "object": self.object, "choices": choices, "usage": _usage(answers)}

    def part(self, text: str | None, finish: str | None = None, index: int = 0) -> dict[str, Any]:
        """Return a piece of an answer; None: only its end."""
        if self.chat:
            said: dict[str, Any] = {
                "delta": {} if text is None else {"role": "assistant", "content": text}
            }
        else:
            said = {"text": text or ""}
        choice = {"index": index, **said, "finish_reason": finish, "logprobs": None}
        name = f"{self.object}.chunk" if self.chat else self.object
        return {**self.head, "object": name, "choices": [choice]}


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"


async def _stream(kind: _Kind, answers: Sequence[Answer], usage: bool) -> AsyncIterator[str]:
    """Yield the events of answers, one after the other."""
    for index, answer in enumerate(answers):
        async with contextlib.aclosing(_pieces(answer)) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                if piece:
                    yield _event(kind.part(piece, index=index))
        yield _event(kind.part(None, answer.finish, index))
    if usage:
        yield _event({**kind.part(None), "choices": [], "usage": _usage(answers)})
    yield "data: [DONE]\n\n"


async def _collected(request: Request, answer: Answer) -> str:
    """Return an answer's text; where the client has gone, what there is till then."""
    out = []
    async with contextlib.aclosing(_pieces(answer)) as pieces:  # type: ignore[type-var]
        async for piece in pieces:
            out.append(piece)
            if await request.is_disconnected():
                break
    return "".join(out)


async def _answered(
    request: Request, body: dict[str, Any], kind: _Kind, answers: Sequence[Answer]
) -> Response:
    if body.get("stream"):
        usage = bool((body.get("stream_options") or {}).get("include_usage"))
        return StreamingResponse(
            _stream(kind, answers, usage),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache"},
        )
    texts = [await _collected(request, answer) for answer in answers]
    return JSONResponse(kind.whole(texts, answers))


Endpoint = Callable[[Request], Awaitable[Response]]


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

    def guarded(endpoint: Endpoint) -> Endpoint:
        """Return an endpoint that asks for the key, and answers what is refused."""

        async def answer(request: Request) -> Response:
            """Answer a request."""
            given = request.headers.get("authorization", "").removeprefix("Bearer ")
            if key is not None and not hmac.compare_digest(given.encode(), key.encode()):
                return _error("the API key is missing or wrong", 401)
            try:
                return await endpoint(request)
            except _RefusedError as error:
                return _error(str(error), error.status)
            except (ContextFullError, TemplateError, ValueError) as error:
                return _error(str(error), 400)

        return answer

    async def models(_: Request) -> Response:
        """List the model."""
        entry = {"id": name, "object": "model", "created": 0, "owned_by": "webtorch"}
        return JSONResponse({"object": "list", "data": [entry]})

    async def chat(request: Request) -> Response:
        """Answer a conversation."""
        body = await _body(request)
        most, stop = _limits(body, None)
        answer = model.chat(_messages(body), _sampling(body), most=most, stop=stop)
        return await _answered(request, body, _Kind(True, name), [answer])

    async def completions(request: Request) -> Response:
        """Go on with texts."""
        body = await _body(request)
        most, stop = _limits(body, 16)
        sampling, prompts = _sampling(body), _inputs(body, "prompt")
        answers = [model.generate(p, sampling, most=most, stop=stop) for p in prompts]
        return await _answered(request, body, _Kind(False, name), answers)

    async def embeddings(request: Request) -> Response:
        """Return texts as vectors."""
        body = await _body(request)
        inputs = _inputs(body, "input")
        vectors = [(await asyncio.to_thread(model.embed, t)).tolist() for t in inputs]
        data = [{"object": "embedding", "index": i, "embedding": v} for i, v in enumerate(vectors)]
        count = sum(
            len(model.tokenizer.encode(t)) if isinstance(t, str) else len(t) for t in inputs
        )
        usage = {"prompt_tokens": count, "total_tokens": count}
        return JSONResponse({"object": "list", "data": data, "model": name, "usage": usage})

    routes = [
        Route("/v1/models", guarded(models)),
        Route("/v1/chat/completions", guarded(chat), methods=["POST"]),
        Route("/v1/completions", guarded(completions), methods=["POST"]),
        Route("/v1/embeddings", guarded(embeddings), methods=["POST"]),
    ]
    trusted = Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    return Starlette(routes=routes, middleware=[trusted])
