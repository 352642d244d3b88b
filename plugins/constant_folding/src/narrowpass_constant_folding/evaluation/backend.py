"""Evaluates calls on the target backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir

from narrowpass import Accept, Bundle, CompileOptions
from narrowpass.errors import NarrowpassError
from narrowpass_constant_folding.evaluation.calls import Call
from narrowpass_constant_folding.evaluation.evaluator import EvaluationError

if TYPE_CHECKING:
    from narrowpass import Backend, Context

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
