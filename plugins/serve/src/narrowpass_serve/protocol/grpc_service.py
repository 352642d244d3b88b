"""The protocol's gRPC service."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np

from narrowpass.errors import UsageError
from narrowpass_serve.errors import RequestError, is_defect, message_of, status_of
from narrowpass_serve.json_body import IN_LOOP
from narrowpass_serve.protocol.grpc_messages import METHODS, SERVICE, create_messages
from narrowpass_serve.protocol.requests import (
    InferRequest,
    check_input,
    check_output,
    check_parameters,
)
from narrowpass_serve.protocol.tensors import (
    BYTES,
    DTYPES,
    check_shape,
    datatype_of_array,
    from_bytes,
    strings_of,
    to_bytes,
)

if TYPE_CHECKING:
    from narrowpass_serve.models.methods import Method
    from narrowpass_serve.protocol.inference import Inference, Inferred
    from narrowpass_serve.settings import Settings

_log = logging.getLogger("narrowpass.serve")

_CODES: Mapping[int, grpc.StatusCode] = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    499: grpc.StatusCode.CANCELLED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}

_CONTENTS: Mapping[str, str] = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}
"""The field of typed contents of each datatype; FP16 and BF16 have none."""

Handler = Callable[[Any], Awaitable[Any]]


@contextlib.asynccontextmanager
async def serving(
    inference: Inference, settings: Settings, host: str, port: int
) -> AsyncIterator[int]:
    """Serve the operations of the protocol; requests that came are answered at the end.

    Args:
        inference: the operations.
        settings: of the server.
        host: to listen at.
        port: to listen at; 0 for one that is free.

    Yields:
        The port.

    Raises:
        UsageError: the address cannot be had.
    """
    options = [("grpc.max_receive_message_length", settings.max_body), ("grpc.so_reuseport", 0)]
    server = grpc.aio.server(options=[*options, ("grpc.max_send_message_length", -1)])
    messages = create_messages()
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            _answering(handler),
            request_deserializer=messages[f"{name}Request"].FromString,
            response_serializer=messages[f"{name}Response"].SerializeToString,
        )
        for name, handler in _Service(inference, messages).handlers.items()
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        bound = server.add_insecure_port(address)
    except RuntimeError as error:
        raise UsageError(
            f"cannot listen at {address}: {error}; pass another --grpc-port"
        ) from error
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(settings.drain)


def _answering(handler: Handler) -> Callable[[Any, Any], Awaitable[Any]]:
    """Return a method whose errors are statuses of gRPC."""

    async def answer(request: Any, context: Any) -> Any:
        try:
            return await handler(request)
        except Exception as error:  # noqa: BLE001  # every error becomes a status here
            if is_defect(error):
                _log.error("a request of gRPC failed", exc_info=error)
            code = _CODES.get(status_of(error), grpc.StatusCode.INTERNAL)
            await context.abort(code, message_of(error))

    return answer


class _Service:
    """The methods of the service."""

    def __init__(self, inference: Inference, messages: Mapping[str, Any]) -> None:
        self._inference, self._messages = inference, messages

    @property
    def handlers(self) -> dict[str, Handler]:
        """The methods by the protocol's names."""
        found = (
            self._live,
            self._ready,
            self._model_ready,
            self._metadata,
            self._model_metadata,
            self._infer,
            self._index,
            self._load,
            self._unload,
        )
        return dict(zip(METHODS, found, strict=True))

    async def _live(self, request: Any) -> Any:
        return self._messages["ServerLiveResponse"](live=True)

    async def _ready(self, request: Any) -> Any:
        return self._messages["ServerReadyResponse"](ready=self._inference.is_ready())

    async def _model_ready(self, request: Any) -> Any:
        ready = self._inference.is_model_ready(request.name, request.version)
        return self._messages["ModelReadyResponse"](ready=ready)

    async def _metadata(self, request: Any) -> Any:
        return self._messages["ServerMetadataResponse"](**self._inference.server_metadata())

    async def _model_metadata(self, request: Any) -> Any:
        found = self._inference.model_metadata(request.name, request.version)
        return self._messages["ModelMetadataResponse"](**found)

    async def _index(self, request: Any) -> Any:
        found = self._inference.index(ready=request.ready)
        return self._messages["RepositoryIndexResponse"](models=found)

    async def _load(self, request: Any) -> Any:
        if request.parameters:
            raise RequestError(
                "a model is loaded from where the server found it; leave `parameters` out"
            )
        await self._inference.load(request.model_name)
        return self._messages["RepositoryModelLoadResponse"]()

    async def _unload(self, request: Any) -> Any:
        await self._inference.unload(request.model_name)
        return self._messages["RepositoryModelUnloadResponse"]()

    async def _infer(self, request: Any) -> Any:
        async with self._inference.infer(
            request.model_name,
            request.model_version,
            lambda method: _read(request, method),
            protocol="grpc",
            large=request.ByteSize() > IN_LOOP,
        ) as inferred:
            if inferred.nbytes <= IN_LOOP:
                return self._answer(inferred)
            return await asyncio.to_thread(self._answer, inferred)

    def _answer(self, inferred: Inferred) -> Any:
        answer = self._messages["ModelInferResponse"](
            model_name=inferred.model, model_version=inferred.version, id=inferred.request.id
        )
        for name, value in inferred.outputs.items():
            datatype = datatype_of_array(value, f"output {name!r}")
            answer.outputs.add(name=name, datatype=datatype, shape=value.shape)
            answer.raw_output_contents.append(to_bytes(value))
        return answer


def _read(request: Any, method: Method) -> InferRequest:
    """Read a request.

    Raises:
        RequestError: it is not what the protocol says, or not for this method.
    """
    check_parameters(_plain(request.parameters))
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise RequestError(
            f"{len(raw)} raw_input_contents for {len(request.inputs)} inputs; send one for each, "
            "or none"
        )
    feeds = {}
    for index, given in enumerate(request.inputs):
        if given.name in feeds:
            raise RequestError(f"input {given.name!r} comes twice; pass it once")
        feeds[given.name] = _feed(given, raw[index] if raw else None, method)
    for wanted in request.outputs:
        check_output(wanted.name, method)
    names = tuple(dict.fromkeys(wanted.name for wanted in request.outputs))
    return InferRequest(request.id, feeds, names or None, frozenset())


def _feed(given: Any, raw: bytes | None, method: Method) -> np.ndarray[Any, Any]:
    what = f"input {given.name!r}"
    datatype = check_input(given.name, given.datatype, method)
    shape = check_shape(list(given.shape), what)
    typed = [name for name, _ in given.contents.ListFields()]
    if "shared_memory_region" in given.parameters:
        raise RequestError(f"{what}: this server has no shared memory; send the data")
    if raw is not None:
        if typed:
            raise RequestError(f"{what} has both contents and raw_input_contents; send one")
        return from_bytes(datatype, shape, memoryview(raw), what)
    field = _CONTENTS.get(datatype)
    if field is None:
        raise RequestError(f"{what}: {datatype} is sent in raw_input_contents only")
    if any(descriptor.name != field for descriptor in typed):
        raise RequestError(f"{what}: the contents of {datatype} are in {field}")
    values = getattr(given.contents, field)
    if datatype == BYTES:
        array = strings_of(values, what)
    else:
        array = _narrowed(np.array(values), datatype, what)
    if array.size != np.prod(shape, dtype=object):
        raise RequestError(
            f"{what}: {array.size} elements, where the shape {list(shape)} has more or fewer"
        )
    return array.reshape(shape)


def _narrowed(values: np.ndarray[Any, Any], datatype: str, what: str) -> np.ndarray[Any, Any]:
    """Return the elements in a type that may be narrower than that of the contents."""
    dtype = DTYPES[datatype]
    array = values.astype(dtype)
    if dtype.kind in "iu" and (array != values).any():
        raise RequestError(f"{what}: an element is out of the range of {datatype}")
    return array


def _plain(parameters: Any) -> dict[str, Any]:
    return {
        name: getattr(value, which)
        for name, value in parameters.items()
        if (which := value.WhichOneof("parameter_choice"))
    }
