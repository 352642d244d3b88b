"""The pass ``expand-operators``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import onnx
import onnx_ir as ir

from narrowpass import Decision, Pass, PassResult, matching_nodes
from narrowpass.errors import PassError, UpgradeError
from narrowpass_expansion import OPERATORS, OPSET, expand
from narrowpass_ir.upgrading import upgrade

if TYPE_CHECKING:
    from narrowpass import Context


@dataclass(frozen=True)
class ExpandOperators(Pass):
    """Write operators of transformers, com.microsoft's and ONNX's, as plain ONNX operators.

    Backends that lack them, and passes that know plain operators, take the model then. `xnn-cpu`
    does the same when it compiles a model. Results are those of the operators, but for the order
    of additions. A model of an older operator set is written with set 24 first.

    Attributes:
        keep: nodes to leave alone: node-name globs, or ``op:TYPE``.
    """

    name: ClassVar[str] = "expand-operators"
    keep: tuple[str, ...] = ()

    def run(self, model: ir.Model, ctx: Context) -> PassResult:
        """Expand in all graphs of the model but those of functions.

        Counters: ``expanded``, ``left`` (with the reason among the decisions).

        Raises:
            PassError: the model cannot be written with operator set 24.
        """
        nodes = [node for node in model.graph.all_nodes() if _is_known(node)]
        if not nodes:
            return PassResult(model, False)
        names = {node.name for found in matching_nodes(self.keep, nodes).values() for node in found}
        skipped = [node for node in nodes if node.name in names]
        if len(skipped) == len(nodes):
            return PassResult(model, False)
        for node in nodes:
            if not node.domain and node.op_type == "SimplifiedLayerNormalization":
                # No operator set has it; the converter would refuse it.
                node.domain, model.opset_imports[_OURS] = _OURS, 1
        try:
            upgraded, _ = upgrade(model, OPSET)
        except UpgradeError as error:
            raise PassError(str(error)) from error
        for node in upgraded.graph.all_nodes():
            if node.domain == _OURS:
                node.domain = ""
        upgraded.opset_imports.pop(_OURS, None)
        skip = [
            node for node in upgraded.graph.all_nodes() if node.name in names and _is_known(node)
        ]
        declared = {value.name: (value.type, value.shape) for value in _values(upgraded)}
        found = expand(upgraded, skip=skip)
        if any(not item.reason for item in found):
            _import_standard(upgraded)
        for value in _values(upgraded):
            # What inference found is not written into the file, nor over what it says.
            value.type, value.shape = declared.get(value.name, (None, None))
        for expansion in found:
            done = not expansion.reason
            ctx.counters["expanded" if done else "left"] += 1
            ctx.decisions.append(
                Decision(
                    expansion.node,
                    expansion.op_type,
                    "expanded" if done else "kept",
                    self.name,
                    expansion.reason,
                )
            )
        return PassResult(upgraded, upgraded is not model or any(not item.reason for item in found))


_OURS = "narrowpass.expanding"


def _import_standard(model: ir.Model) -> None:
    """Import the operator set of the new nodes, which a model of other domains only may lack."""
    model.opset_imports[""] = max(model.opset_imports.get("", 1), OPSET)
    imports = [onnx.helper.make_opsetid("", model.opset_imports[""])]
    least = onnx.helper.find_min_ir_version_for(imports, ignore_unknown=True)
    model.ir_version = max(model.ir_version, least)


def _values(model: ir.Model) -> Iterator[ir.Value]:
    for node in model.graph.all_nodes():
        yield from node.outputs


def _is_known(node: ir.Node) -> bool:
    return (node.domain, node.op_type) in OPERATORS
