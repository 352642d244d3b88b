"""Random chains of convolutions and what may be folded into them, against onnxruntime."""

from __future__ import annotations

import numpy as np
from folding_kit import check_onnxruntime, feeds_of, fold, parse
from hypothesis import given, settings
from hypothesis import strategies as st


@st.composite
def chains(draw):
    """Build a chain over a batch of images; some values have a second reader or are outputs."""
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    constants, nodes = {}, []
    channels, name = draw(st.sampled_from([2, 4])), "x"
    outputs = []

    def constant(suffix, array):
        key = f"{suffix}{len(constants)}"
        constants[key] = np.asarray(array, np.float32 if suffix != "p" else np.int64)
        return key

    first = channels
    for index in range(draw(st.integers(2, 7))):
        new = f"v{index}"
        kind = draw(
            st.sampled_from(
                [
                    "Conv",
                    "Conv",
                    "ConvTranspose",
                    "Norm",
                    "Norm",
                    "Mul",
                    "Div",
                    "Add",
                    "Sub",
                    "Pad",
                    "Relu",
                ]
            )
        )
        if kind in ("Conv", "ConvTranspose"):
            groups = draw(st.sampled_from([1, 2]))
            out_channels = draw(st.sampled_from([2, 4]))
            dims = (
                (out_channels, channels // groups)
                if kind == "Conv"
                else (channels, out_channels // groups)
            )
            operands = [name, constant("w", rng.standard_normal((*dims, 2, 2)) / 2)]
            if draw(st.booleans()):
                operands.append(constant("b", rng.standard_normal(out_channels)))
            pads = draw(st.sampled_from(["", ", pads = [1, 0, 1, 1]"]))
            nodes.append(f"{new} = {kind} <group = {groups}{pads}> ({', '.join(operands)})")
            channels = out_channels
        elif kind == "Norm":
            parts = [
                constant("s", 1 + rng.standard_normal(channels) / 4),
                constant("h", rng.standard_normal(channels)),
                constant("m", rng.standard_normal(channels)),
                constant("q", 0.5 + rng.random(channels)),
            ]
            nodes.append(f"{new} = BatchNormalization({name}, {', '.join(parts)})")
        elif kind in ("Mul", "Div", "Add", "Sub"):
            shape = draw(
                st.sampled_from([(), (1,), (channels, 1, 1), (1, channels, 1, 1), (1, 1, 1)])
            )
            key = constant("k", 1 + rng.random(shape))
            swap = kind in ("Mul", "Add") and draw(st.booleans())
            operands = [key, name] if swap else [name, key]
            nodes.append(f"{new} = {kind}({', '.join(operands)})")
        elif kind == "Pad":
            amounts = draw(st.sampled_from([[0, 0, 1, 0, 0, 0, 0, 1], [0, 0, 1, 1, 0, 0, 1, 1]]))
            nodes.append(f"{new} = Pad({name}, {constant('p', amounts)})")
        else:
            nodes.append(f"{new} = Relu({name})")
        name = new
        if draw(st.integers(0, 5)) == 0:
            outputs.append(name)
    outputs = list(dict.fromkeys([*outputs, name]))
    declared = ", ".join(f"float[?, ?, ?, ?] {output}" for output in outputs)
    text = f"g (float[N, {first}, 6, 5] x) => ({declared}) {{ {' '.join(nodes)} }}"
    return parse(text, initializers=constants)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(chains())
def test_the_same_within_rounding(proto):
    after, _, _ = fold(proto)
    assert len(after.graph.node) <= len(proto.graph.node)
    # Accumulation over up to seven layers in another order: a few units in the last place for each.
    check_onnxruntime(proto, after, feeds_of(proto, special=False, N=2), tolerance=1e-5)
