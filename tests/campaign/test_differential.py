"""Random models from ONNX's schemas on all backends: a part of the campaign, and what it found.

``python -m differential`` in this folder runs more of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("narrowpass_reference")
pytest.importorskip("narrowpass_xnn_cpu")

from differential.__main__ import Campaign, levels
from differential.builder import random_case
from differential.cases import Case
from differential.doubts import ACCUMULATING, EVALUATOR, is_doubtful
from differential.elements import TYPES
from differential.known import known_findings, reason_for
from differential.oracles import PHASE, judge, run_evaluator, run_onnxruntime
from differential.recipes import RECIPES, WITHOUT
from differential.rounding import is_rounding
from differential.running import Sizes
from differential.shrink import shrunk
from differential.slices import OPERATORS, findings_of, run_slice
from differential.subjects import Finding, available
from differential.upstream import operations, part_of
from subjects_kit import check_runs

pytestmark = pytest.mark.once

FOLDER = Path(__file__).parent
CORPUS = sorted((FOLDER / "corpus").glob("*.case"))
SEEDS = int(os.environ.get("NARROWPASS_CAMPAIGN_CASES", "20000"))
"""How many cases the long form tries."""


def test_every_operator_is_drawn_or_left_out_for_a_reason():
    schemas = onnx.defs.get_all_schemas()
    names = {
        (s.domain, s.name)
        for s in schemas
        if s.domain != "ai.onnx.preview.training" and not s.deprecated
    }
    assert names <= RECIPES.keys() | WITHOUT.keys()
    assert not RECIPES.keys() & WITHOUT.keys()
    assert all(WITHOUT.values())
    assert len(RECIPES) >= 190


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_what_was_found_stays_repaired(path):
    case = Case.load(path)
    assert judge(case.model, case.feeds, case.slack).candidates
    always, turns = available()
    for subject in (None, *always, *turns):
        assert findings_of(case, subject) == []


def complain(folder: Path) -> list[str]:
    """Return the new findings in a folder of results."""
    texts = []
    for path in folder.glob("*.json"):
        for entry in json.loads(path.read_text())["found"]:
            if not entry["known"]:
                texts.append(f"seed {entry['seed']}: {entry['kind']} {entry['subject']}: ")
                texts[-1] += f"{entry['operators']} {entry['message'][:200]}"
    return texts


@pytest.mark.parametrize("first", range(0, 2000, 250))
def test_random_models(first, tmp_path):
    """Each slice in a process of its own."""
    campaign, names = Campaign(tmp_path, float("inf")), levels()
    campaign.slice(first, 250, names[first // 250 % len(names)])
    check_runs(campaign.counts)
    assert campaign.counts["cases with oracles that agree"] > 100
    assert [entry for entry in campaign.found if not entry["known"]] == []


@pytest.mark.long
def test_many_random_models(tmp_path):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "differential", "--cases", str(SEEDS), "--seed", "100000"),
            *("--jobs", str(os.cpu_count() or 1), "--out", str(tmp_path)),
        ],
        env={**os.environ, "PYTHONPATH": str(FOLDER)},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def a_case(fits):
    return next(c for c in (random_case(s, OPERATORS) for s in range(3000)) if c and fits(c))


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
    one, other = (random_case(17, OPERATORS) for _ in range(2))
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
    small = shrunk(case, fails)
    assert len(small.model.graph.node) < len(case.model.graph.node)
    assert sum(a.size for a in small.feeds.values()) <= sum(a.size for a in case.feeds.values())


def test_a_wrong_result_is_found(tmp_path, monkeypatch):
    """With a kernel that is wrong on purpose, the campaign fails."""
    from narrowpass_reference.program import ReferenceProgram

    right = ReferenceProgram.run

    def wrong(self, *args, **kwargs):
        outputs = right(self, *args, **kwargs)
        return {name: value[..., ::-1] * 3 + 1 for name, value in outputs.items()}

    monkeypatch.setattr(ReferenceProgram, "run", wrong)
    monkeypatch.setattr(PHASE, "descriptor", None)
    first = OPERATORS.index(("", "Sin"))
    for seed in range(first, first + 5 * len(OPERATORS), len(OPERATORS)):
        run_slice(seed, 1, tmp_path, tmp_path / "state")
    texts = [text for text in complain(tmp_path) if "reference" in text]
    # All outputs are wrong, so that shrinking may leave any node of a case.
    assert any("['Sin']" in text for text in texts)


def parsed(body, inputs, outputs, opset=18):
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": {opset}, "ai.onnx.ml": 4]> '
        f"g ({inputs}) => ({outputs}) {{ {body} }}"
    )


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
    for subject in available()[0]:
        assert findings_of(case, subject) == []
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


def test_a_known_finding_is_about_its_node():
    """Integers that overflow are known behind the reduction, and nowhere else in the model."""
    model = parsed("y = ReduceProd(x) z = Neg(w)", "int32[2] x, int32 w", "int32 y, int32 z")
    case = Case(model, {})
    entries = known_findings()

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
    for entry in known_findings():
        assert entry.operators, entry
        assert entry.kinds, entry
        assert entry.message not in ("", ".*"), entry


def test_doubts_have_reasons():
    assert all(doubt.reason for doubt in (*EVALUATOR.values(), *ACCUMULATING.values()))
