"""The pass ``repair-quantized``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import onnx_ir as ir

from narrowpass import Pass, PassResult
from narrowpass.ir.constants import constant_tensor
from narrowpass.ir.inference import inferred
from narrowpass.ir.movement import SELECTION
from narrowpass.ir.subgraphs import Opsets, nested_graphs
from narrowpass.runtime.quantization import QuantizationSpec, Violation
from narrowpass_int8_sym.repair import (
    activations,
    biases,
    checks,
    data_movement,
    dynamic,
    forms,
    integers,
    operators,
    rewriting,
    weights,
)
from narrowpass_int8_sym.repair.editing import Editor
from narrowpass_int8_sym.repair.quantization import UINT8, Quantization, is_node, of_conversion
from narrowpass_int8_sym.repair.report import Report

if TYPE_CHECKING:
    from narrowpass import Context


@dataclass(frozen=True)
class RepairQuantized(Pass):
    """Write a quantized model in the one form that backends take, and hold it to their limits.

    Operators that are quantized by themselves (QLinearConv, QGemm, MatMulInteger, ...) become float
    ones between DequantizeLinear and QuantizeLinear; weights become signed bytes with the zero
    point 0, activations signed bytes; operators that must have one quantization get it. All numbers
    that integers stand for stay the same. Sums of products, which were 32-bit integers, are rounded
    to float32: a result may differ by one step. What cannot be repaired without loss is left as it
    is, and the report says which limit it breaks, by how much. Inputs and outputs keep their types.

    Attributes:
        dynamic: what becomes of MatMulInteger and the like, whose activations are quantized at run
            time: ``rows`` for float operators that read bytes, where the target quantizes each row
            by its own range; ``keep`` to leave them as they are, for a target that computes them.
        clamp_weights: whether integers of weights beyond what the target takes, such as -128, are
            clamped where nothing else can be done. The report says how far that moves each weight.
    """

    name: ClassVar[str] = "repair-quantized"
    dynamic: Literal["rows", "keep"] = "rows"
    clamp_weights: bool = False

    def run(self, model: ir.Model, ctx: Context) -> PassResult:
        """Repair the model.

        Counters: ``repaired`` (nodes that were rewritten), ``int8`` (operators that keep all
        limits), ``left`` (what stays float). One warning says why, for all of them.
        """
        spec = QuantizationSpec() if ctx.target is None else ctx.target.quantization_spec()
        report = Report(ctx, Opsets(model))
        run = _Run(
            model,
            Editor(model),
            report,
            spec,
            self.clamp_weights,
            self.dynamic == "rows",
        )
        run.read_forms()
        with inferred(model):
            run.store_constants()
            run.move_integers()
            run.sign()
            run.settle()
            run.check()
        report.warn()
        return PassResult(model, run.editor.modified)


def _feeds_integers(node: ir.Node) -> bool:
    """Return whether a weight is multiplied with activations that are quantized."""
    readers = [user for value in node.outputs for user, _ in value.uses()]
    return any(operators.operator_of(user) is not None for user in readers)


def _is_quantized(node: ir.Node) -> bool:
    """Return whether a node makes or reads integers that stand for numbers."""
    name = node.op_type
    return name.startswith(("QLinear", "QGemm", "DynamicQuantize")) or name.endswith(
        ("QuantizeLinear", "DequantizeLinear", "MatMulInteger", "ConvInteger")
    )


@dataclass(frozen=True)
class _Run:
    """One run over a model."""

    model: ir.Model
    editor: Editor
    report: Report
    spec: QuantizationSpec
    clamp: bool
    dynamic: bool

    def read_forms(self) -> None:
        """Write what is quantized by itself with Q/DQ."""
        version = self.model.opset_imports.get("", 1)
        rows = self.spec.per_token.operators
        for node in self._nodes():
            if rewriting.is_microsoft_conversion(node):
                self._report(node, rewriting.rewrite_conversion(self.editor, node, version), "")
                continue
            weighted = dynamic.weighted_node_of(node, version) if self.dynamic else None
            if isinstance(weighted, dynamic.WeightedNode):
                made = dynamic.rewrite(self.editor, weighted, rows)
                self.report.repaired(made, f"{node.op_type} with Q/DQ")
                continue
            form = forms.form_of(node, version)
            problem = weighted if isinstance(weighted, str) else form
            if isinstance(form, forms.Form):
                problem = rewriting.obstacle(form, version)
                if problem:
                    self._measure(node, form)
                else:
                    made = rewriting.rewrite(self.editor, node, form)
                    self.report.repaired(made, f"{node.op_type} with Q/DQ")
            if isinstance(problem, str) and problem:
                self.report.left(node, problem)

    def store_constants(self) -> None:
        """Keep the integers of constants that the model quantizes."""
        for node in self._nodes("QuantizeLinear"):
            if constant_tensor(node.inputs[0]) is not None:
                self._report(node, weights.store(self.editor, node), "its integers are kept")

        for node in self._nodes("Transpose"):
            if weights.transpose(self.editor, node):
                self.report.repaired(node, "its weight is stored as it orders it")

    def move_integers(self) -> None:
        """Let operators that move integers work on numbers."""
        for node in self._nodes(*SELECTION, "Clip"):
            source = node.inputs[0] if node.inputs else None
            producer = None if source is None else source.producer()
            how = activations.known(producer, "QuantizeLinear")
            if how is None or how.axis is not None:
                continue
            change: Callable[[Editor, ir.Node, Quantization], str]
            change = integers.rewrite_clip if node.op_type == "Clip" else integers.rewrite_moving
            self._report(node, change(self.editor, node, how), "it works on numbers")

    def sign(self) -> None:
        """Let bytes be signed: weights with the zero point 0, activations with any."""
        for node in self._nodes("DequantizeLinear"):
            how = of_conversion(node)
            source = node.inputs[0]
            if isinstance(how, str):
                if constant_tensor(source) is not None and not _feeds_integers(node):
                    self.report.floating(node, how)  # weights alone: nobody meant to sum integers
                elif source is None or not is_node(source.producer(), "DynamicQuantizeLinear"):
                    self.report.left(node, how)
            elif constant_tensor(source) is not None:
                self._sign_constant(node, how)
        if self.spec.activations.dtype != "int8":
            return
        for node in self._nodes("QuantizeLinear"):
            found = of_conversion(node)
            if isinstance(found, str):
                self.report.left(node, found)
            elif constant_tensor(node.inputs[0]) is not None:
                continue  # it is told already why its integers could not be kept
            elif found.dtype == UINT8 and not self._is_fixed(node):
                self._count(node, activations.sign_result(self.editor, node, found))
        for node in self._nodes("DequantizeLinear"):
            own = activations.known(node, "DequantizeLinear")
            if own is None or own.dtype != UINT8 or constant_tensor(node.inputs[0]) is not None:
                continue
            source = node.inputs[0]
            producer = None if source is None else source.producer()
            if not is_node(producer, "QuantizeLinear") or self._is_fixed(producer):
                self._count(node, activations.sign_operand(self.editor, node, own))

    def settle(self) -> None:
        """Let biases and operators of one quantization have what they must have."""
        for node in self._nodes():
            operator = operators.operator_of(node)
            if not isinstance(operator, operators.Operator):
                continue
            for done in (
                biases.repair(self.editor, operator),
                data_movement.repair(self.editor, operator, self.spec),
                data_movement.fix(self.editor, operator, self.spec),
                data_movement.follow(self.editor, operator, self.spec),
            ):
                if isinstance(done, Violation):
                    self.report.broken(node, done)
                elif done is not None:
                    self.report.repaired(node, done)

    def check(self) -> None:
        """Hold all that is quantized to the limits."""
        for node in self._nodes():
            operator = operators.operator_of(node)
            if isinstance(operator, str):
                self.report.floating(node, operator)
            elif operator is not None:
                self._judge(operator)
            elif is_node(node, "QuantizeLinear") and data_movement.is_conversion(node):
                self._judge_conversion(node)

        for function in self.model.functions.values():
            for node in function.all_nodes():
                if _is_quantized(node):
                    self.report.left(node, f"it stands in function {function.name!r}")

    def _judge(self, operator: operators.Operator) -> None:
        found = checks.problems(operator, self.spec)
        if not operator.results and not operator.is_weighted and not found:
            self.report.floating(operator.node, operators.NOT_QUANTIZED)
            return
        # The sums of a product of integers may be scaled to floats.
        note = "" if operator.results else "its result stays float"
        self._judged(operator.node, found, note)

    def _measure(self, node: ir.Node, form: forms.Form) -> None:
        """Tell which limits a node breaks that is left as it is, for a reason of its own."""
        for problem in checks.problems(operators.of_form(node, form), self.spec):
            if isinstance(problem, Violation):
                self.report.broken(node, problem)

    def _judge_conversion(self, node: ir.Node) -> None:
        source = node.inputs[0]
        before = None if source is None else source.producer()
        hows = (
            activations.known(before, "DequantizeLinear"),
            activations.known(node, "QuantizeLinear"),
        )
        if hows[0] is None or hows[1] is None:
            return
        if hows[0].is_same(hows[1]):
            return  # at the border of the model, or of what the backend takes
        self._judged(node, checks.conversion_problems(hows[0], hows[1], self.spec))

    def _judged(self, node: ir.Node, found: list[Violation | str], note: str = "") -> None:
        for problem in found:
            if isinstance(problem, Violation):
                self.report.broken(node, problem)
            else:
                self.report.left(node, problem)
        if not found:
            self.report.int8(node, note)

    def _sign_constant(self, node: ir.Node, how: Quantization) -> None:
        if weights.is_weight(node):
            done = weights.repair(self.editor, node, how, self.spec, clamp=self.clamp)
            if isinstance(done, str):
                self.report.repaired(node, done)
            elif done is not None and not _feeds_integers(node):
                self.report.broken(node, done)  # no operator on integers will say so
        elif how.dtype == UINT8:
            weights.shift(self.editor, node, how)
            self._count(node, changed=True)

    def _is_fixed(self, node: ir.Node | None) -> bool:
        """Return whether a QuantizeLinear makes what its operator must make, as it is."""
        source = None if node is None else node.inputs[0]
        producer = None if source is None else source.producer()
        if node is None or producer is None or producer.domain:
            return False
        fixed = self.spec.output(producer.op_type)
        if fixed is None:
            return False
        how = of_conversion(node)
        return isinstance(how, Quantization) and how.dtype.name.lower() == fixed.dtype

    def _count(self, node: ir.Node, changed: bool) -> None:
        if changed:
            self.report.repaired(node, "its integers are signed")

    def _report(self, node: ir.Node, problem: str, done: str) -> None:
        if problem:
            self.report.left(node, problem)
        else:
            self.report.repaired(node, done or f"{node.op_type} of ONNX's own operators")

    def _nodes(self, *kinds: str) -> list[ir.Node]:
        """Return the nodes of all graphs, but those of functions, in order."""
        return [
            node
            for graph in nested_graphs(self.model.graph)
            for node in graph
            if not kinds or is_node(node, *kinds)
        ]
