"""The interface of backends, with that of the programs that they compile bundles to."""

from __future__ import annotations

import abc
import functools
import inspect
import math
import numbers
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from narrowpass.errors import (
    BackendError,
    NarrowpassError,
    SchemaError,
    UsageError,
    VerificationError,
)
from narrowpass.framework.boundary import sentence, translate_errors
from narrowpass.framework.options import check_values, format_options
from narrowpass.runtime.arrays import Feeds, Outputs
from narrowpass.runtime.program import NodePlan, NodeTime, Program, check_meters
from narrowpass_ir.arguments import count_of, flag_of, names_of, path_of
from narrowpass_ir.garbage import pause_collection

if TYPE_CHECKING:
    import onnx_ir as ir

    from narrowpass.bundle import Bundle
    from narrowpass.framework.classify import OpClassifier, OpDtypes
    from narrowpass.runtime.quantization import NodeQuantization, QuantizationSpec

__all__ = [
    "MOST_THREADS",
    "Accept",
    "Backend",
    "BackendLike",
    "CompileOptions",
    "Feeds",
    "NodePlan",
    "NodeTime",
    "Outputs",
    "Program",
    "Reject",
    "check_meters",
    "compile_bundle",
    "verify_structure",
]


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
    """How a program is compiled, whatever the backend.

    Options that only one backend has are fields of that backend; see `Backend`.

    Raises:
        UsageError: a value of another type, or a number of threads out of range.

    Attributes:
        threads: number of threads that a run may use; None for `usable_processors`.
        keep: values, by name, that must stay readable through ``run(outputs=...)``.
        require_native: whether a node that the backend leaves to a fallback is an error; see
            `compile_bundle`.
        cache: whether weights that a backend packs are shared by methods and programs and kept
            on disk for later processes, as are its plans; ``memory``: shared only; False: neither.
        cache_dir: the folder of both; None for ``NARROWPASS_CACHE_DIR`` or the user's
            cache directory.
        observe: whether values of `keep` are read by `Program.observe` alone. A backend then need
            not return them from `run`, and is free to choose their layout and memory.
    """

    threads: int | None = None
    keep: tuple[str, ...] = ()
    require_native: bool = False
    cache: bool | Literal["memory"] = True
    cache_dir: str | os.PathLike[str] | None = None
    observe: bool = False

    def __post_init__(self) -> None:
        """Check the values; those of numpy become Python's."""
        values: dict[str, Any] = {
            name: flag_of(getattr(self, name), f"`{name}`")
            for name in ("require_native", "observe")
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


@dataclass(frozen=True, eq=False)
class Backend(abc.ABC):
    """Compiles bundles to programs.

    A subclass that has options is a frozen dataclass, as a `Pass` is: its fields are the options,
    each with a default. They are written after its name wherever a backend is named, such as
    ``--backend 'name{option=value}'``, and are checked against the types of the fields. A
    plugin registers an instance with the defaults.

    Whatever a method of a subclass raises beside errors of `narrowpass.errors`, and a result of the
    wrong type, becomes a `BackendError` that names the backend.

    Attributes:
        name: what ``--target NAME`` and ``--backend NAME`` say, in lower case with hyphens.
        priority: the available backend of highest priority is the default target.
        classifier: an op classifier that knows how the backend computes narrow nodes, chosen by
            ``classifier=target+default``; None for none.
        observes: whether `Program.observe` reads values in place, so that it needs no memory for
            them, however many there are.
        is_oracle: whether it computes every operator as the standard says, so that results of
            other backends and of passes are compared with its results. One such backend is
            installed.
    """

    name: ClassVar[str]
    priority: ClassVar[int] = 0
    observes: ClassVar[bool] = False
    is_oracle: ClassVar[bool] = False
    classifier: ClassVar[OpClassifier | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _guard(cls)

    @property
    def stages(self) -> Sequence[str]:
        """The stages of lowering that `plan_text` prints, in the order in which they run.

        Empty for a backend that lowers nothing.
        """
        return ()

    def plan_text(self, bundle: Bundle, stage: str, options: CompileOptions) -> str:
        """Return what a stage of lowering decided for each method, as text.

        ``narrowpass explain --stage NAME`` prints it.

        Args:
            bundle: what to compile.
            stage: one of `stages`.
            options: see `CompileOptions`.

        Raises:
            BackendError: a method that cannot be lowered.
            UsageError: there is no such stage.
        """
        raise UsageError(f"backend {self.name!r} has no stage {stage!r}")

    def __post_init__(self) -> None:
        """Check the options; a subclass with more to check calls this first.

        Raises:
            OptionError: a value that does not fit its field's type. It is a `ValueError`.
        """
        check_values(self)

    def __str__(self) -> str:
        """The backend in text: its name and the options that differ from their defaults."""
        return format_options(self)

    def available(self) -> str | None:
        """Return None where the backend can run here, else the reason why it cannot."""
        return None

    def details(self) -> Mapping[str, str]:
        """Return properties of this machine by name, such as the instruction sets in use.

        ``narrowpass backends`` shows them, and calls this only where the backend is available.
        """
        return {}

    def default_pipeline(self, passes: Collection[str]) -> str:
        """Return the pipeline text that a build for this target uses when the caller names none.

        Args:
            passes: names of the passes and named pipelines that are installed.
        """
        return ""

    @abc.abstractmethod
    def supports(self, node: ir.Node) -> Accept | Reject:
        """Report whether the backend runs `node` itself, or why not."""

    def quantization_spec(self) -> QuantizationSpec:
        """Return the operators that the backend computes in int8, with their limits.

        Passes that quantize keep to it. The default has no limits.
        """
        from narrowpass.runtime.quantization import QuantizationSpec

        return QuantizationSpec()

    def supports_quantized(self, node: ir.Node, quantization: NodeQuantization) -> Accept | Reject:
        """Report whether the backend would compute `node` in int8 between proposed Q/DQ.

        The default checks the proposal against `quantization_spec`.

        Args:
            node: a float operator, as in `supports`.
            quantization: of its operands, its weight and its result.

        Returns:
            `Accept`, or `Reject` with the limit that the proposal breaks.
        """
        from narrowpass_ir.attributes import check_attributes

        try:
            check_attributes(node)
        except SchemaError as error:
            return Reject(str(error))
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
        """Estimate the seconds that computing a node in a narrow type saves in a run.

        Args:
            node: with float32 operands; types and shapes of its values as far as they are known.
            dtypes: `OpDtypes.output` is the narrow type.

        Returns:
            Seconds; below 0 where it takes longer than in float32, 0 where there is no
            difference, or the backend does not know.
        """
        return 0.0

    @abc.abstractmethod
    def compile(self, bundle: Bundle, options: CompileOptions) -> Program:
        """Compile all methods of `bundle`.

        Raises:
            BackendError: a method that cannot be compiled, with the node and the reason.
        """


_ADVICE = "this is a defect of the backend: report it to its authors, or use another --backend"


@dataclass(frozen=True)
class _Answer:
    """What a method must return.

    Attributes:
        expected: as a message names it.
        fits: returns whether a value is that.
    """

    expected: str
    fits: Callable[[Any], bool]


def _of_type(expected: str, *types: type) -> _Answer:
    """Return an answer that is an instance of one of `types`."""
    return _Answer(expected, lambda value: isinstance(value, types))


def _is_seconds(value: Any) -> bool:
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return real and not math.isnan(value)


def _is_texts(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(text, str) for item in value.items() for text in item
    )


def _is_spec(value: Any) -> bool:
    from narrowpass.runtime.quantization import (
        QuantizationSpec,  # numpy: imported where one is given
    )

    return isinstance(value, QuantizationSpec)


_ACCEPT_OR_REJECT = _of_type("narrowpass.Accept or narrowpass.Reject", Accept, Reject)

_ANSWERS: Mapping[str, _Answer] = MappingProxyType(
    {
        "default_pipeline": _of_type("pipeline text", str),
        "quantization_spec": _Answer(
            "a narrowpass.runtime.quantization.QuantizationSpec", _is_spec
        ),
        "details": _Answer("a mapping of text by name", _is_texts),
        "gain": _Answer("a number of seconds", _is_seconds),
        "supports": _ACCEPT_OR_REJECT,
        "supports_quantized": _ACCEPT_OR_REJECT,
        "compile": _of_type("a narrowpass.Program", Program),
        "plan_text": _of_type("a str", str),
    }
)
"""What the methods of a backend must return: they are code of plugins."""


def _guard(cls: type) -> None:
    """Wrap the methods that a subclass of `Backend` defines in checks of their contract.

    What they raise, or return of another kind, becomes a `BackendError`; our errors stay as
    they are. `available` never fails: a backend that cannot even say whether it can run, cannot.
    """
    for name, answer in _ANSWERS.items():
        method = vars(cls).get(name)
        if inspect.isfunction(method):
            setattr(cls, name, _checked_method(method, name, answer))
    method = vars(cls).get("available")
    if inspect.isfunction(method):
        cls.available = _without_errors(method)  # type: ignore[attr-defined]  # of a backend


def _checked_method(method: Callable[..., Any], name: str, answer: _Answer) -> Callable[..., Any]:
    @functools.wraps(method)
    def ask(self: Any, *args: Any, **kwargs: Any) -> Any:
        with translate_errors(f"backend {self.name!r} failed in {name}", BackendError, _ADVICE):
            value = method(self, *args, **kwargs)
            if not answer.fits(value):
                raise BackendError(
                    f"backend {self.name!r} gave {value!r} in {name}, where {answer.expected} is "
                    f"due; {_ADVICE}"
                )
            return value

    return ask


def _without_errors(method: Callable[[Any], Any]) -> Callable[[Any], str | None]:
    @functools.wraps(method)
    def ask(self: Any) -> str | None:
        try:
            with translate_errors("it cannot be asked", BackendError):
                reason = method(self)
                if reason is None or isinstance(reason, str):
                    return reason
                raise BackendError(f"it cannot be asked: it gave {reason!r}, not a reason")
        except NarrowpassError as error:
            return sentence(error)

    return ask


BackendLike: TypeAlias = str | Backend
"""What a backend may be given as: a name, with options or without, or the backend itself."""


def verify_structure(model: ir.Model, what: str) -> None:
    """Verify a model that a caller passes as an object.

    Operators that onnx does not know are let through: passes and backends expand some of them.

    Raises:
        VerificationError: a rule is broken; the message starts with `what`.
    """
    from narrowpass_ir.verify import verify

    try:
        verify(model, unknown_operators=True)
    except VerificationError as error:
        raise VerificationError(f"{what}: {error}", error.problems) from error


_NAMED_FALLBACKS = 5


def compile_bundle(backend: Backend, bundle: Bundle, options: CompileOptions) -> Program:
    """Compile a bundle, and enforce ``options.require_native``.

    Raises:
        VerificationError: the structure of a method breaks a rule of ONNX.
        BackendError: a method that cannot be compiled; or nodes for which
            `Program.explain` reports a reason, where native kernels are required. The message names
            them with the reasons.
    """
    for name, model in () if bundle.unread else bundle.methods.items():
        verify_structure(model, f"method {name!r}")
    with pause_collection():
        program = backend.compile(bundle, options)
    program.states = bundle.states
    if not options.require_native:
        return program
    with translate_errors(f"backend {backend.name!r} failed in explain", BackendError):
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
