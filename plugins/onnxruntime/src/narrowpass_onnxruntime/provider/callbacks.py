"""The functions that C calls: each turns exceptions into statuses of onnxruntime."""

from __future__ import annotations

import _thread
import atexit
from collections.abc import Callable, Mapping
from typing import Any

from narrowpass_onnxruntime.provider.group import Group
from narrowpass_onnxruntime.provider.library import Log, failure, ffi, lib, one, ort, text
from narrowpass_onnxruntime.provider.options import ADDED, SPINNING, Options
from narrowpass_onnxruntime.provider.session import ProviderSession

_PREFIX = "ep.narrowpassexecutionprovider."

_alive: dict[Any, object] = {}
"""Handles that C has, with what they stand for."""


def start() -> None:
    """Let C call Python, until the interpreter exits."""
    for function in (
        np_create_ep,
        np_get_capability,
        np_compile,
        np_compute_in_python,
        np_forget,
    ):
        ffi.def_extern(function.__name__)(function)
    lib.np_set_alive(True)
    atexit.register(lib.np_set_alive, False)


def groups() -> list[Group]:
    """Return the compiled groups of all sessions that are alive, the oldest first."""
    return [thing for thing in _alive.values() if isinstance(thing, Group)]


def _handle(thing: object) -> Any:
    handle = ffi.new_handle(thing)
    _alive[handle] = thing
    return handle


def _guarded(call: Callable[[], None]) -> Any:
    try:
        call()
    except KeyboardInterrupt:
        _thread.interrupt_main()  # raised again where Python goes on
        return failure("the run was interrupted")
    except BaseException as error:  # noqa: BLE001  # C has no exceptions
        return failure(str(error) or type(error).__name__)
    return ffi.NULL


def np_create_ep(ep: Any, options: Any, logger: Any) -> Any:
    """Create what the provider is in a session."""

    def create() -> None:
        entries = _entries(options)
        replaced = frozenset(_with_prefix(entries, ADDED))
        given = Options.parse(_with_prefix(entries, _PREFIX))
        spins = entries.get(SPINNING) != "0"
        session = ProviderSession(given, Log(logger), replaced, spins=spins)
        ep.handle = _handle(session)

    return _guarded(create)


def np_get_capability(ep: Any, graph: Any, info: Any) -> Any:
    """Claim nodes of a graph."""
    session: ProviderSession = ffi.from_handle(ep.handle)
    return _guarded(lambda: session.choose(graph, info))


def np_compile(ep: Any, graphs: Any, fused: Any, count: int, infos: Any) -> Any:
    """Return kernels for the groups that were claimed."""
    session: ProviderSession = ffi.from_handle(ep.handle)

    def create() -> None:
        groups = session.kernels(
            [graphs[index] for index in range(count)], [fused[index] for index in range(count)]
        )
        for index, group in enumerate(groups):
            kernel = lib.np_kernel_new(_handle(group))
            if kernel == ffi.NULL:
                raise MemoryError("out of memory")
            group.kernel = kernel
            infos[index] = lib.np_kernel_info(kernel)

    return _guarded(create)


def np_compute_in_python(kernel: Any, context: Any) -> Any:
    """Run a group."""
    group: Group = ffi.from_handle(lib.np_kernel_handle(kernel))
    return _guarded(lambda: group.run(context))


def np_forget(handle: Any) -> None:
    """Let go of what a handle stands for."""
    thing = _alive.pop(handle, None)
    if isinstance(thing, Group):
        thing.kernel = ffi.NULL


def _entries(options: Any) -> dict[str, str]:
    """Return the entries of a session's configuration."""
    api = ort()
    pairs = one("OrtKeyValuePairs *", api.GetSessionOptionsConfigEntries, options)
    try:
        keys, values = ffi.new("const char *const **"), ffi.new("const char *const **")
        count = ffi.new("size_t *")
        api.GetKeyValuePairs(pairs, keys, values, count)
        return {text(keys[0][i]): text(values[0][i]) for i in range(count[0])}
    finally:
        api.ReleaseKeyValuePairs(pairs)


def _with_prefix(entries: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {
        name.removeprefix(prefix): value
        for name, value in entries.items()
        if name.startswith(prefix)
    }
