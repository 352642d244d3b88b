"""The pass ``int8-sym``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import onnx_ir as ir

from narrowpass import Decision, Pass, PassResult
from narrowpass.classify import matching_nodes
from narrowpass.errors import PassError
from narrowpass.subgraphs import nested_graphs
from narrowpass_int8_sym.products import Product, product_of
from narrowpass_int8_sym.scales import LEAST_SCALE
from narrowpass_int8_sym.storage import drop_unread, store

if TYPE_CHECKING:
    from narrowpass import Context

ACTIVATIONS = "narrowpass.activations"
"""The key of a node's metadata that says how its activations are quantized: ``dynamic``."""

_FIRST_OPSET = {"per-tensor": 10, "per-channel": 13}
_DYNAMIC = ("MatMul", "Gemm")


@dataclass(frozen=True)
class Int8Sym(Pass):
    """Store the weights of products in signed bytes, with the zero point 0.

    The result is standard ONNX: a DequantizeLinear before each weight. In mode ``dynamic``, MatMul
    and Gemm also have the metadata ``narrowpass.activations``, which asks the backend to quantize
    their rows at run time; others compute with floats.

    Attributes:
        mode: whether rows are quantized at run time too, or weights only.
        weights: one scale for each channel of the result, or one for the tensor.
        scale_policy: ``floor``: no scale is below 2⁻¹², as in PyTorch's presets for XNNPACK;
            ``solve``: as small as the weights ask for.
        red: nodes whose weights stay float32: globs of names, ``op:TYPE``.
    """

    name: ClassVar[str] = "int8-sym"
    mode: Literal["dynamic", "weight-only"] = "dynamic"
    weights: Literal["per-channel", "per-tensor"] = "per-channel"
    scale_policy: Literal["solve", "floor"] = "solve"
    red: tuple[str, ...] = ()

    def run(self, model: ir.Model, ctx: Context) -> PassResult:
        """Quantize the weights; they are converted when they are written.

        Counters: ``int8`` (weights), ``nodes`` (that read them), ``left`` (products in float).

        Raises:
            PassError: the operator set has no DequantizeLinear of that kind.
            DataError: a weight has an element that is infinite or NaN.
        """
        version = model.opset_imports.get("", 1)
        if version < _FIRST_OPSET[self.weights]:
            raise PassError(
                f"operator set {version} has no DequantizeLinear {self.weights}, which came with "
                f"{_FIRST_OPSET[self.weights]}; run upgrade-opset before"
            )
        nodes = list(model.graph.all_nodes())
        red: dict[ir.Node, str] = {}
        for item, found in matching_nodes(self.red, nodes).items():
            if not found:
                ctx.log.warning("int8-sym: red item %r selects no node", item)
            red.update(dict.fromkeys(found, f"option red={item}"))
        taken = {node.name for node in nodes}
        for graph in nested_graphs(model.graph):
            taken |= {value.name for value in (*graph.inputs, *graph.initializers.values())}
        taken |= {value.name for node in nodes for value in node.outputs}
        made: dict[tuple[ir.Value, int | None], ir.Value] = {}
        for node in nodes:
            product = product_of(node)
            if product is None:
                continue
            if node in red:
                product = "it is to stay float"
            elif self.mode == "dynamic" and node.op_type not in _DYNAMIC:
                product = f"rows of {node.op_type} are not quantized at run time"
            if isinstance(product, str):
                ctx.counters["left"] += 1
                _decide(ctx, node, "float", red.get(node, "rule"), product)
                continue
            self._replace(product, made, taken)
            if self.mode == "dynamic":
                node.metadata_props[ACTIVATIONS] = "dynamic"
            ctx.counters["nodes"] += 1
            _decide(ctx, node, "int8", f"mode={self.mode}", "")
        ctx.counters["int8"] = len(made)
        return PassResult(model, bool(made))

    def _replace(
        self,
        product: Product,
        made: dict[tuple[ir.Value, int | None], ir.Value],
        taken: set[str | None],
    ) -> None:
        """Let a node read its weight from bytes."""
        weight, axis = product.weight, product.axis if self.weights == "per-channel" else None
        if (weight, axis) not in made:
            least = LEAST_SCALE if self.scale_policy == "floor" else 0.0
            made[weight, axis] = store(weight, axis, least, taken)
        product.node.replace_input_with(product.index, made[weight, axis])
        drop_unread(weight)


def _decide(ctx: Context, node: ir.Node, what: str, by: str, reason: str) -> None:
    name = node.name or next((value.name for value in node.outputs if value.name), "")
    ctx.decisions.append(Decision(name or "", node.op_type, what, by, reason))
