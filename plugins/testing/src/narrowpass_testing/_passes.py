"""Passes run under every check that there is."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from narrowpass import Context, Instrument, Pass, PassResult, Pipeline, Registry, load_plugins
from narrowpass_ir.verify import fingerprint, verify
from narrowpass_testing._text import model_from_text, model_to_text


def run_pass(
    what: Pass | Pipeline | str,
    model: ir.Model | str,
    *,
    ctx: Context | None = None,
    registry: Registry | None = None,
) -> PassResult:
    """Run a pass or a pipeline on a model, and check that it keeps the contract of passes.

    The model is verified before, and after each pass; its signature must not change unless the
    pass may change it; what a pass says of having modified the model must be true; the values
    of tensors must not be written to.

    Args:
        what: a pass, a pipeline, or pipeline text.
        model: the model, or its ONNX text as in `model_from_text`. It is not changed.
        ctx: the context of the passes; None for one without target and data, with the
            classifiers of `registry`.
        registry: where the names in the text are looked up; None for the installed plugins.

    Returns:
        The model after the last pass, and whether any pass changed it.

    Raises:
        VerificationError: `model` is not valid to begin with.
        PipelineError: text that does not parse.
        PassError: a pass failed by itself, left an invalid model, changed the signature, or
            changed the model and said that it did not.
        AssertionError: it said that it changed the model and did not, or wrote into a tensor.
    """
    if isinstance(model, str):
        model = model_from_text(model)
    if registry is None:
        registry = load_plugins().registry
    if ctx is None:
        ctx = Context(classifiers=registry.classifiers)
    pipeline = _pipeline(what, registry)
    verify(model)
    given, digests = fingerprint(model), _tensor_digests(model)
    watching = _OverReport()
    result = pipeline.run(model, ctx, instruments=[watching], strict=True)
    if watching.found:
        raise AssertionError(watching.found)
    if _tensor_digests(model) != digests:
        raise AssertionError(f"{str(pipeline)!r} wrote into a tensor that it shares with others")
    if fingerprint(model) != given:
        raise AssertionError(f"{str(pipeline)!r} changed the caller's model, not the clone")
    return result


@dataclass
class _OverReport(Instrument):
    """Finds passes that say that they changed a model, and did not.

    Attributes:
        found: what the first of them did; empty for none.
    """

    name: ClassVar[str] = "over-report"

    print_before: str = ""
    found: str = ""

    def before_pass(self, pass_: Pass, model: ir.Model, ctx: Context) -> None:
        self.print_before = fingerprint(model)

    def after_pass(self, pass_: Pass, result: PassResult, ctx: Context, seconds: float) -> None:
        if self.found or not result.modified:
            return
        if fingerprint(result.model) == self.print_before:
            self.found = (
                f"{str(pass_)!r} said that it modified the model, and did not:\n"
                f"{model_to_text(result.model)}"
            )


def assert_idempotent(
    what: Pass | Pipeline | str,
    model: ir.Model | str,
    *,
    ctx: Context | None = None,
    registry: Registry | None = None,
) -> ir.Model:
    """Assert that a second run of a pass or a pipeline changes nothing.

    Args:
        what: a pass, a pipeline, or pipeline text.
        model: the model, or its ONNX text. It is not changed.
        ctx: as in `run_pass`.
        registry: as in `run_pass`.

    Returns:
        The model after the first run.

    Raises:
        AssertionError: the second run changed the model; the message shows both.
        NarrowpassError: what `run_pass` raises.
    """
    once = run_pass(what, model, ctx=ctx, registry=registry).model
    twice = run_pass(what, once, ctx=ctx, registry=registry)
    if twice.modified:
        raise AssertionError(
            f"a second run of {str(what)!r} changed the model\n\nonce: {model_to_text(once)}"
            f"\n\ntwice: {model_to_text(twice.model)}"
        )
    return once


def _pipeline(what: Pass | Pipeline | str, registry: Registry) -> Pipeline:
    if isinstance(what, str):
        return Pipeline.parse(what, registry)
    return what if isinstance(what, Pipeline) else Pipeline((what,))


def _tensor_digests(model: ir.Model) -> dict[str, str]:
    """Return the hash of each initializer's bytes, subgraphs included."""
    graphs = [model.graph, *model.graph.subgraphs()]
    return {
        f"{number}/{name}": hashlib.sha256(value.const_value.tobytes()).hexdigest()
        for number, graph in enumerate(graphs)
        for name, value in graph.initializers.items()
        if value.const_value is not None and value.const_value.dtype != ir.DataType.STRING
    }
