"""The graphs of a method as data that the page draws, with what the passes decided."""

from __future__ import annotations

import logging
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from narrowpass.framework.classify import ACTIVATIONS, Color
from narrowpass_ir.constants import constant_tensor
from narrowpass_ir.inference import infer
from narrowpass_report.nodes import GraphData, bodies, is_weight
from narrowpass_report.texts import Texts, dtype_name, precision

if TYPE_CHECKING:
    from narrowpass.bundle import Report


_log = logging.getLogger(__name__)

_COLORS = {color.value for color in Color}


@dataclass(frozen=True)
class Drawing:
    """What the page draws of a method, and counts of it.

    Attributes:
        data: for ``viewer.js``; only what JSON has.
        precisions: nodes by what `precision` says of their first outputs.
        colors: nodes by the colour that a pass gave them.
        casts: the number of Cast nodes.
    """

    data: dict[str, Any] = field(default_factory=dict)
    precisions: Counter[str] = field(default_factory=Counter)
    colors: Counter[str] = field(default_factory=Counter)
    casts: int = 0


def draw(model: ir.Model, method: str, reports: Sequence[Report]) -> Drawing:
    """Describe all graphs of a method.

    Args:
        model: not changed; types that it lacks are inferred.
        method: its name.
        reports: what the passes decided, in this method and in others.
    """
    model = _typed(model)
    texts, dtypes = Texts(), Texts()
    decisions = _Decisions(texts, method, reports)
    functions = {key: number for number, key in enumerate(model.functions, 1)}
    waiting: list[tuple[str, list[int] | None, ir.Graph | ir.Function]]
    waiting = [("main graph", None, model.graph)]
    waiting += [(f"function {f.name}", None, f) for f in model.functions.values()]
    graphs: list[dict[str, Any]] = []
    nodes: list[ir.Node] = []
    computed: dict[ir.Node, ir.DataType] = {}
    for title, up, container in waiting:  # it grows meanwhile
        graph_data = GraphData(container, texts, dtypes)
        for number, node in enumerate(graph_data.nodes):
            called = functions.get(node.op_identifier())
            opens = [] if called is None else [called]
            for attribute, inner in bodies(node):
                opens.append(len(waiting))
                waiting.append((attribute, [len(graphs), number], inner))
            rows = decisions.about(node)
            graph_data.entries[number] |= {"opens": opens} if opens else {}
            graph_data.entries[number] |= {"decisions": rows} if rows else {}
        nodes += graph_data.nodes
        computed |= computed_types(graph_data.nodes)
        graphs.append({"title": title, "up": up, **graph_data.to_json()})
    classes = {dtype_name(dtype): precision(dtype) for dtype in ir.DataType}
    return Drawing(
        {
            "method": method,
            "graphs": graphs,
            "texts": texts.all,
            "dtypes": [(n, classes[n]) for n in dtypes.all],
        },
        Counter(
            precision(computed.get(n, n.outputs[0].dtype if n.outputs else None)) for n in nodes
        ),
        Counter(color for color in map(decisions.color, nodes) if color),
        sum(node.op_type == "Cast" and not node.domain for node in nodes),
    )


def _typed(model: ir.Model) -> ir.Model:
    try:
        model = model.clone()
        infer(model, subgraphs=True)
    except Exception as error:  # noqa: BLE001  # a graph without types is better than no page
        _log.debug("the page has no inferred types: %s", error)
    return model


class _Decisions:
    """What the passes decided in a method.

    Args:
        texts: gets what they say.
        method: its name.
        reports: of the passes.
    """

    def __init__(self, texts: Texts, method: str, reports: Sequence[Report]) -> None:
        self._texts = texts
        self._rows: dict[str, list[list[Any]]] = defaultdict(list)
        for report in reports:
            part = report.methods.get(method)
            for decision in () if part is None else part.decisions:
                words = (
                    report.name,
                    decision.get("decision"),
                    decision.get("by"),
                    decision.get("reason"),
                )
                row: list[Any] = [texts.add(str(word or "")) for word in words]
                numbers = [_number(decision.get(key)) for key in ("measured", "limit", "error")]
                row += [] if numbers == [None, None, None] else numbers
                self._rows[str(decision.get("node", ""))].append(row)

    def about(self, node: ir.Node) -> list[list[Any]]:
        """Return what was decided about a node, its weights and its outputs.

        Each is pass, decision, who decided and why; then measured value, limit and error where
        there are any; then the value that it is about where it is about one.
        """
        name = _label(node)
        rows = list(self._rows.get(name, ()))
        weights = [value for value in node.inputs if value is not None and is_weight(value)]
        for value in dict.fromkeys([*weights, *node.outputs]):
            if value.name and value.name != name and value.name in self._rows:
                about = self._texts.add(value.name)
                for row in self._rows[value.name]:
                    rows.append([*row, *[None] * (7 - len(row)), about])  # noqa: PERF401
        return rows

    def color(self, node: ir.Node) -> str | None:
        """Return the colour that the last pass with colours gave a node."""
        for row in reversed(self._rows.get(_label(node), ())):
            word: str = self._texts.all[row[1]].partition(",")[0]
            if word in _COLORS:
                return word
        return None


def _label(node: ir.Node) -> str:
    """Return the name by which passes call a node."""
    return node.name or next((value.name for value in node.outputs if value.name), "")


def _number(value: Any) -> int | float | str | None:
    """Return a number as JSON has it: infinities and what is not a number as text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) else str(value)


_WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


def computed_types(nodes: Sequence[ir.Node]) -> dict[ir.Node, ir.DataType]:
    """Return the type of nodes that compute with bytes, though they are written with floats.

    These are what stands between DequantizeLinear and QuantizeLinear, int8 matmuls whose
    result stays float, matmuls with dynamic per-token quantization, and the DequantizeLinear
    that say how bytes are read.

    Args:
        nodes: of a graph, in order.
    """
    found = {node: given for node in nodes if (given := _read(node)) is not None}
    read = [node for node in nodes if node not in found and _reads_bytes(node, found, set())]
    chain: set[ir.Node] = set()
    for node in nodes:
        if node not in found and _reads_bytes(node, found, chain):
            chain.add(node)
    kept: set[ir.Node] = set()
    for node in reversed(nodes):
        readers = [use.node for value in node.outputs for use in value.uses()]
        ends = bool(readers) and all(
            reader in kept or _is(reader, "QuantizeLinear") for reader in readers
        )
        if node in chain and (ends or (node in read and _is_product(node))):
            kept.add(node)
    dynamic = {node for node in nodes if node.metadata_props.get(ACTIVATIONS) == "dynamic"}
    return found | dict.fromkeys(kept | dynamic, ir.DataType.INT8)


def _is(node: ir.Node | None, op_type: str) -> bool:
    return node is not None and node.op_type == op_type and not node.domain


def _read(node: ir.Node) -> ir.DataType | None:
    """Return the integers that a DequantizeLinear reads."""
    given = node.inputs[0] if _is(node, "DequantizeLinear") else None
    if given is None:
        return None
    tensor = constant_tensor(given)
    return given.dtype if tensor is None else tensor.dtype


def _reads_bytes(
    node: ir.Node, dequantized: dict[ir.Node, ir.DataType], chain: set[ir.Node]
) -> bool:
    """Return whether all floats that a node computes with are bytes, and some are computed ones."""
    if node.op_type in _WEIGHTED and not _is_product(node):
        return False
    computed = 0
    for value in node.inputs:
        if value is None or constant_tensor(value) is not None:
            continue
        producer = value.producer()
        if producer in dequantized and producer is not None:
            computed += constant_tensor(producer.inputs[0]) is None
        elif producer in chain:
            computed += 1
        elif value.dtype is None or value.dtype.is_floating_point():
            return False
    return computed > 0


def _is_product(node: ir.Node) -> bool:
    """Return whether a node is an int8 matmul or convolution."""
    if node.op_type not in _WEIGHTED or node.domain or len(node.inputs) < 2:
        return False
    return all(
        value is not None and _is(value.producer(), "DequantizeLinear") for value in node.inputs[:2]
    )
