"""The ASGI application: all endpoints over one repository."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from narrowpass.errors import NarrowpassError
from narrowpass_serve.completions.routes import Completions, error_document
from narrowpass_serve.errors import RequestError, is_defect, message_of, status_of
from narrowpass_serve.metrics import CONTENT_TYPE
from narrowpass_serve.protocol.inference import Inference
from narrowpass_serve.protocol.routes import Protocol

if TYPE_CHECKING:
    from narrowpass_serve.metrics import Metrics
    from narrowpass_serve.models.repository import Repository
    from narrowpass_serve.settings import Settings


_log = logging.getLogger("narrowpass.serve")

RETRY_AFTER = "1"
"""Seconds after which a client should try again where the server is busy."""


def create_app(repository: Repository, settings: Settings, metrics: Metrics) -> Starlette:
    """Return the application, for any ASGI server.

    Args:
        repository: whose models are served; whoever created it closes it.
        settings: of the server.
        metrics: that ``/metrics`` shows.
    """

    async def show_metrics(request: Request) -> Response:
        return Response(metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def show_health(request: Request) -> Response:
        ready = repository.is_ready()
        return JSONResponse({"ready": ready}, 200 if ready else 503)

    routes = [
        *Protocol(Inference(repository, settings, metrics)).routes,
        *Completions(repository, settings, metrics).routes,
        Route("/healthz", show_health),
        Route("/metrics", show_metrics),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(BodyLimit, most=settings.max_body)],
        exception_handlers={
            HTTPException: _answer_http,
            NarrowpassError: _answer_error,
            MemoryError: _answer_error,
            TimeoutError: _answer_error,
            Exception: _answer_error,
        },
    )


async def _answer_http(request: Request, error: Exception) -> Response:
    """Answer what the router refuses: no such path, or not with this method."""
    assert isinstance(error, HTTPException)  # noqa: S101  # it was registered for these
    message = {
        404: f"there is nothing at {request.url.path[:200]!r}",
        405: f"{request.url.path[:200]!r} does not take {request.method}",
    }.get(error.status_code, error.detail)
    found = RequestError(message, error.status_code)
    return _response(request, found, dict(error.headers or {}))


async def _answer_error(request: Request, error: Exception) -> Response:
    if status_of(error) == 500:
        trace = error if is_defect(error) else None
        _log.error("%s %s failed: %s", request.method, request.url.path, error, exc_info=trace)
    return _response(request, error, {})


def _response(request: Request, error: Exception, headers: dict[str, str]) -> Response:
    status = status_of(error)
    if status == 503:
        headers["Retry-After"] = RETRY_AFTER
    openai = request.url.path.startswith("/v1/")
    document = {"error": error_document(error) if openai else message_of(error)}
    return JSONResponse(document, status, headers)


class BodyLimit:
    """Refuses bodies that are too long, also those that do not say how long they are.

    Args:
        app: that reads them.
        most: bytes.
    """

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app, self._most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application, which is stopped where it has read too much."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit() and int(value[:20]) > self._most:
                receive = _refusing(self._most)
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._most:
                raise _too_long(self._most)
            return message

        await self._app(scope, counted, send)


def _refusing(most: int) -> Receive:
    async def refuse() -> Message:
        raise _too_long(most)

    return refuse


def _too_long(most: int) -> RequestError:
    return RequestError(
        f"the body is longer than {most} bytes; send less, or raise --max-body", 413
    )
