"""The fewest nodes stay float for a tolerance on data to be met."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from int8_kit import model, verdicts
from onnx import helper

import narrowpass
from narrowpass.errors import NarrowpassError


def chain():
    """Four matmuls, of which the second has one huge weight beside small ones in each channel."""
    rng = np.random.default_rng(4)
    weights = {f"w{i}": rng.standard_normal((32, 32)).astype(np.float32) * 0.2 for i in range(4)}
    weights["w1"][0] = 40
    nodes = [
        helper.make_node("MatMul", [f"h{i}" if i else "x", f"w{i}"], [f"h{i + 1}"], name=f"p{i}")
        for i in range(4)
    ]
    nodes.append(helper.make_node("Identity", ["h4"], ["y"]))
    return model(nodes, {"x": ["N", 32]}, {"y": ["N", 32]}, weights)


def samples():
    """Inputs with zeros in the channel that the huge weights multiply."""
    rng = np.random.default_rng(3)
    return [{"x": rng.standard_normal((5, 32)).astype(np.float32)} for _ in range(2)]


def built(text, data):
    proto = chain()
    return narrowpass.build(ir.from_proto(proto), text, target="reference", calibration=data)


def kinds(bundle):
    return {name: item["decision"] for name, item in verdicts(bundle).items()}


def test_what_is_met_changes_nothing():
    data = samples()
    assert kinds(built("int8-sym{mode=dynamic,tolerance=cosine:0.9}", data)) == dict.fromkeys(
        ["p0", "p1", "p2", "p3"], "int8"
    )


def test_the_fewest_nodes_stay_float():
    data = samples()
    plain = narrowpass.load(narrowpass.build(ir.from_proto(chain()), ""), "reference")

    def ratio(bundle):
        program = narrowpass.load(bundle, "reference")
        noise = power = 0.0
        for feeds in data:
            right, got = plain.run(feeds)["y"], program.run(feeds)["y"]
            noise += float(np.sum((got - right) ** 2))
            power += float(np.sum(right**2))
        return 10 * np.log10(power / noise)

    everything = ratio(built("int8-sym{mode=dynamic}", data))
    bundle = built(f"int8-sym{{mode=dynamic,tolerance=sqnr:{everything + 3:.2f}}}", data)
    left = [name for name, kind in kinds(bundle).items() if kind == "float"]
    assert 1 <= len(left) < 4
    for name in left:
        item = verdicts(bundle)[name]
        assert item["by"] == "verification"
        assert "quantized alone, it leaves" in item["reason"]
    # No smaller number of the most harmful nodes does.
    fewer = ",".join(left[:-1])
    assert ratio(bundle) >= everything + 3 - 0.5
    assert ratio(built(f"int8-sym{{mode=dynamic,red=[{fewer}]}}", data)) < ratio(bundle)


def test_nothing_is_quantized_where_nothing_may_differ():
    found = kinds(built("int8-sym{mode=dynamic,tolerance=rel:1e-7}", samples()))
    assert set(found.values()) == {"float"}


def test_a_tolerance_needs_data():
    with pytest.raises(NarrowpassError, match="tolerance needs data"):
        built("int8-sym{tolerance=rel:1e-2}", None)
