"""Loading the C extension and the bundled XNNPACK, or another build of it."""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import platform
import sys
import threading
from pathlib import Path
from typing import Any

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native import isa
from narrowpass_xnn_cpu.native.runtime import signals

_IDENTIFIER = "78e8776e742aaec2e0f3c3ef26613bab845df743a5047533d6900dea608b1385"
"""XNNPACK's identifier of the bundled build, on x86-64: a digest of the kernels' sources."""

_PORTABLE = b"narrowpass portable operators"
"""How the identifier of operators in plain C begins, which stand in for XNNPACK."""

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
    other = os.environ.get("NARROWPASS_XNNPACK")
    try:
        level = isa.cap()
    except isa.CapError as error:
        raise LibraryUnavailableError(str(error)) from None
    if level and other is not None:
        raise LibraryUnavailableError(
            f"{isa.VARIABLE} caps the kernels of the bundled XNNPACK only; unset it, or "
            "NARROWPASS_XNNPACK"
        )
    with _LOADING:
        extension = _import_extension(other, level)
    ffi, lib = extension.ffi, extension.lib
    found = _identifier(extension).hex()
    portable = _identifier(extension).startswith(_PORTABLE)
    known = portable or platform.machine() != "x86_64" or found == _IDENTIFIER
    if other is None and not known:
        raise LibraryUnavailableError(
            f"the XNNPACK that was loaded is build {found[:16]}, not {_IDENTIFIER[:16]}: another "
            "library stands where narrowpass-xnn-cpu has its own; reinstall narrowpass-xnn-cpu"
        )
    if level:
        try:
            isa.check_built(level, lib)
        except isa.CapError as error:
            raise LibraryUnavailableError(str(error)) from None
        lib.np_isa_cap(isa.LEVELS.index(level) + 1)
    status = lib.xnn_initialize(ffi.NULL)
    if status == lib.xnn_status_unsupported_hardware:
        raise LibraryUnavailableError(f"XNNPACK does not know this {platform.machine()} processor")
    if status:
        raise LibraryUnavailableError(f"XNNPACK could not be initialized (status {status})")
    if other is not None:
        _check_other_build(extension, other)
    signals.register(extension)
    return extension


def _import_extension(other: str | None, level: str) -> Any:
    """Import the extension so that its symbols come from its own libraries.

    PyTorch exports functions of pthreadpool and cpuinfo too, of other versions.

    Args:
        other: path of another build of the library. It is loaded first; the dynamic linker then
            takes it for the bundled one, by its SONAME.
        level: of instruction sets that XNNPACK may use; empty for all.
    """
    flags, folder = sys.getdlopenflags(), Path(__file__).parent / "lib"
    bound = os.RTLD_NOW | os.RTLD_LOCAL
    # Sanitizers do not work with RTLD_DEEPBIND; their test environment sets this variable.
    if not os.environ.get("NARROWPASS_XNN_WITHOUT_DEEPBIND"):
        bound |= os.RTLD_DEEPBIND
    sys.setdlopenflags(bound)
    try:
        if other is not None:
            _preload(other, bound)
        if level and folder.is_dir():  # portable operators have no levels
            isa.cap_xnnpack(level, folder, isa.flags(), bound)
        _xnn = importlib.import_module("narrowpass_xnn_cpu.native._xnn")
    except isa.CapError as error:
        raise LibraryUnavailableError(str(error)) from error
    except ImportError as error:
        raise LibraryUnavailableError(
            f"the native library cannot be loaded: {error}; reinstall narrowpass-xnn-cpu"
        ) from error
    finally:
        sys.setdlopenflags(flags)
    return _xnn


_SONAME = "libnarrowpass_xnnpack.so"


def _preload(path: str, flags: int) -> None:
    try:
        ctypes.CDLL(path, flags)
    except OSError as error:
        raise LibraryUnavailableError(
            f"NARROWPASS_XNNPACK: {error}; set it to the path of a library, or unset it"
        ) from error


def _check_other_build(extension: Any, path: str) -> None:
    """Check that another build of XNNPACK was loaded, and that one of its operators computes.

    The dynamic linker has checked that it has every function.
    """
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    used = {line.split(maxsplit=5)[-1] for line in maps.splitlines() if _SONAME in line}
    if used != {str(Path(path).resolve())}:
        raise LibraryUnavailableError(
            f"NARROWPASS_XNNPACK: {path} does not stand in for the bundled library; its file and "
            f"its SONAME must be called {_SONAME}, as plugin_xnn_cpu/build_tools/bundle.py does it"
        )
    ffi, lib = extension.ffi, extension.lib
    handle = ffi.new("xnn_operator_t *")
    source, result = ffi.new("float[32]", [-1.0, 2.0]), ffi.new("float[32]")
    fp32, null = lib.xnn_datatype_fp32, ffi.NULL
    status = (
        lib.xnn_create_unary_elementwise_nc(
            lib.xnn_unary_abs, fp32, fp32, null, null, null, null, 0, handle
        )
        or lib.xnn_reshape_unary_elementwise_nc(handle[0], 2, 1, 1, 1, null)
        or lib.xnn_setup_unary_elementwise_nc(handle[0], source, result)
        or lib.xnn_run_operator(handle[0], null)
    )
    if status or list(result[0:2]) != [1.0, 2.0]:
        raise LibraryUnavailableError(
            f"NARROWPASS_XNNPACK: {path} does not compute what it should (status {status}); its "
            "interface is not that of plugin_xnn_cpu/csrc/xnnpack/xnnpack.h"
        )
    lib.xnn_delete_operator(handle[0])


def _identifier(extension: Any) -> bytes:
    """Return the identifier of the build of XNNPACK, or of what stands in for it."""
    lib = extension.lib
    size = lib.xnn_experimental_get_build_identifier_size()
    return bytes(extension.ffi.buffer(lib.xnn_experimental_get_build_identifier_data(), size))


@functools.cache
def is_portable() -> bool:
    """Return whether operators in plain C stand in for XNNPACK, where no build of it is to be had.

    They run on one thread, and have no GEMM of float16 and no rows of uint8.
    """
    return _identifier(extension()).startswith(_PORTABLE)


@functools.cache
def unavailable() -> str | None:
    """Return the reason why the library cannot be used here; None where it can."""
    try:
        _load()
    except LibraryUnavailableError as error:
        return str(error)
    return None


def extension() -> Any:
    """Return the loaded extension.

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


_OUT_OF_MEMORY = 6


def meaning(status: int) -> str:
    """Return a status of XNNPACK or of a tape in words."""
    return f"{_MEANINGS.get(status, 'unknown status')} (status {status})"


def check(status: int, what: str) -> None:
    """Raise unless `status`, of a function of XNNPACK, is success and there was memory.

    Raises:
        BackendError: its message is `what` and the status in words.
    """
    if extension().lib.np_xnn_lacked_memory():
        status = _OUT_OF_MEMORY
    if status:
        raise BackendError(f"{what}: {meaning(status)}")


def check_created(status: int, handle: Any, what: str) -> None:
    """Raise unless an operator was created; one that there was no memory for is deleted.

    Args:
        status: of ``xnn_create_*``.
        handle: where that has put the operator.
        what: see `check`.

    Raises:
        BackendError: as `check` does.
    """
    try:
        check(status, what)
    except BackendError:
        if not status:
            extension().lib.xnn_delete_operator(handle[0])
        raise
