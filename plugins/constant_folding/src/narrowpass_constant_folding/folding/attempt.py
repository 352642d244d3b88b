"""Folds one node: rules, size limit, evaluation; and what one sweep knows of constants and uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from narrowpass_constant_folding.evaluation.calls import (
    Call,
    Operand,
    create_call,
    operand_of,
    tensor_operand,
)
from narrowpass_constant_folding.evaluation.evaluator import (
    BackendEvaluation,
    Evaluation,
    EvaluationError,
    TooMuchWorkError,
    UndefinedError,
)
from narrowpass_constant_folding.evaluation.inference import UNKNOWN, Inference
from narrowpass_constant_folding.evaluation.results import (
    NoTensorError,
    ResultError,
    stored_bytes,
    to_tensor,
)
from narrowpass_constant_folding.evaluation.undefined import JUDGED, undefined
from narrowpass_constant_folding.folding.rules import Rules
from narrowpass_constant_folding.folding.sizes import (
    HELD_BYTES,
    TIME_RULE,
    SizeRule,
    refuse_early,
    too_large,
)
from narrowpass_constant_folding.graphs.constants import is_constant
from narrowpass_constant_folding.graphs.scopes import captured, is_used, roots
from narrowpass_constant_folding.report import Refusal
from narrowpass_constant_folding.shapes.values import ShapeValues
from narrowpass_ir.subgraphs import nested_graphs


class Values:
    """Constants and counts of uses, kept up to date while nodes are folded."""

    def __init__(self, model: ir.Model) -> None:
        """Count all uses of a model."""
        self._left: Counter[ir.Value] = Counter()
        self._constants: dict[ir.Value, Operand] = {}
        self._held: set[ir.Value] = set()
        for root in roots(model):
            for graph in nested_graphs(root.graph):
                for node in graph:
                    self._left.update(value for value in node.inputs if value is not None)

    def constant(self, value: ir.Value) -> Operand | None:
        """Return the operand of a value that is constant, else None."""
        found = self._constants.get(value)
        if found is None:
            found = tensor_operand(value)
            if found is not None:
                self._constants[value] = found
        return found

    def mark_constant(self, value: ir.Value, tensor: ir.TensorProtocol) -> None:
        """Mark a value as constant that is not stored; no bytes are freed with it."""
        self._constants[value] = Operand(tensor.dtype, tuple(tensor.shape.numpy()), tensor)
        self._held.add(value)

    def is_only_reader(self, value: ir.Value, uses: int) -> bool:
        """Whether a reader with so many uses is the only one."""
        return self._left[value] == uses and not value.is_graph_output()

    def freed_by(self, read: Counter[ir.Value]) -> int:
        """Return the bytes of the constants that are unused once these uses are gone."""
        freed = 0
        for value, uses in read.items():
            if value not in self._held and self.is_only_reader(value, uses):
                operand = self.constant(value)
                freed += operand.nbytes if operand else 0
        return freed

    def remove_uses(self, read: Counter[ir.Value]) -> None:
        """Subtract uses."""
        self._left.subtract(read)

    def move(self, old: ir.Value, new: ir.Value) -> None:
        """Add the uses of one value to those of another."""
        self._left[new] = self._left.pop(old, 0)


_INDEX_DTYPES = frozenset({ir.DataType.INT64, ir.DataType.INT32})
_NO_TENSOR = Refusal("no-tensor", "its result is no tensor; only tensors can be stored")


@dataclass(frozen=True)
class Folded:
    """A node that can be replaced by constants.

    Attributes:
        tensors: the values of its outputs; those that nothing reads are left out.
        read: what it reads, with the number of uses.
        measured: the bytes of `tensors`.
        limit: the most bytes that they could have taken.
        by: the rule that found it constant.
    """

    tensors: Mapping[ir.Value, ir.TensorProtocol]
    read: Counter[ir.Value]
    measured: int
    limit: int
    by: str


@dataclass(frozen=True)
class NotFolded:
    """A constant expression that is not folded.

    Attributes:
        read: what it reads, with the number of uses.
        refusal: why.
        held: values of its outputs, where these are known and only too large to be stored: what
            reads them may be small.
    """

    read: Counter[ir.Value]
    refusal: Refusal
    held: Mapping[ir.Value, ir.TensorProtocol] = field(default_factory=dict)


class Folder:
    """Evaluates nodes of one model, and caches refusals."""

    def __init__(
        self, model: ir.Model, sizes: SizeRule, rules: Rules, native: BackendEvaluation | None
    ) -> None:
        """Take the model, what must not be folded, and a backend for what is large."""
        self._native = native
        self._sizes = sizes
        self._rules = rules
        self._inference = Inference()
        self._evaluation = Evaluation(model, self._inference)
        self._shape_values = ShapeValues()
        self._failures: dict[ir.Node, Refusal] = {}
        self._measured: dict[ir.Node, int] = {}

    def attempt(
        self, node: ir.Node, opsets: Mapping[str, int], values: Values
    ) -> Folded | NotFolded | None:
        """Evaluate `node`.

        Args:
            node: changed in no way.
            opsets: the operator-set versions that it is read with.
            values: what is constant, and what folding the node would free.

        Returns:
            Its results, or why it is left alone; None where it is no constant expression.
        """
        if is_constant(node) or _is_inner_identity(node):
            return None
        if self._shape_values.has_rule(node):
            folded = self._from_shapes(node, opsets, values)
            if folded is not None:
                return folded
        reads = _operands(node, values)
        if reads is None:
            return None
        refusal = self._rules.refuse(node, opsets) or self._failures.get(node)
        if refusal:
            return NotFolded(reads.values, refusal)
        call = create_call(node, reads.inputs, reads.captured, opsets)
        largest = max((operand.nbytes for operand in reads.inputs if operand), default=0)
        limit = self._sizes.limit(node.op_type, values.freed_by(reads.values), largest)
        result = self._evaluate(node, call, limit)
        if isinstance(result, Refusal):
            return NotFolded(reads.values, result)
        measured = sum(stored_bytes(tensor) for tensor in result.values())
        if measured > limit:
            held = result if measured <= HELD_BYTES else {}
            return NotFolded(reads.values, too_large(measured, limit), held)
        data = any(operand.tensor is not None for operand in call.operands.values())
        by = "constant-inputs" if data else "static-shape"
        return Folded(result, reads.values, measured, limit, by)

    def _from_shapes(
        self, node: ir.Node, opsets: Mapping[str, int], values: Values
    ) -> Folded | None:
        """Fold integers that are known, perhaps though not all that they are computed from is."""
        output = node.outputs[0]
        if output.dtype not in _INDEX_DTYPES:
            return None
        elements = self._shape_values.elements(output)
        numbers = None if elements is None else elements.numbers
        if elements is None or numbers is None or self._rules.refuse(node, opsets):
            return None
        dtype = output.dtype.numpy()
        limits = np.iinfo(dtype)
        if any(not limits.min <= number <= limits.max for number in numbers):
            return None
        array = np.array(numbers, dtype).reshape((len(numbers),) if elements.rank else ())
        read = Counter(value for value in node.inputs if value and values.constant(value))
        limit = self._sizes.limit(node.op_type, values.freed_by(read))
        if array.nbytes > limit:
            return None
        data = len(read) == len(set(node.inputs)) and node.op_type not in ("Shape", "Size")
        by = "constant-inputs" if data else "static-shape"
        return Folded({output: ir.Tensor(array)}, read, array.nbytes, limit, by)

    def _evaluate(
        self, node: ir.Node, call: Call, limit: int
    ) -> dict[ir.Value, ir.TensorProtocol] | Refusal:
        needed = {
            name: value
            for name, value in zip(call.results, node.outputs, strict=True)
            if name and is_used(value)
        }
        if any(_declared_no_tensor(value) for value in needed.values()):
            return _NO_TENSOR
        if self._measured.get(node, 0) > limit:
            return too_large(self._measured[node], limit)
        inferred = self._inference.results(call)
        if not all(inferred.get(name, UNKNOWN).is_tensor for name in needed):
            return _NO_TENSOR
        refusal = refuse_early(call, inferred, tuple(needed), limit)
        native = self._native if refusal and refusal.rule == TIME_RULE else None
        if refusal and not (native and native.accepts(node)):
            return refusal
        refusal = self._refuse_undefined(node, call)
        if refusal:
            self._failures[node] = refusal
            return refusal
        try:
            results = (native or self._evaluation).run(call)
            tensors = {
                value: to_tensor(results[name], value, inferred.get(name, UNKNOWN))
                for name, value in needed.items()
            }
        except UndefinedError as error:
            refusal = Refusal("undefined", str(error), "failed")
        except TooMuchWorkError as error:
            refusal = Refusal("size-rule", str(error), "too-large")
        except EvaluationError as error:
            refusal = Refusal("evaluation", f"its evaluation raised {error}", "failed")
        except NoTensorError:
            refusal = _NO_TENSOR
        except ResultError as error:
            refusal = Refusal("evaluation", str(error), "failed")
        if refusal:
            self._failures[node] = refusal
            return refusal
        measured = sum(stored_bytes(tensor) for tensor in tensors.values())
        if measured > max(limit, HELD_BYTES):
            self._measured[node] = measured
        return tensors

    def _refuse_undefined(self, node: ir.Node, call: Call) -> Refusal | None:
        if node.domain or node.op_type not in JUDGED:
            return None
        inputs = [call.operands[name].read() if name else None for name in call.node.input]
        reason = undefined(call.node, call.opsets.get("", 0), inputs)
        return Refusal("undefined", reason, "failed") if reason else None


@dataclass(frozen=True)
class _Reads:
    inputs: list[Operand | None]
    captured: dict[str, Operand]
    values: Counter[ir.Value]


def _operands(node: ir.Node, known: Values) -> _Reads | None:
    """Return what the node is evaluated with, or None where something is not constant."""
    inputs: list[Operand | None] = []
    values: Counter[ir.Value] = Counter()
    for index, value in enumerate(node.inputs):
        if value is None:
            inputs.append(None)
            continue
        operand = operand_of(node, index, value, known.constant)
        if operand is None:
            return None
        inputs.append(operand)
        values[value] += 1
    outer: dict[str, Operand] = {}
    for value, uses in captured(node).items() if node.attributes else ():
        operand = known.constant(value)
        if operand is None or value.name is None:
            return None
        outer[value.name] = operand
        values[value] += uses
    return _Reads(inputs, outer, values)


def _declared_no_tensor(value: ir.Value) -> bool:
    return value.type is not None and not isinstance(value.type, ir.TensorType)


def _is_inner_identity(node: ir.Node) -> bool:
    # Bypassed elsewhere without storing anything; as a graph output it needs a value of its own.
    return (
        node.op_type == "Identity" and node.domain == "" and not node.outputs[0].is_graph_output()
    )
