"""Opening a bundle folder, so that a build that replaces it meanwhile never mixes two."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import onnx
import onnx_ir as ir

from narrowpass.bundle import publish
from narrowpass.bundle._plan import Plan, Stored
from narrowpass.bundle.manifest import (
    MANIFEST,
    WEIGHTS,
    FileInfo,
    Manifest,
    MethodInfo,
    TensorInfo,
    is_manifest,
)
from narrowpass.bundle.report import Report
from narrowpass.errors import BundleError, ModelError, UsageError
from narrowpass_ir.arguments import path_of
from narrowpass_ir.importing import check_assets
from narrowpass_ir.io import MappedFile, MappedTensor
from narrowpass_ir.io.steps import (
    build_model,
    element_type,
    initializers,
    open_inside,
    parse_model,
    proto_tensors,
    refuse,
    remember,
    replace_tensors,
)
from narrowpass_ir.tensors import safetensors

_ATTEMPTS = 1000
_T = TypeVar("_T")


class Folder:
    """A bundle folder, opened once; every file is opened relative to the descriptor.

    Attributes:
        path: what messages call it.
    """

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self.path = path

    def open(self, name: str) -> int:
        """Open a file of the folder for reading.

        Raises:
            FileNotFoundError: it is not there.
            BundleError: it is not a regular file, a link that leaves the folder (into the blobs of
                a hub's cache it may), or cannot be opened.
        """
        fd = -1
        try:
            fd = open_inside(self._fd, self.path, name)
            mode = os.fstat(fd).st_mode
        except FileNotFoundError:
            raise
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            raise BundleError(f"{self.path}: {name} cannot be opened: {error.strerror}") from error
        if not stat.S_ISREG(mode):
            os.close(fd)
            raise BundleError(f"{self.path}: {name} is not a regular file; build the bundle again")
        return fd

    def read(self, name: str) -> bytes:
        """Read a whole file of the folder. Raises as `open` does."""
        fd = self.open(name)
        try:
            with os.fdopen(fd, "rb") as file:
                return file.read()
        except OSError as error:
            text = f"{self.path}: {name} cannot be read: {error.strerror}; check the disk"
            raise BundleError(text) from error

    def manifest(self) -> tuple[Manifest, bytes]:
        """Read the manifest, and return its bytes, too.

        Raises:
            FileNotFoundError: there is none.
            BundleError: it is not ours, of an unknown version, or damaged.
        """
        data = self.read(MANIFEST)
        try:
            return Manifest.from_json(data), data
        except BundleError as error:
            raise BundleError(f"{self.path}: {MANIFEST}: {error}") from error

    def weights(self, manifest: Manifest) -> tuple[MappedFile, dict[str, safetensors.Entry]]:
        """Open the weights file and compare its header with the manifest.

        Raises:
            FileNotFoundError: it is not there.
            BundleError: it is cut short, or its header is not the manifest's.
        """
        what = f"{self.path}: {WEIGHTS}"
        info = manifest.weights
        if info.path != WEIGHTS:
            raise BundleError(f"{self.path}: {MANIFEST} names an unknown file {info.path!r}")
        file = MappedFile(self.open(WEIGHTS), f"{self.path}/{WEIGHTS}")
        if file.size != info.bytes:
            raise BundleError(
                f"{what} has {file.size} bytes where the manifest says {info.bytes}; it is cut "
                "short or damaged, build the bundle again"
            )
        try:
            start = file.read(0, min(8, file.size))
            header = file.read(0, safetensors.header_size(start, file.size))
            if hashlib.sha256(header).hexdigest() != info.header_sha256:
                raise BundleError("its header is not the one that the manifest says")
            entries = safetensors.parse_header(header, file.size)
            _compare(manifest, entries)
        except (BundleError, ModelError) as error:
            raise BundleError(f"{what}: {error}; build the bundle again") from error
        return file, entries

    def checked(self, info: FileInfo) -> bytes:
        """Read a small file whose hash the manifest has.

        Raises:
            FileNotFoundError: it is not there.
            BundleError: it is not the one that the manifest says.
        """
        data = self.read(info.path)
        if len(data) != info.bytes or hashlib.sha256(data).hexdigest() != info.sha256:
            raise BundleError(
                f"{self.path}: {info.path} was changed after the bundle was built (its SHA-256 "
                "is not the manifest's); build the bundle again"
            )
        return data


def _compare(manifest: Manifest, entries: dict[str, safetensors.Entry]) -> None:
    if entries.keys() != manifest.tensors.keys():
        key = min(entries.keys() ^ manifest.tensors.keys())
        raise BundleError(f"tensor {key!r} is only in the manifest or only in the weights file")
    for key, entry in entries.items():
        info = manifest.tensors[key]
        code, shape = safetensors.stored_form(_data_type(info.dtype), info.shape, info.bytes)
        expected = safetensors.Entry(code, tuple(shape), info.offset, info.bytes)
        if entry != expected:
            raise BundleError(f"tensor {key!r} is not where and what the manifest says")


def _data_type(name: str) -> ir.DataType:
    """Return the element type that the manifest calls `name`.

    Raises:
        BundleError: there is none.
    """
    try:
        return ir.DataType[name.upper()]
    except KeyError:
        raise BundleError(f"unknown element type {name!r}") from None


def is_bundle(path: str | os.PathLike[str]) -> bool:
    """Return whether `path` is a folder with our manifest."""
    try:
        return read_retrying(path, lambda folder: is_manifest(folder.read(MANIFEST)))
    except (BundleError, UsageError):
        return False


@dataclass(frozen=True)
class Loaded:
    """What a bundle folder holds.

    Attributes:
        manifest: its manifest.
        builders: build the models of the methods, from their files, which were read.
        reports: of its passes.
        plan: its data map; the keys of a model's initializers are added when it is built.
        assets: by name.
    """

    manifest: Manifest
    builders: Mapping[str, Callable[[], ir.Model]]
    reports: tuple[Report, ...]
    plan: Plan
    assets: Mapping[str, bytes]


def load(path: str | os.PathLike[str]) -> Loaded:
    """Read the manifest, the models' files and the reports of a bundle.

    Raises:
        UsageError: nothing is at `path`, or not a folder.
        BundleError: the bundle is damaged or of an unknown version.
    """
    return read_retrying(path, _load)


def _load(folder: Folder) -> Loaded:
    manifest, _ = folder.manifest()
    file, entries = folder.weights(manifest)
    builders: dict[str, Callable[[], ir.Model]] = {}
    keys: dict[tuple[str, ir.Value], str] = {}
    for method in manifest.methods:
        if method.name in builders:
            raise BundleError(f"{folder.path}: {MANIFEST} has two methods of the same name")
        data, what = read_model_file(folder, method)
        builders[method.name] = functools.partial(_build, data, what, manifest, method, file, keys)
    # The keys are the manifest's, not computed anew: a later version may name them otherwise.
    tensors = {key: _tensor(key, manifest.tensors[key], file) for key in entries}
    plan = Plan(tensors, keys, ())
    reports, assets = tuple(read_reports(folder, manifest)), read_assets(folder, manifest)
    return Loaded(manifest, builders, reports, plan, assets)


def _build(
    data: bytes,
    what: str,
    manifest: Manifest,
    method: MethodInfo,
    file: MappedFile,
    keys: dict[tuple[str, ir.Value], str],
) -> ir.Model:
    """Return the model of a method, and add the data keys of its initializers to `keys`."""
    model, found = build_method(data, what, manifest, method, file)
    keys.update({(method.name, item.value): key for item, key in found})
    return model


def _tensor(key: str, info: TensorInfo, file: MappedFile) -> MappedTensor:
    dtype = _data_type(info.dtype)
    return MappedTensor(
        file, info.offset, dtype, info.shape, key, sha256=info.sha256, mismatch=_changed
    )


def _changed(tensor: MappedTensor) -> BundleError:
    return BundleError(
        f"{tensor.file.name}: tensor {tensor.name!r} was changed after the bundle was built "
        "(its SHA-256 is not the manifest's); build the bundle again"
    )


def read_reports(folder: Folder, manifest: Manifest) -> list[Report]:
    """Read the reports. Raises as `Folder.checked` does."""
    reports = []
    for info in manifest.reports:
        _check_inside(folder, info, "reports/")
        try:
            reports.append(Report.from_json(folder.checked(info)))
        except ValueError as error:
            raise BundleError(f"{folder.path}: {info.path}: {error}") from error
    return reports


def read_assets(folder: Folder, manifest: Manifest) -> Mapping[str, bytes]:
    """Read the assets, by name. Raises as `Folder.checked` does."""
    for info in manifest.assets:
        _check_inside(folder, info, "")
    try:
        return check_assets({info.path: folder.checked(info) for info in manifest.assets})
    except UsageError as error:
        raise BundleError(f"{folder.path}: {MANIFEST}: {error}") from error


def _check_inside(folder: Folder, info: FileInfo, prefix: str) -> None:
    """Refuse a path that leads out of the folder."""
    name = info.path.removeprefix(prefix)
    if not info.path.startswith(prefix) or "/" in name or "\0" in name or name in ("", ".", ".."):
        raise BundleError(f"{folder.path}: {MANIFEST} names an unknown file {info.path!r}")


def read_model_file(folder: Folder, method: MethodInfo) -> tuple[bytes, str]:
    """Read the file of a method's model; return what is in it, and what messages call it.

    Raises:
        FileNotFoundError: it is not there.
        BundleError: it is not the manifest's.
    """
    if method.file.path != f"{method.name}.onnx":
        raise BundleError(f"{folder.path}: {MANIFEST} names an unknown file {method.file.path!r}")
    _check_inside(folder, method.file, "")
    return folder.checked(method.file), f"{folder.path}/{method.file.path}"


def build_method(
    data: bytes, what: str, manifest: Manifest, method: MethodInfo, file: MappedFile
) -> tuple[ir.Model, list[tuple[Stored, str]]]:
    """Build a method's model from its file, its stored initializers being parts of `file`.

    Returns:
        The model, and the stored initializers with their data keys.

    Raises:
        BundleError: it does not fit the weights.
        ModelError: this narrowpass does not support the model.
    """
    proto = parse_model(data, what)
    # A newer narrowpass may have written opsets that this one's onnx does not know.
    refuse(proto, what)
    for owner, tensor in proto_tensors(proto):
        element_type(tensor, f"{what}: {owner}")
        location = {entry.value for entry in tensor.external_data if entry.key == "location"}
        if tensor.data_location == onnx.TensorProto.EXTERNAL and location != {WEIGHTS}:
            raise BundleError(f"{what}: {owner} is in {location}, which is not of the bundle")
    model = build_model(proto, what)
    replace_tensors(model, {WEIGHTS: file}, what)
    if method.checker is not None:
        remember(model, method.checker)
    return model, _stored(manifest, method, model, what)


def _stored(
    manifest: Manifest, method: MethodInfo, model: ir.Model, what: str
) -> list[tuple[Stored, str]]:
    keys = {(info.scope, info.name): info.key for info in method.initializers}
    found = []
    for scope, value in initializers(model):
        tensor = value.const_value
        if not isinstance(tensor, MappedTensor):
            continue
        key = keys.get((scope, value.name or ""), "")
        info = manifest.tensors.get(key)
        where = (tensor.dtype.name.lower(), tuple(tensor.shape.numpy()), tensor.offset)
        if info is None or where != (info.dtype, info.shape, info.offset):
            raise BundleError(
                f"{what}: initializer {value.name!r} is not the tensor that the manifest says; "
                "build the bundle again"
            )
        # To be compared by whoever names something after it.
        tensor.sha256, tensor.mismatch = info.sha256, _changed
        found.append((Stored(method.name, scope, value, tensor), key))
    if len(found) != len(method.initializers):
        raise BundleError(f"{what}: the manifest names initializers that it does not have")
    return found


def read_retrying(path: str | os.PathLike[str], work: Callable[[Folder], _T]) -> _T:
    """Open a bundle folder and run `work` on it, again where the folder is replaced meanwhile.

    Raises:
        UsageError: nothing is at `path`, or not a folder.
        BundleError: a file is missing, and the folder was not replaced.
    """
    path = shown = path_of(path, "the path of the bundle")
    missing: str | None = None
    for _ in range(_ATTEMPTS):
        fd = _open(path)
        try:
            return work(Folder(fd, shown))
        except FileNotFoundError as error:
            missing = str(error.filename)
            if _same(fd, path):
                break
        finally:
            with contextlib.suppress(OSError):  # nothing was written
                os.close(fd)
    if missing == MANIFEST:
        raise BundleError(f"{shown}: has no {MANIFEST}, so it is not a bundle, or not a whole one")
    raise BundleError(f"{shown}: {missing} is missing; build the bundle again")


def _open(path: str | os.PathLike[str]) -> int:
    shown = os.fspath(path)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            if not publish.repair(path):
                raise
            return os.open(path, flags)
    except FileNotFoundError:
        raise UsageError(f"{shown}: no such bundle; pass the path of a .narrow folder") from None
    except NotADirectoryError:
        raise UsageError(f"{shown}: is a file; a bundle is a folder") from None
    except OSError as error:
        raise UsageError(f"{shown}: cannot be opened: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{shown!r}: is not a path: {error}") from error


def _same(fd: int, path: str | os.PathLike[str]) -> bool:
    """Return whether the folder that is open is still the one at `path`."""
    try:
        return os.path.samestat(os.fstat(fd), Path(path).stat())
    except OSError:
        return False
