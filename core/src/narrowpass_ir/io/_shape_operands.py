"""Which initializers shape inference reads the value of, so that they must stay in the model file.

onnx and onnxruntime refuse a model in which such a tensor is external data.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import onnx_ir as ir

from narrowpass_ir.io._walk import containers

_REDUCTIONS = (
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
)

READ_INPUTS: dict[str, tuple[int, ...]] = {
    "AffineGrid": (1,),
    "BlackmanWindow": (0,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "DFT": (1, 2),
    "Expand": (1,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "SplitToSequence": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
    **dict.fromkeys(_REDUCTIONS, (1,)),
}
"""Inputs, by operator of ai.onnx, whose values decide the shape of an output, in any opset."""

_PROPAGATED: dict[str, tuple[int, ...]] = {
    "Add": (0, 1),
    "Cast": (0,),
    "Concat": (),
    "Div": (0, 1),
    "Gather": (0, 1),
    "Identity": (0,),
    "Max": (),
    "Min": (),
    "Mod": (0, 1),
    "Mul": (0, 1),
    "Neg": (0,),
    "Range": (0, 1, 2),
    "Reshape": (0,),
    "Slice": (0, 1, 2, 3, 4),
    "Split": (0,),
    "Squeeze": (0,),
    "Sub": (0, 1),
    "Unsqueeze": (0,),
    "Where": (0, 1, 2),
}
"""Inputs whose values an inference carries on to the output; none listed: all of them."""

_CARRIED_TYPES = frozenset({ir.DataType.INT32, ir.DataType.INT64, ir.DataType.BOOL})


def shape_operands(model: ir.Model) -> set[ir.Value]:
    """Return the initializers whose values shape inference reads, directly or through others.

    Followed backwards from the operands that decide shapes: through operators that compute
    small whole numbers, out of model-local functions to the arguments of their calls, out of a
    Loop's body to what the Loop is given, and into the branches of an If.
    """
    return _Search(model).run()


class _Search:
    """A walk from shape operands to the initializers that they come from."""

    def __init__(self, model: ir.Model) -> None:
        self._functions = model.functions
        self._nodes: list[ir.Node] = []
        self._formals: dict[ir.Value, list[ir.Value]] = defaultdict(list)
        self._seen: set[tuple[ir.Value, bool]] = set()
        self._found: set[ir.Value] = set()
        for _, container in containers(model):
            self._nodes.extend(container)
        for node in self._nodes:
            self._bind(node)

    def run(self) -> set[ir.Value]:
        for node in self._nodes:
            if node.domain == "":
                self._follow(_inputs(node, READ_INPUTS.get(node.op_type, ())))
        return self._found

    def _bind(self, node: ir.Node) -> None:
        """Note which values a node passes to the formal inputs of what it runs."""
        function = self._functions.get(node.op_identifier())
        if function is not None:
            formals = list(function.inputs)
        elif node.domain == "" and node.op_type == "Loop" and "body" in node.attributes:
            formals = list(node.attributes["body"].as_graph().inputs)
        else:
            return
        for formal, actual in zip(formals, node.inputs, strict=False):
            if actual is not None:
                self._formals[formal].append(actual)

    def _follow(self, values: Iterator[ir.Value]) -> None:
        # The second item says that the value itself decides a shape, in any type and rank.
        pending = [(value, True) for value in values]
        while pending:
            step = pending.pop()
            if step in self._seen:
                continue
            self._seen.add(step)
            value, direct = step
            if value.is_initializer() and (direct or _is_carried(value)):
                self._found.add(value)
            pending.extend((actual, direct) for actual in self._formals.get(value, ()))
            pending.extend((source, False) for source in self._sources(value))

    def _sources(self, value: ir.Value) -> Iterator[ir.Value]:
        node = value.producer()
        if node is None:
            return
        index = value.index() or 0
        function = self._functions.get(node.op_identifier())
        if function is not None:
            yield function.outputs[index]
        elif node.domain == "" and node.op_type == "If":
            for branch in ("then_branch", "else_branch"):
                if branch in node.attributes:
                    yield node.attributes[branch].as_graph().outputs[index]
        elif node.domain == "" and node.op_type in _PROPAGATED:
            yield from _inputs(node, _PROPAGATED[node.op_type] or range(len(node.inputs)))


def _inputs(node: ir.Node, indices: tuple[int, ...] | range) -> Iterator[ir.Value]:
    for index in indices:
        if index < len(node.inputs):
            value = node.inputs[index]
            if value is not None:
                yield value


def _is_carried(value: ir.Value) -> bool:
    """Whether inference carries the value on: whole numbers of rank 0 or 1, as shapes are."""
    tensor = value.const_value
    return tensor is not None and tensor.dtype in _CARRIED_TYPES and len(tensor.shape) <= 1
