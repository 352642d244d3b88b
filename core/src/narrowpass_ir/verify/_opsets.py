"""Rules of opset imports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx.defs
import onnx_ir as ir

from narrowpass_ir.verify._operators import find_schema

# Older models have no opset imports: all that they hold is of version 1.
_IMPORTS_SINCE_IR_VERSION = 3


def opset_versions(model: ir.Model) -> dict[str, int]:
    """Return the versions that the main graph imports, by domain; ``ai.onnx`` is ``""``."""
    if not model.opset_imports and model.ir_version < _IMPORTS_SINCE_IR_VERSION:
        return {"": 1}
    return normalized(model.opset_imports)


def versions_anywhere(model: ir.Model) -> dict[str, int]:
    """Return the main graph's versions, and those of domains that only functions import."""
    versions = opset_versions(model)
    for function in model.functions.values():
        for domain, version in normalized(function.opset_imports).items():
            versions.setdefault(domain, version)
    return versions


def normalized(imports: Mapping[str, int]) -> dict[str, int]:
    """Return imports with ``""`` for ``ai.onnx``; where both are imported, ``""`` counts."""
    return {
        "" if domain == "ai.onnx" else domain: version
        for domain, version in sorted(imports.items(), reverse=True)
    }


def opset_problems(versions: Mapping[str, int]) -> Iterator[str]:
    """Yield which imported versions are out of range.

    Files import domains that no node of theirs uses, in versions of their own: beside the main
    domain, only the loader refuses what is too new, and only where a node uses it.
    """
    newest = onnx.defs.onnx_opset_version()
    for domain, version in versions.items():
        if version < 1:
            yield f"version {version} of the domain {domain!r} is imported; versions start at 1"
        elif domain == "" and version > newest:
            yield f"version {version} of the domain 'ai.onnx' is imported; known are 1 to {newest}"


def opset_conflict(
    domain: str, op_type: str, version: int, model_version: int | None
) -> Iterator[str]:
    """Yield a problem where a function's version of an operator differs from the model's.

    The operator is one that onnx defines, in the function's version.
    """
    if model_version is None or model_version == version:
        return
    ours = find_schema(domain, op_type, version)
    theirs = find_schema(domain, op_type, model_version)
    if ours is not None and theirs is not None and ours.since_version == theirs.since_version:
        return
    yield (
        f"is of version {version} of the domain {domain or 'ai.onnx'!r} in the function, but "
        f"the model imports version {model_version}, which defines it otherwise"
    )
