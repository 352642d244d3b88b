"""The JSON body of a request."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

from starlette.requests import Request

from narrowpass_ir.arguments import kind_of
from narrowpass_serve.errors import RequestError

IN_LOOP = 1 << 16
"""Bytes that are parsed at once; what is longer would hold up other requests."""


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""The escape of one half of a character, which is no text without the other half."""


async def read_object(request: Request) -> dict[str, Any]:
    """Return the object that the body of a request has.

    Raises:
        RequestError: it is no JSON, or no object.
    """
    body = await request.body()
    if len(body) <= IN_LOOP:
        return parse_object(body)
    return await asyncio.to_thread(parse_object, body)


def parse_object(data: bytes) -> dict[str, Any]:
    """Return the object that JSON text has.

    Raises:
        RequestError: it is no JSON, or no object.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is no JSON: {error!s:.200}") from error
    if _SURROGATE.search(data):
        _check_unicode(found)
    if not isinstance(found, dict):
        raise RequestError(f"the body must be a JSON object, not {kind_of(found)}")
    return found


def _check_unicode(found: object) -> None:
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        message = f"the body has half of a character: {error.reason}; send whole ones"
        raise RequestError(message) from error
