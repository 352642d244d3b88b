"""What both transports of the protocol do: metadata, inference, models that come and go."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from narrowpass_serve.errors import RequestError
from narrowpass_serve.models.queueing import Arrays
from narrowpass_serve.protocol.requests import InferRequest
from narrowpass_serve.protocol.tensors import datatype_of

if TYPE_CHECKING:
    from narrowpass_ir.verify import ValueSpec
    from narrowpass_serve.metrics import Metrics
    from narrowpass_serve.models.methods import Method
    from narrowpass_serve.models.repository import Repository
    from narrowpass_serve.models.served import Served
    from narrowpass_serve.settings import Settings

EXTENSIONS = ["binary_tensor_data", "model_repository"]
"""Extensions of the protocol that the server has."""


@dataclass(frozen=True)
class Inferred:
    """What is answered to an inference request.

    Attributes:
        request: it.
        model: its name, as the client has it.
        version: of the model that ran.
        outputs: arrays by name.
    """

    request: InferRequest
    model: str
    version: str
    outputs: Arrays

    @property
    def nbytes(self) -> int:
        """Bytes of all outputs; a sequence, which the protocol does not have, counts as none."""
        return sum(getattr(value, "nbytes", 0) for value in self.outputs.values())


class Inference:
    """The operations of the protocol.

    A method that is not the model's default one is a model of its own to clients:
    ``MODEL:METHOD``.

    Args:
        repository: that has the models.
        settings: of the server.
        metrics: of the server.
    """

    def __init__(self, repository: Repository, settings: Settings, metrics: Metrics) -> None:
        self._repository, self._settings, self._metrics = repository, settings, metrics

    def server_metadata(self) -> dict[str, Any]:
        """Return what the server is."""
        return {
            "name": "narrowpass",
            "version": version("narrowpass-serve"),
            "extensions": list(EXTENSIONS),
        }

    def is_ready(self) -> bool:
        """Return whether all models are loaded."""
        return self._repository.is_ready()

    def is_model_ready(self, model: str, version: str = "") -> bool:
        """Return whether a model is loaded, in that version if one is named.

        Raises:
            RequestError: there is no such model.
        """
        name = model.partition(":")[0]
        if not self._repository.is_ready(name):
            return False
        with self._method(model, version):
            return True

    def model_metadata(self, model: str, version: str = "") -> dict[str, Any]:
        """Return versions, inputs and outputs of a model; -1 stands for any size.

        Raises:
            RequestError: there is no such model, or a type that the protocol does not have.
        """
        with self._method(model, version) as (served, method):
            return {
                "name": model,
                "versions": [served.version],
                "platform": "narrowpass",
                "inputs": [_metadata(spec, "input") for spec in method.inputs],
                "outputs": [_metadata(spec, "output") for spec in method.outputs],
            }

    @contextlib.asynccontextmanager
    async def infer(
        self,
        model: str,
        version: str,
        read: Callable[[Method], InferRequest],
        *,
        protocol: str,
        large: bool,
    ) -> AsyncIterator[Inferred]:
        """Run a request; the block answers it.

        Args:
            model: its name.
            version: that the client wants; empty for the current one.
            read: reads the request.
            protocol: ``http`` or ``grpc``, for the metrics.
            large: whether reading takes so long that others should not wait for it.

        Raises:
            NarrowpassError: a request that cannot be run, or failed.
            TimeoutError: it took too long.
            MemoryError: it needs too much.
        """
        with (
            self._method(model, version) as (served, method),
            self._metrics.request(served.name, protocol),
        ):
            request = await asyncio.to_thread(read, method) if large else read(method)
            future = served.submit(method, request.feeds, request.outputs)
            # A job that has not begun when this ends never does.
            outputs = await asyncio.wait_for(asyncio.wrap_future(future), self._settings.timeout)
            yield Inferred(request, model, served.version, outputs)

    def index(self, *, ready: bool) -> list[dict[str, str]]:
        """Return the models; see `Repository.index`."""
        return self._repository.index(ready=ready)

    async def load(self, model: str) -> None:
        """Load a model, or load it anew.

        Raises:
            RequestError: clients may not; or there is no such model.
            NarrowpassError: it cannot be loaded.
        """
        self._check_control()
        await asyncio.to_thread(self._repository.load, model)

    async def unload(self, model: str) -> None:
        """Serve a model no longer.

        Raises:
            RequestError: clients may not; or there is no such model.
        """
        self._check_control()
        await asyncio.to_thread(self._repository.unload, model)

    def _check_control(self) -> None:
        if not self._settings.control:
            raise RequestError(
                "clients may not load or unload models; start the server with --control", 403
            )

    @contextlib.contextmanager
    def _method(self, model: str, version: str) -> Iterator[tuple[Served, Method]]:
        name, _, method = model.partition(":")
        with self._repository.lease(name, version) as served:
            yield served, served.method(method)


def _metadata(spec: ValueSpec, kind: str) -> dict[str, Any]:
    what = f"{kind} {spec.name!r}"
    if spec.shape is None:
        raise RequestError(f"{what} has no known rank; build the model with its shape")
    shape = [dim if isinstance(dim, int) else -1 for dim in spec.shape]
    return {"name": spec.name, "datatype": datatype_of(spec.dtype, what), "shape": shape}
