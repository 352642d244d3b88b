"""The files of a bundle's folder: opened, written, and compared with the manifest.

A folder is opened once, so that a build that replaces it meanwhile never mixes two bundles.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import onnx
import onnx_ir as ir
import safetensors
from google.protobuf.message import EncodeError

from narrowpass.bundle import publish
from narrowpass.bundle._plan import Plan, Stored
from narrowpass.bundle.manifest import (
    MANIFEST,
    REPORTS,
    WEIGHTS,
    FileInfo,
    InitializerInfo,
    Manifest,
    MethodInfo,
    TensorInfo,
    ValueInfo,
    WeightsInfo,
    is_manifest,
)
from narrowpass.bundle.report import Report
from narrowpass.errors import BundleError, ModelError, UsageError
from narrowpass_ir.arguments import count_of, path_of
from narrowpass_ir.files import write_file
from narrowpass_ir.importing import check_assets
from narrowpass_ir.io import MappedFile, MappedTensor, external_reference, serialize
from narrowpass_ir.io.steps import (
    build_model,
    element_type,
    initializers,
    open_inside,
    parse_model,
    proto_tensors,
    refuse,
    remember,
    remembered,
    replace_tensors,
)
from narrowpass_ir.tensors.safetensors import (
    Entry,
    Layout,
    Progress,
    header_size,
    parse_header,
    stored_form,
)
from narrowpass_ir.tensors.streaming import CHUNK, default_threads
from narrowpass_ir.tensors.threads import ThreadPool

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

    def weights(self, manifest: Manifest) -> tuple[MappedFile, dict[str, Entry]]:
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
            header = file.read(0, header_size(start, file.size))
            if hashlib.sha256(header).hexdigest() != info.header_sha256:
                raise BundleError("its header is not the one that the manifest says")
            entries = parse_header(header, file.size)
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


def _compare(manifest: Manifest, entries: dict[str, Entry]) -> None:
    if entries.keys() != manifest.tensors.keys():
        key = min(entries.keys() ^ manifest.tensors.keys())
        raise BundleError(f"tensor {key!r} is only in the manifest or only in the weights file")
    for key, entry in entries.items():
        info = manifest.tensors[key]
        code, shape = stored_form(_data_type(info.dtype), info.shape, info.bytes)
        expected = Entry(code, tuple(shape), info.offset, info.bytes)
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
    """Return whether `path` is a folder with our manifest, of whatever version, whole or not."""
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


def verify(
    path: str | os.PathLike[str], *, progress: Progress | None = None, threads: int | None = None
) -> list[str]:
    """Compare everything in a bundle with its manifest, reading all of it.

    Args:
        path: a bundle folder.
        progress: called with the bytes of weights read and the bytes in all.
        threads: how many tensors are read at once; None for up to four.

    Returns:
        One sentence for each problem; none where the bundle is as it was written.

    Raises:
        UsageError: nothing is at `path`, or not a folder.
    """
    if threads is not None:
        threads = count_of(threads, "`threads`")

    def work(folder: Folder) -> list[str]:
        return list(_problems(folder, progress, threads or default_threads()))

    try:
        return read_retrying(path, work)
    except BundleError as error:
        return [str(error)]


def _problems(folder: Folder, progress: Progress | None, threads: int) -> Iterator[str]:
    manifest, data = folder.manifest()
    if manifest.to_json().encode() != data:
        yield f"{folder.path}: {MANIFEST} was changed after the bundle was built"
    yield from _report_problems(folder, manifest)
    try:
        file, entries = folder.weights(manifest)
    except BundleError as error:
        yield str(error)
        return
    for method in manifest.methods:
        yield from _method_problems(folder, manifest, method, file)
    yield from _library_problems(folder, entries)
    yield from _padding_problems(file, manifest)
    yield from _tensor_problems(file, manifest, progress, threads)


def _report_problems(folder: Folder, manifest: Manifest) -> Iterator[str]:
    for read in (read_reports, read_assets):
        try:
            read(folder, manifest)
        except BundleError as error:
            yield str(error)


def _method_problems(
    folder: Folder, manifest: Manifest, method: MethodInfo, file: MappedFile
) -> Iterator[str]:
    try:
        model, _ = build_method(*read_model_file(folder, method), manifest, method, file)
    except (BundleError, ModelError) as error:
        yield str(error)
        return
    inputs = tuple(value_info(value) for value in model.graph.inputs)
    outputs = tuple(value_info(value) for value in model.graph.outputs)
    if (inputs, outputs) != (method.inputs, method.outputs):
        yield f"{folder.path}: {MANIFEST} says other inputs or outputs of method {method.name!r}"


def _library_problems(folder: Folder, entries: dict[str, Entry]) -> Iterator[str]:
    """Ask the safetensors library whether it reads the file, and sees in it what we see."""
    fd = folder.open(WEIGHTS)
    # By descriptor where there is such a path: another bundle may be at the folder's by now.
    same = f"/dev/fd/{fd}"
    path = same if Path(same).exists() else f"{folder.path}/{WEIGHTS}"
    try:
        with safetensors.safe_open(path, framework="np") as opened:
            seen = {}
            for key in opened.keys():  # noqa: SIM118  # not a dict
                part = opened.get_slice(key)
                seen[key] = (part.get_dtype(), tuple(part.get_shape()))
    except (safetensors.SafetensorError, OSError) as error:
        yield f"{folder.path}: {WEIGHTS}: the safetensors library refuses it: {error}"
        return
    finally:
        os.close(fd)
    for key, entry in entries.items():
        if seen.get(key) != (entry.code, entry.shape):
            yield f"{folder.path}: {WEIGHTS}: the safetensors library sees {key!r} differently"


def _padding_problems(file: MappedFile, manifest: Manifest) -> Iterator[str]:
    position = manifest.weights.header_bytes
    for info in sorted(manifest.tensors.values(), key=lambda info: info.offset):
        if any(file.read(position, info.offset - position)):
            yield f"{file.name}: the padding at {position} was changed after the bundle was built"
        position = info.offset + info.bytes


def _tensor_problems(
    file: MappedFile, manifest: Manifest, progress: Progress | None, threads: int
) -> Iterator[str]:
    def check(key: str) -> str | None:
        info = manifest.tensors[key]
        digest = hashlib.sha256()
        for start in range(0, info.bytes, CHUNK):
            digest.update(file.read(info.offset + start, min(CHUNK, info.bytes - start)))
        if digest.hexdigest() != info.sha256:
            return f"{file.name}: tensor {key!r} was changed after the bundle was built"
        return None

    total = sum(info.bytes for info in manifest.tensors.values())
    done = 0
    with ThreadPool(threads) as pool:
        for key, problem in zip(manifest.tensors, pool.map(check, manifest.tensors), strict=True):
            done += manifest.tensors[key].bytes
            if progress is not None:
                progress(done, total)
            if problem is not None:
                yield problem
