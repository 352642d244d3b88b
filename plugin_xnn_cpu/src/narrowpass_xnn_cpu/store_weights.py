"""The pass ``store-weights``: float32 weights stored in 16 or 8 bits, cast back at run time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import ml_dtypes
import onnx_ir as ir

from narrowpass import Decision, Pass, PassResult
from narrowpass.errors import PassError
from narrowpass.runtime.processors import usable_processors
from narrowpass_ir.errors import UpgradeError
from narrowpass_ir.io import ConvertedTensor, rounding
from narrowpass_ir.subgraphs import nested_graphs, reserve_name
from narrowpass_ir.tensors.threads import ThreadPool
from narrowpass_ir.upgrading import upgrade

if TYPE_CHECKING:
    from narrowpass import Context

_TYPES = {
    "float16": ir.DataType.FLOAT16,
    "bfloat16": ir.DataType.BFLOAT16,
    "float8e4m3fn": ir.DataType.FLOAT8E4M3FN,
    "float8e5m2": ir.DataType.FLOAT8E5M2,
}
_LARGEST = {
    name: float(ml_dtypes.finfo(dtype.numpy()).max)  # type: ignore[no-untyped-call]  # it has no types
    for name, dtype in _TYPES.items()
}
_FIRST_OPSET = {"float16": 6, "bfloat16": 13, "float8e4m3fn": 19, "float8e5m2": 19}
"""The operator set from which Cast takes the type."""

_TOLERANCE = {"float16": 4e-3, "bfloat16": 4e-3, "float8e4m3fn": 0.04, "float8e5m2": 0.08}
"""Default tolerances: relative rounding errors of a weight that are accepted."""

_LEAST = 1024
"""Elements of a weight, at least; for fewer, the Cast costs about as much as it saves."""

_WEIGHTS = {
    "MatMul": (0, 1),
    "Gemm": (0, 1),
    "Conv": (1,),
    "ConvTranspose": (1,),
    "Gather": (0,),
    "GRU": (1, 2),
    "LSTM": (1, 2),
    "RNN": (1, 2),
}
"""Input indices of the weights of linear and recurrent layers, convolutions and embeddings."""

_PASSED_ON = {"Transpose", "Reshape", "Identity"}
"""Operators that may come between a weight and the node that uses it."""


@dataclass(frozen=True)
class StoreWeights(Pass):
    """Store float32 weights of matmuls, convolutions and embeddings in 16 or 8 bits.

    So are W and R of LSTM, GRU and RNN. Nothing else is narrowed: each becomes an initializer of
    `dtype` and a Cast to float32, so that any ONNX tool computes with the same numbers. Biases and
    other vectors stay as they are, and so does a weight with an element that the type cannot hold,
    or that loses too much in rounding.

    Attributes:
        dtype: ``float16``, ``bfloat16``, ``float8e4m3fn`` or ``float8e5m2``.
        tolerance: the error of a weight, relative to it (both as root mean squares), up to which
            it is rounded. Rounding alone causes 2.0e-4 in float16, 1.7e-3 in bfloat16, 2.6e-2 in
            float8e4m3fn and 5.3e-2 in float8e5m2; elements below the type's normal numbers add
            to it. By default 4e-3 for 16 bits, 0.04 for float8e4m3fn and 0.08 for float8e5m2.
    """

    name: ClassVar[str] = "store-weights"
    dtype: Literal["float16", "bfloat16", "float8e4m3fn", "float8e5m2"] = "float16"
    tolerance: float | None = None

    def run(self, model: ir.Model, ctx: Context) -> PassResult:
        """Replace initializers of all graphs; the elements are converted when they are written.

        Where the operator set has no Cast to the type, the model is written with one that has.

        Counters: ``stored``, ``kept``, ``saved_bytes``.

        Raises:
            PassError: the model's operator set has no Cast to the type, and cannot be upgraded.
        """
        found = [value for graph in nested_graphs(model.graph) for value in _weights(graph)]
        reasons = self._reasons(found)
        if any(not reason for reason, _, _ in reasons):
            upgraded = self._upgraded(model, ctx)
            if upgraded is not model:
                model = upgraded
                found = [value for graph in nested_graphs(model.graph) for value in _weights(graph)]
                reasons = self._reasons(found)
        taken = {part.name for graph in nested_graphs(model.graph) for part in _named(graph)}
        for value, (reason, measured, limit) in zip(found, reasons, strict=True):
            if reason:
                ctx.counters["kept"] += 1
                decision = "kept"
            else:
                ctx.counters["stored"] += 1
                ctx.counters["saved_bytes"] += _store(value, _TYPES[self.dtype], taken)
                decision = self.dtype
            name = value.name or ""
            ctx.decisions.append(Decision(name, "", decision, self.name, reason, measured, limit))
        return PassResult(model, modified=any(not reason for reason, _, _ in reasons))

    def _reasons(self, values: Sequence[ir.Value]) -> list[tuple[str, float | None, float | None]]:
        with ThreadPool(min(4, usable_processors())) as pool:
            return list(pool.map(self._reason, values))

    def _upgraded(self, model: ir.Model, ctx: Context) -> ir.Model:
        """Return the model, upgraded to an operator set that has Cast to the type."""
        before, least = model.opset_imports.get("", 1), _FIRST_OPSET[self.dtype]
        if before >= least:
            return model
        reason = f"Cast knows {self.dtype} from operator set {least} on; the model has {before}"
        try:
            upgraded, changed = upgrade(model, least)
        except UpgradeError as error:
            raise PassError(f"{reason}: {error}") from error
        ctx.observer.log.info("store-weights: operator set %d becomes %d", before, least)
        ctx.decisions.extend(
            Decision(node.name or "", node.op_type, "upgraded", self.name, reason)
            for node in changed
        )
        return upgraded

    def _reason(self, value: ir.Value) -> tuple[str, float | None, float | None]:
        """Return why a weight stays float32 (empty if not), the measured value and its limit."""
        tensor = value.const_value
        if tensor is None:
            raise PassError(f"initializer {value.name!r} has no data")
        found = rounding(tensor, _TYPES[self.dtype])
        limit = _LARGEST[self.dtype]
        if found.largest > limit:
            return f"an element is too large for {self.dtype}", found.largest, limit
        if found.infinite and self.dtype == "float8e4m3fn":
            return f"an element is infinite, which {self.dtype} does not have", None, None
        tolerance = _TOLERANCE[self.dtype] if self.tolerance is None else self.tolerance
        relative = found.error
        if relative > tolerance:
            return f"it loses too much in {self.dtype}", relative, tolerance
        return "", relative, tolerance


def _named(graph: ir.Graph) -> Iterator[ir.Value | ir.Node]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield node
        yield from node.outputs


def _weights(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield the float32 initializers that are weights and can be stored in fewer bits."""
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is None or tensor.dtype != ir.DataType.FLOAT or tensor.size < _LEAST:
            continue
        fixed = value.is_graph_input() or value.is_graph_output()
        if not fixed and len(tensor.shape) > 1 and _is_weight(value):
            yield value


def _is_weight(value: ir.Value) -> bool:
    for node, index in value.uses():
        if node.domain:
            continue
        if index in _WEIGHTS.get(node.op_type, ()):
            return True
        if node.op_type in _PASSED_ON and index == 0 and _is_weight(node.outputs[0]):
            return True
    return False


def _store(value: ir.Value, dtype: ir.DataType, taken: set[str | None]) -> int:
    """Convert an initializer and add a Cast to float32 for its users; return the bytes saved."""
    graph, tensor, name = value.graph, value.const_value, value.name
    if graph is None or tensor is None or name is None:
        raise PassError(f"initializer {name!r} is in no graph")
    wide_name = reserve_name(f"{name}.float32", taken)
    narrow = ir.Value(
        name=name,
        shape=value.shape,
        type=ir.TensorType(dtype),
        const_value=ConvertedTensor(tensor, dtype, name),
    )
    wide = ir.Value(name=wide_name, shape=value.shape, type=ir.TensorType(ir.DataType.FLOAT))
    cast = ir.node(
        "Cast",
        [narrow],
        attributes={"to": int(ir.DataType.FLOAT)},
        outputs=[wide],
        name=reserve_name(f"{wide_name}/Cast", taken),
    )
    value.replace_all_uses_with(wide)
    del graph.initializers[name]
    graph.initializers[name] = narrow
    first = next(iter(graph), None)
    if first is None:
        graph.append(cast)
    else:
        graph.insert_before(first, cast)
    return int(tensor.nbytes - (narrow.const_value.nbytes if narrow.const_value else 0))
