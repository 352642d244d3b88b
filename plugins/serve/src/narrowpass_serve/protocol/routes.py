"""``/v2``: the protocol over HTTP."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from narrowpass_serve.errors import RequestError
from narrowpass_serve.json_body import IN_LOOP, parse_object
from narrowpass_serve.protocol.requests import read_request
from narrowpass_serve.protocol.tensors import Array, datatype_of_array, to_bytes, to_json

if TYPE_CHECKING:
    from narrowpass_serve.protocol.inference import Inference, Inferred

HEADER = "Inference-Header-Content-Length"
"""The header with the length of the JSON, where binary data follows it."""


class Protocol:
    """The endpoints over the operations of the protocol.

    Args:
        inference: the operations.
    """

    def __init__(self, inference: Inference) -> None:
        self._inference = inference

    @property
    def routes(self) -> list[Route]:
        """The routes of the endpoints."""
        post = ["POST"]
        each = [
            ("", self._metadata, ["GET"]),
            ("/ready", self._model_ready, ["GET"]),
            ("/infer", self._infer, post),
        ]
        models = [
            Route(f"/v2/models/{{model}}{versions}{end}", endpoint, methods=methods)
            for versions in ("", "/versions/{version}")
            for end, endpoint, methods in each
        ]
        return [
            Route("/v2", self._server),
            Route("/v2/health/live", self._live),
            Route("/v2/health/ready", self._ready),
            *models,
            Route("/v2/repository/index", self._index, methods=post),
            Route("/v2/repository/models/{model}/load", self._load, methods=post),
            Route("/v2/repository/models/{model}/unload", self._unload, methods=post),
        ]

    async def _server(self, request: Request) -> Response:
        return JSONResponse(self._inference.server_metadata())

    async def _live(self, request: Request) -> Response:
        return JSONResponse({"live": True})

    async def _ready(self, request: Request) -> Response:
        ready = self._inference.is_ready()
        return JSONResponse({"ready": ready}, 200 if ready else 503)

    async def _model_ready(self, request: Request) -> Response:
        name, version = _model_of(request)
        ready = self._inference.is_model_ready(name, version)
        return JSONResponse({"name": name, "ready": ready}, 200 if ready else 503)

    async def _metadata(self, request: Request) -> Response:
        return JSONResponse(self._inference.model_metadata(*_model_of(request)))

    async def _infer(self, request: Request) -> Response:
        encoding = request.headers.get("content-encoding", "identity")
        if encoding != "identity":
            raise RequestError(f"the body is compressed ({encoding:.50}); send it as it is", 415)
        body = await request.body()
        header = request.headers.get(HEADER)
        name, version = _model_of(request)
        async with self._inference.infer(
            name,
            version,
            lambda method: read_request(body, header, method),
            protocol="http",
            large=len(body) > IN_LOOP,
        ) as inferred:
            if inferred.nbytes <= IN_LOOP:
                return _answer(inferred)
            return await asyncio.to_thread(_answer, inferred)

    async def _index(self, request: Request) -> Response:
        body = await request.body()
        ready = parse_object(body).get("ready", False) if body else False
        if not isinstance(ready, bool):
            raise RequestError("`ready` must be true or false", parameter="ready")
        return JSONResponse(self._inference.index(ready=ready))

    async def _load(self, request: Request) -> Response:
        body = await request.body()
        parameters = parse_object(body).get("parameters") if body else None
        if parameters:
            raise RequestError(
                "a model is loaded from where the server found it; leave `parameters` out",
                parameter="parameters",
            )
        await self._inference.load(request.path_params["model"])
        return Response()

    async def _unload(self, request: Request) -> Response:
        await self._inference.unload(request.path_params["model"])
        return Response()


def _model_of(request: Request) -> tuple[str, str]:
    return request.path_params["model"], request.path_params.get("version", "")


def _answer(inferred: Inferred) -> Response:
    """Return the outputs as JSON, those that are asked for as bytes behind it."""
    binary = inferred.request.binary
    blobs: list[bytes] = []
    outputs = [
        _output(name, value, blobs if name in binary else None)
        for name, value in inferred.outputs.items()
    ]
    document: dict[str, Any] = {
        "model_name": inferred.model,
        "model_version": inferred.version,
        **({"id": inferred.request.id} if inferred.request.id else {}),
        "outputs": outputs,
    }
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    if not blobs:
        return Response(text, media_type="application/json")
    headers = {HEADER: str(len(text))}
    return Response(
        b"".join((text, *blobs)), media_type="application/octet-stream", headers=headers
    )


def _output(name: str, value: Array, blobs: list[bytes] | None) -> dict[str, Any]:
    what = f"output {name!r}"
    datatype = datatype_of_array(value, what)
    document = {"name": name, "datatype": datatype, "shape": list(value.shape)}
    if blobs is None:
        return {**document, "data": to_json(value, what)}
    blobs.append(to_bytes(value))
    return {**document, "parameters": {"binary_data_size": len(blobs[-1])}}
