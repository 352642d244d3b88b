"""A bundle compared with its own manifest, byte by byte."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import safetensors

from narrowpass.bundle._load import (
    Folder,
    build_method,
    read_assets,
    read_model_file,
    read_reports,
    read_retrying,
)
from narrowpass.bundle._save import value_info
from narrowpass.bundle.manifest import MANIFEST, WEIGHTS, Manifest, MethodInfo
from narrowpass.errors import BundleError, ModelError
from narrowpass_ir.arguments import count_of
from narrowpass_ir.io import MappedFile
from narrowpass_ir.tensors.safetensors import Entry, Progress
from narrowpass_ir.tensors.streaming import CHUNK, default_threads
from narrowpass_ir.tensors.threads import ThreadPool


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
