"""The colour of each node: who decided, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx_ir as ir

from narrowpass import Color, Decision
from narrowpass.classify import ClassifierChain
from narrowpass.constants import constant_tensor
from narrowpass.errors import PassError
from narrowpass.subgraphs import Opsets, model_graphs, model_nodes
from narrowpass_fp16.constants import Constants
from narrowpass_fp16.exactness import CONTROL_FLOW, exact_nodes
from narrowpass_fp16.magnitude import magnitudes, number_beyond
from narrowpass_fp16.quantized import quantized_nodes
from narrowpass_fp16.schemas import FLOAT, first_version, is_float, slots

if TYPE_CHECKING:
    from narrowpass import Context
    from narrowpass_fp16.placement import Placement

_EXACT = {ir.DataType.BOOL, ir.DataType.INT8, ir.DataType.UINT8}
"""Integers that all narrow floats of 11 bits hold."""

_ROUNDING = 4e-3
"""The error of a constant relative to it, as root mean squares, up to which it is rounded; rounding
alone makes 2.0e-4 in float16 and 1.7e-3 in bfloat16, more comes of elements that are too small."""


@dataclass(frozen=True)
class Verdict:
    """A node's colour.

    Attributes:
        color: what may be done with it.
        by: who decided.
        reason: why.
        measured: the value that decided, where there was one.
        limit: what it was compared with.
    """

    color: Color
    by: str
    reason: str = ""
    measured: float | None = None
    limit: float | None = None


class Coloring:
    """Colours the nodes of a model.

    Args:
        model: with types as far as they are known.
        dtype: the narrow type.
        chain: the classifiers.
        chosen: what options say, with their names.
        unknown: the policy for operators that no classifier knows.
        margin: see `Constants`.
        ranges: the largest element of values on data, by name.
        held: verdicts that are given already.

    Raises:
        PassError: an operator that no classifier knows, where that is an error.
    """

    def __init__(
        self,
        model: ir.Model,
        dtype: ir.DataType,
        chain: ClassifierChain,
        chosen: Mapping[ir.Node, tuple[Color, str]],
        unknown: str,
        *,
        margin: float,
        ranges: Mapping[str, float],
        held: Mapping[ir.Node, Verdict],
    ) -> None:
        self._model, self._dtype, self._chain, self._chosen = model, dtype, chain, chosen
        self._unknown = unknown
        self._constants = Constants(dtype, margin, _ROUNDING)
        self._ranges, self._held = ranges, held
        self._largest = self._constants.most
        self._opsets = Opsets(model)
        nodes = model_nodes(model)
        self._constants.judge(
            value.const_value
            for graph in model_graphs(model)
            for value in graph.initializers.values()
            if value.const_value is not None and value.const_value.dtype == FLOAT
        )
        # A model's output keeps its name when a cast makes it, and what made it gets another.
        self._results = {node: [v.name for v in node.outputs if v.name] for node in nodes}
        self._magnitudes = magnitudes(model, nodes, self._constants.largest)
        self._quantized = quantized_nodes(nodes)
        self._verdicts = {node: self._of(node) for node in nodes}
        for node in exact_nodes(model, nodes, self.color):
            reason = "an index or a size follows from it"
            self._verdicts[node] = Verdict(Color.RED, "exactness", reason)

    @property
    def has_green(self) -> bool:
        """Whether any node is to be lowered."""
        return any(verdict.color is Color.GREEN for verdict in self._verdicts.values())

    def color(self, node: ir.Node) -> Color:
        """Give the colour of a node."""
        return self._verdicts[node].color

    def too_large(self, value: ir.Value) -> bool:
        """Tell whether a value is known not to fit into the narrow type."""
        tensor = constant_tensor(value)
        if tensor is not None and tensor.dtype == FLOAT and self._constants.against(tensor)[0]:
            return True
        seen = self._ranges.get(value.name or "", 0.0)
        return max(seen, self._magnitudes.get(value, 0.0)) > self._largest

    @property
    def has_ranges(self) -> bool:
        """Whether values were seen on data: those of the main graph."""
        return bool(self._ranges)

    def accumulate(self, node: ir.Node) -> str:
        """Give what the sums of a node are to be kept in; empty where nobody says."""
        answer = self._chain.dtypes(node)
        return "" if answer is None else answer[0].accumulate

    def publish(self, ctx: Context, placement: Placement | None) -> None:
        """Report all nodes that compute with floats; `placement` tells which became narrow."""
        for node, verdict in self._verdicts.items():
            ctx.counters[verdict.color.value] += 1
            narrow = placement is not None and placement.is_narrow(node)
            if narrow:
                ctx.counters["narrow"] += 1
            name = self._opsets.label(node)
            decision = f"{verdict.color.value}, {'narrow' if narrow else 'wide'}"
            measured, limit = verdict.measured, verdict.limit
            if measured is None:
                measured, limit = self._range(node)
            ctx.decisions.append(
                Decision(name, node.op_type, decision, verdict.by, verdict.reason, measured, limit)
            )

    def _range(self, node: ir.Node) -> tuple[float | None, float | None]:
        """Give the largest element of a node's results on the data, and the limit of the type."""
        found = [self._ranges[name] for name in self._results[node] if name in self._ranges]
        return (max(found), self._largest) if found else (None, None)

    def _of(self, node: ir.Node) -> Verdict:
        border = node.op_identifier() in self._model.functions
        border = border or (node.op_type in CONTROL_FLOW and not node.domain)
        if border and node in self._chosen and self._chosen[node][0] is Color.RED:
            return Verdict(*self._chosen[node])
        if node.op_type in CONTROL_FLOW and not node.domain:
            return Verdict(Color.GRAY, "subgraphs", "its values follow those of its subgraphs")
        if node.op_identifier() in self._model.functions:
            return Verdict(Color.GRAY, "functions", "its values follow those of its function")
        known = slots(node, self._opsets.version(node), self._dtype)
        floats = [] if known is None else [s for s in known if is_float(s.value)]
        if known is None:
            return Verdict(Color.RED, "schema", "its operator is not one of ONNX")
        if not floats:
            return Verdict(Color.GRAY, "types", "it has no float32 values")
        if node in self._quantized and node not in self._chosen:
            return Verdict(Color.RED, "quantization", self._quantized[node])
        if not any(slot.parameter for slot in floats):
            name = self._dtype.name.lower()
            text = f"operator set {self._opsets.version(node)} has no {name}"
            newer = first_version(node, self._dtype)
            if newer:
                text += f"; upgrade-opset{{to={newer}}} before fp16 brings it"
            return Verdict(Color.RED, "schema", text)
        if node in self._held:
            return self._held[node]
        if any(attribute.is_ref() for attribute in node.attributes.values()):
            return Verdict(Color.RED, "functions", "its attributes follow from the call")
        function = self._opsets.function(node)
        if function is not None and not self._opsets.enters(function):
            text = f"{function.name!r} has operators of another set than the model"
            return Verdict(Color.RED, "functions", text)
        if function is not None and self._ranges:
            return Verdict(
                Color.RED, "data", f"values within {function.name!r} were not seen on it"
            )
        if node.op_type == "Cast":
            return self._of_cast(node)
        verdict = self._classified(node)
        if verdict.color is Color.RED:
            return verdict
        for slot in floats:
            largest = self._ranges.get(slot.value.name or "", 0.0)
            if slot.parameter and largest > self._largest:
                text = f"{slot.value.name!r} is too large on the data"
                return Verdict(Color.RED, "data", text, largest, self._largest)
        beyond = number_beyond(
            node, self._opsets.version(node), self._constants.least, self._constants.most
        )
        if beyond is not None:
            text = f"its attribute {beyond[0]!r} is no number of the narrow type"
            return Verdict(Color.RED, "constants", text, *beyond[1:])
        for slot in floats:
            brought = self._magnitudes.get(slot.value, 0.0)
            if slot.parameter and not slot.output and brought > self._largest:
                text = f"a constant makes {slot.value.name!r} too large"
                return Verdict(Color.RED, "constants", text, brought, self._largest)
            if not slot.output and _counts(slot.value, self._dtype):
                text = f"{slot.value.name!r} may be an integer above 2048"
                return Verdict(Color.RED, "exactness", text)
            tensor = constant_tensor(slot.value)
            if slot.parameter and not slot.output and tensor is not None:
                reason, measured, limit = self._constants.against(tensor)
                if reason:
                    text = f"{reason} in {slot.value.name!r}"
                    return Verdict(Color.RED, "constants", text, measured, limit)
        return verdict

    def _of_cast(self, node: ir.Node) -> Verdict:
        source = node.inputs[0].dtype if node.inputs[0] is not None else None
        if node.outputs[0].dtype == FLOAT and (source in _EXACT or source == self._dtype):
            return Verdict(Color.GRAY, "range", "what it reads is exact in the narrow type")
        return Verdict(Color.RED, "range", "integers above 2048 are not exact in float16")

    def _classified(self, node: ir.Node) -> Verdict:
        if node in self._chosen:
            color, by = self._chosen[node]
            return Verdict(color, by)
        dtypes = self._chain.dtypes(node)
        if dtypes is not None and dtypes[0].output == "float32":
            return Verdict(Color.RED, f"classifier {dtypes[1]}", "its output is to be float32")
        answer = self._chain.color(node)
        if answer is not None:
            color, by = answer
            return Verdict(color, f"classifier {by}", self._chain.reason(node))
        if self._unknown == "error":
            raise PassError(
                f"no classifier knows {node.op_type} ({node.name or node.outputs[0].name!r}); name "
                "it in red or green, or choose unknown=follow or unknown=red"
            )
        color = Color.RED if self._unknown == "red" else Color.GRAY
        return Verdict(color, f"unknown={self._unknown}")


def _counts(value: ir.Value, dtype: ir.DataType) -> bool:
    """Tell whether a value comes of integers that the narrow type need not hold."""
    node = value.producer()
    if node is None or node.op_type != "Cast" or node.domain or node.inputs[0] is None:
        return False
    source = node.inputs[0].dtype
    floats = {FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
    return source not in _EXACT | floats and source != dtype
