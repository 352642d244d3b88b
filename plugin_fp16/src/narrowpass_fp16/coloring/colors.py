"""The colour of each node: who decided, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx_ir as ir

from narrowpass import Color, Decision
from narrowpass.errors import PassError
from narrowpass.framework.classify import ClassifierChain
from narrowpass_fp16.coloring.constants import Constants, constant_of, stored_value
from narrowpass_fp16.coloring.exactness import (
    CONTROL_FLOW,
    WHOLE,
    becomes_float_again,
    exact_nodes,
    is_whole,
    rounded_by,
    truncated,
)
from narrowpass_fp16.coloring.magnitude import magnitudes, number_beyond
from narrowpass_fp16.coloring.quantized import quantized_nodes
from narrowpass_fp16.coloring.underflow import vanishing
from narrowpass_fp16.ranges import Measured
from narrowpass_fp16.schemas import FLOAT, Slot, first_version, is_float, slots
from narrowpass_ir.constants import constant_tensor
from narrowpass_ir.io import ConvertedTensor
from narrowpass_ir.subgraphs import Opsets, model_graphs, model_nodes

if TYPE_CHECKING:
    from narrowpass import Context
    from narrowpass_fp16.placement.placement import Placement


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
        constants: judges them.
        ranges: the largest element of values on data.
        held: verdicts that are given already.

    Attributes:
        follows: Casts to floats that may be narrow only where another Cast, of what they take back,
            reads a narrow value.

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
        constants: Constants,
        ranges: Measured,
        held: Mapping[ir.Node, Verdict],
    ) -> None:
        self._model, self._dtype, self._chain, self._chosen = model, dtype, chain, chosen
        self._unknown = unknown
        self._constants = constants
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
        self._magnitudes = magnitudes(model, nodes, self._constants.largest)
        self._quantized = quantized_nodes(nodes)
        self._stored = _stored(nodes, self._constants)
        self._constants.judge(self._stored.values())
        vanishing_nodes, self._wide = vanishing(model, nodes, dtype, self._opsets.label)
        self._vanishing = vanishing_nodes
        self.follows: dict[ir.Node, ir.Node] = {}
        self._verdicts: dict[ir.Node, Verdict] = {}
        for node in nodes:
            self._verdicts[node] = self._of(node)
        exact, values = exact_nodes(model, nodes, self.color, dtype)
        self._wide |= values
        for node in exact:
            reason = "an index or a size follows from it"
            self._verdicts[node] = Verdict(Color.RED, "exactness", reason)

    @property
    def has_green(self) -> bool:
        """Whether any node is to be lowered."""
        return any(verdict.color is Color.GREEN for verdict in self._verdicts.values())

    def color(self, node: ir.Node) -> Color:
        """Return the colour of a node."""
        return self._verdicts[node].color

    def too_large(self, value: ir.Value) -> bool:
        """Return whether a value is known not to fit into the narrow type."""
        tensor = constant_tensor(value)
        if tensor is not None and tensor.dtype == FLOAT and self._constants.against(tensor)[0]:
            return True
        if value in self._wide or value in self._ranges.unseen:
            return True
        seen = self._ranges.largest.get(value, 0.0)
        return max(seen, self._magnitudes.get(value, 0.0)) > self._largest

    def accumulate(self, node: ir.Node) -> str:
        """Return the requested type of a node's accumulators; empty where there is none."""
        answer = self._chain.dtypes(node)
        return "" if answer is None else answer[0].accumulate

    def publish(self, ctx: Context, placement: Placement | None) -> None:
        """Report all nodes that compute with floats; `placement` knows which became narrow."""
        for node, verdict in self._verdicts.items():
            ctx.counters[verdict.color.value] += 1
            narrow = placement is not None and placement.is_narrow(node)
            if narrow:
                ctx.counters["narrow"] += 1
            name = self._opsets.label(node)
            decision = f"{verdict.color.value}, {'narrow' if narrow else 'wide'}"
            measured, limit = verdict.measured, verdict.limit
            if measured is None:
                measured, limit = self._measured_largest(node)
            reason = verdict.reason or self._excuse(node)
            ctx.decisions.append(
                Decision(name, node.op_type, decision, verdict.by, reason, measured, limit)
            )

    def _measured_largest(self, node: ir.Node) -> tuple[float | None, float | None]:
        """Return the largest element of a node's results on the data, and the limit of the type."""
        seen = self._ranges.largest
        found = [seen[value] for value in node.outputs if value in seen]
        return (max(found), self._largest) if found else (None, None)

    def _excuse(self, node: ir.Node) -> str:
        """Return why a node's results were not measured, though there is data."""
        found = (self._ranges.excused.get(value, "") for value in node.outputs)
        text = next((reason for reason in found if reason), "")
        return text and f"not measured on the data: {text}"

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
            if newer > self._opsets.version(node):
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
        unseen = next((s.value for s in floats if s.value in self._ranges.unseen), None)
        if unseen is not None:
            return Verdict(Color.RED, "data", f"{unseen.name!r} cannot be seen on it")
        if node in self._vanishing:
            return Verdict(Color.RED, "constants", self._vanishing[node])
        if node.op_type == "Cast":
            return self._of_cast(node)
        verdict = self._classified(node)
        if verdict.color is Color.RED:
            return verdict
        large = self._large_on_data(floats)
        if large is not None:
            return large
        beyond = number_beyond(
            node, self._opsets.version(node), self._constants.least, self._constants.most
        )
        if beyond is not None:
            text = f"its attribute {beyond[0]!r} is no number of the narrow type"
            return Verdict(Color.RED, "constants", text, *beyond[1:])
        for slot in floats:
            brought = self._magnitudes.get(slot.value, 0.0)
            if slot.parameter and brought > self._largest:
                text = f"a constant is added, which leaves {slot.value.name!r} too large"
                return Verdict(Color.RED, "constants", text, brought, self._largest)
            if not slot.output and self._counts(slot.value):
                text = f"{slot.value.name!r} may be an integer above {WHOLE[self._dtype]}"
                return Verdict(Color.RED, "exactness", text)
            tensor = self._stored.get(slot.value, constant_of(slot.value))
            if slot.parameter and tensor is not None and tensor.dtype == FLOAT:
                reason, measured, limit = self._constants.against(tensor)
                if reason:
                    text = f"{reason} in {slot.value.name!r}"
                    return Verdict(Color.RED, "constants", text, measured, limit)
        return verdict

    def _large_on_data(self, floats: Sequence[Slot]) -> Verdict | None:
        for slot in floats:
            largest = self._ranges.largest.get(slot.value, 0.0)
            if slot.parameter and largest > self._largest:
                text = f"{slot.value.name!r} is too large on the data"
                return Verdict(Color.RED, "data", text, largest, self._largest)
        return None

    def _of_cast(self, node: ir.Node) -> Verdict:
        """Colour a Cast: gray where it reads narrow values, or where its result is exact."""
        if node in self._chosen and self._chosen[node][0] is Color.RED:
            return Verdict(*self._chosen[node])
        source, result = node.inputs[0], node.outputs[0]
        if source is None or result.dtype == ir.DataType.STRING:
            return Verdict(Color.RED, "range", "the text of a narrow number is another")
        if not is_float(result):
            return Verdict(Color.GRAY, "range", "it reads what is there, and rounds nothing before")
        stored = self._stored.get(result)
        if stored is not None:
            reason, measured, limit = self._constants.against(stored)
            if reason:
                return Verdict(Color.RED, "constants", reason, measured, limit)
        large = self._large_on_data([Slot(result, 0, True, "T2")])
        if large is not None:
            return large
        brought = self._magnitudes.get(result, 0.0)
        if brought > self._largest:
            text = f"a constant is added, which leaves {result.name!r} too large"
            return Verdict(Color.RED, "constants", text, brought, self._largest)
        return self._of_integers(node, source, result)

    def _of_integers(self, node: ir.Node, source: ir.Value, result: ir.Value) -> Verdict:
        """Colour a Cast to float32 that reads integers, or floats of another type."""
        most = WHOLE[self._dtype]
        if is_whole(source, most):
            return Verdict(Color.GRAY, "range", "what it reads is exact in the narrow type")
        if source.dtype is not None and source.dtype.is_floating_point():
            return Verdict(Color.GRAY, "range", "a cast behind it would round the same")
        seen = self._ranges.largest.get(result)
        if seen is not None and seen <= most:
            text = f"its integers are exact in the narrow type up to {most}"
            return Verdict(Color.GRAY, "data", text, seen, most)
        first = truncated(node)
        if first is not None and self._cuts_narrow(first):
            self.follows[node] = first
            return Verdict(Color.GRAY, "range", "a narrow number without its fraction is one too")
        name = self._dtype.name.lower()
        return Verdict(Color.RED, "range", f"integers above {most} are not exact in {name}")

    def _cuts_narrow(self, cast: ir.Node) -> bool:
        """Return whether a Cast reads the output of a green node, only moved or truncated since."""
        nodes = rounded_by(cast.inputs[0])
        colors = [self._verdicts[n].color for n in (cast, *nodes) if n in self._verdicts]
        if len(colors) != 1 + len(nodes) or Color.RED in colors or not nodes:
            return False
        if len(nodes) > 1 and not becomes_float_again(cast):
            return False  # as an index, what is between may have to stay wide
        return colors[-1] is Color.GREEN or nodes[-1] in self.follows

    def _counts(self, value: ir.Value) -> bool:
        """Return whether a value comes of integers that the narrow type need not hold."""
        node = value.producer()
        if node is None or node.op_type != "Cast" or node.domain or node not in self._verdicts:
            return False
        source = None if node.inputs[0] is None else node.inputs[0].dtype
        if source is None or source.is_floating_point():
            return False
        return self._verdicts[node].color is Color.RED

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


def _stored(nodes: Sequence[ir.Node], constants: Constants) -> dict[ir.Value, ir.TensorProtocol]:
    """Return values that are constants of 16 bits behind a Cast, with their elements in float32."""
    found: dict[ir.Value, ir.TensorProtocol] = {}
    for node in nodes:
        for value in node.outputs:
            source = stored_value(value)
            if source is None or source.const_value is None:
                continue
            if source.const_value.dtype == constants.dtype:
                continue  # it is what it is
            found[value] = ConvertedTensor(source.const_value, FLOAT, value.name)
    return found
