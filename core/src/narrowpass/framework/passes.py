"""What a pass is: a frozen dataclass whose fields are its options.

This module imports neither onnx nor numpy, so that a plugin's entry module may import it.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from narrowpass.errors import PassError
from narrowpass.framework.options import check_values, format_options

if TYPE_CHECKING:
    import onnx_ir as ir

    from narrowpass.framework.context import Context


@dataclass(frozen=True)
class PassResult:
    """What a pass returns.

    Attributes:
        model: the model after the pass: the one that was given, changed, or a new one.
        modified: whether anything differs. A pass that changed the model must say so: the
            verifier, the instruments and fixed points rely on it.
        summary: a line for the user on what was done, and what was not and why; ``narrowpass
            build`` prints it. Empty for nothing to say.
    """

    model: ir.Model
    modified: bool
    summary: str = ""


@dataclass(frozen=True)
class Pass(abc.ABC):
    """One rewrite of a model.

    A subclass is a frozen dataclass; its fields are the options of its text form, each with a
    default. Values are checked against the types of the fields at construction. The model is
    valid before `run` and must be valid after it. A pass may change the model that it is given:
    `Pipeline.run` works on a clone that shares tensors with the caller's model. It must not write
    into tensors.

    Attributes:
        name: the pass's name in pipeline text, in lower case with hyphens.
        requires: names of passes that must stand somewhere before this one in a pipeline.
        forbids: names of passes that must not stand before this one. A pipeline that breaks
            either is rejected; passes are never reordered.
        serves: what this pass does for those who name no pass, each with the options in pipeline
            text that it takes for it: types of `narrowpass.quantize`, such as ``int8``, and
            ``--max-error``, which gives it the options ``max-error`` and ``objective``.
    """

    name: ClassVar[str]
    requires: ClassVar[tuple[str, ...]] = ()
    forbids: ClassVar[tuple[str, ...]] = ()
    serves: ClassVar[Mapping[str, str]] = MappingProxyType({})

    def __post_init__(self) -> None:
        """Check the options; a subclass with more to check calls this first.

        Raises:
            OptionError: a value that does not fit its field's type. It is a `ValueError`.
        """
        check_values(self)

    @property
    def may_change_signature(self) -> bool:
        """Whether names, types, shapes or order of inputs and outputs may differ after `run`."""
        return False

    @abc.abstractmethod
    def run(self, model: ir.Model, ctx: Context) -> PassResult:
        """Rewrite `model`.

        Args:
            model: a valid model. It may be changed in place.
            ctx: what the pass may ask (target, classifiers, data) and report (counters, decisions).

        Returns:
            The model after the pass, and whether it differs.

        Raises:
            PassError: the pass cannot do its work on this model; the message names the node.
        """

    def __str__(self) -> str:
        """The pass in pipeline text: its name and the options that differ from their defaults."""
        return format_options(self)


def run_checked(pass_: Pass, model: ir.Model, ctx: Context) -> PassResult:
    """Run a pass and check that it keeps its contract.

    Where `Context.strict` is set, the model is fingerprinted before and after.

    Raises:
        PassError: it gave something else than a `PassResult`, or changed the model and said that
            it did not; or what the pass itself raises.
    """
    import onnx_ir as ir

    from narrowpass_ir.verify import fingerprint

    before = fingerprint(model) if ctx.observer.strict else ""
    result = pass_.run(model, ctx)
    if not isinstance(result, PassResult):
        raise PassError(f"it gave {result!r} and not a PassResult")
    if not isinstance(result.model, ir.Model):
        raise PassError(f"it gave a PassResult of {result.model!r}, which is no onnx_ir.Model")
    if not isinstance(result.summary, str):
        raise PassError(f"it gave a summary of {result.summary!r}, which is no text")
    result = PassResult(result.model, bool(result.modified), result.summary)
    if ctx.observer.strict and not result.modified and fingerprint(result.model) != before:
        raise PassError("it changed the model and said that it did not")
    return result
