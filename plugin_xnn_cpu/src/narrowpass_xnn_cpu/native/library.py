"""Loading the extension and the XNNPACK beside it."""

from __future__ import annotations

import functools
import importlib
import os
import platform
import sys
import threading
from typing import Any

from narrowpass.errors import BackendError

_IDENTIFIER = "78e8776e742aaec2e0f3c3ef26613bab845df743a5047533d6900dea608b1385"
"""Of the build that `xnnpack.h` declares, on x86-64; it is a digest of the kernels' sources."""

_LOADING = threading.Lock()


class LibraryUnavailableError(Exception):
    """The library cannot be used here; the message says why."""


@functools.cache
def _load() -> Any:
    """Import the extension, check what it is linked with, and initialize it."""
    if sys.platform != "linux":
        raise LibraryUnavailableError(
            f"the native library is for Linux, not for {sys.platform}; use the backend 'reference'"
        )
    with _LOADING:
        extension = _import_bound_to_itself()
    ffi, lib = extension.ffi, extension.lib
    size = lib.xnn_experimental_get_build_identifier_size()
    found = bytes(ffi.buffer(lib.xnn_experimental_get_build_identifier_data(), size)).hex()
    if platform.machine() == "x86_64" and found != _IDENTIFIER:
        raise LibraryUnavailableError(
            f"the XNNPACK that was loaded is build {found[:16]}, not {_IDENTIFIER[:16]}: another "
            "library stands where narrowpass-xnn-cpu has its own; reinstall narrowpass-xnn-cpu"
        )
    status = lib.xnn_initialize(ffi.NULL)
    if status == lib.xnn_status_unsupported_hardware:
        raise LibraryUnavailableError(f"XNNPACK does not know this {platform.machine()} processor")
    if status:
        raise LibraryUnavailableError(f"XNNPACK could not be initialized (status {status})")
    return extension


def _import_bound_to_itself() -> Any:
    """Import the extension so that its symbols come from its own libraries.

    PyTorch exports functions of pthreadpool and cpuinfo too, of other versions.
    """
    flags = sys.getdlopenflags()
    bound = os.RTLD_NOW | os.RTLD_LOCAL
    # Sanitizers do not work with RTLD_DEEPBIND; their test environment sets this variable.
    if not os.environ.get("NARROWPASS_XNN_WITHOUT_DEEPBIND"):
        bound |= os.RTLD_DEEPBIND
    sys.setdlopenflags(bound)
    try:
        _xnn = importlib.import_module("narrowpass_xnn_cpu.native._xnn")
    except ImportError as error:
        raise LibraryUnavailableError(
            f"the native library cannot be loaded: {error}; reinstall narrowpass-xnn-cpu"
        ) from error
    finally:
        sys.setdlopenflags(flags)
    return _xnn


@functools.cache
def unavailable() -> str | None:
    """Give the reason why the library cannot be used here; None where it can."""
    try:
        _load()
    except LibraryUnavailableError as error:
        return str(error)
    return None


def extension() -> Any:
    """Give the loaded extension.

    Raises:
        BackendError: it cannot be used here.
    """
    try:
        return _load()
    except LibraryUnavailableError as error:
        raise BackendError(f"xnn-cpu is not available: {error}") from error


_MEANINGS = {
    1: "the library is not initialized",
    2: "a parameter is not valid",
    3: "the operator is not in a state for this",
    4: "a parameter is not supported",
    5: "the processor does not support it",
    6: "out of memory",
    7: "memory must be allocated anew",
    8: "the function is no longer supported",
    100: "an index is out of range",
    101: "the tape is damaged",
}


def meaning(status: int) -> str:
    """Give what a status says, in words."""
    return f"{_MEANINGS.get(status, 'unknown status')} (status {status})"


def check(status: int, what: str) -> None:
    """Raise unless `status` is success.

    Raises:
        BackendError: with `what` was tried and the status in words.
    """
    if status:
        raise BackendError(f"{what}: {meaning(status)}")
