from __future__ import annotations

import threading

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from narrowpass.bundle import Bundle
from narrowpass.errors import BackendError, DataError, UsageError
from narrowpass.runtime.backend import CompileOptions
from narrowpass_reference import ReferenceBackend

F32 = np.float32

CHAIN = """<ir_version: 8, opset_import: ["" : 17]>
main (float[n,3] x) => (float[n,3] y, float[n,3] z)
<float[3] w = {1, 2, 3}> {
    [first] a = Mul (x, w)
    [second] y = Add (a, w)
    [third] z = Relu (a)
}"""

DEFAULT = """<ir_version: 3, opset_import: ["" : 17]>
main (float[2] x, float[2] w = {10, 20}) => (float[2] y) { y = Add (x, w) }"""


@pytest.fixture
def feeds():
    return {"x": np.array([[1, -2, 3]], F32)}


def test_results_are_those_of_onnx(compile_text, feeds):
    expected = ReferenceEvaluator(onnx.parser.parse_model(CHAIN)).run(None, feeds)
    given = compile_text(CHAIN).run(feeds)
    assert list(given) == ["y", "z"]
    for one, other in zip(given.values(), expected, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)


def test_outputs_choose_and_keep_opens_inner_values(compile_text, feeds):
    program = compile_text(CHAIN, keep=["a", "x", "w"])
    given = program.run(feeds, outputs=["z", "a", "w", "x"])
    assert list(given) == ["z", "a", "w", "x"]
    np.testing.assert_array_equal(given["a"], np.array([[1, -4, 9]], F32), strict=True)
    np.testing.assert_array_equal(given["w"], np.array([1, 2, 3], F32), strict=True)
    assert list(program.run(feeds)) == ["y", "z"]


def test_outputs_that_cannot_be_read(compile_text, feeds):
    program = compile_text(CHAIN)
    with pytest.raises(UsageError, match=r"'a' of method 'main' was not kept.*keep=\['a'\]"):
        program.run(feeds, outputs=["a"])
    with pytest.raises(UsageError, match=r"no value 'q'.*its outputs: y, z"):
        program.run(feeds, outputs=["q"])
    with pytest.raises(UsageError, match=r"no method has a value 'yy' to keep \(did you mean 'y'"):
        compile_text(CHAIN, keep=["yy"])


def test_out_is_written_into(compile_text, feeds):
    target = np.full((1, 3), np.nan, F32)
    given = compile_text(CHAIN).run(feeds, out={"y": target})
    assert given["y"] is target
    np.testing.assert_array_equal(target, np.array([[2, -2, 12]], F32))
    assert set(given) == {"y", "z"}


@pytest.mark.parametrize(
    ("out", "error"),
    [
        ({"y": np.zeros((1, 3))}, DataError),
        ({"y": np.zeros((2, 3), F32)}, DataError),
        ({"y": [1, 2, 3]}, DataError),
        ({"a": np.zeros((1, 3), F32)}, UsageError),
    ],
)
def test_out_that_does_not_fit(compile_text, feeds, out, error):
    with pytest.raises(error, match=f"'{next(iter(out))}'"):
        compile_text(CHAIN).run(feeds, out=out)


def test_out_may_lie_where_a_feed_does(compile_text):
    program = compile_text(
        """<ir_version: 8, opset_import: ["" : 17]>
        main (float[2] x, float[2] z) => (float[2] y, float[2] same)
        { y = Neg (z)  same = Identity (x) }"""
    )
    x, z = np.array([3, 4], F32), np.array([5, 6], F32)
    given = program.run({"x": x, "z": z}, out={"y": x, "same": z})
    np.testing.assert_array_equal(x, [-5, -6])
    np.testing.assert_array_equal(z, [3, 4])
    assert given["y"] is x
    z[:] = 7, 8
    given = program.run({"x": x, "z": z}, out={"y": x})
    np.testing.assert_array_equal(given["same"], [-5, -6])
    np.testing.assert_array_equal(x, [-7, -8])


def test_arrays_for_results_must_not_overlap(compile_text):
    program = compile_text(
        """<ir_version: 8, opset_import: ["" : 17]>
        main (float[2] x) => (float[2] y, float[2] z, float[2] w)
        { y = Neg (x)  z = Abs (x)  w = Relu (x) }"""
    )
    x, memory = np.array([3, -4], F32), np.zeros(8, F32)
    out = {"y": memory[:4:2], "z": memory[1:5:2], "w": memory[5:7]}
    program.run({"x": x}, out=out)
    np.testing.assert_array_equal(memory, [-3, 3, 4, 4, 0, 3, 0, 0])
    for other in (memory[:4:2], memory[2:4], memory[2:0:-1]):
        with pytest.raises(UsageError, match="'y' and 'z' overlap"):
            program.run({"x": x}, out={"w": memory[5:7], "y": memory[:4:2], "z": other})


def test_results_share_memory_with_nothing(compile_text):
    text = """<ir_version: 8, opset_import: ["" : 17]>
    main (float[2] x) => (float[2] x2, float[1,2] y, float[2] w, float[2] c, float[2] d)
    <float[2] w = {1, 2}, int64[2] s = {1, 2}> {
        c = Constant <value = float[2] {5, 6}> ()
        d = Dropout (x)
        x2 = Identity (x)
        y = Reshape (x, s)
    }"""
    program = compile_text(text)
    x = np.array([3, 4], F32)
    for _ in range(2):
        given = program.run({"x": x})
        np.testing.assert_array_equal(given["w"], [1, 2])
        np.testing.assert_array_equal(given["c"], [5, 6])
        np.testing.assert_array_equal(given["d"], [3, 4])
        for array in given.values():
            array[...] = 0
    np.testing.assert_array_equal(x, [3, 4])


def test_defaults_stand_in_and_can_be_overridden(compile_text):
    program = compile_text(DEFAULT)
    x = np.array([1, 2], F32)
    np.testing.assert_array_equal(program.run({"x": x})["y"], [11, 22])
    np.testing.assert_array_equal(program.run({"x": x, "w": x})["y"], [2, 4])
    np.testing.assert_array_equal(program.run({"x": x})["y"], [11, 22])


def test_two_methods(compile_text, feeds):
    program = compile_text({"encode": CHAIN, "decode": DEFAULT}, keep=["a"])
    assert list(program.methods) == ["encode", "decode"]
    x = np.array([1, 2], F32)
    np.testing.assert_array_equal(program.run({"x": x}, "decode")["y"], [11, 22])
    assert list(program.run(feeds, "encode", outputs=["a"])) == ["a"]
    with pytest.raises(UsageError, match="no method 'main'; methods: encode, decode"):
        program.run({"x": x})
    with pytest.raises(UsageError, match=r"'decod' \(did you mean 'decode'"):
        program.run({"x": x}, "decod")
    with pytest.raises(DataError, match="method 'decode'"):
        program.run(feeds, "decode")


def test_the_only_method_is_main_too(compile_text, feeds):
    program = compile_text({"encode": CHAIN})
    assert list(program.run(feeds)) == list(program.run(feeds, "encode")) == ["y", "z"]


def test_explain_profile_and_stats(compile_text, feeds):
    program = compile_text(CHAIN)
    plans = program.explain()
    assert [(p.method, p.node, p.op_type, p.kernel) for p in plans] == [
        ("main", "first", "Mul", "onnx.reference"),
        ("main", "second", "Add", "onnx.reference"),
        ("main", "third", "Relu", "onnx.reference"),
    ]
    assert plans[1].dtype == "float"
    times = program.profile(feeds, runs=3)
    assert [(t.node, t.op_type) for t in times] == [(p.node, p.op_type) for p in plans]
    assert all(t.seconds > 0 for t in times)
    assert program.stats() == {
        "methods": 1,
        "nodes": 3,
        "initializers": 1,
        "initializer_bytes": 12,
    }
    with pytest.raises(UsageError, match="at least 1, not 0"):
        program.profile(feeds, runs=0)
    with pytest.raises(DataError, match="nothing is fed to x"):
        program.profile({})


def test_a_closed_program_says_so(compile_text, feeds):
    with compile_text(CHAIN) as program:
        program.run(feeds)
    program.close()
    for call in (lambda: program.run(feeds), program.explain, program.stats):
        with pytest.raises(UsageError, match="closed"):
            call()


def test_a_failing_node_is_named_with_its_inputs(compile_text):
    text = """<ir_version: 8, opset_import: ["" : 17]>
    main (float[n] x, float[m] w) => (float[k] y) { [plus] y = Add (x, w) }"""
    with pytest.raises(BackendError) as caught:
        compile_text(text).run({"x": np.zeros(2, F32), "w": np.zeros(3, F32)})
    message = str(caught.value)
    assert "method 'main': node 'plus' (Add) failed" in message
    assert "ValueError: operands could not be broadcast" in message
    assert "x float32[2], w float32[3]" in message


def test_a_failing_node_of_a_subgraph_is_named(compile_text):
    text = """<ir_version: 8, opset_import: ["" : 17]>
    main (bool c, float[n] x, float[m] w) => (float[k] y) {
        [choice] y = If (c) <
            then_branch = yes () => (float[k] t) { [inner] t = Add (x, w) },
            else_branch = no () => (float[k] e) { e = Neg (x) }
        >
    }"""
    program = compile_text(text)
    feeds = {"x": np.ones(2, F32), "w": np.zeros(3, F32)}
    np.testing.assert_array_equal(program.run({**feeds, "c": np.array(False)})["y"], [-1, -1])
    with pytest.raises(BackendError, match=r"node 'inner' \(Add\) failed"):
        program.run({**feeds, "c": np.array(True)})
    assert [plan.op_type for plan in program.explain()] == ["If", "Add", "Neg"]


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ("[mine] y = MaxRoiPool <pooled_shape=[1,1]> (x, x)", ["'mine' (MaxRoiPool)"]),
        ("[mine] y = foo.Thing (x)", ["'mine' (foo.Thing)", "is unknown"]),
        ("[mine] y = LeakyReluu (x)", ["'mine' (LeakyReluu)"]),
    ],
)
def test_unsupported_operators_are_named_when_compiled(compile_text, node, words):
    text = f"""<ir_version: 8, opset_import: ["" : 17, "foo" : 1]>
    main (float[n] x) => (float[n] y) {{ {node} }}"""
    with pytest.raises(BackendError) as caught:
        compile_text(text)
    for word in ["method 'main'", *words]:
        assert word in str(caught.value)


def test_ieee_results_raise_no_warning(compile_text):
    text = """<ir_version: 8, opset_import: ["" : 17]>
    main (float[3] x) => (float[3] y) <float[3] w = {0, 0, 0}> { y = Div (x, w) }"""
    given = compile_text(text).run({"x": np.array([1, -1, 0], F32)})["y"]
    np.testing.assert_array_equal(given, np.array([np.inf, -np.inf, np.nan], F32))


def test_strings_sequences_and_optionals(compile_text):
    text = """<ir_version: 10, opset_import: ["" : 20]>
    main (string[2] s, seq(float[2]) q, optional(float[2]) o)
        => (string[2] t, seq(float[2]) r, bool h, optional(float[2]) p)
    <string[1] suffix = {"!"}> {
        t = StringConcat (s, suffix)
        r = Identity (q)
        h = OptionalHasElement (o)
        p = Identity (o)
    }"""
    program = compile_text(text)
    one = np.array([1, 2], F32)
    given = program.run({"s": np.array(["a", "b"]), "q": [one, one], "o": None})
    assert given["t"].dtype == object
    assert given["t"].tolist() == ["a!", "b!"]
    assert [item.tolist() for item in given["r"]] == [[1, 2], [1, 2]]
    assert not given["h"]
    assert given["p"] is None
    given = program.run({"s": np.array(["a", "b"]), "q": [], "o": one})
    assert given["h"]
    assert given["r"] == []
    np.testing.assert_array_equal(given["p"], one)
    with pytest.raises(UsageError, match="'r' is not a tensor"):
        program.run({"s": np.array(["a", "b"]), "q": [], "o": one}, out={"r": []})


@pytest.mark.parametrize("dtype", ["bfloat16", "float8e4m3fn", "int4", "float4e2m1", "float16"])
def test_narrow_types_stay_what_they_are(compile_text, dtype):
    text = f"""<ir_version: 10, opset_import: ["" : 23]>
    main (float[4] x) => ({dtype}[4] y) {{ y = Cast <to = {_number(dtype)}> (x) }}"""
    given = compile_text(text).run({"x": np.array([0, 1, -2, 3], F32)})["y"]
    assert given.dtype == ir.DataType[dtype.upper()].numpy()
    assert given.astype(F32).tolist() == [0, 1, -2, 3]


def _number(dtype):
    return int(ir.DataType[dtype.upper()])


def test_functions_overloads_defaults_and_left_out_inputs(parse):
    model = parse(
        """<ir_version: 10, opset_import: ["" : 20, "my" : 1]>
        main (float[2] x) => (float[2] y, float[2] z, float[2] u) {
            y = my.outer (x)
            z = my.scale <by = 5.0> (x)
            u = my.shifted (x)
        }
        <opset_import: ["" : 20, "my" : 1], domain: "my">
        outer (x) => (y) { t = my.scale (x) y = my.scale <by = 10.0> (t) }
        <opset_import: ["" : 20], domain: "my">
        scale <by: float = 2.0> (x) => (y) {
            c = Constant <value_float: float = @by> ()
            y = Mul (x, c)
        }
        <opset_import: ["" : 20], domain: "my">
        shifted (x, low) => (y) { y = Clip (x, low) }
        """
    )
    bundle = Bundle({"main": model})
    with ReferenceBackend().compile(bundle, CompileOptions()) as program:
        given = program.run({"x": np.array([1, 2], F32)})
        assert program.explain()[0].kernel == "function body"
    assert [array.tolist() for array in given.values()] == [[20, 40], [5, 10], [1, 2]]


def test_overloads_of_a_function_are_distinguished():
    def function(overload, operator):
        return onnx.helper.make_function(
            "my",
            "f",
            ["x"],
            ["y"],
            [onnx.helper.make_node(operator, ["x"], ["y"])],
            [onnx.helper.make_opsetid("", 20)],
            overload=overload,
        )

    nodes = [
        onnx.helper.make_node("f", ["x"], [name], domain="my", overload=overload)
        for name, overload in (("a", "neg"), ("b", "abs"), ("c", ""))
    ]
    info = [onnx.helper.make_tensor_value_info(n, 1, [2]) for n in "xabc"]
    proto = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "g", info[:1], info[1:]),
        opset_imports=[onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("my", 1)],
        functions=[function("neg", "Neg"), function("abs", "Abs"), function("", "Exp")],
    )
    program = ReferenceBackend().compile(Bundle({"main": ir.from_proto(proto)}), CompileOptions())
    given = program.run({"x": np.array([0, -2], F32)})
    assert given["a"].tolist() == [0, 2]
    assert given["b"].tolist() == [0, 2]
    np.testing.assert_allclose(given["c"], np.exp(np.array([0, -2], F32)))


def test_threads_do_not_disturb_each_other(compile_text):
    program = compile_text(CHAIN)
    failures = []

    def work(number):
        for _ in range(50):
            x = np.full((2, 3), number, F32)
            if not np.array_equal(program.run({"x": x})["y"], x * [1, 2, 3] + [1, 2, 3]):
                failures.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_later_changes_of_the_model_have_no_effect(parse, feeds):
    model = parse(CHAIN)
    program = ReferenceBackend().compile(Bundle({"main": model}), CompileOptions())
    before = program.run(feeds)["y"]
    for node in model.graph:
        node.op_type = "Sub"
    model.graph.inputs[0].name = "other"
    np.testing.assert_array_equal(program.run(feeds)["y"], before)


def test_the_backend_itself(parse):
    backend = ReferenceBackend()
    assert backend.available() is None
    assert backend.default_pipeline({"fold", "fp16"}) == "fold"
    assert backend.default_pipeline(()) == ""
