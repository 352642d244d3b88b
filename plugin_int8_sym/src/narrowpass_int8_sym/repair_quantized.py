"""The pass ``repair-quantized``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import onnx_ir as ir

from narrowpass import Pass, PassResult
from narrowpass.runtime.quantization import QuantizationSpec, Violation
from narrowpass_int8_sym.repair import (
    activations,
    biases,
    checks,
    data_movement,
    dynamic,
    operators,
    qoperator,
    weights,
)
from narrowpass_int8_sym.repair.editing import Editor
from narrowpass_int8_sym.repair.quantization import UINT8, Quantization, is_node, read_qdq
from narrowpass_int8_sym.repair.report import Report
from narrowpass_ir.constants import constant_tensor
from narrowpass_ir.inference import inferred
from narrowpass_ir.movement import SELECTION
from narrowpass_ir.subgraphs import Opsets, nested_graphs

if TYPE_CHECKING:
    from narrowpass import Context


@dataclass(frozen=True)
class RepairQuantized(Pass):
    """Rewrite a quantized model to Q/DQ with symmetric int8 weights, within limits of the target.

    QOperator nodes (QLinearConv, QGemm, MatMulInteger, ...) become float operators between
    DequantizeLinear and QuantizeLinear; weights become int8 with the zero point 0, activations
    int8; data movement operators get one quantization on both sides. Dequantized values stay the
    same. Accumulators, which were int32, are rounded to float32: a result may differ by one step. A
    node that cannot be repaired losslessly is not changed, and the report has the limit that it
    breaks and the measured value. Inputs and outputs keep their types.

    Attributes:
        dynamic: what replaces MatMulInteger and the like, whose activations are quantized at run
            time: ``rows`` for float operators with int8 weights and dynamic per-token quantization
            by the target; ``keep`` to leave them unchanged, for a target that supports them.
        clamp_weights: whether integers of weights out of the target's range, such as -128, are
            clamped where no exact form exists. The report has the error that this adds.
    """

    name: ClassVar[str] = "repair-quantized"
    dynamic: Literal["rows", "keep"] = "rows"
    clamp_weights: bool = False

    def run(self, model: ir.Model, ctx: Context) -> PassResult:
        """Repair the model.

        Counters: ``repaired`` (nodes that were rewritten), ``int8`` (operators within all limits),
        ``left`` (nodes that stay float). One warning has the reasons of all of them.
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
        run.rewrite_qoperators()
        with inferred(model):
            run.fold_constant_quantization()
            run.rewrite_data_movement()
            run.convert_to_int8()
            run.unify_quantization()
            run.check()
        report.warn()
        return PassResult(model, run.editor.modified)


def _feeds_integers(node: ir.Node) -> bool:
    """Return whether a weight is an operand of an operator with quantized activations."""
    readers = [user for value in node.outputs for user, _ in value.uses()]
    return any(operators.operator_of(user) is not None for user in readers)


def _is_quantized(node: ir.Node) -> bool:
    """Return whether a node computes with quantized integers, or is a Q/DQ node."""
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

    def rewrite_qoperators(self) -> None:
        """Rewrite QOperator nodes and dynamically quantized operators to Q/DQ."""
        version = self.model.opset_imports.get("", 1)
        rows = self.spec.per_token.operators
        for node in self._nodes():
            if qoperator.is_microsoft_conversion(node):
                self._report(node, qoperator.rewrite_conversion(self.editor, node, version), "")
                continue
            weighted = dynamic.match_dynamic(node, version) if self.dynamic else None
            if isinstance(weighted, dynamic.DynamicOperator):
                operator = dynamic.rewrite(self.editor, weighted, rows)
                self.report.repaired(operator, f"{node.op_type} with Q/DQ")
                continue
            form = qoperator.read_qoperator(node, version)
            problem = weighted if isinstance(weighted, str) else form
            if isinstance(form, qoperator.QOperator):
                problem = qoperator.obstacle(form, version)
                if problem:
                    self._report_violations(node, form)
                else:
                    operator = qoperator.rewrite(self.editor, node, form)
                    self.report.repaired(operator, f"{node.op_type} with Q/DQ")
            if isinstance(problem, str) and problem:
                self.report.left(node, problem)

    def fold_constant_quantization(self) -> None:
        """Fold QuantizeLinear and Transpose of constants."""
        for node in self._nodes("QuantizeLinear"):
            if constant_tensor(node.inputs[0]) is not None:
                self._report(
                    node,
                    weights.fold_quantize(self.editor, node),
                    "its constant is stored as integers",
                )

        for node in self._nodes("Transpose"):
            if weights.fold_transpose(self.editor, node):
                self.report.repaired(node, "its weight is stored transposed")

    def rewrite_data_movement(self) -> None:
        """Rewrite data movement of integers to data movement of floats between Q/DQ."""
        for node in self._nodes(*SELECTION, "Clip"):
            source = node.inputs[0] if node.inputs else None
            producer = None if source is None else source.producer()
            how = activations.qdq_quantization(producer, "QuantizeLinear")
            if how is None or how.axis is not None:
                continue
            change: Callable[[Editor, ir.Node, Quantization], str]
            change = (
                data_movement.rewrite_clip
                if node.op_type == "Clip"
                else data_movement.rewrite_data_movement
            )
            self._report(node, change(self.editor, node, how), "it moves floats between Q/DQ")

    def convert_to_int8(self) -> None:
        """Convert uint8 to int8: weights with the zero point 0, activations with any."""
        for node in self._nodes("DequantizeLinear"):
            how = read_qdq(node)
            source = node.inputs[0]
            if isinstance(how, str):
                if constant_tensor(source) is not None and not _feeds_integers(node):
                    self.report.floating(node, how)  # weight-only: there is no integer arithmetic
                elif source is None or not is_node(source.producer(), "DynamicQuantizeLinear"):
                    self.report.left(node, how)
            elif constant_tensor(source) is not None:
                self._sign_constant(node, how)
        if self.spec.activations.dtype != "int8":
            return
        for node in self._nodes("QuantizeLinear"):
            found = read_qdq(node)
            if isinstance(found, str):
                self.report.left(node, found)
            elif constant_tensor(node.inputs[0]) is not None:
                continue  # `fold_constant_quantization` has reported why it was not folded
            elif found.dtype == UINT8 and not self._is_fixed(node):
                self._count(node, activations.sign_result(self.editor, node, found))
        for node in self._nodes("DequantizeLinear"):
            own = activations.qdq_quantization(node, "DequantizeLinear")
            if own is None or own.dtype != UINT8 or constant_tensor(node.inputs[0]) is not None:
                continue
            source = node.inputs[0]
            producer = None if source is None else source.producer()
            if not is_node(producer, "QuantizeLinear") or self._is_fixed(producer):
                self._count(node, activations.sign_operand(self.editor, node, own))

    def unify_quantization(self) -> None:
        """Rescale biases, and unify the quantization of data movement operators."""
        for node in self._nodes():
            operator = operators.operator_of(node)
            if not isinstance(operator, operators.Operator):
                continue
            for done in (
                biases.rescale(self.editor, operator),
                data_movement.unify(self.editor, operator, self.spec),
                data_movement.convert_to_fixed_result(self.editor, operator, self.spec),
                data_movement.quantize_like_operand(self.editor, operator, self.spec),
            ):
                if isinstance(done, Violation):
                    self.report.broken(node, done)
                elif done is not None:
                    self.report.repaired(node, done)

    def check(self) -> None:
        """Check all quantized operators against the limits."""
        for node in self._nodes():
            operator = operators.operator_of(node)
            if isinstance(operator, str):
                self.report.floating(node, operator)
            elif operator is not None:
                self._check_operator(operator)
            elif is_node(node, "QuantizeLinear") and data_movement.is_conversion(node):
                self._check_conversion(node)

        for function in self.model.functions.values():
            for node in function.all_nodes():
                if _is_quantized(node):
                    self.report.left(node, f"it stands in function {function.name!r}")

    def _check_operator(self, operator: operators.Operator) -> None:
        found = checks.problems(operator, self.spec)
        if not operator.results and not operator.is_weighted and not found:
            self.report.floating(operator.node, operators.NOT_QUANTIZED)
            return
        # Accumulators may be dequantized to a float result.
        note = "" if operator.results else "its result stays float"
        self._report_check(operator.node, found, note)

    def _report_violations(self, node: ir.Node, form: qoperator.QOperator) -> None:
        """Report the limits that a QOperator node breaks which is not rewritten."""
        for problem in checks.problems(operators.operator_of_qoperator(node, form), self.spec):
            if isinstance(problem, Violation):
                self.report.broken(node, problem)

    def _check_conversion(self, node: ir.Node) -> None:
        source = node.inputs[0]
        before = None if source is None else source.producer()
        quantizations = (
            activations.qdq_quantization(before, "DequantizeLinear"),
            activations.qdq_quantization(node, "QuantizeLinear"),
        )
        if quantizations[0] is None or quantizations[1] is None:
            return
        if quantizations[0].is_same(quantizations[1]):
            return  # at an input or output of the model, or of the fixed type of an operator
        self._report_check(
            node, checks.conversion_problems(quantizations[0], quantizations[1], self.spec)
        )

    def _report_check(self, node: ir.Node, found: list[Violation | str], note: str = "") -> None:
        for problem in found:
            if isinstance(problem, Violation):
                self.report.broken(node, problem)
            else:
                self.report.left(node, problem)
        if not found:
            self.report.int8(node, note)

    def _sign_constant(self, node: ir.Node, how: Quantization) -> None:
        if weights.is_weight(node):
            done = weights.symmetrize(self.editor, node, how, self.spec, clamp=self.clamp)
            if isinstance(done, str):
                self.report.repaired(node, done)
            elif done is not None and not _feeds_integers(node):
                self.report.broken(node, done)  # no int8 operator will report it
        elif how.dtype == UINT8:
            weights.shift_to_int8(self.editor, node, how)
            self._count(node, changed=True)

    def _is_fixed(self, node: ir.Node | None) -> bool:
        """Return whether a QuantizeLinear already has the fixed type of its operator's result."""
        source = None if node is None else node.inputs[0]
        producer = None if source is None else source.producer()
        if node is None or producer is None or producer.domain:
            return False
        fixed = self.spec.output(producer.op_type)
        if fixed is None:
            return False
        how = read_qdq(node)
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
