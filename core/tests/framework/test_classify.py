from __future__ import annotations

import onnx_ir as ir
import pytest

from narrowpass import Color, OpClassifier, OpDtypes, choose_classifiers, matching_nodes
from narrowpass.errors import PluginError


class ByType(OpClassifier):
    def __init__(self, name, answers):
        self.name = name
        self.answers = answers

    def color(self, node):
        return self.answers.get(node.op_type)

    def dtypes(self, node):
        return OpDtypes("float32", "float16") if node.op_type in self.answers else None


def node(op_type, name):
    return ir.node(op_type, [], name=name)


KNOWN = {
    "mine": ByType("mine", {"Conv": Color.RED}),
    "default": ByType("default", {"Conv": Color.GREEN, "Relu": Color.GRAY}),
}


@pytest.mark.parametrize(
    ("text", "op_type", "answer"),
    [
        ("default", "Conv", (Color.GREEN, "default")),
        ("mine+default", "Conv", (Color.RED, "mine")),
        ("default+mine", "Conv", (Color.GREEN, "default")),
        ("mine+default", "Relu", (Color.GRAY, "default")),
        ("mine+default", "Exp", None),
    ],
)
def test_the_first_that_answers_wins_in_the_order_written(text, op_type, answer):
    chain = choose_classifiers(text, KNOWN)
    assert chain.color(node(op_type, "n")) == answer
    dtypes = chain.dtypes(node(op_type, "n"))
    expected = None if answer is None else "mine" if answer[1] == "mine" else "default"
    assert (dtypes and dtypes[1]) == expected


def test_an_unknown_classifier_is_an_error():
    with pytest.raises(PluginError, match=r"'defualt' \(did you mean 'default'"):
        choose_classifiers("mine+defualt", KNOWN)


@pytest.mark.parametrize(
    ("item", "names"),
    [
        ("op:Conv", ["/head/conv", "a[0]"]),
        ("op:Nothing", []),
        ("/head/*", ["/head/conv", "/head/deep/relu"]),
        ("a[0]", ["a[0]"]),
        ("/HEAD/*", []),
        ("*", ["/head/conv", "/head/deep/relu", "a[0]", ""]),
    ],
)
def test_list_items_select_nodes_by_glob_or_type(item, names):
    nodes = [
        node("Conv", "/head/conv"),
        node("Relu", "/head/deep/relu"),
        node("Conv", "a[0]"),
        node("Neg", None),
    ]
    found = matching_nodes([item], nodes)[item]
    assert [found_node.name or "" for found_node in found] == names
