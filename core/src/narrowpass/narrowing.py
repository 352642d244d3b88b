"""`optimize` and `quantize`: builds whose pipeline follows from what is wanted of the result."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from narrowpass.errors import UsageError
from narrowpass.framework.config import registry_for
from narrowpass.framework.options import quote
from narrowpass.framework.plugins import installed_plugins

if TYPE_CHECKING:
    from narrowpass.bundle import Bundle
    from narrowpass.calibration.samples import SamplesLike
    from narrowpass.framework.plugins import Plugins, Registry
    from narrowpass.runtime.backend import BackendLike
    from narrowpass_ir.importing import Imported
    from narrowpass_ir.sources import ModelLike

NarrowType = Literal["int8", "int4", "float16", "bfloat16"]
"""Types that `quantize` stores and, where the processor can, computes in."""

MAX_ERROR = "--max-error"
"""What the pass that chooses types within an error has among what it serves; see `Pass.serves`."""


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
    """Optimize a model for a processor: its default pipeline, and narrow types within an error.

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
        PluginError: no pass that chooses types is installed.
        InputError: as `narrowpass.build`; no choice of types is within `max_error`.
    """
    plugins = installed_plugins() if plugins is None else plugins
    wanted = choosing_pass(max_error, None, objective, registry_for(plugins))
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
        to: the type: int8 and int4 store weights and scales, float16 and bfloat16 numbers. The
            pass is the one that serves the type, with its options for it: see `Pass.serves`.
            Nodes that would lose too much stay as they are: the bundle's reports say which.
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
    if to not in get_args(NarrowType):
        raise UsageError(f"`to` must be one of {', '.join(get_args(NarrowType))}, not {to!r}")
    plugins = installed_plugins() if plugins is None else plugins
    name, options = registry_for(plugins).serving(to)
    wanted = _item(name, [options])
    return _build(model, wanted, out, calibration, example_inputs, target, plugins)


def choosing_pass(
    max_error: str | None,
    metric: str | None,
    objective: str | None,
    registry: Registry | None = None,
) -> str:
    """Return the text of the pass that chooses types within an error; empty without an error.

    Args:
        max_error: ``METRIC:LIMIT``, or the limit alone of a `metric`.
        metric: ``MODULE:FUNCTION``, a metric of the caller's.
        objective: what is minimized.
        registry: has the pass; None for what is installed.

    Raises:
        UsageError: a metric or an objective alone.
        PluginError: no pass that chooses types is installed.
    """
    if max_error is None:
        if metric is not None or objective is not None:
            raise UsageError(
                "a metric and an objective need an error (--max-error), such as rel:1e-2"
            )
        return ""
    if metric is not None:
        max_error = f"{metric}:{max_error}"
    if registry is None:
        registry = registry_for(installed_plugins())
    name, own = registry.serving(MAX_ERROR)
    options = [own, f"max-error={quote(max_error)}"]
    if objective is not None:
        options.append(f"objective={quote(objective)}")
    return _item(name, options)


def _item(name: str, options: Sequence[str]) -> str:
    """Return a pass in pipeline text."""
    text = ",".join(filter(None, options))
    return f"{name}{{{text}}}" if text else name


def _build(
    model: ModelLike | Imported,
    narrowing: str,
    out: str | os.PathLike[str] | None,
    calibration: Any,
    example_inputs: Sequence[Any] | None,
    target: BackendLike | None,
    plugins: Plugins,
) -> Bundle:
    from narrowpass import driver

    registry = registry_for(plugins)
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
