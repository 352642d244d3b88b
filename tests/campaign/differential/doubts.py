"""Where an oracle is wrong by itself, so that the other one decides, or none does."""

from __future__ import annotations

import onnx

EVALUATOR = {
    "AveragePool": (99, "ignores auto_pad where ceil_mode is set"),
    "BatchNormalization": (14, "trains where the operator infers"),
    "ConvTranspose": (99, "fails or is wrong where there are groups, or auto_pad with strides"),
    "Det": (99, "returns float64, whatever the type"),
    "Dropout": (10, "returns a mask of booleans, which has the type of the data"),
    "GRU": (99, "ignores lengths, activations, clipping and directions"),
    "GlobalMaxPool": (99, "keeps the batch and the channels for images of two axes only"),
    "GridSample": (99, "cuts integers off where they are added, rather than the result"),
    "Hardmax": (13, "does not flatten the axes"),
    "LRN": (99, "adds up the squares of other channels"),
    "LSTM": (99, "ignores lengths, activations, clipping and directions"),
    "LayerNormalization": (99, "computes in the type of the data, not in float32"),
    "LogSoftmax": (13, "does not flatten the axes"),
    "Loop": (99, "reads carried values that the trip changed, and joins scan outputs"),
    "LpNormalization": (99, "takes no absolute values for p = 1"),
    "LpPool": (99, "moves the first place where ceil_mode is set"),
    "MaxPool": (99, "mixes the axes of pads up"),
    "Mean": (99, "keeps the shape of the first operand"),
    "RNN": (99, "ignores lengths, activations, clipping and directions"),
    "RMSNormalization": (99, "computes in the type of the data, not in float32"),
    "ReduceL1": (99, "returns uint64 for uint32"),
    "ReduceLogSum": (99, "fails for integers, or casts them at another place"),
    "ReduceLogSumExp": (99, "overflows, and casts integers at another place"),
    "ReduceProd": (99, "returns uint64 for uint32"),
    "ReduceSumSquare": (99, "returns uint64 for uint32"),
    "SVMRegressor": (99, "has no number for the kernels POLY and SIGMOID of negative operands"),
    "RoiAlign": (16, "moves coordinates by half a pixel, as from operator set 16 on"),
    "Scaler": (99, "returns the type of the operand, which must be float32"),
    "Scan": (99, "takes no axes and directions"),
    "Softmax": (13, "does not flatten the axes"),
    "Squeeze": (99, "removes axes in the order given"),
    "Unsqueeze": (99, "adds axes in the order given"),
}
"""Operators of which onnx's evaluator gets a form wrong, below an operator set, and which form."""


def doubted(model: onnx.ModelProto) -> list[str]:
    """Return the operators of a model that onnx's evaluator may get wrong."""
    version = next((i.version for i in model.opset_import if not i.domain), 1)
    found = []
    stack = [model.graph]
    while stack:
        for node in stack.pop().node:
            if version < EVALUATOR.get(node.op_type, (0, ""))[0]:
                found.append(node.op_type)
            stack += [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    return found
