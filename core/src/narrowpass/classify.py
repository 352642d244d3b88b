"""Op classifiers: which precision a node may run in, asked per node.

This module imports neither onnx nor numpy, so that a plugin's entry module may import it.
"""

from __future__ import annotations

import abc
import enum
import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from narrowpass.errors import PluginError
from narrowpass.options import suggest

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx_ir as ir


class Color(enum.Enum):
    """What a mixed-precision rewrite may do with a node."""

    GREEN = "green"
    """Faster or smaller in the narrow type: always lowered."""
    GRAY = "gray"
    """Follows its neighbours."""
    RED = "red"
    """Stays in fp32."""


@dataclass(frozen=True)
class OpDtypes:
    """The types that a node computes with, as `onnx_ir.DataType` names in lower case.

    Attributes:
        accumulate: what sums are kept in, such as ``float32``.
        output: what the node's floating-point outputs are stored as, such as ``float16``.
    """

    accumulate: str
    output: str


class OpClassifier(abc.ABC):
    """Gives nodes a colour and types. Chosen by name in pipeline text.

    Attributes:
        name: what ``classifier=NAME`` in pipeline text says.
    """

    name: ClassVar[str]

    @abc.abstractmethod
    def color(self, node: ir.Node) -> Color | None:
        """Give the node's colour, or None where this classifier has no opinion."""

    def dtypes(self, node: ir.Node) -> OpDtypes | None:
        """Give the types that the node computes with, or None for the pass's default."""
        return None


@dataclass(frozen=True)
class ClassifierChain:
    """Classifiers asked in the order written; the first that answers wins."""

    members: tuple[OpClassifier, ...]

    def color(self, node: ir.Node) -> tuple[Color, str] | None:
        """Give the colour and the name of the classifier that decided, or None."""
        for member in self.members:
            color = member.color(node)
            if color is not None:
                return color, member.name
        return None

    def dtypes(self, node: ir.Node) -> tuple[OpDtypes, str] | None:
        """Give the types and the name of the classifier that decided, or None."""
        for member in self.members:
            dtypes = member.dtypes(node)
            if dtypes is not None:
                return dtypes, member.name
        return None


def choose_classifiers(text: str, known: Mapping[str, OpClassifier]) -> ClassifierChain:
    """Give the classifiers that ``classifier=a+b`` names, in the order written.

    Raises:
        PluginError: a name that no installed plugin registers.
    """
    chosen = []
    for name in text.split("+"):
        if name not in known:
            listing = ", ".join(sorted(known)) or "none"
            raise PluginError(
                f"no classifier {name!r}{suggest(name, known)}; installed classifiers: {listing}"
            )
        chosen.append(known[name])
    return ClassifierChain(tuple(chosen))


def matching_nodes(items: Sequence[str], nodes: Iterable[ir.Node]) -> dict[str, list[ir.Node]]:
    """Give, for each list item of pipeline text, the nodes that it selects.

    An item is a node-name glob (`fnmatch`: ``*`` crosses ``/``; a whole name always matches
    itself) or ``op:TYPE``. An item that selects nothing has an empty list; whoever asked warns.
    """
    selected: dict[str, list[ir.Node]] = {item: [] for item in items}
    for node in nodes:
        name = node.name or ""
        for item, found in selected.items():
            if item.startswith("op:"):
                hit = node.op_type == item.removeprefix("op:")
            else:
                hit = name == item or fnmatch.fnmatchcase(name, item)
            if hit:
                found.append(node)
    return selected
