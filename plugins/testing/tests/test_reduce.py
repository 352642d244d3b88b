"""``narrowpass reduce``: the smallest model that fails in the same way."""

from __future__ import annotations

import os
import signal

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from click.testing import CliRunner
from onnx import numpy_helper

from narrowpass import save_model
from narrowpass.cli import app
from narrowpass_testing import model_from_text
from narrowpass_testing._trials import Trials, Way
from narrowpass_testing.random_models import Case, reduce_case, run_evaluator

PLUGIN = '''
import os
import time
from dataclasses import dataclass
from typing import ClassVar

from narrowpass import Pass, PassResult, hookimpl


@dataclass(frozen=True)
class Wrong(Pass):
    """Do what must not be done to a model with a Tanh behind a Sigmoid.

    Attributes:
        how: value, error, crash or hang.
    """

    name: ClassVar[str] = "wrong"
    how: str = "value"

    def run(self, model, ctx):
        modified = False
        for node in model.graph:
            before = node.inputs[0].producer() if node.inputs else None
            if node.op_type != "Tanh" or before is None or before.op_type != "Sigmoid":
                continue
            if self.how == "error":
                raise KeyError("no such thing")
            if self.how == "crash":
                os.kill(os.getpid(), 9)
            if self.how == "hang":
                time.sleep(600)
            node.op_type = "Sin"
            modified = True
        return PassResult(model, modified)


@hookimpl
def narrowpass_passes():
    return [Wrong]
'''

MODEL = """
    g (float[N, 4] x, float[4] b) => (float[N, 4] y, float[N, 4] z) {
        a = Relu(x)
        c = Add(a, b)
        d = Sigmoid(c)
        e = Tanh(d)
        f = Mul(e, a)
        h = Exp(a)
        i = Sub(f, h)
        y = Abs(i)
        z = Neg(c)
    }
"""


@pytest.fixture
def model(tmp_path, monkeypatch):
    """Return the file of a model, where a plugin with a wrong pass is installed."""
    info = tmp_path / "site" / "wrong_pass-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wrong-pass\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[narrowpass]\nwrong-pass = wrong_pass\n")
    (tmp_path / "site" / "wrong_pass.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.chdir(tmp_path)
    save_model(model_from_text(MODEL), "model.onnx")
    return "model.onnx"


def reduce(*arguments):
    return CliRunner().invoke(app, ["reduce", *map(str, arguments)])


@pytest.mark.parametrize(
    ("how", "said"),
    [("value", "wrong result: "), ("error", "PassError: "), ("crash", "crash: the process ended")],
)
def test_the_nodes_that_fail_are_left(model, how, said):
    pipeline = f"wrong{{how={how}}}"
    options = ("-p", pipeline, "--backend", "reference")
    done = reduce(model, *options, "--shape", "x=3x4", "-o", "small.onnx")
    assert done.exit_code == 0, done.output
    assert "wrote small.onnx (2 of 9 nodes) and small.npz (its inputs)" in done.stdout
    assert f"it fails: {said}" in done.stdout
    small = onnx.load("small.onnx")
    assert [node.op_type for node in small.graph.node] == ["Sigmoid", "Tanh"]
    (feed,) = np.load("small.npz").values()
    assert feed.size == 1
    # The command that it prints shows the failure.
    command = done.stdout.splitlines()[-1]
    shown = f"narrowpass reduce small.onnx --input small.npz -p '{pipeline}' --backend reference"
    assert command == f"to see it: {shown}"
    again = reduce("small.onnx", "--input", "small.npz", *options)
    assert again.exit_code == 0
    assert again.stdout.startswith(f"small.onnx fails: {said}")


def test_a_hang_is_a_failure(model):
    options = ("-p", "wrong{how=hang}", "--backend", "reference", "--hang", 10)
    done = reduce(model, *options, "--shape", "x=1x4")
    assert done.stdout == "model.onnx fails: hang: no result after 10 s\n"


def test_a_model_that_does_not_fail(model):
    done = reduce(model, "-p", "fold", "--backend", "reference", "-o", "small.onnx")
    assert done.exit_code == 1
    assert "model.onnx does not fail; the outputs are those of " in done.stderr
    assert not os.path.exists("small.onnx")  # noqa: PTH110


def test_a_tolerance_decides(model):
    wrong = ("-p", "wrong", "--backend", "reference", "--shape", "x=3x4")
    assert reduce(model, *wrong, "--tolerance", "rel:1e-3").exit_code == 0
    assert reduce(model, *wrong, "--tolerance", "rel:1e3").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["absent.onnx"], 2, "absent.onnx"),
        (["model.onnx", "-p", "wrong", "-o", "small.txt"], 2, "ends in .onnx"),
        (["model.onnx", "-p", "wrong", "-o", "model.onnx"], 2, "model.onnx"),
        (["model.onnx", "-p", "wrong", "--input", "x=absent.npy"], 2, "absent.npy"),
        (["model.onnx", "-p", "wrong", "--shape", "q=1"], 2, "no input 'q'"),
        (["model.onnx", "--backend", "absent"], 2, "absent"),
        (["model.onnx", "-p", "absent"], 2, "absent"),
        (["model.onnx", "--tolerance", "near"], 2, "--tolerance: 'near' is not of the form"),
        (["model.onnx", "--tries", "0"], 2, "--tries"),
        (["damaged.onnx"], 1, "damaged.onnx"),
    ],
)
def test_bad_input(model, arguments, code, said):
    with open("damaged.onnx", "wb") as file:  # noqa: PTH123
        file.write(b"\x08\x0a:\xff\xff")
    done = reduce(*arguments)
    assert done.exit_code == code, done.output
    assert said in done.output


def test_a_model_that_is_too_large(model, monkeypatch):
    monkeypatch.setattr("narrowpass_testing.reduce._LARGEST", 10)
    done = reduce(model, "-p", "wrong", "--backend", "reference")
    assert "does not fail" not in done.output
    save_model(model_from_text(WEIGHTS), "weights.onnx")
    done = reduce("weights.onnx", "-p", "wrong", "--backend", "reference")
    assert done.exit_code == 1
    assert "its weights have 2 GiB or more" in done.stderr


WEIGHTS = "g (float[3] x) => (float[3] y) <float[3] w = {1, 2, 3}> { y = Add(x, w) }"


def test_an_oracle_that_dies_judges_nothing(model, monkeypatch):
    monkeypatch.setattr(Trials, "_ask", lambda self, what, case: None)
    done = reduce(model, "-p", "wrong", "--backend", "reference")
    assert done.exit_code == 1
    assert "an oracle ends its process" in done.stderr


def test_the_process_is_started_again():
    case = Case(ir.to_proto(model_from_text("g (float[2] x) => (float[2] y) { y = Relu(x) }")), {})
    case.feeds["x"] = np.float32([-1, 2])
    with Trials(Way("reference"), 60) as trials:
        assert trials.run(case).failure is None
        os.kill(trials._child.pid, signal.SIGKILL)
        trials._child.wait()
        assert trials.run(case).failure is None
        assert set(trials.values(case)) == {"x", "y"}


def chain(length):
    body = " ".join(f"v{k + 1} = Neg(v{k})" for k in range(length))
    text = f"g (float[2, 3] v0) => (float[2, 3] v{length}) {{ {body} }}"
    return Case(ir.to_proto(model_from_text(text)), {"v0": np.ones((2, 3), np.float32)})


def test_long_models_are_cut_in_halves():
    tried = []

    def fails(case):
        tried.append(case)
        return "v37" in {name for node in case.model.graph.node for name in node.output}

    case = chain(64)
    small = reduce_case(case, fails)
    assert [node.output[0] for node in small.model.graph.node] == ["v37"]
    assert len(tried) < 40
    assert len(case.model.graph.node) == 64
    assert [array.shape for array in small.feeds.values()] == [(1, 1)]


def test_no_more_is_tried_than_is_allowed():
    tried = []
    reduce_case(chain(64), lambda case: bool(tried.append(case)), tries=5)
    assert len(tried) == 5


def test_what_is_left_is_plain():
    """Sizes for symbols, inputs for initializers, whole numbers, only the attributes needed."""
    text = """g (float[N, 3] x) => (float[N, 3] y, float[N] z) <float[3] w = {0.25, 1.5, 2.75}> {
        a = Mul(x, w) b = Softmax<axis = -1>(a) c = Gemm<alpha = 0.5>(b, k, w)
        y = Add(c, x) z = ReduceSum<keepdims = 0>(y, axes) }"""
    proto = ir.to_proto(model_from_text(text.replace("(float[N, 3] x)", SIGNATURE)))
    feeds = {"x": np.float32([[0.5, 1.25, 2], [3, 4, 5]]), "k": np.eye(3, dtype=np.float32)}
    case = Case(proto, {**feeds, "axes": np.int64([1])}, {"N": 2})

    def fails(smaller):
        kinds = [node.op_type for node in smaller.model.graph.node]
        return "Gemm" in kinds and run_evaluator(smaller.model, smaller.feeds) is not None

    small = reduce_case(case, fails)
    (node,) = small.model.graph.node
    assert node.op_type == "Gemm"
    assert not node.attribute
    assert len(node.input) == 2
    assert not small.sizes
    assert not small.model.graph.initializer
    assert all(np.array_equal(array, np.round(array)) for array in small.feeds.values())


SIGNATURE = "(float[N, 3] x, float[3, 3] k, int64[1] axes)"


def test_functions_and_weights_of_a_model_stay_with_it():
    weight = numpy_helper.from_array(np.ones(3, np.float32), "w")
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 18, "own": 1]> g (float[3] x, float[3] w) => '
        "(float[3] z) { a = Abs(x) y = own.twice(a) z = Mul(y, w) } "
        '<domain: "own", opset_import: ["": 18]> twice (x) => (y) { y = Add(x, x) }'
    )
    del model.graph.input[1]
    model.graph.initializer.append(weight)
    case = Case(model, {"x": np.float32([1, 2, 3])})

    def fails(smaller):
        kinds = [node.op_type for node in smaller.model.graph.node]
        return "twice" in kinds and run_evaluator(smaller.model, smaller.feeds) is not None

    small = reduce_case(case, fails)
    assert [node.op_type for node in small.model.graph.node] == ["twice"]
    assert [function.name for function in small.model.functions] == ["twice"]
