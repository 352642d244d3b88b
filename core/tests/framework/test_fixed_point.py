from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir
import pytest

from narrowpass import Context, Decision, FixedPoint, Pass, PassResult, Pipeline
from narrowpass.errors import PassError
from narrowpass_ir.verify import fingerprint

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[4] x) => (float[4] y) { a = Neg(x)  b = Neg(a)  c = Abs(b)  d = Neg(c)  y = Neg(d) }
"""


@pytest.fixture
def model():
    return ir.from_onnx_text(MODEL)


@dataclass(frozen=True)
class Rename(Pass):
    """Turns one node of a type into another at a time."""

    name: ClassVar[str] = "rename"
    old: str = "Neg"
    new: str = "Relu"

    def run(self, model, ctx):
        found = [node for node in model.graph if node.op_type == self.old]
        for node in found[1:]:
            ctx.counters["left"] += 1
            ctx.decisions.append(Decision(node.name, "", "left", "rename", open=True))
        if not found:
            return PassResult(model, modified=False)
        found[0].op_type = self.new
        ctx.counters["renamed"] += 1
        ctx.decisions.append(Decision(found[0].outputs[0].name, "", "renamed", "rename"))
        return PassResult(model, modified=True)


@dataclass(frozen=True)
class Both(FixedPoint):
    """Two renamings, of which the second adds work for the first."""

    name: ClassVar[str] = "both"
    most_rounds: ClassVar[int] = 20
    back: str = "Sqrt"

    def parts(self):
        return (Rename("Neg", "Relu"), Rename("Abs", self.back))


def types(model):
    return [node.op_type for node in model.graph]


def test_the_parts_run_until_none_changes_the_model(model):
    ctx = Context()
    result = Both().run(model, ctx)
    assert result.modified
    assert types(result.model) == ["Relu", "Relu", "Sqrt", "Relu", "Relu"]
    assert ctx.counters["renamed"] == 5
    assert [d.node for d in ctx.decisions if not d.open] == ["a", "c", "b", "d", "y"]


def test_what_was_left_open_counts_as_the_last_run_left_it(model):
    ctx = Context()
    Both().run(model, ctx)
    assert "left" not in ctx.counters
    assert not [d for d in ctx.decisions if d.open]


@dataclass(frozen=True)
class Leave(Pass):
    name: ClassVar[str] = "leave"

    def run(self, model, ctx):
        ctx.counters["kept"] += 1
        ctx.decisions.append(Decision("a", "", "kept", "leave", open=True))
        return PassResult(model, modified=False)


@dataclass(frozen=True)
class WithLeave(FixedPoint):
    name: ClassVar[str] = "with-leave"

    def parts(self):
        return (Leave(), Rename())


def test_an_open_decision_is_reported_once(model):
    ctx = Context()
    WithLeave().run(model, ctx)
    assert ctx.counters == {"renamed": 4, "kept": 1}
    assert [d.decision for d in ctx.decisions] == ["renamed"] * 4 + ["kept"]
    assert "open" not in ctx.decisions[-1].to_json()


def test_nothing_to_do_is_no_change(model):
    Both().run(model, Context())
    before = fingerprint(model)
    result = Both().run(model, Context())
    assert not result.modified
    assert fingerprint(model) == before


def test_parts_that_undo_each_other_are_an_error_that_names_them(model):
    @dataclass(frozen=True)
    class Endless(FixedPoint):
        name: ClassVar[str] = "endless"

        def parts(self):
            return (Rename("Neg", "Abs"), Rename("Abs", "Neg"))

    with pytest.raises(PassError, match="after 100 rounds of rename, rename: two of them undo"):
        Endless().run(model, Context())


@dataclass(frozen=True)
class Liar(Pass):
    name: ClassVar[str] = "liar"
    has_result: bool = True

    def run(self, model, ctx):
        model.graph[0].op_type = "Abs"
        return PassResult(model, modified=False) if self.has_result else None


@dataclass(frozen=True)
class WithLiar(FixedPoint):
    name: ClassVar[str] = "with-liar"
    has_result: bool = True

    def parts(self):
        return (Rename("Sqrt", "Exp"), Liar(self.has_result))


def test_a_strict_run_checks_each_part(model):
    pipeline = Pipeline((WithLiar(),))
    assert not pipeline.run(model, Context()).modified
    with pytest.raises(PassError, match=r"pass 'with-liar': part 'liar': it changed the model"):
        pipeline.run(model, Context(), strict=True)


def test_a_part_that_returns_no_result_is_named(model):
    with pytest.raises(PassError, match=r"part 'liar\{has-result=false\}': it gave None"):
        WithLiar(has_result=False).run(model, Context())


def test_each_part_is_timed_in_the_log(model, caplog):
    with caplog.at_level(logging.DEBUG, "narrowpass"):
        Both().run(model, Context())
    assert "both: round 1: rename: 0.0" in caplog.text
    assert "both: round 5: rename: 0.0" in caplog.text
    assert ", no change" in caplog.text


def test_the_signature_may_change_if_a_part_may_change_it():
    @dataclass(frozen=True)
    class Narrow(Rename):
        @property
        def may_change_signature(self):
            return True

    @dataclass(frozen=True)
    class WithNarrow(FixedPoint):
        name: ClassVar[str] = "with-narrow"

        def parts(self):
            return (Rename(), Narrow())

    assert WithNarrow().may_change_signature
    assert not Both().may_change_signature
