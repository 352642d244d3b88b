"""The weights cache of a process: packed weights by name, shared by the sessions of programs."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from narrowpass_ir.arguments import Uncopied
from narrowpass_planning.memory.allocator import Allocator, current_allocator
from narrowpass_planning.weights.session import Session
from narrowpass_planning.weights.store import ArrayStore, BlockStore, OpenBlocks

if TYPE_CHECKING:
    from narrowpass.bundle import NamedData

S = TypeVar("S", bound=Session)
"""The sessions of a cache: a backend may have a class of its own."""

NewSession = Callable[
    [OpenBlocks, weakref.WeakSet[Any], threading.Lock, "Mapping[str, NamedData]"], S
]


class WeightsCache(Uncopied, Generic[S]):
    """Packed weights by name.

    Args:
        store: where the blocks are.
        session: the class of sessions.

    Attributes:
        mappings: files that blocks of it lie in.
    """

    _instead = "programs that are compiled again share it"

    def __init__(self, store: BlockStore, session: NewSession[S]) -> None:
        self._store, self._session = store, session
        self._turn = threading.Lock()
        self.mappings: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def packed_count(self) -> int:
        """How many named blocks sessions hold."""
        return self._store.count()

    def users(self, name: str) -> int:
        """Return how many sessions hold blocks of this name."""
        return self._store.users(name)

    def begin(
        self, data: Mapping[str, NamedData] | None = None, allocator: Allocator | None = None
    ) -> S:
        """Begin a session; waits while another one of this cache is open.

        Args:
            data: the named data of a bundle, for `Session.load_unpacked` by name.
            allocator: the memory of the blocks that it packs; None for `current_allocator`.

        Raises:
            BackendError: out of memory.
        """
        self._turn.acquire()
        try:
            blocks = self._store.begin(allocator or current_allocator())
            return self._session(blocks, self.mappings, self._turn, data or {})
        except BaseException:
            self._turn.release()
            raise


def array_cache() -> WeightsCache[Session]:
    """Return an empty cache whose blocks are numpy arrays."""
    return WeightsCache(ArrayStore(), Session)


C = TypeVar("C", bound=WeightsCache[Any])


class ProcessCache(Generic[C]):
    """The weights cache of this process, created when it is first needed.

    Args:
        create: returns an empty cache; called again in a forked child.
    """

    def __init__(self, create: Callable[[], C]) -> None:
        self._create = create
        self._renew()
        # A thread that is left behind may hold a lock of it.
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._cache: C | None = None

    def get(self) -> C:
        """Return the cache."""
        with self._lock:
            if self._cache is None:
                self._cache = self._create()
            return self._cache
