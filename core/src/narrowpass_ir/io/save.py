"""Writing a model as one ordinary ONNX file."""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import onnx
import onnx_ir as ir

from narrowpass_ir.arguments import count_of, instance_of, path_of
from narrowpass_ir.errors import ModelError, OutputError, UsageError
from narrowpass_ir.files import sync, sync_folder, temporary
from narrowpass_ir.garbage import pause_collection
from narrowpass_ir.io._checker import check_but_for_shapes, check_file, remembered, warn
from narrowpass_ir.io._serialize import external_reference, serialize
from narrowpass_ir.io._shape_operands import shape_operands
from narrowpass_ir.io._walk import initializers, proto_tensors
from narrowpass_ir.io.mapped import Writable, write_all

ALIGNMENT = 64
"""Every tensor of a data file starts at a multiple of this."""

INLINE_BELOW = 1024
"""Tensors of fewer bytes stay in the model file."""

_PROTOBUF_LIMIT = 2**31 - 1
# What a tensor's bytes need in protobuf beside themselves: tags and lengths, at three levels.
_OVERHEAD = 24


def save_model(
    model: ir.Model, path: str | os.PathLike[str], *, inline_limit: int = _PROTOBUF_LIMIT
) -> None:
    """Write `model` as one ONNX file. Whoever opens `path` finds the old file or the new one.

    Where the file would exceed `inline_limit`, initializers go to a data file beside it, which
    is named by its content (``model.onnx.<checksum>.data``), so that the old model and its data
    stay a pair until the new pair is complete. Data files of earlier writes to the same path
    are deleted afterwards. The same model is written as the same bytes.

    Args:
        model: any valid model. It is the same afterwards.
        path: the file to write. A link is replaced, not followed.
        inline_limit: bytes above which the model file sheds its initializers; 2 GiB, the limit
            of protobuf, at most.

    Raises:
        UsageError: `path` is a folder or a device.
        OutputError: the file cannot be written; what was there before is untouched.
        ModelError: the model cannot be stored, even so.
    """
    target = Path(path_of(path, "the path of the model"))
    instance_of(model, ir.Model, "the model", "an onnx_ir.Model")
    inline_limit = count_of(inline_limit, "`inline_limit`", least=0)
    with _as_output_error(target), pause_collection():
        _refuse_target(target)
        _save(model, target, inline_limit)


def _save(model: ir.Model, target: Path, limit: int) -> None:
    limit = min(limit, _PROTOBUF_LIMIT)
    outside = _External(model)
    data: Path | None = None
    created = False
    try:
        proto = _inline(model, outside, limit)
        if proto is None:
            proto = serialize(model, outside.reference)
            if proto.ByteSize() > _PROTOBUF_LIMIT:
                raise ModelError(
                    f"{target}: the model takes {proto.ByteSize()} bytes without its initializers, "
                    f"more than protobuf can hold ({_PROTOBUF_LIMIT}); turn large constants into "
                    "initializers, as constant folding does"
                )
            if outside.candidate_bytes():
                data, created = outside.write(target)
                _set_location(proto, data.name)
        with temporary(target) as (file, name):
            file.write(proto.SerializeToString(deterministic=True))
            del proto
            sync(file)
            _check(model, name, target)
            name.replace(target)
    except BaseException:
        if data is not None and created:
            data.unlink(missing_ok=True)
        raise
    # The new model is in place: nothing from here on is worth an error.
    with contextlib.suppress(OSError):
        sync_folder(target.parent)
        for stale in _data_files(target):
            if stale != data:
                stale.unlink(missing_ok=True)


def _inline(model: ir.Model, outside: _External, limit: int) -> onnx.ModelProto | None:
    """Return the model with all tensors inside, or None where that exceeds `limit`."""
    # Far from the limit one serialization answers; near it, that could exceed memory or protobuf.
    if outside.candidate_bytes() > limit // 2:
        small = serialize(model, outside.reference).ByteSize()
        if small + outside.inline_size() > limit:
            return None
    proto = serialize(model, lambda scope, value: None)
    return proto if proto.ByteSize() <= limit else None


class _External:
    """The initializers of a model that may lie outside its file, and where."""

    PLACEHOLDER = "data"

    def __init__(self, model: ir.Model) -> None:
        stay = shape_operands(model)
        self._tensors: dict[ir.Value, ir.TensorProtocol] = {}
        for _, value in initializers(model):
            tensor = value.const_value
            if tensor is None or tensor.dtype.is_string() or value in stay:
                continue
            if tensor.nbytes >= INLINE_BELOW:
                self._tensors[value] = tensor
        # One object under two names is stored once.
        self._distinct = {id(tensor): tensor for tensor in self._tensors.values()}
        self._offsets: dict[int, int] = {}
        end = 0
        for key, tensor in self._distinct.items():
            self._offsets[key] = -(-end // ALIGNMENT) * ALIGNMENT
            end = self._offsets[key] + tensor.nbytes

    def candidate_bytes(self) -> int:
        """Return the bytes of all tensors that may lie outside."""
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def inline_size(self) -> int:
        """Return the most that the model file grows by when these tensors are inside."""
        return self.candidate_bytes() + len(self._tensors) * _OVERHEAD

    def reference(self, scope: str, value: ir.Value) -> ir.TensorProtocol | None:
        """Return the reference to write for an initializer; None for one that stays inside."""
        tensor = self._tensors.get(value)
        if tensor is None:
            return None
        return external_reference(
            tensor, self.PLACEHOLDER, self._offsets[id(tensor)], tensor.nbytes
        )

    def write(self, target: Path) -> tuple[Path, bool]:
        """Write the data file; return its path, and whether it was not there before."""
        with temporary(target) as (file, name):
            stream = _Summed(file)
            for key, tensor in self._distinct.items():
                stream.write(bytes(self._offsets[key] - stream.position))
                write_tensor(stream, tensor)
            sync(file)
            final = target.with_name(f"{target.name}.{stream.digest()}.data")
            created = not final.exists()
            name.replace(final)
        # Before the model's name is on the disk, the data's must be.
        sync_folder(target.parent)
        return final, created


class _Summed:
    """A file with a checksum of what is written to it.

    The checksum distinguishes versions of the data, and is no proof against forgery: a hash that
    is would take longer than the writing.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sum = 0
        self.position = 0

    def write(self, data: bytes) -> int:
        write_all(self._file, data)
        self._sum = zlib.crc32(data, self._sum)
        self.position += len(data)
        return len(data)

    def digest(self) -> str:
        return f"{self._sum:08x}"


def write_tensor(stream: Writable, tensor: ir.TensorProtocol) -> None:
    """Write the serialized bytes of any tensor, in pieces where it can."""
    tofile = getattr(tensor, "tofile", None)
    if tofile is None:
        stream.write(tensor.tobytes())
    else:
        tofile(stream)


def _set_location(proto: onnx.ModelProto, location: str) -> None:
    for _, tensor in proto_tensors(proto):
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location


def _check(model: ir.Model, name: Path, target: Path) -> None:
    complaint = check_file(name)
    if complaint is None:
        return
    if remembered(model) is not None:
        # It was refused as it was read, too: not our doing, and no reason to stop here.
        warn(target, complaint)
        return
    other = check_but_for_shapes(name)
    if other is None:
        warn(target, complaint)
        return
    complaint = other
    raise ModelError(
        f"{target}: onnx.checker refuses the model that was to be written, so nothing was "
        f"written; please report this: {complaint}"
    )


def _refuse_target(target: Path) -> None:
    if "\0" in str(target):
        raise UsageError(f"{str(target)!r}: is no file name: it has a NUL character")
    if target.is_dir():
        raise UsageError(f"{target}: is a folder; pass the name of a file in it")
    if target.exists() and not target.is_file():
        raise UsageError(f"{target}: is not a regular file; choose another name")


@contextlib.contextmanager
def _as_output_error(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(
            f"{target}: cannot be written: {reason}; what was there before is untouched"
        ) from error


def _data_files(target: Path) -> Iterator[Path]:
    pattern = re.compile(re.escape(target.name) + r"\.[0-9a-f]{8}\.data")
    for entry in list(target.parent.iterdir()):
        if pattern.fullmatch(entry.name) and entry.is_file():
            yield entry
