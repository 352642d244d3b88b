"""`run_pass` and `assert_idempotent` find passes that break their contract."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir
import pytest

from narrowpass import Context, Pass, PassResult, Registry
from narrowpass.errors import ModelError, PassError, PipelineError, VerificationError
from narrowpass_testing import assert_idempotent, model_from_text, model_to_text, run_pass

TEXT = "g (float[n] x) => (float[n] y) <float[1] w = {1}> { a = Relu(x) y = Add(a, w) }"


@dataclass(frozen=True)
class Good(Pass):
    """Turn Relu into Abs, once."""

    name: ClassVar[str] = "good"

    to: str = "Abs"

    def run(self, model: ir.Model, ctx: Context) -> PassResult:
        found = [node for node in model.graph if node.op_type == "Relu"]
        for node in found:
            node.op_type = self.to
            ctx.counters["renamed"] += 1
        return PassResult(model, modified=bool(found))


@dataclass(frozen=True)
class Nothing(Pass):
    """Change nothing and say so."""

    name: ClassVar[str] = "nothing"

    def run(self, model: ir.Model, ctx: Context) -> PassResult:
        return PassResult(model, modified=False)


@dataclass(frozen=True)
class Boast(Pass):
    """Change nothing and say the opposite."""

    name: ClassVar[str] = "boast"

    def run(self, model: ir.Model, ctx: Context) -> PassResult:
        return PassResult(model, modified=True)


@dataclass(frozen=True)
class Hide(Pass):
    """Change the model and say nothing."""

    name: ClassVar[str] = "hide"

    def run(self, model: ir.Model, ctx: Context) -> PassResult:
        model.graph.node(0).op_type = "Abs"
        return PassResult(model, modified=False)


@dataclass(frozen=True)
class Break(Pass):
    """Leave a value without a producer."""

    name: ClassVar[str] = "break"

    def run(self, model: ir.Model, ctx: Context) -> PassResult:
        model.graph.remove(model.graph.node(0))
        return PassResult(model, modified=True)


@dataclass(frozen=True)
class Rename(Pass):
    """Rename the output."""

    name: ClassVar[str] = "rename"

    def run(self, model: ir.Model, ctx: Context) -> PassResult:
        model.graph.outputs[0].name = "other"
        return PassResult(model, modified=True)


@dataclass(frozen=True)
class Overwrite(Pass):
    """Write into the bytes of a weight."""

    name: ClassVar[str] = "overwrite"

    def run(self, model: ir.Model, ctx: Context) -> PassResult:
        for value in model.graph.initializers.values():
            assert value.const_value is not None
            value.const_value.numpy()[...] = 7
        return PassResult(model, modified=True)


@dataclass(frozen=True)
class Grow(Pass):
    """Change something on every run."""

    name: ClassVar[str] = "grow"

    def run(self, model: ir.Model, ctx: Context) -> PassResult:
        model.graph.node(0).doc_string = (model.graph.node(0).doc_string or "") + "!"
        return PassResult(model, modified=True)


@dataclass(frozen=True)
class Leak(Pass):
    """Return another model than the one that was changed."""

    name: ClassVar[str] = "leak"

    def run(self, model: ir.Model, ctx: Context) -> PassResult:
        raise PassError("node 'n': too large")


def test_a_good_pass() -> None:
    model = model_from_text(TEXT)
    ctx = Context()
    result = run_pass(Good(), model, ctx=ctx)
    assert result.modified
    assert [node.op_type for node in result.model.graph] == ["Abs", "Add"]
    assert [node.op_type for node in model.graph] == ["Relu", "Add"]
    assert ctx.counters["renamed"] == 1


def test_text_for_both() -> None:
    registry = Registry(passes={"good": Good, "nothing": Nothing})
    result = run_pass("nothing,good{to=Neg}", TEXT, registry=registry)
    assert result.modified
    assert [node.op_type for node in result.model.graph] == ["Neg", "Add"]
    with pytest.raises(PipelineError, match="goood"):
        run_pass("goood", TEXT, registry=registry)


def test_a_pass_that_changes_nothing() -> None:
    assert not run_pass(Nothing(), TEXT).modified


def test_a_flag_that_says_too_much() -> None:
    with pytest.raises(AssertionError, match=r"'boast' said .* and did not:(.|\n)*Relu"):
        run_pass(Boast(), TEXT)


def test_a_flag_that_says_too_little() -> None:
    with pytest.raises(PassError, match=r"'hide'.* said that it did not"):
        run_pass(Hide(), TEXT)


def test_an_invalid_result() -> None:
    with pytest.raises(PassError, match="'break'"):
        run_pass(Break(), TEXT)


def test_a_changed_signature() -> None:
    with pytest.raises(PassError, match=r"'rename'.*signature"):
        run_pass(Rename(), TEXT)


def test_a_tensor_written_to() -> None:
    model = model_from_text(TEXT)
    weights = np.ones(1, np.float32)
    model.graph.initializers["w"].const_value = ir.tensor(weights, name="w")
    with pytest.raises(AssertionError, match="wrote into a tensor"):
        run_pass(Overwrite(), model)


def test_an_error_of_the_pass_passes_through() -> None:
    with pytest.raises(PassError, match=r"'leak': node 'n': too large"):
        run_pass(Leak(), TEXT)


def test_an_invalid_model() -> None:
    model = model_from_text(TEXT)
    model.graph.node(0).op_type = "NoSuchOperator"
    with pytest.raises(VerificationError, match="NoSuchOperator"):
        run_pass(Nothing(), model)


def test_idempotence() -> None:
    once = assert_idempotent(Good(), TEXT)
    assert [node.op_type for node in once.graph] == ["Abs", "Add"]
    with pytest.raises(AssertionError, match=r"second run of 'grow'(.|\n)*once:(.|\n)*twice:"):
        assert_idempotent(Grow(), TEXT)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("g (float[n] x) => (float[n] y) { y = Relu(x }", "does not parse"),
        ("g (float[n] x) => (float[n] y) { y = Relu(z) }", "checker rejects"),
        ("g (float[n] x) => (double[n] y) { y = Relu(x) }", "checker rejects"),
        ("g (float[n] x) => (float[n] y) { y = NoSuchOperator(x) }", "checker rejects"),
    ],
)
def test_text_that_is_no_model(text: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        model_from_text(text)


def test_text_of_a_whole_model() -> None:
    text = '<ir_version: 8, opset_import: ["" : 13]> g (float x) => (float y) { y = Relu(x) }'
    model = model_from_text(text)
    assert model.ir_version == 8
    assert model.opset_imports == {"": 13}
    assert model_from_text("g (float x) => (float y) { y = Relu(x) }", opset=20).opset_imports == {
        "": 20
    }
    assert "Relu" in model_to_text(model)
