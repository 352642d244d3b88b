"""Runs the server: sockets, signals, and an end that loses no request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import uvicorn

from narrowpass.errors import UsageError
from narrowpass_serve.app import create_app
from narrowpass_serve.models.repository import watch
from narrowpass_serve.protocol.inference import Inference

if TYPE_CHECKING:
    from narrowpass_serve.metrics import Metrics
    from narrowpass_serve.models.repository import Repository
    from narrowpass_serve.settings import Settings

_log = logging.getLogger("narrowpass.serve")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_BACKLOG = 2048


class _Server(uvicorn.Server):
    """uvicorn, whose signals are handled by `_stopping`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 stands for one that is free.

    Raises:
        UsageError: the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns off Nagle's algorithm where a socket names TCP; with it, an answer in two parts
    # waits 40 ms for the client's delayed acknowledgement.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        found.close()
        raise UsageError(
            f"cannot listen at {host} port {port}: {error}; pass another --host or --port"
        ) from error
    found.setblocking(False)
    return found


def run(
    repository: Repository,
    settings: Settings,
    metrics: Metrics,
    listener: socket.socket,
    grpc_address: tuple[str, int] | None = None,
    ready: Callable[[int | None], None] = lambda grpc_port: None,
) -> None:
    """Serve until a signal: then no request is taken any more, and those that came are answered.

    A second signal ends the process at once, also while the repository is closed after this.

    Args:
        repository: whose models are loaded.
        settings: of the server.
        metrics: of the server.
        listener: see `listen`.
        grpc_address: host and port for gRPC; None for none.
        ready: is called when requests are taken, with the port of gRPC.
    """
    asyncio.run(_serve(repository, settings, metrics, listener, grpc_address, ready))


async def _serve(
    repository: Repository,
    settings: Settings,
    metrics: Metrics,
    listener: socket.socket,
    grpc_address: tuple[str, int] | None,
    ready: Callable[[int | None], None],
) -> None:
    config = uvicorn.Config(
        create_app(repository, settings, metrics),
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(settings.drain)),
    )
    server = _Server(config)
    async with contextlib.AsyncExitStack() as stack:
        grpc_port = None
        if grpc_address is not None:
            from narrowpass_serve.protocol.grpc_service import serving

            inference = Inference(repository, settings, metrics)
            grpc_port = await stack.enter_async_context(serving(inference, settings, *grpc_address))
        if settings.watch:
            watcher = asyncio.create_task(watch(repository, settings.watch))
            stack.callback(watcher.cancel)
        stack.enter_context(_stopping(server))
        ready(grpc_port)
        await server.serve([listener])


@contextlib.contextmanager
def _stopping(server: uvicorn.Server) -> Iterator[None]:
    """Let the first signal stop the server, and the second one the process."""

    def stop(number: int) -> None:
        if server.should_exit:
            # Threads may be in the middle of a run, which nothing interrupts.
            os._exit(128 + number)
        _log.info("no more requests are taken; those that came are answered")
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop, number)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
