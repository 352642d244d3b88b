"""What a backend is, and the program that it compiles a bundle to."""

from __future__ import annotations

import abc
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from narrowpass.errors import BackendError, UsageError, VerificationError
from narrowpass.framework.arguments import Uncopied, count_of, flag_of, kind_of, names_of, path_of
from narrowpass.framework.boundary import foreign
from narrowpass.framework.collecting import no_collecting
from narrowpass.runtime.guards import COMMON, guard, of_type

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    import numpy as np
    import onnx_ir as ir

    from narrowpass.bundle import Bundle
    from narrowpass.framework.classify import OpClassifier, OpDtypes
    from narrowpass.framework.context import Context
    from narrowpass.runtime.meters import Meter
    from narrowpass.runtime.quantization import NodeQuantization, QuantizationSpec

Feeds = Mapping[str, "np.ndarray[Any, Any]"]
Outputs = dict[str, "np.ndarray[Any, Any]"]


@dataclass(frozen=True)
class Accept:
    """The backend runs the node itself."""


@dataclass(frozen=True)
class Reject:
    """The backend leaves the node to a fallback.

    Attributes:
        reason: why, as a sentence with the value that decided.
    """

    reason: str


MOST_THREADS = 1024
"""More than any processor has: a larger number is a mistake."""


@dataclass(frozen=True)
class CompileOptions:
    """How a program is compiled.

    Raises:
        UsageError: a value of another type, or a number of threads that makes no sense.

    Attributes:
        threads: number of threads that a run may use; None for the size of the affinity mask.
        keep: values, by name, that must stay readable through ``run(outputs=...)``.
        require_native: whether a node that the backend leaves to a fallback is an error; see
            `compile_bundle`.
        spin: whether threads wait for the next run awake, for some milliseconds. Runs that follow
            soon start sooner; the processors are kept from others meanwhile.
        cache: whether what a backend makes of a bundle's weights is shared by methods and
            programs and kept on disk for later processes; ``memory``: shared only; False: neither.
        cache_dir: where that is kept; None for ``NARROWPASS_CACHE_DIR`` or the user's cache
            directory.
        share_workspace: whether all methods compute in the same memory. They then take turns.
        observe: whether values of `keep` are read by `Program.observe` alone. A backend then need
            not give them out through `run`, which leaves it free where and how they lie.
        winograd: whether a backend may compute convolutions of floats by Winograd's algorithm. It
            takes fewer multiplications, and rounds more.
    """

    threads: int | None = None
    keep: tuple[str, ...] = ()
    require_native: bool = False
    spin: bool = False
    cache: bool | Literal["memory"] = True
    cache_dir: str | os.PathLike[str] | None = None
    share_workspace: bool = False
    observe: bool = False
    winograd: bool = True

    def __post_init__(self) -> None:
        """Check the values; those of numpy become Python's."""
        values: dict[str, Any] = {
            name: flag_of(getattr(self, name), f"`{name}`")
            for name in ("require_native", "spin", "share_workspace", "observe", "winograd")
        }
        values["keep"] = names_of(self.keep, "`keep`")
        if self.threads is not None:
            values["threads"] = count_of(self.threads, "threads", most=MOST_THREADS)
        if self.cache_dir is not None:
            values["cache_dir"] = path_of(self.cache_dir, "`cache_dir`")
        if not (isinstance(self.cache, str) and self.cache == "memory"):
            try:
                values["cache"] = flag_of(self.cache, "cache")
            except UsageError:
                raise UsageError(
                    f"cache must be True, False or 'memory', not {self.cache!r}"
                ) from None
        for name, value in values.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class NodePlan:
    """Where one node runs; a row of `Program.explain`.

    Attributes:
        method: the method that the node belongs to.
        node: its name.
        op_type: its operator, with the domain in front where that is not the default one.
        dtype: the element type that it is computed in, as ONNX names it in lower case: that of its
            first output, but ``int8`` where a kernel computes with bytes what is written as a float
            operator between DequantizeLinear and QuantizeLinear.
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
        """Give all fields, for JSON."""
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

    It can be neither copied nor pickled. Threads may share it; another process loads the bundle.
    """

    _instead = (
        "threads may share it, and another process calls narrowpass.load with the bundle's path"
    )

    @property
    @abc.abstractmethod
    def methods(self) -> Sequence[str]:
        """The names of the methods, in the order of the bundle."""

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
            feeds: arrays by input name, each of the input's dtype and shape. An input with an
                initializer (a default) may be left out.
            method: which method; a bundle with one method runs that one for ``main``.
            outputs: names of the values to give back; None for the method's outputs. Values
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
        """Run a method, and let meters take in what values are.

        A backend that looks at values where they lie overrides it; the meters come out the same.

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
        """Tell for each node of each method where it runs, or why not natively."""

    @abc.abstractmethod
    def profile(self, feeds: Feeds, method: str = "main", runs: int = 5) -> list[NodeTime]:
        """Run a method `runs` times and tell the median time of each node."""

    @abc.abstractmethod
    def stats(self) -> dict[str, Any]:
        """Give counts and bytes that the backend keeps, by name; groups of them are dicts."""

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


class Backend(abc.ABC):
    """Compiles bundles to programs.

    Whatever a method of a subclass raises beside errors of `narrowpass.errors`, or gives of another
    type than it should, becomes a `BackendError` that names the backend.

    Attributes:
        name: what ``--target NAME`` and ``--backend NAME`` say.
        priority: the available backend of highest priority is the default target.
        classifier: an op classifier that knows what the backend does with narrow nodes, chosen by
            ``classifier=target+default``; None for none.
        observes: whether `Program.observe` looks at values where they lie, so that it needs no
            memory for them, however many there are.
    """

    name: ClassVar[str]
    priority: ClassVar[int] = 0
    observes: ClassVar[bool] = False
    classifier: ClassVar[OpClassifier | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        guard(
            cls,
            {
                **COMMON,
                "supports": of_type("narrowpass.Accept or narrowpass.Reject", Accept, Reject),
                "supports_quantized": of_type(
                    "narrowpass.Accept or narrowpass.Reject", Accept, Reject
                ),
                "compile": of_type("a narrowpass.Program", Program),
            },
        )

    def available(self) -> str | None:
        """Give None where the backend can run here, else the reason why it cannot."""
        return None

    def details(self) -> Mapping[str, str]:
        """Give what the backend runs on here, by name, such as the instruction sets in use.

        It is shown by ``narrowpass backends``, and asked only where the backend is available.
        """
        return {}

    def default_pipeline(self, passes: Collection[str]) -> str:
        """Give the pipeline text that a build for this target uses when the caller names none.

        Args:
            passes: names of the passes and named pipelines that are installed.
        """
        return ""

    @abc.abstractmethod
    def supports(self, node: ir.Node, ctx: Context) -> Accept | Reject:
        """Tell whether the backend runs `node` itself, or why not."""

    def quantization_spec(self) -> QuantizationSpec:
        """Give what the backend computes in int8, and what it needs of integers and scales.

        Passes that quantize keep to it. The default has no limits.
        """
        from narrowpass.runtime.quantization import QuantizationSpec

        return QuantizationSpec()

    def supports_quantized(
        self, node: ir.Node, quantization: NodeQuantization, ctx: Context
    ) -> Accept | Reject:
        """Tell whether the backend would compute `node` in int8 between the Q/DQ of a proposal.

        The default holds the proposal against `quantization_spec`.

        Args:
            node: a float operator, as `supports` takes it.
            quantization: of its operands, its weight and its result.
            ctx: of the pass that asks.
        """
        spec = self.quantization_spec()
        if node.domain or spec.operator(node.op_type) is None:
            return Reject(f"{self.name} has no int8 {node.op_type}")
        broken = spec.violations(
            node.op_type,
            quantization.inputs,
            quantization.output,
            quantization.weight_scales,
            quantization.slope,
        )
        return Reject(str(broken[0])) if broken else Accept()

    def gain(self, node: ir.Node, dtypes: OpDtypes) -> float:
        """Give the seconds that computing a node in a narrow type saves in a run, as estimated.

        Args:
            node: with float32 operands; types and shapes of its values as far as they are known.
            dtypes: `OpDtypes.output` is the narrow type.

        Returns:
            Seconds; below 0 where it takes longer than in float32, 0 where it makes no
            difference, or the backend cannot tell.
        """
        return 0.0

    @abc.abstractmethod
    def compile(self, bundle: Bundle, options: CompileOptions) -> Program:
        """Compile all methods of `bundle`.

        Raises:
            BackendError: a method that cannot be compiled, with the node and the reason.
        """


def verify_structure(model: ir.Model, what: str) -> None:
    """Verify a model that was given as an object, before anybody relies on its rules.

    Operators that onnx does not know are let through: passes and backends expand some of them.

    Raises:
        VerificationError: a rule is broken; the message starts with `what`.
    """
    from narrowpass.ir.verify import verify

    try:
        verify(model, unknown_operators=True)
    except VerificationError as error:
        raise VerificationError(f"{what}: {error}", error.problems) from error


def check_meters(meters: object) -> None:
    """Check what `Program.observe` is given.

    Raises:
        UsageError: no mapping of names to meters.
    """
    if not isinstance(meters, Mapping):
        raise UsageError(f"meters are given by the names of values, not as {kind_of(meters)}")
    for name, meter in meters.items():
        if not isinstance(name, str) or not hasattr(meter, "add"):
            raise UsageError(
                f"{name!r}: {kind_of(meter)} is no meter; "
                "give narrowpass.runtime.meters.Extremes or Counts"
            )


_NAMED_FALLBACKS = 5


def compile_bundle(backend: Backend, bundle: Bundle, options: CompileOptions) -> Program:
    """Compile a bundle, and hold the backend to ``options.require_native``.

    Raises:
        VerificationError: the structure of a method breaks a rule of ONNX.
        BackendError: a method that cannot be compiled; or nodes that `Program.explain` gives a
            reason for, where native ones are required. The message names them with the reasons.
    """
    for name, model in bundle.methods.items():
        verify_structure(model, f"method {name!r}")
    with no_collecting():
        program = backend.compile(bundle, options)
    if not options.require_native:
        return program
    with foreign(f"backend {backend.name!r} failed in explain", BackendError):
        left = [plan for plan in program.explain() if plan.reason]
    if left:
        program.close()
        shown = [f"{p.op_type} {p.node!r}: {p.reason}" for p in left[:_NAMED_FALLBACKS]]
        more = f"\n  and {len(left) - len(shown)} more" if len(left) > len(shown) else ""
        listing = "\n  ".join(shown)
        raise BackendError(
            f"{len(left)} nodes have no native kernel of {backend.name}:\n  {listing}{more}"
        )
    return program
