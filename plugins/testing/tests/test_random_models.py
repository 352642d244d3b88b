"""The random models, their oracles, and what they say about a backend that is right or wrong."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime")

from narrowpass_reference.program import ReferenceProgram
from narrowpass_testing.random_models import (
    ACCUMULATING,
    EVALUATOR,
    RECIPES,
    TYPES,
    WITHOUT,
    Case,
    Chain,
    Doubt,
    Finding,
    Recipes,
    Sizes,
    check,
    findings,
    is_doubtful,
    is_rounding,
    judge,
    operations,
    part_of,
    random_case,
    random_models,
    read_known,
    reason_for,
    reduce_case,
    run_evaluator,
    run_onnxruntime,
)


def test_every_operator_is_drawn_or_left_out_for_a_reason():
    schemas = onnx.defs.get_all_schemas()
    names = {
        (s.domain, s.name)
        for s in schemas
        if s.domain != "ai.onnx.preview.training" and not s.deprecated
    }
    drawn = RECIPES.by_operator.keys()
    assert names <= drawn | WITHOUT.keys()
    assert not drawn & WITHOUT.keys()
    assert all(WITHOUT.values())
    assert len(drawn) >= 190


def a_case(fits):
    return next(c for c in (random_case(s) for s in range(3000)) if c and fits(c))


def test_a_case_is_read_as_it_was_written(tmp_path):
    case = a_case(lambda c: len(c.feeds) > 1 and c.sizes)
    again = Case.load(case.save(tmp_path, "x", {"kind": "wrong"}))
    assert again.model == case.model
    assert again.sizes == case.sizes
    assert list(again.feeds) == list(case.feeds)
    for name, array in case.feeds.items():
        assert again.feeds[name].dtype == array.dtype
        assert again.feeds[name].tobytes() == array.tobytes()


def test_seeds_fix_cases():
    one, other = (random_case(17) for _ in range(2))
    assert one is not None
    assert other is not None
    assert one.model == other.model


def test_shrinking_leaves_the_node_that_fails():
    case = a_case(lambda c: len(c.model.graph.node) > 3)
    last = case.model.graph.node[-1].op_type

    def fails(smaller):
        kinds = [node.op_type for node in smaller.model.graph.node]
        return last in kinds and run_evaluator(smaller.model, smaller.feeds) is not None

    if not fails(case):
        pytest.skip("the evaluator does not run it")
    small = reduce_case(case, fails)
    assert len(small.model.graph.node) < len(case.model.graph.node)
    assert sum(a.size for a in small.feeds.values()) <= sum(a.size for a in case.feeds.values())


def test_nodes_upstream_of_an_output():
    """Those of bodies and what they read count; an output has the nodes that it depends on."""
    model = parsed(
        """a = Relu(x) b = Abs(a) c = Neg(x)
        d = If<then_branch = t () => (float e) { e = Identity(b) },
               else_branch = f () => (float g) { g = Identity(x) }>(flag)""",
        "float x, bool flag",
        "float c, float d",
    )

    def kinds(output):
        return sorted(found.node.op_type for found in operations(model, output))

    assert kinds("c") == ["Neg"]
    assert kinds("d") == ["Abs", "Identity", "Identity", "If", "Relu"]
    assert kinds(None) == sorted([*kinds("c"), *kinds("d")])
    types = {found.node.op_type: found.dtype for found in operations(model)}
    assert (types["Neg"], types["Abs"], types["If"]) == ("float", "float", "bool")
    assert types["Identity"] == ""


@pytest.mark.parametrize(("dtype", "doubtful"), [("uint32", True), ("int32", False)])
def test_a_doubt_is_about_a_type(dtype, doubtful):
    model = parsed("y = ReduceProd(x) z = Neg(w)", f"{dtype}[2] x, int32 w", f"{dtype} y, int32 z")
    assert is_doubtful(model, "y") == doubtful
    assert not is_doubtful(model, "z")


def test_an_operator_may_have_two_doubts():
    model = parsed(
        "y = ReduceL1(x) z = ReduceL1(w)", "bfloat16[2] x, float[2] w", "float y, float z"
    )
    assert is_doubtful(model, "y")
    assert not is_doubtful(model, "z")


def test_oracles_that_are_apart_decide_each_about_their_outputs():
    """The evaluator returns int64 for int32; that says nothing about the other output."""
    body = "y = ReduceSumSquare(x) z = Neg(w)"
    model = parsed(body, "int32[2] x, int32 w", "int32[1] y, int32 z")
    feeds = {"x": np.int32([3, 5]), "w": np.array(7, np.int32)}
    verdict = judge(model, feeds)
    assert verdict.candidates["onnxruntime"].keys() == {"y", "z"}
    assert verdict.alone == {"y"}
    assert verdict.candidates["onnx"].keys() == {"z"}
    assert verdict.apart == {}


def test_an_oracle_is_asked_about_the_outputs_that_it_runs():
    """Neither runs all: onnxruntime lacks PRelu of bfloat16, and what follows MaxRoiPool counts."""
    roi = "y = MaxRoiPool<pooled_shape = [1, 1]>(x, r) z = Neg(x)"
    model = parsed(
        f"{roi} a = PRelu(b, b)",
        "float[1,1,2,2] x, float[1,5] r, bfloat16[1] b",
        "float[1,1,1,1] y, float[1,1,2,2] z, bfloat16[1] a",
    )
    feeds = {
        "x": np.float32([[[[1, 2], [3, 4]]]]),
        "r": np.float32([[0, 0, 0, 1, 1]]),
        "b": np.ones(1, TYPES["bfloat16"]),
    }
    verdict = judge(model, feeds)
    assert verdict.candidates["onnxruntime"].keys() == {"y", "z"}
    assert verdict.candidates["onnx"].keys() == {"z", "a"}
    assert verdict.values.keys() == {"y", "z", "a"}
    assert verdict.apart == {}
    assert not verdict.both
    assert judge(part_of(model, "z"), {"x": feeds["x"]}).both


def test_scalars_of_bfloat16_stay_scalars():
    model = parsed("y = IsNaN(x)", "bfloat16 x", "bool y", opset=20)
    found = run_onnxruntime(model, {"x": np.array(1, TYPES["bfloat16"])})
    assert found is None or found["y"].shape == ()


def test_sizes_that_change_ranks_are_left_out():
    """The declared output has two axes: int64[M] may hold 2 sizes, and no others."""
    model = parsed("y = ConstantOfShape(x)", "int64[M] x", "float[1,2] y")
    case = Case(model, {"x": np.int64([1, 2])}, {"M": 2})
    assert Sizes(case).judged() == []
    assert findings(case, "reference") == []
    # An oracle that runs what an output needs may refuse the rest.
    body = "z = Neg(x) s = Reshape(w, x)"
    model = parsed(body, "int64[M] x, float[2] w", "int64[M] z")
    case = Case(model, {"x": np.int64([2, 1]), "w": np.ones(2, "f")}, {"M": 2})
    assert Sizes(case).judged() == []
    model = parsed("y = Neg(x)", "float[M] x", "float[M] y")
    assert len(Sizes(Case(model, {"x": np.float32([1, 2])}, {"M": 2})).judged()) == 2


def test_rounding_is_no_finding():
    """Asin is steep where Tanh is almost 1: an ulp there is 300 of the result."""
    model = parsed("t = Tanh(x) y = Asin(t) z = Sin(x)", "float[2] x", "float[2] y, float[2] z")
    case = Case(model, {"x": np.float32([6, 9])})
    values = run_evaluator(model, case.feeds)
    assert is_rounding(case, "y", values["y"] - np.float32(2e-4), values["y"])
    assert not is_rounding(case, "y", values["y"] - np.float32(2e-2), values["y"])
    assert not is_rounding(case, "z", values["z"] - np.float32(2e-4), values["z"])
    # What jumps reads inputs, which nothing moves.
    jump = Case(parsed("y = Floor(x)", "float[2] x", "float[2] y"), {"x": np.float32([1, 2])})
    assert not is_rounding(jump, "y", np.float32([0, 2]), np.float32([1, 2]))
    assert not is_rounding(jump, "y", np.float32([np.nan, 2]), np.float32([1, 2]))


def test_a_doubt_ends_with_the_version_that_corrects_it():
    (operation,) = operations(parsed("y = Neg(x)", "float x", "float y"))
    assert Doubt("wrong").concerns(operation)
    assert Doubt("wrong", corrected="999.1").concerns(operation)
    assert not Doubt("wrong", corrected="1.2").concerns(operation)


def test_doubts_have_reasons():
    assert all(doubt.reason for doubt in (*EVALUATOR.values(), *ACCUMULATING.values()))


def test_a_known_finding_is_about_its_node():
    """Integers that overflow are known behind the reduction, and nowhere else in the model."""
    model = parsed("y = ReduceProd(x) z = Neg(w)", "int32[2] x, int32 w", "int32 y, int32 z")
    case = Case(model, {})
    entries = read_known()

    def reason(message, kind="not as the only oracle", model=case):
        return reason_for(model, Finding(kind, "xnn-cpu", message), entries)

    assert "double" in reason("y: 1 of 1 elements differ")
    assert "double" in reason("at other sizes: y: 1 of 1 elements differ")
    assert reason("z: 1 of 1 elements differ") is None
    assert reason("y: 1 of 1 elements differ", "wrong") is None
    assert reason("y: int32[], not int32[1]") is None
    floats = Case(parsed("y = ReduceProd(x)", "float[2] x", "float y"), {})
    assert reason("y: 1 of 1 elements differ", model=floats) is None


def test_known_findings_say_what_they_are_about():
    for entry in read_known():
        assert entry.operators, entry
        assert entry.kinds, entry
        assert entry.message not in ("", ".*"), entry


def parsed(body, inputs, outputs, opset=18):
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": {opset}, "ai.onnx.ml": 4]> '
        f"g ({inputs}) => ({outputs}) {{ {body} }}"
    )


def drawn_with(monkeypatch, change):
    """Let the reference backend change its outputs; return the kinds of findings about a model."""
    right = ReferenceProgram.run

    def run(self, feeds, *args, **kwargs):
        return change(right(self, feeds, *args, **kwargs), feeds)

    monkeypatch.setattr(ReferenceProgram, "run", run)
    model = parsed("y = Add(x, x) z = Neg(y)", "float[N, 3] x", "float[N, 3] y, float[N, 3] z")
    case = Case(model, {"x": np.float32([[1, 2, 3], [4, 5, 6]])}, {"N": 2})
    return [finding.kind for finding in findings(case, "reference")]


def _written(outputs, feeds):
    feeds["x"][...] = 0
    return outputs


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        (lambda outputs, feeds: outputs, []),
        (lambda outputs, feeds: {**outputs, "z": outputs["z"] + 1}, ["wrong"]),
        (lambda outputs, feeds: {**outputs, "z": outputs["z"][:1]}, ["wrong"]),
        (lambda outputs, feeds: {**outputs, "z": outputs["z"].astype("d")}, ["wrong"]),
        (lambda outputs, feeds: {"z": outputs["z"]}, ["wrong"]),
        (lambda outputs, feeds: 1 / 0, ["exception"]),
    ],
)
def test_a_wrong_backend_is_found(monkeypatch, change, kinds):
    assert drawn_with(monkeypatch, change) == kinds


def test_feeds_that_are_written_are_found(monkeypatch):
    assert "contract" in drawn_with(monkeypatch, _written)


def test_outputs_that_share_memory_are_found(monkeypatch):
    shared = np.float32([[-2, -4, -6], [-8, -10, -12]])
    found = drawn_with(
        monkeypatch, lambda outputs, feeds: {"y": -(shared.copy()), "z": shared[: len(feeds["x"])]}
    )
    assert "contract" in found or "wrong" in found


def test_check_raises_with_the_model_and_the_finding(monkeypatch):
    case = next(random_models(0, 400, recipes=RECIPES.only(["MatMul"]), types=["float"]))
    assert check(case, "reference", threads=(1, 2))
    right = ReferenceProgram.run
    monkeypatch.setattr(
        ReferenceProgram,
        "run",
        lambda self, *a, **k: {n: v + 1 for n, v in right(self, *a, **k).items()},
    )
    with pytest.raises(AssertionError, match="wrong on reference") as raised:
        check(case, "reference")
    assert case.model.graph.name in str(raised.value)
    assert "MatMul" in str(raised.value)
    assert check(case, "reference", known=lambda case, finding: True)


def test_what_no_oracle_runs_is_not_judged():
    model = parsed("y = Other.Unknown(x)", "float[2] x", "float[2] y")
    assert check(Case(model, {"x": np.zeros(2, np.float32)}), "reference") is False


def test_random_models_on_the_reference_backend():
    cases = list(random_models(0, 40))
    assert len(cases) > 30
    assert sum(check(case, "reference") for case in cases) > 30


def test_recipes_are_added_and_chosen():
    mine = Recipes()

    @mine.block("layers", "Twice")
    def twice(c: Chain) -> None:
        x = c.take(1, 2)
        c.add("Add", [x, x])

    only = RECIPES.only(["Relu", "Neg"])
    assert (only | mine).keys() == (("", "Neg"), ("", "Relu"), ("layers", "Twice"))
    kinds = set()
    for case in random_models(0, 30, recipes=only | mine, types=["float"], steps=[3]):
        nodes = case.model.graph.node
        kinds |= {node.op_type for node in nodes} - {"Constant"}
        assert {array.dtype for array in case.feeds.values()} <= {np.dtype(np.float32)}
    assert kinds == {"Relu", "Neg", "Add"}
    with pytest.raises(ValueError, match="no recipes for Reluu"):
        RECIPES.only(["Reluu"])


def test_every_block_is_drawn():
    keys = RECIPES.keys()
    for index in range(len(RECIPES.by_operator), len(keys)):
        seeds = range(index, index + 8 * len(keys), len(keys))
        cases = [case for case in map(random_case, seeds) if case is not None]
        assert cases, keys[index]
        if keys[index][0] in ("qdq", "narrow"):
            name = keys[index][1]
            assert all(name in {n.op_type for n in case.model.graph.node} for case in cases)


def test_models_are_varied():
    """Types, symbols, constants of both forms, defaults, bodies, unused nodes, several outputs."""
    found = set()
    for case in random_models(0, 300):
        graph = case.model.graph
        found |= {array.dtype.name for array in case.feeds.values()}
        weights = {tensor.name for tensor in graph.initializer}
        read = {name for node in graph.node for name in node.input}
        shown = {value.name for value in graph.output}
        found |= {"symbols"} if case.sizes else set()
        found |= {"default"} if weights & {value.name for value in graph.input} else set()
        found |= {"Constant"} & {node.op_type for node in graph.node}
        found |= {"body" for node in graph.node for a in node.attribute if a.HasField("g")}
        found |= {"outputs"} if len(shown) > 1 else set()
        if any(not (read | shown).intersection(node.output) for node in graph.node):
            found.add("unused")
        if any(name in shown and name in read for node in graph.node for name in node.output):
            found.add("inner output")
    assert {"symbols", "default", "Constant", "body", "outputs", "unused", "inner output"} <= found
    assert {dtype.name for dtype in TYPES.values()} <= found


def test_sizes_of_zero_are_drawn_where_they_are_asked_for():
    def has_zeros(cases):
        arrays = (array for case in cases for array in case.feeds.values())
        return any(0 in array.shape for array in arrays if array.dtype.kind != "i")

    assert has_zeros(random_models(0, 60, zeros=True))
    assert not has_zeros(random_models(0, 60))


def test_types_are_known_behind_operators_that_onnx_infers_nothing_of():
    model = parsed("a = Neg(x) b = ai.onnx.ml.Binarizer(a) y = Abs(b)", "double[2] x", "double y")
    types = {found.node.op_type: found.dtype for found in operations(model)}
    assert types == {"Neg": "double", "Binarizer": "double", "Abs": "double"}
