"""Op classifiers: which precision a node may run in, asked per node.

This module imports neither onnx nor numpy, so that a plugin's entry module may import it.
"""

from __future__ import annotations

import abc
import enum
import fnmatch
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar

from narrowpass.errors import PassError, PluginError
from narrowpass.framework.boundary import translate_errors
from narrowpass.framework.missing import provider_of
from narrowpass_ir.arguments import suggest

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx_ir as ir

A = TypeVar("A")


class Color(enum.Enum):
    """What a mixed-precision rewrite may do with a node."""

    GREEN = "green"
    """Faster or smaller in the narrow type: always lowered."""
    GRAY = "gray"
    """Follows its neighbours."""
    RED = "red"
    """Stays in fp32."""


ACCUMULATE = "narrowpass.accumulate"
"""The key of a node's metadata that says the type of its accumulators, such as ``float32``."""


ACTIVATIONS = "narrowpass.activations"
"""The key of a node's metadata that says how its activations are quantized: ``dynamic``, each row
by its own range when it runs; or, of nodes without weights, that both operands of their matmuls may
be rounded to ``bfloat16``."""

_FLOATS = ("float64", "float32", "float16", "bfloat16")


@dataclass(frozen=True)
class OpDtypes:
    """The types that a node computes with, by numpy's names.

    Attributes:
        accumulate: the type of accumulators, such as ``float32``. ONNX has an attribute for it in
            few operators; for others a rewrite leaves `ACCUMULATE` for the backend.
        output: what the node's floating-point outputs are stored as: the narrow type, or
            ``float32``, which keeps the node wide, since operands and results have one type.
    """

    accumulate: str
    output: str

    def __post_init__(self) -> None:
        """Check the names.

        Raises:
            ValueError: a name that is none of a float type.
        """
        for name in (self.accumulate, self.output):
            if name not in _FLOATS:
                raise ValueError(f"{name!r} is none of {', '.join(_FLOATS)}")


class Target(Protocol):
    """What classifiers ask of the backend that a model is built for; see `Backend`."""

    @property
    def name(self) -> str:
        """What ``--target NAME`` says."""

    @property
    def classifier(self) -> OpClassifier | None:
        """The backend's own classifier; None for none."""

    def gain(self, node: ir.Node, dtypes: OpDtypes) -> float:
        """Estimate the seconds that computing a node in a narrow type saves in a run."""


class OpClassifier(abc.ABC):
    """Assigns nodes a colour and types. Chosen by name in pipeline text.

    Attributes:
        name: what ``classifier=NAME`` in pipeline text says.
    """

    name: ClassVar[str]

    @abc.abstractmethod
    def color(self, node: ir.Node) -> Color | None:
        """Return the node's colour, or None where this classifier has no opinion."""

    def dtypes(self, node: ir.Node) -> OpDtypes | None:
        """Return the types that the node computes with, or None for the pass's default."""
        return None

    def reason(self, node: ir.Node) -> str:
        """Return why the node has its colour, for reports; empty for nothing."""
        return ""

    def for_target(self, target: Target | None, dtype: str) -> OpClassifier:
        """Return the classifier to use for a target and a narrow type; this one by default.

        Args:
            target: what the model is built for; it may be asked for its gain.
            dtype: ``float16`` or ``bfloat16``.
        """
        return self


def classifier_of(
    color: Callable[[ir.Node], Color | None] | None = None,
    dtypes: Callable[[ir.Node], OpDtypes | None] | None = None,
    name: str = "",
) -> OpClassifier:
    """Create a classifier from functions on a node.

    Args:
        color: returns a colour, or None for no opinion; None for no opinion on any node.
        dtypes: returns the types that a node computes with, likewise.
        name: who decided, as reports say; the name of the first function where it is empty.
    """
    chosen = name or getattr(color or dtypes, "__name__", "function")

    class Function(OpClassifier):
        name: ClassVar[str] = chosen

        def color(self, node: ir.Node) -> Color | None:
            return None if color is None else color(node)

        def dtypes(self, node: ir.Node) -> OpDtypes | None:
            return None if dtypes is None else dtypes(node)

    return Function()


@dataclass(frozen=True)
class ClassifierChain:
    """Classifiers asked in the order written; the first that answers wins.

    All methods raise `PassError` where a classifier fails, or answers with something else than it
    should; the message names the classifier and the node.
    """

    members: tuple[OpClassifier, ...]

    def color(self, node: ir.Node) -> tuple[Color, str] | None:
        """Return the colour and the name of the classifier that decided, or None."""
        for member in self.members:
            color = _ask(member, "color", node, Color)
            if color is not None:
                return color, _name(member)
        return None

    def reason(self, node: ir.Node) -> str:
        """Return why the node has its colour, in the words of the classifier that decided."""
        for member in self.members:
            if _ask(member, "color", node, Color) is not None:
                return _ask(member, "reason", node, str) or ""
        return ""

    def dtypes(self, node: ir.Node) -> tuple[OpDtypes, str] | None:
        """Return the types and the name of the classifier that decided, or None."""
        for member in self.members:
            dtypes = _ask(member, "dtypes", node, OpDtypes)
            if dtypes is not None:
                return dtypes, _name(member)
        return None


def _name(member: OpClassifier) -> str:
    return str(getattr(member, "name", type(member).__name__))


def _ask(member: OpClassifier, question: str, node: ir.Node, kind: type[A]) -> A | None:
    """Ask a classifier about a node; it is the user's code, and may do anything."""
    with translate_errors(
        f"classifier {_name(member)!r} failed in {question} of {_node_text(node)}", PassError
    ):
        answer = getattr(member, question)(node)
    if answer is None or isinstance(answer, kind):
        return answer
    expected = "str" if kind is str else f"narrowpass.{kind.__name__}"
    raise PassError(
        f"classifier {_name(member)!r} gave {answer!r} as {question} of {_node_text(node)}; it "
        f"must return a {expected}, or None for no opinion"
    )


def _node_text(node: ir.Node) -> str:
    name = node.name or next((value.name for value in node.outputs if value.name), "")
    return f"node {name!r} ({node.op_type})"


TARGET = "target"
"""The name that stands for the classifier of the backend that a model is built for."""


def choose_classifiers(
    text: str,
    known: Mapping[str, OpClassifier],
    target: Target | None = None,
    dtype: str = "float16",
) -> ClassifierChain:
    """Return the classifiers that ``classifier=a+b`` names, in the order written.

    Args:
        text: names, joined by ``+``. ``target`` is the classifier of the target, which has no
            opinion on any node where it has none.
        known: the installed classifiers by name.
        target: what the model is built for; classifiers may ask it what it gains.
        dtype: the narrow type.

    Raises:
        PluginError: a name that no installed plugin registers.
    """
    chosen = []
    for name in text.split("+"):
        if name == TARGET:
            own = None if target is None else _classifier_of_target(target)
            chosen += [] if own is None else [_bound(own, target, dtype)]
            continue
        if name not in known:
            listing = ", ".join(sorted(known)) or "none"
            raise PluginError(
                provider_of("classifiers", name)
                or f"no classifier {name!r}{suggest(name, known)}; installed classifiers: {listing}"
            )
        chosen.append(_bound(known[name], target, dtype))
    return ClassifierChain(tuple(chosen))


def _classifier_of_target(target: Target) -> OpClassifier | None:
    with translate_errors(f"backend {target.name!r} failed in classifier", PluginError):
        own: object = target.classifier
    if own is None or isinstance(own, OpClassifier):
        return own
    raise PluginError(
        f"backend {target.name!r} has {own!r} as its classifier; it must be an instance of "
        "narrowpass.OpClassifier, or None"
    )


def _bound(given: OpClassifier, target: Target | None, dtype: str) -> OpClassifier:
    """Return the classifier that one is for a target and a narrow type; see `for_target` there.

    Raises:
        PluginError: it fails, or returns something else.
    """
    what = f"classifier {_name(given)!r} failed in for_target"
    with translate_errors(what, PluginError):
        bound: object = given.for_target(target, dtype)
        if isinstance(bound, OpClassifier):
            return bound
        raise PluginError(f"{what}: it gave {bound!r}, and not a narrowpass.OpClassifier")


def matching_nodes(
    items: Sequence[str],
    nodes: Iterable[ir.Node],
    label: Callable[[ir.Node], str] | None = None,
) -> dict[str, list[ir.Node]]:
    """Return, for each list item of pipeline text, the nodes that it selects.

    An item is a node-name glob (`fnmatch`: ``*`` crosses ``/``; a whole name always matches
    itself) or ``op:TYPE``. An item that selects nothing has an empty list; whoever asked warns.

    Args:
        items: of the list.
        nodes: to select from.
        label: returns another name that a node may be selected by, as reports show it.
    """
    selected: dict[str, list[ir.Node]] = {item: [] for item in items}
    globs = [item for item in selected if set("*?[") & set(item) and not item.startswith("op:")]
    for node in nodes:
        # Names are looked up: a list of all nodes of a model is as long as the model, and a
        # comparison of each item with each node would take time by the square of that.
        names = {node.name or ""} | ({label(node)} if label is not None else set())
        exact = [f"op:{node.op_type}", *(name for name in names if not name.startswith("op:"))]
        hits = dict.fromkeys(item for item in exact if item in selected)
        hits |= dict.fromkeys(
            item for item in globs if any(fnmatch.fnmatchcase(name, item) for name in names)
        )
        for item in hits:
            selected[item].append(node)
    return selected
