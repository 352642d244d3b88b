"""The pass ``int8-sym``."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import onnx_ir as ir

from narrowpass import Decision, Pass, PassResult
from narrowpass.classify import ACTIVATIONS, matching_nodes
from narrowpass.errors import PassError
from narrowpass.metrics import Tolerance
from narrowpass.subgraphs import nested_graphs
from narrowpass.verification import Verification, judges
from narrowpass_int8_sym.products import Product, product_of
from narrowpass_int8_sym.scales import LEAST_SCALE
from narrowpass_int8_sym.storage import drop_unread, store

if TYPE_CHECKING:
    from narrowpass import Context
    from narrowpass.calibration import Samples

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
        tolerance: how far outputs may be from those of the model as it was on the data, such as
            ``cosine:0.995``; the fewest nodes that must be for that stay float32, those first that
            harm the outputs most when they alone are quantized.
    """

    name: ClassVar[str] = "int8-sym"
    mode: Literal["dynamic", "weight-only"] = "dynamic"
    weights: Literal["per-channel", "per-tensor"] = "per-channel"
    scale_policy: Literal["solve", "floor"] = "solve"
    red: tuple[str, ...] = ()
    tolerance: Tolerance | None = None

    def run(self, model: ir.Model, ctx: Context) -> PassResult:
        """Quantize the weights; they are converted when they are written.

        Counters: ``int8`` (weights), ``nodes`` (that read them), ``left`` (products in float).

        Raises:
            PassError: the operator set has no DequantizeLinear of that kind; a tolerance without
                data.
            DataError: a weight has an element that is infinite or NaN.
        """
        version = model.opset_imports.get("", 1)
        if version < _FIRST_OPSET[self.weights]:
            raise PassError(
                f"operator set {version} has no DequantizeLinear {self.weights}, which came with "
                f"{_FIRST_OPSET[self.weights]}; run upgrade-opset before"
            )
        if self.tolerance is not None and ctx.samples is None:
            raise PassError("tolerance needs data: give --calibration, or build(calibration=...)")
        held: dict[int, str] = {}
        if self.tolerance is not None and ctx.samples is not None:
            held = self._held(model, ctx, ctx.samples, self.tolerance)
        return PassResult(model, self._rewrite(model, ctx, held))

    def _held(
        self, model: ir.Model, ctx: Context, samples: Samples, tolerance: Tolerance
    ) -> dict[int, str]:
        """Give the numbers of the nodes that must stay float for `tolerance` to be met, and why."""
        original = model.clone()
        # The evaluator does not quantize rows: the target has the last word.
        verification = Verification(original, samples, tolerance, judges(ctx.target)[-1:], ctx.log)

        def rewrite(held: frozenset[int]) -> ir.Model:
            clone = original.clone()
            trial = dataclasses.replace(ctx, counters=Counter(), decisions=[])
            self._rewrite(clone, trial, dict.fromkeys(held, ""))
            return clone

        everything = self._candidates(original, ctx, {})
        numbers = [n for n, (_, found) in everything.items() if isinstance(found, Product)]
        if not verification.problem(rewrite(frozenset())):
            return {}
        ratios: dict[int, float] = {}
        for number in numbers:
            ctx.log.info("int8-sym: harm of %d of %d nodes is known", len(ratios), len(numbers))
            ratios[number] = verification.sensitivity(rewrite(frozenset(numbers) - {number}))
        worst = sorted(numbers, key=lambda number: (ratios[number], number))
        return {
            number: f"quantized alone, it leaves {ratios[number]:.1f} dB; out of {tolerance}"
            for number in verification.fewest(rewrite, worst)
        }

    def _candidates(
        self, model: ir.Model, ctx: Context, held: Mapping[int, str]
    ) -> dict[int, tuple[str, Product | str]]:
        """Give, for each node with a weight or two operands, who decides and what is found.

        By the number of the node; a text is the reason to leave it.
        """
        nodes = list(model.graph.all_nodes())
        red: dict[ir.Node, str] = {}
        for item, chosen in matching_nodes(self.red, nodes).items():
            if not chosen:
                ctx.log.warning("int8-sym: red item %r selects no node", item)
            red.update(dict.fromkeys(chosen, f"option red={item}"))
        found: dict[int, tuple[str, Product | str]] = {}
        for number, node in enumerate(nodes):
            product = product_of(node)
            if product is None:
                continue
            by = f"mode={self.mode}" if isinstance(product, Product) else "rule"
            if node in red:
                by, product = red[node], "it is to stay float"
            elif number in held and isinstance(product, Product):
                by, product = "verification", held[number]
            elif self.mode == "dynamic" and node.op_type not in _DYNAMIC:
                by, product = "rule", f"rows of {node.op_type} are not quantized at run time"
            found[number] = by, product
        return found

    def _rewrite(self, model: ir.Model, ctx: Context, held: Mapping[int, str]) -> bool:
        """Rewrite in place; tell whether anything changed."""
        nodes = list(model.graph.all_nodes())
        taken = {node.name for node in nodes}
        for graph in nested_graphs(model.graph):
            taken |= {value.name for value in (*graph.inputs, *graph.initializers.values())}
        taken |= {value.name for node in nodes for value in node.outputs}
        made: dict[tuple[ir.Value, int | None], ir.Value] = {}
        for number, (by, product) in self._candidates(model, ctx, held).items():
            node = nodes[number]
            if isinstance(product, str):
                ctx.counters["left"] += 1
                _decide(ctx, node, "float", by, product)
                continue
            self._replace(product, made, taken)
            if self.mode == "dynamic":
                node.metadata_props[ACTIVATIONS] = "dynamic"
            ctx.counters["nodes"] += 1
            _decide(ctx, node, "int8", by, "")
        ctx.counters["int8"] = len(made)
        return bool(made)

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
