"""Depthwise convolutions that are computed in one pass with what is around them.

The image between a product that makes many channels of few and a depthwise convolution is the
largest of networks for small devices. Where it does not fit the second cache, most of both steps'
time goes into writing and reading it; see `Separable`.
"""

from __future__ import annotations

import math

from narrowpass_planning.plan.step import Slot, Step
from narrowpass_xnn_cpu.lower.builder import Builder, Perm
from narrowpass_xnn_cpu.lower.convolve import Convolve
from narrowpass_xnn_cpu.lower.ending import Ended
from narrowpass_xnn_cpu.lower.linear import Linear
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.native.operators.separable import Separable
from narrowpass_xnn_cpu.native.operators.tiled_depthwise_fp32 import TiledDepthwise
from narrowpass_xnn_cpu.native.operators.tiled_fp32 import TiledConvolution, TiledFullyConnected

LEAST_BYTES = 1 << 19
"""Of an inner image, so that it pays not to write it: half of what a core's second cache has."""


def take_depthwise(op: Op, last: Linear, builder: Builder, perm: Perm) -> bool:
    """Put a product into one step with the depthwise convolution before it, where that pays.

    Args:
        op: the product.
        last: its step, which is not part of the builder yet.
        builder: has the steps before it.
        perm: the order of the result's axes.
    """
    found = _depthwise(last, builder)
    project = last.product.tiled
    if found is None or project is None or not op.residual_fits:
        return False
    middle, depthwise = found
    expand: TiledFullyConnected | TiledConvolution | None = None
    replaced: list[Step] = [middle]
    first = _expanding(middle, builder)
    if first is not None and _bytes(middle.inputs[0], builder) >= LEAST_BYTES:
        expand, replaced = first[1], [first[0], middle]
    elif _bytes(last.inputs[0], builder) < LEAST_BYTES:
        return False
    given = replaced[0].inputs[0]
    convolution = next(old for old in replaced if isinstance(old, Convolve))
    residual = last.inputs[1] if len(last.inputs) > 1 else None
    name = "depthwise convolution and product" if expand is None else "convolutions in bands"
    step = Convolve(
        given,
        last.output,
        Separable(expand, depthwise, project),
        convolution.window,
        project.outputs,
        name,
        last.epilogue,
        residual,
    )
    step.precision = next((old.precision for old in (last, *replaced) if old.precision), "")
    builder.replace(replaced, step, op.output, perm)
    return True


def _depthwise(last: Linear, builder: Builder) -> tuple[Convolve, TiledDepthwise] | None:
    """Give the depthwise convolution that makes what a product alone reads."""
    step = builder.maker(last.inputs[0])
    if not isinstance(step, Convolve) or step.epilogue.residual:
        return None
    operator = step.operator
    return (step, operator) if isinstance(operator, TiledDepthwise) else None


def _expanding(
    middle: Convolve, builder: Builder
) -> tuple[Ended, TiledFullyConnected | TiledConvolution] | None:
    """Give what makes what a depthwise convolution alone reads, and its operator."""
    step = builder.maker(middle.inputs[0], middle)
    if not isinstance(step, Linear | Convolve) or step.epilogue.residual:
        return None
    operator = step.product.tiled if isinstance(step, Linear) else step.operator
    if not isinstance(operator, TiledFullyConnected | TiledConvolution):
        return None
    if isinstance(step, Convolve) and middle.window.only_for:
        return None  # the size that its pads are for is known of what is between them only
    return step, operator


def _bytes(slot: Slot, builder: Builder) -> int:
    """Give the bytes of an image in a slot; 0 where its dimensions are not known."""
    dims = (builder.facts.dims(builder.value_of(slot)) or ())[1:]
    sizes = [dim for dim in dims if isinstance(dim, int)]
    return 4 * math.prod(sizes) if len(sizes) == len(dims) == 3 else 0
