"""Compiled bundles: a `Program` for backends that implement `Lowering`."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from narrowpass.errors import BackendError, UsageError
from narrowpass.runtime.backend import (
    CompileOptions,
    Feeds,
    NodePlan,
    NodeTime,
    Outputs,
    Program,
    check_meters,
)
from narrowpass.runtime.requests import (
    check_targets,
    choose_method,
    choose_outputs,
    write_outputs,
)
from narrowpass.state.plain import PlainSession
from narrowpass_ir.arguments import count_of
from narrowpass_ir.verify import Signature
from narrowpass_planning.host.control_flow import ControlFlow
from narrowpass_planning.host.nodes import HostNode
from narrowpass_planning.plan.executor import Pool
from narrowpass_planning.plan.partition import Partition
from narrowpass_planning.plan.prepared import PreparedRun, Replay
from narrowpass_planning.plan.step import Times
from narrowpass_planning.program.appending import AppendingMethods
from narrowpass_planning.program.compiler import MethodCompiler
from narrowpass_planning.program.lowering import Lowering
from narrowpass_planning.program.method import Method
from narrowpass_planning.program.methods import ForkLock, Methods
from narrowpass_planning.program.sources import Sources
from narrowpass_planning.program.statistics import statistics_of
from narrowpass_planning.program.stored_methods import StoredMethods
from narrowpass_planning.state.errors import AppendError, CacheFullError
from narrowpass_planning.state.narrow import CACHE_DTYPES, FLOAT32
from narrowpass_planning.state.session import AppendingSession
from narrowpass_planning.weights.cache import WeightsCache
from narrowpass_planning.weights.packer import Packer

if TYPE_CHECKING:
    from narrowpass.bundle import Bundle
    from narrowpass.runtime.meters import Meter
    from narrowpass.state.session import Session as StateSession


class PlannedProgram(Program):
    """A bundle compiled by a backend's lowering. Several threads may run it.

    Runs of one method take turns; so do those of several methods that share a workspace.

    Args:
        bundle: to compile.
        options: see `CompileOptions`.
        lowering: of the backend.
        cache: the process's cache of this backend's packed weights.
        packer: identifies the packing code.
        pool: the executor's threads.
        share_workspace: whether all methods share one workspace.

    Raises:
        BackendError: a method that cannot be compiled.
        UsageError: a value to keep that no method has, or a number of threads out of range.
    """

    def __init__(
        self,
        bundle: Bundle,
        options: CompileOptions,
        *,
        lowering: Lowering[Any],
        cache: WeightsCache[Any],
        packer: Packer,
        pool: Pool,
        share_workspace: bool = False,
    ) -> None:
        self._pool = pool
        sources = Sources(bundle, options, cache, packer)
        stored = StoredMethods.of(sources, lowering.storage)
        self._compiler = MethodCompiler(
            lowering, options, share_workspace=share_workspace, stored=stored
        )
        known = None if stored is None else stored.signatures()
        self._signatures = known or {
            name: Signature.of(model) for name, model in bundle.methods.items()
        }
        self._observe = options.observe
        self._prepared: dict[str, PreparedRun] = {}
        self._appending = (
            AppendingMethods(sources, self._signatures, self._compiler) if bundle.states else None
        )
        self.states = bundle.states
        self._fork_lock = ForkLock()
        self._methods: Methods | None = Methods(sources, self._compiler, known=known is not None)
        if stored is not None and known is None:
            stored.note(self._signatures)
        if self._appending is None:
            self._compiler.forget_stored()

    @property
    def partitions(self) -> Mapping[str, Sequence[Partition]]:
        """The native partitions of each method, by its name."""
        return {name: method.partitions for name, method in self._open().items()}

    @property
    def methods(self) -> Sequence[str]:
        """The names of the methods, in the order of the bundle."""
        return tuple(self._methods or ())

    def signature(self, method: str = "main") -> Signature:
        """Return the inputs and outputs of a method; see `Program.signature`."""
        self._open()
        return choose_method(self._signatures, method)[1]

    def run(
        self,
        feeds: Feeds,
        method: str = "main",
        outputs: Sequence[str] | None = None,
        out: Outputs | None = None,
    ) -> Outputs:
        """Run a method; see `Program.run`."""
        plain = outputs is None and out is None
        if plain and (prepared := self._prepared.get(method)) is not None:
            try:
                results = prepared.run(feeds)
            except (BackendError, MemoryError) as error:
                raise _named(self._choose(method), error) from error
            if results is not None:
                return results
            self._prepared.pop(method, None)
        chosen = self._choose(method)
        wanted = choose_outputs(chosen.name, outputs, chosen.outputs, chosen.types, chosen.known)
        feeds = chosen.check(feeds)
        if out is not None:
            check_targets(chosen.name, out, wanted)
        variant = self._open().variant(chosen, feeds)
        try:
            if plain and chosen.alike and variant.alone:
                return self._run_and_prepare(method, variant, feeds, wanted)
            return self._run(variant, feeds, wanted, out or {})
        except (BackendError, MemoryError) as error:
            raise _named(chosen, error) from error

    def _run_and_prepare(
        self, name: str, method: Method, feeds: Feeds, wanted: Sequence[str]
    ) -> Outputs:
        """Run a method, and prepare the fast path for feeds of these types and shapes."""
        with method.workspace.entered():  # no other thread sizes it anew between the two
            results = self._run(method, feeds, wanted, {})
            prepared = method.prepare(feeds, self.threads())
        if prepared is not None and self._methods is not None:
            self._prepared[name] = prepared
        return results

    def replay(self, feeds: Feeds, method: str = "main") -> Replay | None:
        """Return the run of a method for a caller without Python; see `Replay`.

        Args:
            feeds: arrays; the method has just run on others of these types and shapes.
            method: its name.

        Returns:
            None where more than one partition runs, or where an output is a feed.
        """
        chosen = self._choose(method)
        feeds = chosen.check(feeds)
        variant = self._open().variant(chosen, feeds)
        with variant.workspace.entered():
            prepared = variant.prepare(feeds, self.threads())
            return None if prepared is None else prepared.replay()

    def observe(self, feeds: Feeds, meters: Mapping[str, Meter], method: str = "main") -> None:
        """Run a method, and update meters from its values; see `Program.observe`."""
        chosen = self._choose(method)
        if not self._observe:
            super().observe(feeds, meters, method)
            return
        check_meters(meters)
        choose_outputs(chosen.name, tuple(meters), (), chosen.observable, chosen.known)
        feeds = chosen.check(feeds)
        variant = self._open().variant(chosen, feeds)
        try:
            variant.observe(feeds, meters, self.threads())
        except (BackendError, MemoryError) as error:
            raise _named(chosen, error) from error

    def threads(self) -> Pool:
        """Return the executor's threads, asked for in each run: a forked child has its own."""
        return self._pool

    def _run(self, method: Method, feeds: Feeds, wanted: Sequence[str], out: Outputs) -> Outputs:
        direct: Outputs = {}
        if out:
            given = [array for value in feeds.values() for array in _arrays(value)]
            direct = {name: array for name, array in out.items() if _can_take(array, given)}
        values = method.run(feeds, wanted, self.threads(), direct)
        results: Outputs = {}
        seen: set[int] = set()
        fresh = method.fresh
        for name in wanted:
            value = values[name]
            if out and name in out:
                continue
            if name in fresh and id(value) not in seen:
                seen.add(id(value))
            elif isinstance(value, np.ndarray):
                value = value.copy(order="C")  # it may be a feed, a weight, or part of one
            elif isinstance(value, list):
                value = [item.copy() for item in value]  # arrays of a sequence
            results[name] = value
        if not out:
            return results
        results |= write_outputs(values, out)
        return {name: results[name] for name in wanted}

    def explain(self) -> list[NodePlan]:
        """Return for each node the kernel that runs it, or the reason of a fallback."""
        return [plan for method in self._open().values() for plan in method.plans]

    def profile(self, feeds: Feeds, method: str = "main", runs: int = 5) -> list[NodeTime]:
        """Run a method `runs` times and return the median time of each step.

        A step of several fused nodes has the name of the last one; a change of layout has that of
        the value.

        Raises:
            UsageError: an unknown method, or `runs` below 1.
            DataError: feeds that do not fit the method's inputs.
            BackendError: the computation failed.
        """
        chosen = self._choose(method)
        runs = count_of(runs, "`runs`")
        feeds = chosen.check(feeds)
        chosen = self._open().variant(chosen, feeds)
        chosen.run(feeds, chosen.outputs, self.threads(), {})
        times: Times = {}
        for _ in range(runs):
            chosen.run(feeds, chosen.outputs, self.threads(), {}, times)
        op_types = {plan.node: plan.op_type for plan in chosen.plans}
        owners = {step: part.number for part in chosen.partitions for step in part.steps}
        rows = []
        for key, seconds in times.items():
            median = statistics.median(seconds)
            if isinstance(key, HostNode | ControlFlow):
                rows.append(NodeTime(key.name, op_types[key.name], key.kernel, median))
            else:
                op_type = op_types[key.name] if key.nodes else ""
                rows.append(NodeTime(key.name, op_type, key.kernel, median, owners[key]))
        return rows

    def stats(self) -> dict[str, Any]:
        """Return counts of methods, nodes, partitions and steps, and the bytes in memory.

        Nodes count as native unless the reference evaluator runs them. ``scratch_bytes`` is the
        memory of intermediate values, which the shapes of the last runs share: that of the largest
        ones, of any method where methods share a workspace. ``weights`` counts constants:

        - ``raw_bytes``: those that are used without packing, such as embeddings.
        - ``heap_bytes``, ``mapped_bytes``: packed ones, on the heap and in a mapped file.
        - ``hits``, ``misses``, ``packs``: operators whose weights were in the cache or not, and
          blocks that were packed for this program.
        - ``private``: blocks that are not shared, counted by the reason.
        - ``methods``: ``raw_bytes``, ``packed_bytes`` and ``scratch_bytes`` of each. What several
          methods share counts for each of them.

        Methods that sessions run count under their names; what is not compiled yet does not.
        """
        methods = self._open()
        compiled, sessions = [*methods.compiled.values()], [*methods.sessions]
        if self._appending is not None:
            compiled += self._appending.compiled
            sessions += self._appending.sessions
        return statistics_of(tuple(methods), compiled, sessions)

    def session(self, cache_dtype: str | None = None) -> StateSession:
        """Return a session; see `Program.session`. Caches are appended to in place if possible.

        Raises:
            BackendError: a method that cannot be compiled for it.
            UsageError: the bundle has no state, the program is closed, or caches that are not
                appended to in place, or an unknown type, where `cache_dtype` is given.
        """
        self._open()
        self.check_states()
        if cache_dtype is not None and cache_dtype not in CACHE_DTYPES:
            raise UsageError(
                f"`cache_dtype` is one of {', '.join(CACHE_DTYPES)}, not {cache_dtype!r}"
            )
        stored = FLOAT32 if cache_dtype is None else cache_dtype
        with self.forking:
            found = {} if self._appending is None else self._appending.stored_as(stored)
        if found and not isinstance(found, AppendError):
            return AppendingSession(self, self.states, found, stored)
        reason = str(found or "")
        if cache_dtype is not None:
            raise UsageError(
                f"caches of {cache_dtype} must be appended to in place, which these cannot be: "
                f"{reason or 'no state grows'}; leave `cache_dtype` out"
            )
        return PlainSession(self, self.states, reason)

    @property
    def forking(self) -> contextlib.AbstractContextManager[object]:
        """The lock of buffers that sessions share; a forked child has its own."""
        return self._fork_lock.current()

    @property
    def extra_bytes(self) -> int:
        """Bytes that kernels may read behind a buffer."""
        return self._compiler.lowering.executor.extra_bytes

    def run_method(self, method: Method, feeds: Feeds, wanted: Sequence[str]) -> Outputs:
        """Run a compiled method on feeds that were checked.

        Raises:
            BackendError: the computation failed.
            UsageError: the program is closed.
        """
        with self.naming(method):
            return self._run(method, feeds, wanted, {})

    @contextlib.contextmanager
    def naming(self, method: Method) -> Iterator[None]:
        """Add the method's name to errors of the computation within the block.

        Raises:
            UsageError: the program is closed.
        """
        self._open()
        try:
            yield
        except CacheFullError:
            raise
        except (BackendError, MemoryError) as error:
            raise _named(method, error) from error

    def close(self) -> None:
        """Free operators, packed weights and memory. A second call does nothing."""
        self._methods = self._appending = None
        self._prepared = {}

    def _open(self) -> Methods:
        """Return the methods.

        Raises:
            UsageError: the program is closed.
        """
        methods = self._methods  # once: another thread may close the program
        if methods is None:
            raise UsageError("the program is closed; compile the bundle again to run it")
        return methods

    def _choose(self, name: str) -> Method:
        return choose_method(self._open(), name)[1]


def _named(method: Method, error: BackendError | MemoryError) -> BackendError:
    """Add the method's name to the error of a run."""
    what = " is out of memory" if isinstance(error, MemoryError) else ""
    return BackendError(f"method {method.name!r}{what}: {error}")


def _arrays(value: Any) -> list[Any]:
    """Return the arrays of a feed: itself, or the elements of a sequence."""
    found = value if isinstance(value, list | tuple) else [value]
    return [array for array in found if isinstance(array, np.ndarray)]


def _can_take(array: Any, feeds: Sequence[np.ndarray[Any, Any]]) -> bool:
    """Return whether results can be computed in `array` without a copy."""
    return (
        isinstance(array, np.ndarray)
        and array.dtype == np.float32
        and array.flags.c_contiguous
        and array.flags.writeable
        and array.flags.aligned
        and not any(np.may_share_memory(array, feed) for feed in feeds)
    )
