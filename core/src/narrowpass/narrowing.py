"""`optimize` and `quantize`: builds whose pipeline follows from what is wanted of the result."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from narrowpass.errors import PluginError, UsageError
from narrowpass.framework.options import quote

if TYPE_CHECKING:
    from narrowpass.bundle import Bundle
    from narrowpass.calibration.samples import SamplesLike
    from narrowpass.framework.plugins import Plugins
    from narrowpass.runtime.backend import BackendLike
    from narrowpass_ir.importing import Imported
    from narrowpass_ir.sources import ModelLike

NarrowType = Literal["int8", "int4", "float16", "bfloat16"]
"""Types that `quantize` stores and, where the processor can, computes in."""

_PASSES: dict[str, tuple[str, str]] = {
    "int8": ("int8-sym", ""),
    "int4": ("int4", ""),
    "float16": ("fp16", ""),
    "bfloat16": ("fp16", "{dtype=bfloat16}"),
}
"""The pass of each type, and its options."""


def optimize(
    model: ModelLike | Imported,
    out: str | os.PathLike[str] | None = None,
    *,
    max_error: str | None = None,
    calibration: Any = None,
    objective: Literal["latency", "bytes", "mix"] | None = None,
    example_inputs: Sequence[Any] | None = None,
    target: BackendLike | None = None,
    plugins: Plugins | None = None,
) -> Bundle:
    """Optimize a model for a processor: the target's default pipeline, and `auto` within an error.

    Args:
        model: as in `narrowpass.build`.
        out: as in `narrowpass.build`.
        max_error: how much outputs may change on the samples, such as ``rel:1e-2``, ``top1:0.99``
            or ``kl:0.01``: each node gets the type that is fastest within it. None to change no
            type; outputs then differ by rounding only.
        calibration: the samples, as in `quantize`; needed with `max_error`.
        objective: what is minimized with `max_error`; None for the latency.
        example_inputs: as in `narrowpass.build`.
        target: as in `narrowpass.build`.
        plugins: as in `narrowpass.build`.

    Returns:
        The bundle, which `narrowpass.load` compiles, and `Bundle.save` writes.

    Raises:
        UsageError: as `narrowpass.build`; an `objective` without `max_error`.
        PluginError: the pass ``auto`` is not installed.
        InputError: as `narrowpass.build`; no choice of types is within `max_error`.
    """
    wanted = choosing_pass(max_error, None, objective)
    return _build(model, wanted, out, calibration, example_inputs, target, plugins)


def quantize(
    model: ModelLike | Imported,
    calibration: Any = None,
    out: str | os.PathLike[str] | None = None,
    *,
    to: NarrowType = "int8",
    example_inputs: Sequence[Any] | None = None,
    target: BackendLike | None = None,
    plugins: Plugins | None = None,
) -> Bundle:
    """Store a model in a narrow type, after the target's default pipeline.

    Args:
        model: as in `narrowpass.build`.
        calibration: samples, as in `narrowpass.build`, or what onnxruntime's quantizers take: an
            object whose ``get_next`` returns a dict of arrays, and None at the end. With them,
            int8 has static scales of activations; without, scales of each row at run time. The
            other types need none, and choose better with some.
        out: as in `narrowpass.build`; a name ending in ``.onnx`` is one ONNX file.
        to: the type: int8 and int4 store weights and scales (passes ``int8-sym`` and ``int4``),
            float16 and bfloat16 numbers (pass ``fp16``). Nodes that would lose too much stay as
            they are: the bundle's reports say which.
        example_inputs: as in `narrowpass.build`.
        target: as in `narrowpass.build`.
        plugins: as in `narrowpass.build`.

    Returns:
        The bundle, which `narrowpass.load` compiles, and `Bundle.save` writes.

    Raises:
        UsageError: as `narrowpass.build`; an unknown type.
        PluginError: the pass for the type is not installed.
        InputError: as `narrowpass.build`.
    """
    if to not in _PASSES:
        raise UsageError(f"`to` must be one of {', '.join(get_args(NarrowType))}, not {to!r}")
    name, options = _PASSES[to]
    return _build(model, name + options, out, calibration, example_inputs, target, plugins)


def choosing_pass(max_error: str | None, metric: str | None, objective: str | None) -> str:
    """Return the text of the pass that chooses types within an error; empty without an error.

    Args:
        max_error: ``METRIC:LIMIT``, or the limit alone of a `metric`.
        metric: ``MODULE:FUNCTION``, a metric of the caller's.
        objective: what is minimized.

    Raises:
        UsageError: a metric or an objective alone.
    """
    if max_error is None:
        if metric is not None or objective is not None:
            raise UsageError(
                "a metric and an objective need an error (--max-error), such as rel:1e-2"
            )
        return ""
    if metric is not None:
        max_error = f"{metric}:{max_error}"
    options = "" if objective is None else f",objective={quote(objective)}"
    return f"auto{{max-error={quote(max_error)}{options}}}"


def _build(
    model: ModelLike | Imported,
    narrowing: str,
    out: str | os.PathLike[str] | None,
    calibration: Any,
    example_inputs: Sequence[Any] | None,
    target: BackendLike | None,
    plugins: Plugins | None,
) -> Bundle:
    from narrowpass import driver
    from narrowpass.framework.config import registry_for
    from narrowpass.framework.plugins import installed_plugins

    plugins = installed_plugins() if plugins is None else plugins
    registry = registry_for(plugins)
    name = narrowing.partition("{")[0]
    if name and name not in registry.passes:
        raise PluginError(f"the pass {name} is not installed; run: pip install narrowpass-{name}")
    backend = registry.backend(target, must_run=target is None or isinstance(target, str))
    default = driver.choose_pipeline(None, backend, registry)
    return driver.build(
        model,
        f"{default},{narrowing}".strip(","),
        out,
        target=backend,
        calibration=_samples(calibration),
        example_inputs=example_inputs,
        plugins=plugins,
    )


def _samples(given: Any) -> SamplesLike | None:
    """Return the samples; those of a reader of onnxruntime are kept, since it has one round."""
    if callable(get_next := getattr(given, "get_next", None)):
        return list(iter(get_next, None))
    samples: SamplesLike | None = given
    return samples
