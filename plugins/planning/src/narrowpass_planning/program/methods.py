"""The methods of a program: all compiled at once, or each when it is first needed."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from narrowpass.runtime.requests import check_kept
from narrowpass_ir.garbage import pause_collection
from narrowpass_planning.program.compiler import MethodCompiler
from narrowpass_planning.program.models import forget_weights, inferred
from narrowpass_planning.program.sources import Sources
from narrowpass_planning.weights import names
from narrowpass_planning.weights.packing import packing

if TYPE_CHECKING:
    from narrowpass.runtime.backend import Feeds
    from narrowpass_planning.program.method import Method
    from narrowpass_planning.weights.session import Session


class ForkLock:
    """A reentrant lock for the threads of one process.

    In a forked child it is free: the thread that held it there was not copied.
    """

    def __init__(self) -> None:
        self._locks = {os.getpid(): threading.RLock()}

    def current(self) -> contextlib.AbstractContextManager[object]:
        """Return the lock of this process, to enter."""
        return self._locks.setdefault(os.getpid(), threading.RLock())


class Methods(Mapping[str, "Method"]):
    """The methods of a program by name, in the bundle's order. Several threads may ask for one.

    All are compiled at once, so that errors come before the first run. Where it is known that they
    compile, and KV caches are among the states, each waits until it is first asked for: sessions
    run methods that are compiled for them, and `decode` with its caches as feeds may never run.

    Args:
        sources: of the program.
        compiler: of the program.
        known: whether a process before has compiled all of them.

    Raises:
        BackendError: a method that cannot be compiled.
        UsageError: a value to keep that no method has.
    """

    def __init__(self, sources: Sources, compiler: MethodCompiler, *, known: bool = False) -> None:
        bundle, keep = sources.bundle, sources.options.keep
        self._names, self._compiler = tuple(bundle.methods), compiler
        self._lock = ForkLock()
        self._compiled: dict[str, Method] = {}
        self._models: dict[str, ir.Model] = {}  # of methods whose inputs have defaults
        self._variants: dict[tuple[str, frozenset[str]], Method] = {}
        self._sessions: list[Session] = []  # weights stay as long as their session
        self._sources: Sources | None = None
        if known and any(state.axis is not None for state in bundle.states):
            self._sources = sources
            return
        self._compile(sources, self._names)  # and the bundle, with its weights, may be freed
        check_kept(keep, frozenset().union(*(each.known for each in self._compiled.values())))

    def __getitem__(self, name: str) -> Method:
        method = self._compiled.get(name)
        if method is not None:
            return method
        if self._sources is None or name not in self._names:
            raise KeyError(name)
        with self._lock.current():
            if name not in self._compiled:
                self._compile(self._sources, (name,))
            return self._compiled[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @property
    def compiled(self) -> Mapping[str, Method]:
        """The methods that are compiled, by name."""
        return self._compiled

    @property
    def sessions(self) -> Sequence[Session]:
        """The sessions of the weights cache that hold their weights."""
        return self._sessions

    def variant(self, method: Method, feeds: Feeds) -> Method:
        """Return the method for these feeds: another one where defaults are overridden."""
        overridden = method.defaults.intersection(feeds) if method.defaults else frozenset()
        if not overridden:
            return method
        key = method.name, overridden
        if key not in self._variants:
            model = self._models[method.name]
            self._variants[key] = self._compiler.compile(method.name, model, None, {}, overridden)
        return self._variants[key]

    def _compile(self, sources: Sources, wanted: Sequence[str]) -> None:
        """Compile methods, whose weights are packed in one session."""
        lowering = self._compiler.lowering
        compiled: dict[str, Method] = {}
        packed = packing(sources.bundle, sources.options, sources.cache, sources.packer)
        with pause_collection(), packed as session:
            contents = None
            for name in wanted:
                if (restored := self._compiler.restore(name, session)) is not None:
                    compiled[name], _ = restored
                    continue
                if contents is None:
                    contents = {} if session is None else names.identities(sources.bundle)
                prepared = inferred(sources.bundle.methods[name], lowering)
                method = self._compiler.compile(name, prepared, session, contents)
                compiled[name] = method
                self._compiler.store(method, session)
                if method.defaults:
                    self._models[name] = prepared
                elif not method.decided:
                    forget_weights(prepared)
        if session is not None:
            self._sessions.append(session)
        self._compiled.update(compiled)  # not before: their weights are committed now
