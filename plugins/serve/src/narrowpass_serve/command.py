"""``narrowpass serve``."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

import click

from narrowpass.cli.options import (
    backend_option,
    cache_dir_option,
    cache_option,
    native_option,
    threads_option,
)
from narrowpass.cli.state import State, pass_state
from narrowpass.errors import UsageError
from narrowpass_serve.settings import Settings

if TYPE_CHECKING:
    from narrowpass_serve.models.served import Served

_DEFAULT = Settings()


@click.command()
@click.argument("models", metavar="[NAME=]BUNDLE...", nargs=-1, required=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port of HTTP; 0 for one that is free.",
)
@click.option(
    "--grpc-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Also serve gRPC at this port; needs narrowpass-serve[grpc].",
)
@click.option(
    "--max-batch",
    type=click.IntRange(min=1),
    default=_DEFAULT.max_batch,
    show_default=True,
    metavar="ROWS",
    help="Rows of a batch at most; 1 for no batches.",
)
@click.option(
    "--max-delay",
    type=click.FloatRange(min=0),
    default=_DEFAULT.max_delay * 1e3,
    show_default=True,
    metavar="MS",
    help="Milliseconds that a request waits at most for others to join its batch; with 0 those "
    "join that came while the last batch ran.",
)
@click.option(
    "--instances",
    type=click.IntRange(min=1),
    default=_DEFAULT.instances,
    show_default=True,
    metavar="N",
    help="Programs of each model, which run batches side by side.",
)
@click.option(
    "--sequences",
    type=click.IntRange(min=1),
    default=_DEFAULT.sequences,
    show_default=True,
    metavar="N",
    help="Texts that a model generates at once at most; others wait.",
)
@click.option(
    "--max-queue",
    type=click.IntRange(min=1),
    default=_DEFAULT.max_queue,
    show_default=True,
    metavar="N",
    help="Requests of a model that wait at most; others are refused with status 503.",
)
@click.option(
    "--max-body",
    type=click.IntRange(min=1),
    default=_DEFAULT.max_body >> 20,
    show_default=True,
    metavar="MIB",
    help="Size of a request at most.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=_DEFAULT.timeout,
    show_default=True,
    metavar="SECONDS",
    help="Time for a request to be answered, and for a text to begin.",
)
@click.option(
    "--drain",
    type=click.FloatRange(min=0),
    default=_DEFAULT.drain,
    show_default=True,
    metavar="SECONDS",
    help="Time that requests have left to end in after the first signal.",
)
@click.option(
    "--watch",
    type=click.FloatRange(min=0),
    default=_DEFAULT.watch,
    show_default=True,
    metavar="SECONDS",
    help="Look for replaced bundles that often; 0 for never.",
)
@click.option("--control", is_flag=True, help="Let clients load and unload models.")
@backend_option
@threads_option
@native_option
@cache_option
@cache_dir_option
@pass_state
def serve(
    state: State,
    models: tuple[str, ...],
    host: str,
    port: int,
    grpc_port: int | None,
    max_delay: float,
    max_body: int,
    **options: Any,
) -> None:
    """Serve bundles over HTTP, and over gRPC.

    A BUNDLE is a bundle, an ONNX file, or a folder of these; clients ask for it as NAME, by default
    the name of the file or folder without its ending.

    /v2 has the Open Inference Protocol; /v1 has OpenAI's completions and chat completions, for
    decoders with KV caches and tokenizer.json. /metrics is for Prometheus, /healthz for whoever
    restarts servers.

    A bundle that is replaced is loaded, and served when it can run. After a signal to end, requests
    that came are answered; a second signal ends the server at once.
    """
    from narrowpass_serve.metrics import Metrics
    from narrowpass_serve.models.repository import Repository
    from narrowpass_serve.models.sources import find_sources
    from narrowpass_serve.running import listen, run

    settings = Settings(max_delay=max_delay / 1e3, max_body=max_body << 20, **options)
    sources = find_sources(models)
    if grpc_port is not None:
        _check_grpc()
    logging.getLogger("narrowpass.serve").setLevel(logging.INFO)
    # Its warnings are one for each client that speaks no HTTP, which has its answer.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    metrics = Metrics()
    with contextlib.ExitStack() as stack:
        # A port that is taken is said before models are loaded.
        listener = stack.enter_context(contextlib.closing(listen(host, port)))
        repository = Repository(sources, settings, metrics, state.plugins)
        stack.callback(repository.close)
        for name in sources:
            _note(state, repository.load(name))

        def ready(grpc: int | None) -> None:
            shown = f"[{host}]" if ":" in host else host
            more = "" if grpc is None else f" and gRPC at {shown}:{grpc}"
            state.note(f"serving at http://{shown}:{listener.getsockname()[1]}{more}")

        address = None if grpc_port is None else (host, grpc_port)
        run(repository, settings, metrics, listener, address, ready)


def _note(state: State, served: Served) -> None:
    """Say what a model's requests get."""
    for method in served.methods.values():
        how = f"one by one: {method.unjoined}" if method.unjoined else "in batches"
        state.note(f"model {served.name!r}, method {method.name!r}: requests run {how}")
    if served.engine is not None:
        state.note(f"model {served.name!r} generates text")
    elif served.stateful:
        state.note(f"model {served.name!r} generates no text: {served.silent}")


def _check_grpc() -> None:
    """Check that gRPC is installed.

    Raises:
        UsageError: it is not.
    """
    try:
        import narrowpass_serve.protocol.grpc_service  # noqa: F401  # whether it can be
    except ImportError as error:
        raise UsageError(
            f"--grpc-port: {error}; install it with `pip install narrowpass-serve[grpc]`"
        ) from error
