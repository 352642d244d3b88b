from __future__ import annotations

import onnx_ir as ir
import pytest

from narrowpass import (
    ClassifierChain,
    Color,
    OpClassifier,
    OpDtypes,
    choose_classifiers,
    classifier_of,
    matching_nodes,
)
from narrowpass.errors import PassError, PluginError


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


def fails(_):
    raise KeyError("nothing")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"color": lambda _: "red"},
            "'mine' gave 'red' as color of node 'n' .Relu.; it must return",
        ),
        ({"color": lambda _: 3}, "gave 3 as color .* a narrowpass.Color, or None"),
        ({"color": lambda: None}, "'mine' failed in color of node 'n' .Relu.: TypeError"),
        ({"color": fails}, "'mine' failed in color of node 'n' .*KeyError: 'nothing'"),
        ({"dtypes": lambda _: "float32"}, "gave 'float32' as dtypes .* a narrowpass.OpDtypes"),
        ({"dtypes": fails}, "'mine' failed in dtypes of node 'n'"),
    ],
)
def test_a_wrong_answer_names_the_classifier_and_the_node(given, said):
    chain = ClassifierChain((classifier_of(**given, name="mine"),))
    question = chain.color if "color" in given else chain.dtypes
    with pytest.raises(PassError, match=said):
        question(node("Relu", "n"))


def test_a_classifier_without_a_name_is_called_by_its_type():
    class Anonymous(OpClassifier):
        def color(self, _):
            return Color.RED

    assert ClassifierChain((Anonymous(),)).color(node("Relu", "n")) == (Color.RED, "Anonymous")


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
