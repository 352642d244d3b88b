"""The weights cache of this process."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from narrowpass.errors import BackendError
from narrowpass.framework.arguments import Uncopied
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.weights.session import Session

if TYPE_CHECKING:
    from narrowpass.bundle import NamedData


class WeightsCache(Uncopied):
    """Packed weights by name. `shared` gives that of this process.

    Attributes:
        handle: of the C side.
        mappings: files that blocks of it lie in.
    """

    _instead = "programs that are compiled again share it"

    def __init__(self) -> None:
        ffi, lib = extension().ffi, extension().lib
        self._lib = lib
        self.handle = lib.np_cache_new()
        if self.handle == ffi.NULL:
            raise BackendError("out of memory for a weights cache")
        weakref.finalize(self, lib.np_cache_free, self.handle).atexit = False
        self._turn = threading.Lock()
        self.mappings: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def packed_count(self) -> int:
        """How many named blocks sessions hold."""
        return int(self._lib.np_cache_count(self.handle))

    def users(self, name: str) -> int:
        """Give how many sessions hold blocks of this name."""
        return int(self._lib.np_cache_users(self.handle, bytes.fromhex(name)))

    def begin(self, data: Mapping[str, NamedData] | None = None) -> Session:
        """Begin a session; waits while another one of this cache is open.

        Args:
            data: the named data of a bundle, for `Session.load_unpacked` by name.
        """
        self._turn.acquire()
        try:
            return Session(self, self._turn, data or {})
        except BaseException:
            self._turn.release()
            raise


class _Shared:
    """The weights cache of this process, made when it is first needed."""

    def __init__(self) -> None:
        self._renew()
        # A thread that is left behind may hold a lock of it.
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._cache: WeightsCache | None = None

    def get(self) -> WeightsCache:
        with self._lock:
            if self._cache is None:
                self._cache = WeightsCache()
            return self._cache


_process_cache = _Shared()


def shared() -> WeightsCache:
    """Give the weights cache of this process."""
    return _process_cache.get()
