"""Programs that backends compile bundles to."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from narrowpass.errors import UsageError
from narrowpass.runtime.arrays import Feeds, Outputs
from narrowpass_ir.arguments import Uncopied, kind_of

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from narrowpass.runtime.meters import Meter
    from narrowpass.state.session import Session
    from narrowpass_ir.state import State
    from narrowpass_ir.verify import Signature, ValueSpec


@dataclass(frozen=True)
class NodePlan:
    """Where one node runs; a row of `Program.explain`.

    Attributes:
        method: the method that the node belongs to.
        node: its name.
        op_type: its operator, with the domain in front where that is not the default one.
        dtype: the element type that it is computed in, as ONNX names it in lower case: that of its
            first output, but ``int8`` where an int8 kernel computes a float operator between
            DequantizeLinear and QuantizeLinear.
        partition: the partition that it is part of; None where it runs alone.
        kernel: what computes it.
        reason: why it did not go to the backend's own kernels; empty where it did.
    """

    method: str
    node: str
    op_type: str
    dtype: str
    partition: int | None
    kernel: str
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return all fields, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class NodeTime:
    """Time that one node or kernel took; a row of `Program.profile`.

    Attributes:
        node: the node's name.
        op_type: its operator.
        kernel: what computed it.
        seconds: median time of one run.
        partition: the partition that it is part of; None where it runs alone.
    """

    node: str
    op_type: str
    kernel: str
    seconds: float
    partition: int | None = None


class Program(Uncopied, abc.ABC):
    """A compiled bundle: named methods that run. Also a context manager that closes it.

    It can be neither copied nor pickled: another process loads the bundle.

    Threads:
        - Every method may be called from several threads at once. Results are those of calls one
          after the other.
        - While a run goes on, nothing else may write to its feeds, nor to its arrays of `out`. A
          meter is for one `observe` at a time.
        - How many runs go on at once is up to the backend, and its documentation says so. A
          backend that computes in an arena locks it: runs of one method then take turns. A
          backend without memory of its own locks nothing.
        - To run one method twice at once, compile the bundle twice: there is no clone of a
          program, and with ``cache`` both read the same packed weights.
        - `close` lets runs that have begun in other threads end; those that come later are a
          `UsageError`.
    """

    _instead = (
        "threads may share it, and another process calls narrowpass.load with the bundle's path"
    )

    states: tuple[State, ...] = ()
    """What a session keeps between runs: the states of the bundle, such as KV caches."""

    def session(self, cache_dtype: str | None = None) -> Session:
        """Return a session that keeps the program's state between runs, empty at first.

        Several sessions of one program share its weights. A backend that can append to caches in
        place overrides it; this one feeds each run the states that the last one returned.

        Args:
            cache_dtype: type that KV caches are stored in, where the backend has a choice; None
                for that of the model.

        Raises:
            UsageError: the bundle has no state, the program is closed, or a `cache_dtype` that
                the backend has no caches of.
        """
        from narrowpass.state.plain import PlainSession  # entry modules must not import numpy

        self.check_states()
        if cache_dtype is not None:
            raise UsageError(
                "this backend stores caches as the model does; leave `cache_dtype` out"
            )
        return PlainSession(self, self.states)

    def run_sessions(
        self,
        sessions: Sequence[Session],
        feeds: Sequence[Feeds],
        method: str = "main",
        outputs: Sequence[str] | None = None,
    ) -> list[Outputs]:
        """Run a method in several sessions of the program, such as those of several users.

        A backend that can computes them at once, and reads the weights once; others run in turn.
        Results are those of `Session.run`, within the rounding of matmuls with other numbers of
        rows. All sessions run, or none: after an error each has the state that it had before.

        Args:
            sessions: of this program, no one twice.
            feeds: for each session, as for `Session.run`.
            method: as for `run`.
            outputs: as for `Session.run`.

        Returns:
            The results of each session.

        Raises:
            UsageError: no session, one twice or of another program, or not as many feeds; or as
                `Session.run`, as are the errors below. The message has the session's index.
            DataError: feeds that do not fit.
            BackendError: the computation failed.
        """
        from narrowpass.state.together import run_sessions  # entry modules must not import numpy

        return run_sessions(self, sessions, feeds, method, outputs)

    def check_states(self) -> None:
        """Check that there is state for a session to keep.

        Raises:
            UsageError: there is none.
        """
        if not self.states:
            raise UsageError(
                "the bundle has no state: no output of a method is found to be an input of the "
                "next run; name the pairs: narrowpass build --state INPUT=OUTPUT@AXIS"
            )

    @property
    @abc.abstractmethod
    def methods(self) -> Sequence[str]:
        """The names of the methods, in the order of the bundle."""

    @abc.abstractmethod
    def signature(self, method: str = "main") -> Signature:
        """Return names, types and shapes of a method's inputs and outputs, as its model says.

        Args:
            method: as for `run`.

        Raises:
            UsageError: an unknown method, or the program is closed.
        """

    def inputs(self, method: str = "main") -> tuple[ValueSpec, ...]:
        """Return name, dtype and shape of each input of a method, in the order of the model.

        A dimension is a size, the name of a symbolic one, or None. An input with an initializer
        (``has_default``) may be left out of the feeds.

        Args:
            method: as for `run`.

        Raises:
            UsageError: as `signature`.
        """
        return self.signature(method).inputs

    def outputs(self, method: str = "main") -> tuple[ValueSpec, ...]:
        """Return name, dtype and shape of each output of a method, in the order of the model.

        Args:
            method: as for `run`.

        Raises:
            UsageError: as `signature`.
        """
        return self.signature(method).outputs

    @abc.abstractmethod
    def run(
        self,
        feeds: Feeds,
        method: str = "main",
        outputs: Sequence[str] | None = None,
        out: Outputs | None = None,
    ) -> Outputs:
        """Run a method.

        Args:
            feeds: arrays by input name, each of the input's dtype and shape, of numpy or of a
                library whose arrays have ``__array__`` or DLPack: tensors of PyTorch and arrays of
                JAX are read where they lie. An input with a default may be left out.
            method: which method; a bundle with one method runs that one for ``main``.
            outputs: names of the values to return; None for the method's outputs. Values
                other than outputs must have been named in ``compile(keep=...)``.
            out: arrays to write results into, by output name, each of the result's dtype and
                shape; the rest are fresh arrays. They must not overlap; one may lie where a feed
                does.

        Returns:
            The results by name. A sequence output is a list of arrays.

        Raises:
            DataError: feeds that do not fit the method's inputs.
            UsageError: an unknown method or output, or arrays of `out` that overlap.
            BackendError: the computation failed.
        """

    def observe(self, feeds: Feeds, meters: Mapping[str, Meter], method: str = "main") -> None:
        """Run a method, and record its values in meters.

        A backend that reads values in place overrides it; the meters have the same contents then.

        Args:
            feeds: as for `run`.
            meters: `Extremes` or `Counts` by the value's name: an output of the method, or named
                in ``compile(keep=..., observe=True)``.
            method: as for `run`.

        Raises:
            UsageError: a value that is no tensor of floating point numbers; or as `run`.
            DataError: as `run`.
            BackendError: as `run`.
        """
        check_meters(meters)
        values = self.run(feeds, method, tuple(meters))
        for name, meter in meters.items():
            meter.add(values[name], f"value {name!r}")

    @abc.abstractmethod
    def explain(self) -> list[NodePlan]:
        """Report for each node of each method where it runs, or why not natively."""

    @abc.abstractmethod
    def profile(self, feeds: Feeds, method: str = "main", runs: int = 5) -> list[NodeTime]:
        """Run a method `runs` times and report the median time of each node."""

    @abc.abstractmethod
    def stats(self) -> dict[str, Any]:
        """Return the backend's counts and sizes in bytes, by name; groups of them are dicts."""

    def close(self) -> None:
        """Free what the program holds. A second call does nothing."""
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def check_meters(meters: object) -> None:
    """Check the meters of `Program.observe`.

    Raises:
        UsageError: no mapping of names to meters.
    """
    if not isinstance(meters, Mapping):
        raise UsageError(f"meters are a mapping from names of values, not {kind_of(meters)}")
    for name, meter in meters.items():
        if not isinstance(name, str) or not hasattr(meter, "add"):
            raise UsageError(
                f"{name!r}: {kind_of(meter)} is no meter; "
                "pass narrowpass.runtime.meters.Extremes or Counts"
            )
