"""The files of a bundle beside the weights: models, reports, and their part of the manifest."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import EncodeError

from narrowpass.bundle._plan import Plan
from narrowpass.bundle.manifest import (
    REPORTS,
    WEIGHTS,
    FileInfo,
    InitializerInfo,
    MethodInfo,
    TensorInfo,
    ValueInfo,
    WeightsInfo,
)
from narrowpass.bundle.report import Report
from narrowpass.errors import ModelError
from narrowpass_ir.files import write_file
from narrowpass_ir.io import external_reference, serialize
from narrowpass_ir.io.steps import remembered
from narrowpass_ir.tensors.safetensors import Layout


def write_method(
    folder: Path, name: str, model: ir.Model, plan: Plan, layout: Layout
) -> MethodInfo:
    """Write a method's ONNX file, its stored initializers referring to the weights file.

    Raises:
        OSError: it cannot be written.
        ModelError: the model cannot be written as ONNX.
    """
    keys = plan.of(name)

    def replace(scope: str, value: ir.Value) -> ir.TensorProtocol | None:
        del scope
        key = keys.get(value)
        tensor = value.const_value
        if key is None or tensor is None:
            return None
        entry = layout.entries[key]
        return external_reference(tensor, WEIGHTS, entry.offset, entry.nbytes)

    data = _to_bytes(serialize(model, replace), name)
    path = folder / f"{name}.onnx"
    write_file(path, data)
    return MethodInfo(
        name,
        _file_info(path.name, data),
        remembered(model),
        tuple(value_info(value) for value in model.graph.inputs),
        tuple(value_info(value) for value in model.graph.outputs),
        tuple(
            InitializerInfo(item.scope, item.name, keys[item.value])
            for item in plan.initializers
            if item.method == name
        ),
    )


def _to_bytes(proto: onnx.ModelProto, method: str) -> bytes:
    try:
        return bytes(proto.SerializeToString(deterministic=True))
    except (EncodeError, ValueError) as error:
        raise ModelError(
            f"method {method!r} does not fit into an ONNX file without its initializers "
            f"({error}); turn large Constant nodes into initializers, as constant folding does"
        ) from error


def _file_info(path: str, data: bytes) -> FileInfo:
    return FileInfo(path, len(data), hashlib.sha256(data).hexdigest())


def value_info(value: ir.Value) -> ValueInfo:
    """Describe an input or output of a model."""
    shape = None
    if value.shape is not None:
        shape = tuple(
            dim if isinstance(dim, int) else dim.value  # a symbolic one: its name, or None
            for dim in value.shape
        )
    return ValueInfo(value.name or "", _type_text(value.type), shape)


def _type_text(type_: ir.TypeProtocol | None) -> str | None:
    if type_ is None:
        return None
    if isinstance(type_, ir.TensorType):
        return type_.dtype.name.lower()
    kind = type(type_).__name__.removesuffix("Type").removesuffix("Tensor").lower()
    inner = type_.elem_type
    text = inner.name.lower() if isinstance(inner, ir.DataType) else _type_text(inner)
    return f"{kind}({text})"


def weights_info(layout: Layout) -> WeightsInfo:
    """Describe the weights file."""
    digest = hashlib.sha256(layout.header).hexdigest()
    return WeightsInfo(WEIGHTS, layout.size, len(layout.header), digest)


def tensor_infos(plan: Plan, layout: Layout, hashes: Mapping[str, str]) -> dict[str, TensorInfo]:
    """Describe the tensors of the weights file, by data key."""
    return {
        key: TensorInfo(
            tensor.dtype.name.lower(),
            tuple(tensor.shape.numpy()),
            layout.entries[key].nbytes,
            layout.entries[key].offset,
            hashes[key],
        )
        for key, tensor in plan.tensors.items()
    }


def write_assets(folder: Path, assets: Mapping[str, bytes]) -> list[FileInfo]:
    """Write the assets, in the order of their names.

    Raises:
        OSError: one cannot be written.
    """
    for name, data in assets.items():
        write_file(folder / name, data)
    return [_file_info(name, assets[name]) for name in sorted(assets)]


def write_reports(folder: Path, reports: Sequence[Report]) -> list[FileInfo]:
    """Write the reports, one file a pass.

    Raises:
        OSError: one cannot be written.
    """
    if reports:
        (folder / REPORTS).mkdir()
    infos = []
    for number, report in enumerate(reports):
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", report.name)
        path = f"{REPORTS}/{number:02}-{name}.json"
        data = report.to_json().encode()
        write_file(folder / path, data)
        infos.append(_file_info(path, data))
    return infos
