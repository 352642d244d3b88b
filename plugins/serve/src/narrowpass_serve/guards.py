"""A bound on the bodies of requests, as ASGI middleware."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from narrowpass_serve.errors import RequestError


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
