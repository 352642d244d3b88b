"""Random models with branches, loops and scans: no other choice of types needs fewer casts.

All choices are tried: of the types of gray nodes, and of what goes into subgraphs and comes out.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fp16_kit import FLOAT, model
from onnx import TensorProto, helper

import narrowpass
from narrowpass import Color
from narrowpass_fp16.placement.emission import Emission
from narrowpass_fp16.placement.placement import Placement
from narrowpass_ir.inference import inferred

_LOOP = 16


class Maker:
    """Draws a model; each value has the shape [2], and each node a colour.

    Attributes:
        colors: of the nodes, by name.
        variables: names of what has one type: a node, or an input or output of a subgraph.
        makers: the variable that computes each value, or None for an input.
        readers: the variables that read each value.
        depths: how many loops each value is computed in.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.colors: dict[str, Color] = {}
        self.variables: list[str] = []
        self.makers: dict[str, str | None] = {"x": None, "z": None}
        self.readers: dict[str, set[str | None]] = {}
        self.depths = {"x": 0, "z": 0}
        self.count = 0
        nodes, values = self.body(["x", "z"], 0, self.rng.randrange(2, 5))
        narrowed = [name for name in values if name not in ("x", "z")]
        outputs = self.rng.sample(narrowed, min(len(narrowed), self.rng.randrange(1, 3)))
        for name in outputs:
            self.read(name, None)
        constants = {"n": np.array(2), "yes": np.array(True)}
        ends = {"x": [2], "z": [2]}, {name: [2] for name in outputs}
        self.model = model(nodes, *ends, constants)

    def read(self, value: str, variable: str | None) -> None:
        self.readers.setdefault(value, set()).add(variable)

    def add_value(self, variable: str, depth: int) -> str:
        self.count += 1
        name = f"v{self.count}"
        self.makers[name], self.depths[name] = variable, depth
        return name

    def variable(self, name: str) -> str:
        self.variables.append(name)
        return name

    def body(
        self, values: list[str], depth: int, size: int
    ) -> tuple[list[onnx.NodeProto], list[str]]:
        """Draw nodes; `values` are around them."""
        known, nodes = list(values), []
        for _ in range(size):
            kind = self.rng.random()
            if kind < 0.25 and depth < 2:
                nodes.append(self.branch(known, depth))
            elif kind < 0.5 and depth < 2:
                nodes.append(self.loop(known, depth))
            else:
                nodes.append(self.plain(known, depth))
            known.append(nodes[-1].output[0])
        return nodes, known

    def plain(self, known: list[str], depth: int) -> onnx.NodeProto:
        name = self.variable(f"n{len(self.variables)}")
        self.colors[name] = self.rng.choice([Color.GREEN, Color.GRAY, Color.GRAY, Color.RED])
        given = self.rng.sample(known, self.rng.choice([1, 2]))
        for value in given:
            self.read(value, name)
        kind = "Add" if len(given) == 2 else "Relu"
        return helper.make_node(kind, given, [self.add_value(name, depth)], name=name)

    def branch(self, known: list[str], depth: int) -> onnx.NodeProto:
        name = self.variable(f"i{len(self.variables)}")
        graphs = []
        for side in ("then", "else"):
            nodes, inner = self.body(known, depth, 1)
            self.read(inner[-1], name)
            graphs.append(graph(f"{name}.{side}", nodes, [], [inner[-1]]))
        self.colors[name] = Color.GRAY
        return helper.make_node(
            "If",
            ["yes"],
            [self.add_value(name, depth)],
            name=name,
            then_branch=graphs[0],
            else_branch=graphs[1],
        )

    def loop(self, known: list[str], depth: int) -> onnx.NodeProto:
        name = self.variable(f"l{len(self.variables)}")
        first = self.rng.choice(known)
        self.read(first, name)
        formal = self.add_value(name, depth + 1)
        nodes, inner = self.body([*known, formal], depth + 1, self.rng.choice([1, 2]))
        self.read(inner[-1], name)
        go = helper.make_node("Identity", [f"{name}.go"], [f"{name}.on"], name=f"{name}.id")
        body = graph(f"{name}.body", [go, *nodes], [formal], [inner[-1]], name)
        self.colors[name] = self.colors[f"{name}.id"] = Color.GRAY
        return helper.make_node(
            "Loop", ["n", "yes", first], [self.add_value(name, depth)], name, body=body
        )

    def cost(self, narrow: dict[str | None, bool]) -> int:
        """Count the casts of a choice, those in a loop as often as the pass does."""
        total = 0
        for value, readers in self.readers.items():
            narrowed = narrow[self.makers[value]]
            if any(narrow[reader] != narrowed for reader in readers):
                total += _LOOP ** self.depths[value]
        return total

    def choices(self) -> Iterator[dict[str | None, bool]]:
        free = [name for name in self.variables if self.colors[name] is Color.GRAY]
        fixed: dict[str | None, bool] = {
            name: self.colors[name] is Color.GREEN for name in self.variables
        }
        fixed[None] = False
        for sides in itertools.product((False, True), repeat=len(free)):
            yield fixed | dict(zip(free, sides, strict=True))


def graph(name, nodes, inputs, outputs, loop=""):
    def info(value, kind=FLOAT, shape=(2,)):
        return helper.make_tensor_value_info(value, kind, shape)

    given = [info(value) for value in inputs]
    results = [info(value) for value in outputs]
    if loop:
        given = [
            info(f"{loop}.i", TensorProto.INT64, ()),
            info(f"{loop}.go", TensorProto.BOOL, ()),
            *given,
        ]
        results.insert(0, info(f"{loop}.on", TensorProto.BOOL, ()))
    return helper.make_graph(nodes, name, given, results)


def placed(proto, colors):
    """Rewrite a model with these colours; return it, and how many casts each depth has."""
    converted = ir.from_proto(proto)
    with inferred(converted):
        placement = Placement(
            converted, ir.DataType.FLOAT16, lambda node: colors[node.name], None, by_bytes=False
        )
        placement.solve()
        Emission(converted, placement, ir.DataType.FLOAT16, lambda _: "").run()
    for value in converted.graph.outputs:
        value.shape = ir.Shape([2])
    narrowed = ir.to_proto(converted)
    onnx.checker.check_model(narrowed, full_check=True)
    return narrowed


def weight(found, depth=0):
    total = 0
    for node in found.node:
        total += _LOOP**depth * (node.op_type == "Cast")
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                total += weight(attribute.g, depth + (node.op_type == "Loop"))
    return total


@pytest.mark.parametrize("block", range(10))
def test_no_choice_needs_fewer_casts_with_subgraphs(block):
    tried = 0
    for seed in range(40 * block, 40 * block + 40):
        drawn = Maker(seed)
        if sum(color is Color.GRAY for color in drawn.colors.values()) > 12:
            continue
        best = min(drawn.cost(choice) for choice in drawn.choices())
        narrowed = placed(drawn.model, drawn.colors)
        assert weight(narrowed.graph) == best, seed
        tried += any(node.op_type in ("If", "Loop") for node in drawn.model.graph.node)
    assert tried > 10


@pytest.mark.parametrize("seed", range(30))
def test_data_that_is_in_range_costs_no_cast(seed):
    """With it, models with subgraphs become what they become without."""
    drawn = Maker(1000 + seed)
    text = (
        "fp16{cost=count,green=["
        + ",".join(sorted(name for name, color in drawn.colors.items() if color is Color.GREEN))
        + "],red=["
        + ",".join(sorted(name for name, color in drawn.colors.items() if color is Color.RED))
        + "]}"
    )
    feeds = {"x": np.float32([0.5, -1]), "z": np.float32([0.25, 2])}
    results = [
        ir.to_proto(
            narrowpass.build(
                ir.from_proto(drawn.model), text, target="reference", calibration=data
            ).methods["main"]
        )
        for data in (None, [feeds])
    ]
    assert results[0].SerializeToString() == results[1].SerializeToString()
