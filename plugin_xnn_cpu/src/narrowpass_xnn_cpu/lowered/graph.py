"""Text format of graph operations before lowering.

There is one line for each. ::

Conv 17 ("x", "w", none) -> ("y" float32 ["N", 8, 4, 4]) {pads: [1, 1, 1, 1]} node "conv"
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from narrowpass_xnn_cpu.lowered.values import Reader, text_of
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue


@dataclass(frozen=True)
class GraphValue:
    """A result of an operation.

    Attributes:
        name: of the value; empty for an omitted result.
        dtype: name of the dtype; None if it is not known.
        dims: numbers, symbols and None for unknown ones; None if the rank is not known.
    """

    name: str
    dtype: str | None
    dims: tuple[int | str | None, ...] | None


@dataclass(frozen=True)
class GraphOp:
    """An operation of a graph: an ONNX node, or several that were fused.

    Attributes:
        kind: the ONNX operator, or the lower-case name of a pattern.
        version: of the operator set.
        inputs: names of the operands; None for an omitted one.
        outputs: the results.
        attributes: by name.
        epilogue: applied to the result; None for none.
        residual: name of the value that the epilogue adds.
        nodes: names of the ONNX nodes.
        reason: why it does not run natively; empty if it does, or before the decision.
    """

    kind: str
    version: int
    inputs: tuple[str | None, ...]
    outputs: tuple[GraphValue, ...]
    attributes: tuple[tuple[str, Any], ...] = ()
    epilogue: Epilogue | None = None
    residual: str | None = None
    nodes: tuple[str, ...] = ()
    reason: str = ""

    def text(self) -> str:
        """Return the operation as one line of text."""
        inputs = ", ".join(map(text_of, self.inputs))
        outputs = ", ".join(map(_value_text, self.outputs))
        line = f"{self.kind} {self.version} ({inputs}) -> ({outputs})"
        if self.attributes:
            pairs = (f"{name}: {text_of(value)}" for name, value in self.attributes)
            line += f" {{{', '.join(pairs)}}}"
        if self.epilogue is not None:
            line += f" epilogue {text_of(self.epilogue)}"
        if self.residual is not None:
            line += f" residual {json.dumps(self.residual)}"
        line += "".join(f" node {json.dumps(node)}" for node in self.nodes)
        return line + (f" reason {json.dumps(self.reason)}" if self.reason else "")

    @classmethod
    def read(cls, reader: Reader) -> GraphOp:
        """Parse an operation.

        Raises:
            UsageError: the line is malformed.
        """
        kind, version = reader.next("word"), int(reader.next("number"))
        reader.expect("(")
        inputs = tuple(reader.many(reader.value, ")"))
        reader.expect("->")
        reader.expect("(")
        outputs = tuple(reader.many(lambda: _value(reader), ")"))
        attributes: tuple[tuple[str, Any], ...] = ()
        if reader.take("{"):
            attributes = tuple(reader.many(reader.field, "}"))
        epilogue = reader.value() if reader.take("epilogue") else None
        residual = reader.string() if reader.take("residual") else None
        nodes = []
        while reader.take("node"):
            nodes.append(reader.string())
        reason = reader.string() if reader.take("reason") else ""
        return cls(
            kind, version, inputs, outputs, attributes, epilogue, residual, tuple(nodes), reason
        )


def _value_text(value: GraphValue) -> str:
    return f"{json.dumps(value.name)} {value.dtype or 'none'} {text_of(value.dims)}"


def _value(reader: Reader) -> GraphValue:
    name, dtype = reader.string(), reader.next("word")
    return GraphValue(name, None if dtype == "none" else dtype, reader.value())
