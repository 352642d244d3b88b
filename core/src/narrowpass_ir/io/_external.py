"""Which files belong to a model that somebody else has packed, and opening them."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import onnx

from narrowpass_ir.errors import ModelError
from narrowpass_ir.io._inline import element_type
from narrowpass_ir.io._walk import proto_tensors
from narrowpass_ir.io.mapped import MappedFile, serialized_size

LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""How a file begins that git-lfs left in place of the real one."""

HARD_LINKS_VARIABLE = "NARROWPASS_ALLOW_HARD_LINKS"
"""The environment variable by which data files may have more than one name."""

_MAX_OFFSET = 2**63 - 1
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW


def open_external(proto: onnx.ModelProto, path: str) -> dict[str, MappedFile]:
    """Open every data file of a model, once each.

    Entries other than ``location``, ``offset`` and ``length`` are removed from `proto`.

    Returns:
        The files by location, as the tensors write it.

    Raises:
        ModelError: a file that is missing, cut short, or not the model's own; the message
            names the tensor and the file.
    """
    files: dict[str, MappedFile] = {}
    for owner, tensor in proto_tensors(proto):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        what = f"{path}: {owner}"
        entries = {entry.key: _text(entry.value, what) for entry in tensor.external_data}
        location = entries.get("location", "")
        if location not in files:
            files[location] = _open(location, path, what)
        _check_range(tensor, entries, files[location], what)
        kept = [(key, entries[key]) for key in ("location", "offset", "length") if key in entries]
        del tensor.external_data[:]
        for key, value in kept:
            tensor.external_data.add(key=key, value=value)
    return files


def _text(value: object, what: str) -> str:
    # protobuf returns bytes for text that is not UTF-8.
    if isinstance(value, str):
        return value
    raise ModelError(
        f"{what}: its external data has {str(value)[:80]}, which is not UTF-8 text; rename the "
        "data file, or export the model again"
    )


def _check_range(
    tensor: onnx.TensorProto, entries: dict[str, str], file: MappedFile, what: str
) -> None:
    dtype = element_type(tensor, what)
    if dtype.is_string():
        raise ModelError(
            f"{what}: strings cannot be stored outside the model file; export it again with this "
            "tensor inside"
        )
    needed = serialized_size(dtype, tensor.dims)
    offset = _number(entries.get("offset", "0"), "offset", what)
    length = _number(entries.get("length", str(needed)), "length", what)
    if length != needed:
        raise ModelError(
            f"{what}: its external data is {length} bytes, but {dtype.name.lower()}"
            f"{list(tensor.dims)} takes {needed}; the model is damaged, fetch or export it again"
        )
    if offset + length > file.size:
        raise ModelError(
            f"{what}: needs bytes {offset} to {offset + length} of {file.name}, but that file has "
            f"{file.size}; it is cut short or belongs to another model, fetch it again"
        )


def _number(text: str, key: str, what: str) -> int:
    # int() would also take signs, blanks, underscores and the digits of other scripts.
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > _MAX_OFFSET:
        raise ModelError(
            f"{what}: the {key} of its external data is {text[:40]!r}, not a number of bytes; "
            "the model is damaged, fetch or export it again"
        )
    return int(text)


def _open(location: str, path: str, what: str) -> MappedFile:
    real = _resolve(location, path, what)
    shown = str(Path(path).parent / location)
    try:
        status = real.stat()
    except OSError as error:
        raise ModelError(
            f"{what}: its data file {shown} cannot be read: {error.strerror}"
        ) from error
    # Before the open: opening a device or a FIFO may already have effects.
    if not stat.S_ISREG(status.st_mode):
        raise ModelError(
            f"{what}: its external data {shown} is not a regular file; put the data file there"
        )
    try:
        # Its links are resolved: one that is there now was put there since.
        descriptor = os.open(real, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        raise ModelError(
            f"{what}: its data file {shown} cannot be opened: {error.strerror}"
        ) from error
    file = MappedFile(descriptor, shown)
    _check_names(file, what)
    if file.size < 1024 and file.read(0, file.size).startswith(LFS_POINTER):
        raise ModelError(
            f"{what}: its data file {shown} is a git-lfs pointer, not the data; run `git lfs pull`"
        )
    return file


def _check_names(file: MappedFile, what: str) -> None:
    """Refuse a file that has another name, which may be outside the model's folder.

    Judged by the open file: that of a path may change meanwhile.
    """
    names = file.status().st_nlink
    if names > 1 and os.environ.get(HARD_LINKS_VARIABLE, "0") in ("", "0"):
        raise ModelError(
            f"{what}: its data file {file.name} has {names} names (hard links), so it may be any "
            "file of this file system; put a copy in its place, or, where a backup or a package "
            f"manager linked it, set {HARD_LINKS_VARIABLE}=1"
        )


def _resolve(location: str, path: str, what: str) -> Path:
    """Return the real path of a data file that belongs to the model."""
    if not location:
        raise ModelError(f"{what}: its external data names no file ; export it again")
    if "\0" in location:
        raise ModelError(f"{what}: its external data names {location!r}, which is no file name")
    relative = Path(location)
    if relative.is_absolute() or ".." in relative.parts:
        raise ModelError(
            f"{what}: its external data is {location!r}; only files in the model's own folder are "
            "read, so move the data there and write its location relative to the model"
        )
    model = Path(path)
    data = model.parent / relative
    try:
        real = data.resolve(strict=True)
    except FileNotFoundError:
        hint = (
            " (the model is a link: is the data beside its target?)" if model.is_symlink() else ""
        )
        raise ModelError(
            f"{what}: its data file {data} does not exist{hint}; put it beside the model"
        ) from None
    except (OSError, RuntimeError) as error:
        raise ModelError(f"{what}: its data file {data} cannot be read: {error}") from error
    # A hub's cache has links to one folder of blobs, named by hash, in place of both files.
    inside = belongs(real, model.parent.resolve())
    if not inside and real.parent != model.resolve().parent:
        raise ModelError(
            f"{what}: its data file {data} is a link that leaves the model's folder, to {real}; "
            "put the data itself there"
        )
    return real


def belongs(real: Path, folder: Path) -> bool:
    """Return whether a file is in a folder, or in the blobs of the hub's repository around it.

    A hub's cache has ``REPOSITORY/snapshots/REVISION``, with links to ``REPOSITORY/blobs/HASH``.

    Args:
        real: of the file, without links.
        folder: without links.
    """
    if real.is_relative_to(folder):
        return True
    hubs = (above.parent for above in folder.parents if above.name == "snapshots")
    return any(real.parent == hub / "blobs" for hub in hubs)


def open_inside(folder: int, path: str, name: str) -> int:
    """Open a file of a folder for reading; links must not leave it. See `belongs`.

    A file that is no link is opened by the descriptor of the folder alone: one that takes the
    folder's place meanwhile is not looked at.

    Args:
        folder: its descriptor.
        path: of the folder.
        name: of the file, or of one in a folder of it.

    Raises:
        FileNotFoundError: it is not there; `filename` is `name`.
        OSError: it cannot be opened, or is a link that leaves the folder.
    """
    try:
        try:
            return _open_unfollowed(folder, name)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EMLINK, errno.ENOTDIR):
                raise
        real = os.path.realpath(f"{path}/{name}", strict=True)
        if not belongs(Path(real), Path(path).resolve()):
            # As openat2 has it with RESOLVE_BENEATH.
            text = f"it is a link that leaves the folder, to {real}; put the file itself there"
            raise OSError(errno.EXDEV, text)
        return os.open(real, _FLAGS | os.O_NONBLOCK)
    except FileNotFoundError as error:
        error.filename = name  # and not a part of it, or what it links to
        raise


def _open_unfollowed(folder: int, name: str) -> int:
    # Without O_NONBLOCK a FIFO would hang here.
    head, _, last = name.rpartition("/")
    if not head:
        return os.open(last, _FLAGS | os.O_NONBLOCK, dir_fd=folder)
    inner = os.open(head, _FLAGS | os.O_DIRECTORY, dir_fd=folder)
    try:
        return os.open(last, _FLAGS | os.O_NONBLOCK, dir_fd=inner)
    finally:
        os.close(inner)
