"""States that are found in models, and those that a caller names."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from onnx import parser

from narrowpass import Bundle, State
from narrowpass.errors import UsageError
from narrowpass_ir.state_finding import find_states

HEADER = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]> '


def model_of(text: str) -> ir.Model:
    return ir.from_proto(parser.parse_model(HEADER + text))


def found(text: str) -> list[str]:
    return [str(state) for state in find_states({"main": model_of(text)})]


CASES = {
    "a Concat": (
        """g (float[1,P,2] a, float[1,N,2] b) => (float[1,T,2] c) {c = Concat<axis=1>(a, b)}""",
        ["a=c@1"],
    ),
    "a Concat, counted from the end, behind Identity": (
        """g (float[1,P,2] a, float[1,N,2] b) => (float[1,T,2] c)
        {d = Concat<axis=-2>(a, b) c = Identity(d)}""",
        ["a=c@1"],
    ),
    "an axis from the end of a past of no known rank": (
        """g (float[1,P,2] a, float[1,N,2] b) => (c)
        {d = Identity(a) c = Concat<axis=-2>(d, b)}""",
        ["a=c@1"],
    ),
    "one past for two results is a state of the first": (
        """g (float[1,P,2] a, float[1,N,2] b) => (float[1,T,2] c, float[1,U,2] d)
        {c = Concat<axis=1>(a, b) d = Concat<axis=1>(a, b)}""",
        ["a=c@1"],
    ),
    "new rows first are no cache": (
        """g (float[1,P,2] a, float[1,N,2] b) => (float[1,T,2] c)
        {d = Relu(a) c = Concat<axis=1>(d, b)}""",
        [],
    ),
    "a group query attention": (
        """g (float[1,1,8] q, float[1,2,P,2] pk, float[1,2,P,2] pv, int32[1] n, int32 t)
        => (float[1,1,8] y, float[1,2,T,2] k, float[1,2,T,2] v) {y, k, v =
        com.microsoft.GroupQueryAttention<num_heads=2, kv_num_heads=2>(q, q, q, pk, pv, n, t)}""",
        ["pk=k@2", "pv=v@2"],
    ),
    "a scattered cache": (
        """g (float[1,2,9,2] a, float[1,2,1,2] b, int64[1] i) => (float[1,2,9,2] c)
        {c = TensorScatter(a, b, i)}""",
        ["a=c"],
    ),
    "hidden and cell states": (
        """g (float[1,2] x, float[1,2] h, float[1,2] c) => (float[1,2] y,
        float[1,2] hn, float[1,2] cn)
        {y = Add(x, h) hn = Relu(y) cn = Add(c, y)}""",
        ["h=hn", "c=cn"],
    ),
    "Silero's": (
        """g (float[1,2] input, float[2,1,2] state) => (float[1,2] output, float[2,1,2] stateN)
        {output = Relu(input) stateN = Neg(state)}""",
        ["state=stateN"],
    ),
    "an image and a filtered image are none": (
        """g (float[1,2] image, float[1,2] x) => (float[1,2] image_out, float[1,2] x_out)
        {image_out = Relu(image) x_out = Neg(x)}""",
        [],
    ),
    "a state of another rank is none": (
        """g (float[1,2] x, float[1,2] h) => (float[1,2,1] hn) {y = Add(x, h) hn = Neg(y)}""",
        [],
    ),
    "an input that is an output is none": (
        """g (float[1,2] x, float[1,2] h) => (float[1,2] x, float[1,2] y) {y = Add(x, h)}""",
        [],
    ),
    "a state of another shape is none": (
        """g (float[1,2] x, float[1,2] h) => (float[1,3] hn) {y = Add(x, h) hn = Pad(y, p)}""",
        [],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_found(case):
    text, wanted = CASES[case]
    assert found(text) == wanted


def test_a_prefill_has_the_outputs_alone():
    decode = model_of(
        "g (float[1,P,2] a, float[1,N,2] b) => (float[1,T,2] c) {c = Concat<axis=1>(a, b)}"
    )
    prefill = model_of("g (float[1,N,2] b) => (float[1,N,2] c) {c = Relu(b)}")
    bundle = Bundle({"prefill": prefill, "decode": decode})
    assert bundle.states == (State("a", "c", 1),)


def test_states_are_kept_in_the_manifest(tmp_path):
    model = model_of("g (float[1,2] x, float[1,2] u) => (float[1,2] w) {w = Add(x, u)}")
    bundle = Bundle({"main": model}, states=[State("u", "w")])
    bundle.save(tmp_path / "m.narrow")
    assert Bundle.load(tmp_path / "m.narrow").states == (State("u", "w"),)
    assert Bundle({"main": model}).states == ()


WRONG = {
    "z=w": "no method has an input 'z'",
    "u=z": "no method has an output 'z'",
    "u=w@2": "has 2 axes",
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_states(text):
    model = model_of("g (float[1,2] x, float[1,2] u) => (float[1,2] w) {w = Add(x, u)}")
    with pytest.raises(UsageError, match=WRONG[text]):
        Bundle({"main": model}, states=[State.parse(text)])
    with pytest.raises(UsageError, match="another state"):
        Bundle({"main": model}, states=[State("u", "w"), State("x", "w")])


@pytest.mark.parametrize("text", ["", "a", "a=", "=b", "a=b@", "a=b@x", "a=b@-1"])
def test_texts_that_are_no_state(text):
    if text == "a=b@-1":
        assert State.parse("a=b@1") == State("a", "b", 1)
    with pytest.raises(UsageError, match=r"INPUT=OUTPUT"):
        State.parse(text)


def test_an_axis_from_the_end_needs_a_rank():
    model = model_of("g (float[1,P,2] a, float[1,N,2] b) => (c) {c = Concat<axis=-2>(a, b)}")
    model.graph.inputs[0].shape = None
    assert find_states({"main": model}) == ()
    model.graph.outputs[0].shape = ir.Shape([1, None, 2])
    assert [str(state) for state in find_states({"main": model})] == ["a=c@1"]


def test_an_identity_of_nothing_has_no_past():
    model = model_of("g (float[1,P,2] a, float[1,N,2] b) => (c) {d = Identity(a) c = Neg(d)}")
    model.graph[0].replace_input_with(0, None)
    model.graph[1].op_type = "Identity"
    assert find_states({"main": model}) == ()


def test_states_are_given_as_themselves_or_as_text():
    state = State("a", "b", 2)
    assert State.of(state) is state
    assert State.of("a=b@2") == State.parse(str(state)) == state
    assert State.of("a=b") == State("a", "b")
    with pytest.raises(UsageError, match="INPUT=OUTPUT@AXIS"):
        State.of(3)
