"""The schemas of operators."""

from __future__ import annotations

import functools
from typing import Any

import onnx

Schema = Any
"""An `onnx.defs.OpSchema`, whose stubs lack what is asked of it here."""


@functools.lru_cache(maxsize=4096)
def schema_of(domain: str, op_type: str, version: int) -> Schema | None:
    """Return the schema of an operator at an operator-set version, or None."""
    if version < 1 or not onnx.defs.has(op_type, domain):
        return None
    try:
        return onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None
