"""What the tests share that stand for those of other passes of this kind."""

from __future__ import annotations

import numpy as np
import onnx
from fp16_kit import (
    FLOAT,
    HALF,
    check,
    compare,
    constants,
    count,
    model,
    nodes_of,
    rewritten,
    run,
    verdicts,
)
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

BFLOAT = TensorProto.BFLOAT16
BOOL, INT64 = TensorProto.BOOL, TensorProto.INT64
BF16, COUNT = "fp16{dtype=bfloat16}", "fp16{cost=count}"
LONG = 300
"""More elements than are summed in the narrow type."""


def node(kind, inputs, outputs, **attributes):
    """Build a node that is named as its first output."""
    names = outputs.split()
    return helper.make_node(kind, inputs.split(), names, name=names[0], **attributes)


def conv(inputs, output, pads=(1, 1, 1, 1)):
    return node("Conv", inputs, output, pads=pads)


def uniform(low, high, *shape):
    return np.random.default_rng(7).uniform(low, high, shape).astype(np.float32)


def number(value):
    return np.array(value, np.float32)


def types_of(proto):
    """Return the types of all values of a model, those of subgraphs too."""
    found = {}

    def visit(graph):
        found.update((tensor.name, tensor.data_type) for tensor in graph.initializer)
        for value in (*graph.input, *graph.value_info, *graph.output):
            found[value.name] = value.type.tensor_type.elem_type
        for each in graph.node:
            for attribute in each.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    visit(attribute.g)

    visit(onnx.shape_inference.infer_shapes(proto, strict_mode=True).graph)
    return found


def lowered(proto, narrowed, dtype):
    """Return the nodes with an input or output that was float32 and is not any more.

    It looks at the types that onnx infers, and not at the pass's own report.
    """
    before, after = types_of(proto), types_of(narrowed)
    nodes = {each.name: each for each in nodes_of(narrowed.graph)}
    names = set()
    for old in nodes_of(proto.graph):
        new = nodes[old.name]
        pairs = zip((*old.input, *old.output), (*new.input, *new.output), strict=True)
        if any(before.get(a) == FLOAT and after.get(b) == dtype for a, b in pairs):
            names.add(old.name)
    return names


def painted(proto, feeds, casts, narrow, stored="", text="fp16", tolerance=5e-3, *, evaluate=True):
    """Rewrite a model, and hold all that is known of the result to it.

    Args:
        proto: in float32.
        feeds: what it is run on.
        casts: how many are added, exactly.
        narrow: the nodes that become narrow, and no others.
        stored: the constants that are stored narrow, and no others.
        text: the pipeline.
        tolerance: of the values.
        evaluate: whether values are compared.
    """
    dtype = BFLOAT if "bfloat16" in text else HALF
    if evaluate and dtype == HALF:
        narrowed = check(proto, feeds, text, tolerance)
    else:
        narrowed = rewritten(proto, text)
    if evaluate and dtype == BFLOAT:  # which no runtime has on every processor
        right = ReferenceEvaluator(proto).run(None, dict(feeds))
        compare(ReferenceEvaluator(narrowed).run(None, dict(feeds)), right, tolerance)
    assert count(narrowed) - count(proto) == casts
    assert lowered(proto, narrowed, dtype) == set(narrow.split())
    kinds = dict.fromkeys(stored.split(), dtype)
    assert constants(narrowed) == constants(proto) | kinds
    reported = {n for n, v in verdicts(run(proto, text)).items() if "narrow" in v["decision"]}
    assert reported == set(narrow.split()), "the report differs"
    for name in ("input", "output"):
        assert list(getattr(narrowed.graph, name)) == list(getattr(proto.graph, name))
    return narrowed


def unchanged(proto, text="fp16"):
    """Rewrite a model in which nothing is to be changed."""
    narrowed = rewritten(proto, text)
    assert list(narrowed.graph.node) == list(proto.graph.node)
    assert list(narrowed.graph.initializer) == list(proto.graph.initializer)


def targets(narrowed):
    """Return the target types of casts, by their inputs."""
    return {n.input[0]: n.attribute[0].i for n in nodes_of(narrowed.graph) if n.op_type == "Cast"}


def names_of(proto):
    return " ".join(each.name for each in proto.graph.node)


def matmuls_around(middle, shape, weights=None):
    """Put nodes that read h and compute m between two matmuls of square matrices."""
    nodes = [node("MatMul", "x w", "h"), *middle, node("MatMul", "m w", "y")]
    width = shape[-1]
    constants = {"w": np.eye(width, dtype="f4"), **(weights or {})}
    return model(nodes, {"x": shape}, {"y": shape}, constants)
