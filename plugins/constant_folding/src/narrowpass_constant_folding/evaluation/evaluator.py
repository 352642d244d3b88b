"""Evaluates calls with onnx's reference operators, within bounds of memory and time.

What is too slow there is evaluated on the target backend.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from narrowpass import Accept, Bundle, CompileOptions
from narrowpass.errors import NarrowpassError
from narrowpass_constant_folding.evaluation.calls import Array, Call, Operand
from narrowpass_constant_folding.evaluation.inference import Inference
from narrowpass_constant_folding.evaluation.undefined import JUDGED, undefined
from narrowpass_ir.subgraphs import nested_graphs
from narrowpass_reference import replacement

if TYPE_CHECKING:
    from narrowpass import Backend, Context


_MOST_STEPS = 20_000
_MOST_INNER_BYTES = 1 << 28
_CACHED = 1024


class EvaluationError(Exception):
    """A call whose evaluation raised; the message is the cause."""


class TooMuchWorkError(Exception):
    """A call whose evaluation would take too many steps or too much memory."""


class UndefinedError(Exception):
    """A call whose result ONNX leaves undefined; the message says why."""


class Evaluation:
    """Evaluates the calls of one model, remembering the prepared form of equal ones."""

    def __init__(self, model: ir.Model, inference: Inference) -> None:
        """Take the model for its functions, which calls may name."""
        self._model = model
        self._functions: list[ReferenceEvaluator] | None = None
        self._budget = _Budget(inference)
        self._evaluator = type("_Bounded", (_BoundedEvaluator,), {"budget": self._budget})
        self._known: dict[object, ReferenceEvaluator] = {}

    def run(self, call: Call) -> dict[str, Any]:
        """Return the results of `call` by name.

        A result is an array, or what the reference operator gave in place of one (a list for a
        sequence, None for an empty optional).

        Raises:
            EvaluationError: the operator's implementation raised, or there is none.
            TooMuchWorkError: a subgraph or function went over the bounds.
            UndefinedError: the result of a node in a subgraph or function is undefined.
        """
        self._budget.begin(call.opsets)
        try:
            with np.errstate(all="ignore"):
                feeds = {name: operand.read() for name, operand in call.operands.items()}
                results = _run(self._prepared(call), call, feeds)
        except (TooMuchWorkError, UndefinedError):
            raise
        except Exception as error:  # the boundary to foreign code, which raises anything
            raise EvaluationError(_describe(error)) from error
        return results

    def _prepared(self, call: Call) -> ReferenceEvaluator:
        found = self._known.get(call.key)
        if found is not None:
            return found
        inputs = [onnx.helper.make_value_info(name, proto) for name, proto in call.types().items()]
        graph = onnx.helper.make_graph([call.node], "call", inputs, [])
        prepared: ReferenceEvaluator = self._evaluator(
            graph, opsets=dict(call.opsets), functions=self._function_evaluators() or None
        )
        if len(self._known) >= _CACHED:
            self._known.clear()
        self._known[call.key] = prepared
        return prepared

    def _function_evaluators(self) -> list[ReferenceEvaluator]:
        """Prepare the model's functions, callees before callers."""
        if self._functions is not None:
            return self._functions
        self._functions = []
        for function in _callees_first(self._model):
            proto = ir.serde.serialize_function(function, create_value_info=False)
            self._functions.append(self._evaluator(proto, functions=list(self._functions) or None))
        return self._functions


def _run(prepared: ReferenceEvaluator, call: Call, feeds: dict[str, Any]) -> dict[str, Any]:
    (node,) = prepared.rt_nodes_
    if node.need_context():  # it has subgraphs, which look captured values up by name
        names = [name for name in call.results if name]
        return dict(zip(names, prepared.run(names, feeds), strict=True))
    values = node.run(*(feeds.get(name) for name in call.node.input))
    return {name: value for name, value in zip(call.results, values, strict=False) if name}


def _callees_first(model: ir.Model) -> Iterator[ir.Function]:
    done: set[ir.OperatorIdentifier] = set()

    def visit(key: ir.OperatorIdentifier) -> Iterator[ir.Function]:
        if key in done or key not in model.functions:
            return
        done.add(key)
        function = model.functions[key]
        for graph in nested_graphs(function.graph):
            for node in graph:
                yield from visit(node.op_identifier())
        # The evaluator knows functions by domain and name; overloads are never folded.
        if not function.overload:
            yield function

    for key in model.functions:
        yield from visit(key)


class _Budget:
    """What is left of the bounds of one evaluation."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self._steps = 0
        self.depth = 0

    def begin(self, opsets: Mapping[str, int]) -> None:
        self._steps = 0
        self.depth = 0
        self._opsets = opsets

    def spend(self, node: onnx.NodeProto, inputs: tuple[Any, ...]) -> None:
        """Count a step within a subgraph or function; raise where a bound would be passed."""
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise TooMuchWorkError(f"it takes more than {_MOST_STEPS} steps")
        if all(isinstance(value, np.ndarray) for value in inputs):
            call = _inner_call(node, inputs, self._opsets)
            known = self._inference.results(call).values()
            size = sum(result.nbytes or 0 for result in known)
            if size > _MOST_INNER_BYTES:
                raise TooMuchWorkError(f"{node.op_type} within it would take {size} bytes")
        if node.op_type in JUDGED:
            reason = undefined(node, self._opsets.get("", 0), inputs)
            if reason:
                raise UndefinedError(f"{node.op_type} within it: {reason}")


def _inner_call(node: onnx.NodeProto, inputs: tuple[Array, ...], opsets: Mapping[str, int]) -> Call:
    proto = onnx.NodeProto()
    proto.CopyFrom(node)
    operands = {}
    for index, array in enumerate(inputs):
        tensor = None if array.dtype == object else ir.Tensor(array)
        dtype = ir.DataType.STRING if tensor is None else tensor.dtype
        operands[f"#{index}"] = Operand(dtype, array.shape, tensor)
    del proto.input[:]
    proto.input.extend(operands)
    data = proto.SerializeToString(deterministic=True)
    return Call(proto, opsets, operands, tuple(proto.output), data)


class _BoundedEvaluator(ReferenceEvaluator):
    """Lets each nested node ask the budget before it runs.

    Where onnx's implementation of an operator is wrong or lacks a version, it takes the one of the
    backend ``reference``.
    """

    budget: ClassVar[_Budget]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rt_nodes_ = [_Bounded(node, self.budget) for node in self.rt_nodes_]

    def _load_impl(self, node: onnx.NodeProto, input_types: Any = None) -> Any:
        ours = replacement(node.domain, node.op_type, self.opsets.get(node.domain, 0))
        return ours or super()._load_impl(node, input_types)


class _Bounded:
    """A prepared node that asks the budget before it runs, except for the outermost one."""

    def __init__(self, node: Any, budget: _Budget) -> None:
        self._node = node
        self._budget = budget

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def run(self, *inputs: Any, **kwargs: Any) -> Any:
        if self._budget.depth:
            self._budget.spend(self._node.onnx_node, inputs)
        self._budget.depth += 1
        try:
            return self._node.run(*inputs, **kwargs)
        finally:
            self._budget.depth -= 1


def _describe(error: BaseException) -> str:
    """Return the first cause of an error, on one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


_REFERENCE = "reference"


class BackendEvaluation:
    """Evaluates calls that are too slow in the reference evaluator."""

    def __init__(self, target: Backend) -> None:
        """Take the backend that evaluates."""
        self._target = target

    @classmethod
    def of(cls, ctx: Context) -> BackendEvaluation | None:
        """Return the evaluation on the target; None without a target, or for `reference`."""
        target = ctx.target
        if target is None or target.name == _REFERENCE or target.available() is not None:
            return None
        return cls(target)

    def accepts(self, node: ir.Node) -> bool:
        """Whether the backend runs the node itself."""
        return isinstance(self._target.supports(node), Accept)

    def run(self, call: Call) -> dict[str, Any]:
        """Return the results of `call` by name.

        Raises:
            EvaluationError: the backend could not compile or run it.
        """
        inputs = [onnx.helper.make_value_info(name, proto) for name, proto in call.types().items()]
        names = [name for name in call.results if name]
        outputs = [onnx.ValueInfoProto(name=name) for name in names]
        graph = onnx.helper.make_graph([call.node], "call", inputs, outputs)
        imports = [onnx.helper.make_opsetid(*pair) for pair in call.opsets.items()]
        model = ir.from_proto(onnx.helper.make_model(graph, opset_imports=imports))
        feeds = {name: operand.read() for name, operand in call.operands.items()}
        # Kernels are constants, which is what backends have kernels for; the data is fed.
        for name in list(call.node.input)[1:]:
            if name in feeds and name != call.node.input[0]:
                value = next(value for value in model.graph.inputs if value.name == name)
                value.const_value = ir.tensor(feeds.pop(name), name=name)
                model.graph.inputs.remove(value)
                model.graph.initializers[name] = value
        options = CompileOptions(cache=False)
        try:
            with self._target.compile(Bundle({"main": model}), options) as program:
                return dict(program.run(feeds, outputs=names))
        except NarrowpassError as error:
            raise EvaluationError(f"{self._target.name}: {error}") from error
