"""Names that passes choose, on models that have them already: all stay apart, results stay.

A pass runs once, to learn the names of its new nodes and values. Then inner nodes and
values of the model get these names, and it runs again: the result must have the bits of the first
one, no two nodes of one name, and no definition of a value twice.
"""

from __future__ import annotations

import collections
import re
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from differential.subjects import PIPELINES

import narrowpass
from narrowpass import load_plugins
from narrowpass.errors import NarrowpassError
from narrowpass_testing.random_models import Case, copies, random_case

PLUGINS = load_plugins()
TEXTS = sorted({each.pipeline for each in PIPELINES if each.pipeline and each.is_installed()})


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for each in (attribute.g, *attribute.graphs):
                if each.node or each.output:
                    yield from graphs(each)


def nodes_of(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for graph in graphs(model.graph) for node in graph.node]


def node_names(model: onnx.ModelProto) -> set[str]:
    return {node.name for node in nodes_of(model)}


def twice(model: onnx.ModelProto) -> list[str]:
    """Return the names that two nodes of one graph have, which onnxruntime refuses."""
    found = []
    for graph in graphs(model.graph):
        counts = collections.Counter(node.name for node in graph.node if node.name)
        found += [name for name, count in counts.items() if count > 1]
    return found


def value_names(model: onnx.ModelProto) -> set[str]:
    """Return the names that nodes and initializers of the main graph define."""
    graph = model.graph
    found = {name for node in graph.node for name in node.output if name}
    return found | {each.name for each in graph.initializer}


def built(model: onnx.ModelProto, text: str, case) -> onnx.ModelProto:
    calibration = [copies(case.feeds)] if "static" in text else None
    target = "xnn-cpu" if "repair" in text else None
    bundle = narrowpass.build(
        ir.from_proto(model), text, plugins=PLUGINS, calibration=calibration, target=target
    )
    return ir.to_proto(bundle.methods["main"])


def renamed(model: onnx.ModelProto, names: Callable[[str], str]) -> onnx.ModelProto:
    """Return a model whose inner values have other names, wherever they are read."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for graph in graphs(changed.graph):
        for node in graph.node:
            for many in (node.input, node.output):
                many[:] = [names(name) for name in many]
        for each in (*graph.initializer, *graph.value_info, *graph.output):
            each.name = names(each.name)
    return changed


def with_values(model: onnx.ModelProto, names: list[str]) -> onnx.ModelProto:
    """Return a model some of whose inner values have these names."""
    graph = model.graph
    kept = {each.name for each in (*graph.input, *graph.output)}
    # Names of enclosing graphs that bodies define again would have to be kept apart.
    for each in list(graphs(graph))[1:]:
        kept |= {name for node in each.node for name in node.output}
        kept |= {value.name for value in (*each.input, *each.output, *each.initializer)}
    inner = sorted(value_names(model) - kept)
    free = [name for name in names if name not in kept | value_names(model)]
    mapping = dict(zip(inner, free, strict=False))
    return renamed(model, lambda name: mapping.get(name, name))


def with_nodes(model: onnx.ModelProto, names: list[str]) -> onnx.ModelProto:
    """Return a model some of whose nodes have these names."""
    changed = renamed(model, str)
    for node, name in zip(nodes_of(changed), names, strict=False):
        node.name = name
    return changed


def with_names_of_each_graph(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose branches and bodies use the same names for their nodes."""
    changed = renamed(model, str)
    for graph in graphs(changed.graph):
        for index, node in enumerate(graph.node):
            node.name = f"given{index}"
    return changed


def run(model: onnx.ModelProto, case) -> dict[str, np.ndarray]:
    with (
        np.errstate(all="ignore"),
        narrowpass.load(ir.from_proto(model), "reference", cache=False) as program,
    ):
        return program.run(copies(case.feeds))


def variants(model: onnx.ModelProto, built: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    """Yield a model with the names that a pass has chosen for nodes, for values, and for both."""
    nodes = sorted(node_names(built) - node_names(model))
    values = sorted(value_names(built) - value_names(model))
    yield with_nodes(model, nodes)
    yield with_values(model, values)
    yield with_values(with_nodes(model, nodes), values)
    yield with_names_of_each_graph(model)


def wrong(case: Case, text: str) -> Iterator[str]:
    for index, node in enumerate(nodes_of(case.model)):
        node.name = f"given{index}"
    try:
        first = built(case.model, text, case)
        expected = run(first, case)
    except NarrowpassError:
        return  # what is refused has no names
    for changed in variants(case.model, first):
        again = built(changed, text, case)
        if twice(again):
            yield f"{text}: nodes {twice(again)}"
        onnx.checker.check_model(again)
        found = run(again, case)
        for name, value in expected.items():
            if not same(found[name], value):
                yield f"{text}: other results of {name}"


def wrong_of_seed(seed: int) -> Iterator[str]:
    case = random_case(seed)
    if case is not None and not any(map(is_random, nodes_of(case.model))):
        for text in wrong(case, TEXTS[seed % len(TEXTS)]):
            yield f"seed {seed}, {text}"


def is_random(node: onnx.NodeProto) -> bool:
    return node.op_type.startswith(("Bernoulli", "Dropout", "Multinomial", "Random"))


def same(one, other) -> bool:
    """Return whether results are equal, of which some are sequences."""
    if isinstance(one, list) or isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if one is None or other is None:
        return one is other
    one, other = np.asarray(one), np.asarray(other)
    kind = one.dtype == other.dtype and one.shape == other.shape
    return (
        kind and one.tobytes() == other.tobytes() if one.dtype != object else (one == other).all()
    )


BRANCHES = """
<ir_version: 10, opset_import: ["" : 18]>
g (float[N, 32] x) => (float[N, 32] y)
<float[32, 32] w, float[32, 32] v, float[32] b, float two = {2.0}> {
    a = Gemm(x, w, b)
    r = Relu(a)
    m = MatMul(r, v)
    c = Constant <value_int = 1> ()
    t = Cast <to = 9> (c)
    k = If(t) <then_branch = one () => (float[N, 32] p) { q = Mul(m, two) p = Add(q, m) },
               else_branch = other () => (float[N, 32] p0) { p0 = Neg(m) }>
    l = If(t) <then_branch = one () => (float[N, 32] p2) { q2 = Mul(k, two) p2 = Sub(q2, m) },
               else_branch = other () => (float[N, 32] p3) { p3 = Neg(k) }>
    s = Softmax(l)
    n = LayerNormalization(s, b)
    y = Erf(n)
}
"""
ROWS = """
<ir_version: 10, opset_import: ["" : 18]>
g (int64[N, 3] x) => (float[N, 3, 32] y)
<float[64, 32] w, float[32, 32] v, float[32] b, float[1, 3, 32] p> {
    e = Gather(w, x)
    a = Add(e, p)
    n = LayerNormalization(a, b)
    q = MatMul(n, v)
    r = Add(q, b)
    k = Transpose <perm = [0, 2, 1]> (r)
    s = MatMul(r, k)
    d = Softmax(s)
    c = MatMul(d, r)
    t = Transpose <perm = [1, 0]> (w)
    z = MatMul(c, v)
    h = Sigmoid(z)
    o = MatMul(h, t)
    l, m = Split <axis = 2, num_outputs = 2> (o)
    y = Add(l, m)
}
"""
IMAGES = """
<ir_version: 10, opset_import: ["" : 18]>
g (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y)
<float[4, 4, 3, 3] w, float[4, 4, 1, 1] v, float[4] b, float[4] m, float[1, 4, 1, 1] s> {
    f = Conv <pads = [1, 1, 1, 1]> (x, w, b)
    r = Relu(f)
    c = Conv(r, v)
    n = BatchNormalization(c, b, b, b, m)
    a = Mul(n, s)
    t = Transpose <perm = [0, 2, 3, 1]> (a)
    u = Transpose <perm = [0, 3, 1, 2]> (t)
    i = Identity(u)
    y = Add(i, r)
}
"""


def case_of(text: str) -> Case:
    """Return a model whose initializers are drawn, where they have no values, with feeds."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(text)
    head = text[text.index("<float[") : text.index("> {")]
    for dims, name in re.findall(r"float\[([\d, ]+)\] (\w+)", head):
        array = rng.uniform(0.2, 1, [int(dim) for dim in dims.split(",")]).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    dims = [each.dim_value or 3 for each in model.graph.input[0].type.tensor_type.shape.dim]
    whole = model.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.INT64
    x = rng.integers(0, 9, dims) if whole else rng.standard_normal(dims).astype(np.float32)
    return Case(model, {"x": x})


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("model", [BRANCHES, ROWS, IMAGES], ids=["branches", "rows", "images"])
def test_names_may_be_taken_where_much_is_rewritten(model, text):
    assert not [*wrong(case_of(model), text)]


FIRST = 20
"""Seeds of the part that runs each time; those marked `long` have 20 times as many in all."""


LONG = [pytest.param(part, marks=pytest.mark.long) for part in range(1, 21)]


@pytest.mark.parametrize("part", [0, *LONG])
def test_names_that_passes_choose_may_be_taken(part):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seeds = range(FIRST * part, FIRST * (part + 1))
        assert not [text for seed in seeds for text in wrong_of_seed(seed)]
