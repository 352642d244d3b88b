"""The tests of TensorFlow's pass with lists of tensors, in meaning.

Each test here stands for one of theirs, on an ONNX model of our own. What differs on purpose is
described in the docstring, and in the page `mixed-precision-cases` of the documentation.
"""

from __future__ import annotations

from fp16_kit import FLOAT, HALF, floats, model
from onnx import helper
from ported_kit import BF16, node, painted, targets


def index(value):
    return node("Constant", "", f"at{value}", value_int=value)


def lists(middle):
    """Build two lists: one between matmuls, and one with what is wide anyhow."""
    nodes = [
        index(0),
        index(1),
        index(2),
        node("MatMul", "x x", "allow1"),
        *middle,
        node("SequenceConstruct", "x", "list2"),
        node("SequenceAt", "list2 at0", "z"),
    ]
    proto = model(nodes, {"x": [8, 8]}, {"y": [8, 8], "z": [8, 8]})
    return proto, {"x": floats(8, 8)}


def set_and_get(kind="Tanh", operands="read1"):
    return lists(
        [
            node("SequenceConstruct", "x allow1", "list1"),
            node("SequenceAt", "list1 at1", "read1"),
            node(kind, operands, "infer1"),
            node("MatMul", "infer1 infer1", "allow2"),
            node("SequenceInsert", "list1 allow2 at2", "more1"),
            node("SequenceAt", "more1 at2", "y"),
        ]
    )


def test_tensorflow_tensor_list_set_get():
    """4 nodes added, where theirs has 2: sequences keep float32."""
    narrowed = painted(*set_and_get(), 4, "allow1 infer1 allow2")
    assert targets(narrowed) == {"x": HALF, "allow1": FLOAT, "read1": HALF, "allow2": FLOAT}


def test_tensorflow_tensor_list_push_pop():
    """4 nodes added, where theirs has 2: sequences keep float32."""
    middle = [
        node("SequenceEmpty", "", "empty", dtype=FLOAT),
        node("SequenceInsert", "empty x", "push1"),
        node("SequenceInsert", "push1 allow1", "push2"),
        node("Constant", "", "last", value_int=-1),
        node("SequenceAt", "push2 last", "read1"),
        node("SequenceErase", "push2 last", "popped"),
        node("Tanh", "read1", "infer1"),
        node("MatMul", "infer1 infer1", "allow2"),
        node("SequenceInsert", "popped allow2", "push3"),
        node("SequenceAt", "push3 last", "y"),
    ]
    painted(*lists(middle), 4, "allow1 infer1 allow2")


def test_tensorflow_tensor_list_from_tensor():
    """4 nodes added, where theirs has 2: sequences keep float32, and so may take what is wide."""
    nodes = [
        node("MatMul", "x x", "allow1"),
        node("SplitToSequence", "allow1", "list1", axis=0, keepdims=0),
        node("ConcatFromSequence", "list1", "stack", axis=0, new_axis=1),
        node("Tanh", "stack", "infer1"),
        node("MatMul", "infer1 infer1", "y"),
        node("SplitToSequence", "allow1", "list2", axis=0),
        node("SequenceInsert", "list2 x", "list3"),
        node("ConcatFromSequence", "list3", "z", axis=0),
    ]
    proto = model(nodes, {"x": [8, 8]}, {"y": [8, 8], "z": [16, 8]})
    painted(proto, {"x": floats(8, 8)}, 4, "allow1 infer1 y")


def test_tensorflow_tensor_list_push_back_batch_and_concat_lists():
    """4 nodes added, where theirs has 2: sequences keep float32, but one cast is for both lists."""
    nodes = [
        index(0),
        node("MatMul", "x x", "allow1"),
        node("SequenceConstruct", "allow1", "list1"),
        node("SequenceConstruct", "allow1 allow1", "list2"),
        node("SequenceAt", "list1 at0", "first"),
        node("SequenceInsert", "list2 first", "list3"),
        node("SequenceAt", "list3 at0", "read1"),
        node("Tanh", "read1", "infer1"),
        node("MatMul", "infer1 infer1", "y"),
    ]
    proto = model(nodes, {"x": [8, 8]}, {"y": [8, 8]})
    painted(proto, {"x": floats(8, 8)}, 4, "allow1 infer1 y")


def test_tensorflow_tensor_list_through_function():
    """Theirs does not count; 5 are added, as sequences keep float32, in the function too."""
    function = helper.make_function(
        "mine",
        "Through",
        ["taken", "value"],
        ["given", "same"],
        [
            helper.make_node("SequenceInsert", ["taken", "value"], ["given"]),
            helper.make_node("Identity", ["value"], ["same"]),
        ],
        [helper.make_opsetid("", 20)],
    )
    nodes = [
        index(0),
        node("MatMul", "x x", "allow1"),
        node("Tanh", "allow1", "infer1"),
        node("SequenceConstruct", "infer1", "list1"),
        node("Through", "list1 infer1", "list2 same", domain="mine"),
        node("SequenceAt", "list2 at0", "read1"),
        node("SequenceConstruct", "infer1", "list3"),
        node("SequenceAt", "list3 at0", "read2"),
        node("MatMul", "read1 read2", "y"),
    ]
    proto = model(nodes, {"x": [8, 8]}, {"y": [8, 8]})
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    narrowed = painted(proto, {"x": floats(8, 8)}, 5, "allow1 infer1 y")
    assert narrowed.functions == proto.functions


def test_tensorflow_mkl_tensor_list_set_get():
    """4 nodes added, where theirs has 2: sequences keep float32."""
    proto, feeds = set_and_get("Mul", "read1 read1")
    painted(proto, feeds, 4, "allow1 infer1 allow2", text=BF16, tolerance=5e-2)
