"""``/v1``: the endpoints of OpenAI's interface."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from narrowpass_serve.completions.documents import Answer, usage_of
from narrowpass_serve.completions.engine import Event, SequenceRequest
from narrowpass_serve.completions.requests import (
    Parameters,
    read_messages,
    read_parameters,
    read_prompts,
)
from narrowpass_serve.errors import RequestError, message_of, status_of
from narrowpass_serve.json_body import read_object

if TYPE_CHECKING:
    from narrowpass_generate import Generation
    from narrowpass_serve.metrics import Metrics
    from narrowpass_serve.models.repository import Repository
    from narrowpass_serve.models.served import Served
    from narrowpass_serve.settings import Settings

TOKENS = 16
"""Tokens of a completion at most where the request does not say, as in OpenAI's interface."""

Indexed = tuple[int, Event]
"""A choice's index, and what happened to it."""


class Completions:
    """The endpoints over the models of a repository.

    Args:
        repository: that has the models.
        settings: of the server.
        metrics: of the server.
    """

    def __init__(self, repository: Repository, settings: Settings, metrics: Metrics) -> None:
        self._repository, self._settings, self._metrics = repository, settings, metrics

    @property
    def routes(self) -> list[Route]:
        """The routes of the endpoints."""
        return [
            Route("/v1/models", self._models),
            Route("/v1/models/{model}", self._model),
            Route("/v1/completions", self._complete, methods=["POST"]),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
        ]

    async def _models(self, request: Request) -> Response:
        names = [name for name in self._repository.names if self._generates(name)]
        return JSONResponse({"object": "list", "data": [_model(name) for name in names]})

    async def _model(self, request: Request) -> Response:
        name = request.path_params["model"]
        with self._repository.lease(name) as served:
            _check_generates(served)
        return JSONResponse(_model(name))

    def _generates(self, name: str) -> bool:
        try:
            with self._repository.lease(name) as served:
                return served.engine is not None
        except RequestError:
            return False

    async def _complete(self, request: Request) -> Response:
        def read(document: dict[str, Any], served: Served) -> tuple[list[list[int]], Parameters]:
            assert served.tokenizer is not None  # noqa: S101  # the engine has it
            own = frozenset({"prompt"})
            chosen = read_parameters(document, own, served.tokenizer.sampling, TOKENS)
            return read_prompts(document, served.tokenizer), chosen

        return await self._answer(request, read, chat=False)

    async def _chat(self, request: Request) -> Response:
        def read(document: dict[str, Any], served: Served) -> tuple[list[list[int]], Parameters]:
            assert served.tokenizer is not None  # noqa: S101  # the engine has it
            own = frozenset({"messages"})
            chosen = read_parameters(document, own, served.tokenizer.sampling, None)
            return [read_messages(document, served.tokenizer)], chosen

        return await self._answer(request, read, chat=True)

    async def _answer(
        self,
        request: Request,
        read: Callable[[dict[str, Any], Served], tuple[list[list[int]], Parameters]],
        *,
        chat: bool,
    ) -> Response:
        document = await read_object(request)
        name = document.get("model")
        if not isinstance(name, str):
            raise RequestError("`model` must be the name of a model", parameter="model")
        async with contextlib.AsyncExitStack() as stack:
            served = stack.enter_context(self._repository.lease(name))
            stack.enter_context(self._metrics.request(name, "openai"))
            _check_generates(served)
            # Tokenizers and templates take their time with long texts.
            prompts, chosen = await asyncio.to_thread(read, document, served)
            sequences, events = self._submit(served, prompts, chosen)
            stack.callback(_leave, sequences)
            answer = Answer(name, chat)
            if not chosen.stream:
                results = await _or_gone(request, _collect(events, len(sequences)))
                return JSONResponse(answer.whole(results, usage_of(prompts, results)))
            chunks = _chunks(answer, events, prompts, chosen)
            return _Stream(chunks, stack.pop_all())

    def _submit(
        self, served: Served, prompts: Sequence[Sequence[int]], chosen: Parameters
    ) -> tuple[list[SequenceRequest], asyncio.Queue[Indexed]]:
        """Let all choices of all prompts join; return them, and where their events come."""
        events: asyncio.Queue[Indexed] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        deadline = time.monotonic() + self._settings.timeout

        def reporter(index: int) -> Callable[[Event], None]:
            def report(event: Event) -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens
                    loop.call_soon_threadsafe(events.put_nowait, (index, event))

            return report

        wanted: list[SequenceRequest] = []
        for prompt in prompts:
            for _ in range(chosen.choices):
                index = len(wanted)
                sampling = chosen.of_choice(index)
                wanted.append(
                    SequenceRequest(
                        prompt, sampling, chosen.tokens, chosen.stop, reporter(index), deadline
                    )
                )
        assert served.engine is not None  # noqa: S101  # it was checked
        for each in wanted[:: chosen.choices]:
            served.engine.check(each)
        served.engine.submit(wanted)
        return wanted, events


class _Stream(StreamingResponse):
    """A stream of events.

    Args:
        chunks: of it.
        stack: is closed when the stream ends, also where the client goes away before it begins.
    """

    def __init__(self, chunks: AsyncIterator[bytes], stack: contextlib.AsyncExitStack) -> None:
        super().__init__(chunks, media_type="text/event-stream", headers=_UNBUFFERED)
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stack:
            await super().__call__(scope, receive, send)


_UNBUFFERED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Headers that keep proxies from holding a stream back."""


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "narrowpass"}


def _check_generates(served: Served) -> None:
    if served.engine is None:
        raise RequestError(
            f"model {served.name!r} does not generate text: {served.silent}", parameter="model"
        )


def _leave(sequences: Sequence[SequenceRequest]) -> None:
    """Say that nobody waits for sequences any more; those that have ended do not mind."""
    for sequence in sequences:
        sequence.left.set()


async def _collect(events: asyncio.Queue[Indexed], count: int) -> list[Generation]:
    """Return the results of all sequences, by index.

    Raises:
        BaseException: the error of the first one that fails.
    """
    results: dict[int, Generation] = {}
    while len(results) < count:
        index, event = await events.get()
        if event.error is not None:
            raise event.error
        if event.result is not None:
            results[index] = event.result
    return [results[index] for index in range(count)]


async def _or_gone(request: Request, results: Awaitable[list[Generation]]) -> list[Generation]:
    """Await results, unless the client goes away: its sequences are left then.

    Raises:
        RequestError: the client went away; nobody reads it.
    """
    work = asyncio.ensure_future(results)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        raise RequestError("the client went away", 499)
    finally:
        for task in (work, gone):
            task.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _chunks(
    answer: Answer,
    events: asyncio.Queue[Indexed],
    prompts: Sequence[Sequence[int]],
    chosen: Parameters,
) -> AsyncIterator[bytes]:
    """Yield the events of a stream."""
    count = len(prompts) * chosen.choices
    results: dict[int, Generation] = {}
    if answer.chat:
        for index in range(count):
            yield _event(answer.beginning(index))
    while len(results) < count:
        index, event = await events.get()
        if event.error is not None:
            yield _event({"error": error_document(event.error)})
            return
        if event.result is not None:
            results[index] = event.result
        if event.text or event.result is not None:
            yield _event(answer.piece(index, event.text, event.result))
    if chosen.usage:
        yield _event(answer.ending(usage_of(prompts, list(results.values()))))
    yield b"data: [DONE]\n\n"


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document, ensure_ascii=False).encode() + b"\n\n"


def error_document(error: BaseException) -> dict[str, Any]:
    """Return an error as OpenAI's interface has it."""
    status = status_of(error)
    return {
        "message": message_of(error),
        "type": "invalid_request_error" if status < 500 else "server_error",
        "param": (error.parameter or None) if isinstance(error, RequestError) else None,
        "code": "model_not_found" if status == 404 else None,
    }
