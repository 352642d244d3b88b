"""The pass ``fp16``."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Literal

import onnx_ir as ir

from narrowpass import Color, OpClassifier, OpDtypes, Pass, PassResult
from narrowpass.errors import PassError
from narrowpass.framework.classify import (
    ClassifierChain,
    choose_classifiers,
    classifier_of,
    matching_nodes,
)
from narrowpass.framework.options import OptionError
from narrowpass_analysis.metrics import Tolerance
from narrowpass_analysis.verification import Verification, judging_backends
from narrowpass_fp16.coloring.classifier import DefaultClassifier
from narrowpass_fp16.coloring.colors import Coloring, Verdict
from narrowpass_fp16.coloring.constants import Constants
from narrowpass_fp16.coloring.exactness import deciding
from narrowpass_fp16.opset import with_cast, with_more
from narrowpass_fp16.placement.emission import Emission
from narrowpass_fp16.placement.placement import Placement
from narrowpass_fp16.ranges import Ranges, observe
from narrowpass_ir.inference import inferred
from narrowpass_ir.subgraphs import Opsets, model_nodes

if TYPE_CHECKING:
    from narrowpass import Context


_TYPES = {"float16": ir.DataType.FLOAT16, "bfloat16": ir.DataType.BFLOAT16}


@dataclass(frozen=True)
class MixedPrecision(Pass):
    """Compute in float16 or bfloat16 where that is faster or smaller, with the fewest casts.

    Attributes:
        dtype: the narrow type.
        keep_io: whether inputs and outputs keep their types; or the names of those that do, while
            the others change where that spares a cast.
        red: nodes that stay in float32: globs of names, ``op:TYPE``.
        green: nodes that are lowered, whatever the classifier says of them.
        classifier: who colours nodes: names of classifiers, joined by ``+``, of which the first
            that answers decides; ``target`` is that of the backend. From Python also a
            classifier, or a function from a node to a colour or None, asked before ``default``.
        dtypes: from Python, a function from a node to its `narrowpass.OpDtypes` or None, asked
            before the classifiers.
        unknown: what becomes of operators that no classifier knows: they follow their neighbours,
            are red, or are an error.
        margin: constants and values on the data count as too large from the largest of the type
            divided by this.
        tolerance: how far outputs may be from those of the model as it was on the data, such as
            ``rel:1e-2``; nodes that take them further stay in float32.
        cost: what a cast counts as: the bytes that it moves, or one.
    """

    name: ClassVar[str] = "fp16"
    serves: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"float16": "", "bfloat16": "dtype=bfloat16"}
    )
    dtype: Literal["float16", "bfloat16"] = "float16"
    keep_io: bool | tuple[str, ...] = True
    red: tuple[str, ...] = ()
    green: tuple[str, ...] = ()
    classifier: str | OpClassifier | Callable[[ir.Node], Color | None] = "default"
    dtypes: Callable[[ir.Node], OpDtypes | None] | None = None
    unknown: Literal["follow", "red", "error"] = "follow"
    margin: float = 1.0
    tolerance: Tolerance | None = None
    cost: Literal["bytes", "count"] = "bytes"

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            OptionError: a `margin` that is not above 0.
        """
        super().__post_init__()
        if self.margin <= 0:
            raise OptionError(
                "margin", f"option 'margin' of 'fp16' must be above 0, not {self.margin}"
            )

    @property
    def may_change_signature(self) -> bool:
        """Whether types of inputs and outputs may change."""
        return self.keep_io is not True

    def run(self, model: ir.Model, ctx: Context) -> PassResult:
        """Rewrite the model; weights are converted when they are written.

        Where the operator set is too old for the type, or a newer one has more operators of
        bfloat16, the model is written with that.

        Counters: ``green``, ``gray``, ``red`` (nodes), ``narrow`` (nodes), ``casts``,
        ``constants``, ``upgraded-to`` (the operator set, where it was changed).

        Raises:
            PassError: the operator set has no Cast to the type and cannot be upgraded; an operator
                that no classifier knows, where that is an error; a name in `keep_io` that no input
                or output has; a tolerance without data, or one that cannot be met.
            DataError: a value is NaN on a sample.
        """
        if self.tolerance is not None and ctx.samples is None:
            raise PassError("tolerance needs data: pass --calibration, or build(calibration=...)")
        constants = Constants(_TYPES[self.dtype], self.margin)
        given, model = model, self._upgraded(model, ctx, constants)
        ranges = Ranges()
        if ctx.samples is not None:
            with inferred(model):
                red = {node for nodes in _selected(self.red, model).values() for node in nodes}
                ranges = observe(model, ctx.samples, ctx, red)
        if self.tolerance is None or ctx.samples is None:
            modified, _ = self._rewrite(model, ctx, constants, ranges, frozenset())
            return self._result(given, model, modified, ctx)
        original = model.clone()
        verification = Verification(
            original, ctx.samples, self.tolerance, judging_backends(ctx.target), ctx.observer.log
        )
        held = self._held(original, ctx, constants, verification, ranges)
        modified, _ = self._rewrite(model, ctx, constants, ranges, held)
        if modified:
            _report_errors(original, model, ctx, verification)
        return self._result(given, model, modified, ctx)

    def _upgraded(self, model: ir.Model, ctx: Context, constants: Constants) -> ir.Model:
        """Return the model, written with a newer operator set if that is needed, or pays."""
        dtype = _TYPES[self.dtype]

        def tried(each: ir.Model) -> tuple[int, int]:
            quiet = dataclasses.replace(ctx.observer, log=_quiet())
            trial = dataclasses.replace(ctx, counters=Counter(), decisions=[], observer=quiet)
            self._rewrite(each.clone(), trial, constants, Ranges(), frozenset())
            return trial.counters["narrow"], -trial.counters["casts"]

        upgraded = with_cast(model, dtype, ctx)
        chain = self._chain(ctx)

        def color(node: ir.Node) -> Color | None:
            answer = chain.color(node)
            return None if answer is None else answer[0]

        return with_more(upgraded, dtype, color, ctx, lambda old, new: tried(new) > tried(old))

    def _result(self, given: ir.Model, model: ir.Model, modified: bool, ctx: Context) -> PassResult:
        """Return the model; the original one if an upgrade is all that changed."""
        if not modified and model is not given:
            del ctx.counters["upgraded-to"]
            ctx.decisions[:] = [item for item in ctx.decisions if item.decision != "upgraded"]
            model = given
        return PassResult(model, modified, summary(ctx, self.dtype))

    def _held(
        self,
        original: ir.Model,
        ctx: Context,
        constants: Constants,
        verification: Verification,
        ranges: Ranges,
    ) -> frozenset[int]:
        """Return the numbers of the nodes that must stay wide for `tolerance` to be met."""
        narrow: list[int] = []

        def rewrite(held: frozenset[int]) -> ir.Model:
            clone = original.clone()
            trial = dataclasses.replace(ctx, counters=Counter(), decisions=[])
            _, found = self._rewrite(clone, trial, constants, ranges, held)
            narrow[:] = found if not held else narrow
            return clone

        rewrite(frozenset())
        if not narrow:
            return frozenset()

        def harm() -> list[int]:
            """Order nodes by the error that they add to those of what they read."""
            nodes = model_nodes(original)
            values = {node: node.outputs[0].name or "" for node in nodes if node.outputs}
            names = [name for name in values.values() if name]
            errors = verification.errors(rewrite(frozenset()), names)

            def added(number: int) -> float:
                node = nodes[number]
                read = [errors.get(v.name or "", 0.0) for v in node.inputs if v is not None]
                return errors.get(values.get(node, ""), 0.0) - max(read, default=0.0)

            return sorted(narrow, key=lambda number: (-added(number), number))

        return verification.blame(rewrite, tuple(narrow), harm)

    def _rewrite(
        self,
        model: ir.Model,
        ctx: Context,
        constants: Constants,
        ranges: Ranges,
        held: frozenset[int],
    ) -> tuple[bool, list[int]]:
        """Rewrite in place; return whether it changed, and the narrow nodes' numbers."""
        dtype = _TYPES[self.dtype]
        chain = self._chain(ctx)
        shapes = [value.shape for value in model.graph.outputs]
        nodes = model_nodes(model)
        with inferred(model):
            reason = f"narrow, it takes the result out of {self.tolerance}"
            verdicts = {nodes[i]: Verdict(Color.RED, "verification", reason) for i in held}
            coloring = self._coloring(model, chain, dtype, ctx, constants, ranges, verdicts)
            if not coloring.has_green:
                coloring.publish(ctx, None)
                return False, []
            placement = Placement(
                model,
                dtype,
                coloring.color,
                self._kept_inputs_outputs(model),
                wide=coloring.too_large,
                follows=coloring.follows,
                better_wide=deciding(model, nodes, coloring.color),
                by_bytes=self.cost == "bytes",
            )
            placement.solve()
            narrow = [number for number, node in enumerate(nodes) if placement.is_narrow(node)]
            emission = Emission(model, placement, dtype, coloring.accumulate)
            emission.run()
            coloring.publish(ctx, placement)
        # What was declared is more than what follows.
        for value, shape in zip(model.graph.outputs, shapes, strict=True):
            value.shape = shape
        ctx.counters["casts"] = emission.casts
        ctx.counters["constants"] = emission.constants
        return emission.changed, narrow

    def _chain(self, ctx: Context) -> ClassifierChain:
        """Return the classifiers, in the order in which they are asked."""
        given = self.classifier
        names = given if isinstance(given, str) else DefaultClassifier.name
        chain = choose_classifiers(names, ctx.classifiers, ctx.target, self.dtype)
        first: list[OpClassifier] = []
        if self.dtypes is not None:
            first.append(classifier_of(dtypes=self.dtypes))
        if isinstance(given, OpClassifier):
            first.append(given.for_target(ctx.target, self.dtype))
        elif not isinstance(given, str):
            first.append(classifier_of(given))
        return ClassifierChain((*first, *chain.members))

    def _coloring(
        self,
        model: ir.Model,
        chain: ClassifierChain,
        dtype: ir.DataType,
        ctx: Context,
        constants: Constants,
        ranges: Ranges,
        held: Mapping[ir.Node, Verdict],
    ) -> Coloring:
        chosen: dict[ir.Node, tuple[Color, str]] = {}
        for option, color in (("green", Color.GREEN), ("red", Color.RED)):
            for item, found in _selected(getattr(self, option), model).items():
                if not found:
                    ctx.observer.log.warning("fp16: %s item %r selects no node", option, item)
                chosen.update((node, (color, f"option {option}")) for node in found)
        return Coloring(
            model,
            dtype,
            chain,
            chosen,
            self.unknown,
            constants=constants,
            ranges=ranges.of(model),
            held=held,
        )

    def _kept_inputs_outputs(self, model: ir.Model) -> tuple[str, ...] | None:
        """Return the graph inputs and outputs that keep their dtype; None for all of them."""
        if self.keep_io is True:
            return None
        if self.keep_io is False:
            return ()
        known = {value.name for value in (*model.graph.inputs, *model.graph.outputs)}
        for name in self.keep_io:
            if name not in known:
                raise PassError(f"keep-io: the model has no input or output {name!r}")
        return self.keep_io


def _selected(items: Sequence[str], model: ir.Model) -> dict[str, list[ir.Node]]:
    """Return the nodes that each item of ``red`` or ``green`` selects."""
    return matching_nodes(items, model_nodes(model), Opsets(model).label)


def _quiet() -> logging.Logger:
    """Return a logger for trials, which discards all."""
    log = logging.Logger("narrowpass.trial")  # noqa: LOG001  # not in the hierarchy: it discards all
    log.addHandler(logging.NullHandler())
    return log


def _report_errors(
    original: ir.Model, model: ir.Model, ctx: Context, verification: Verification
) -> None:
    """Add to each decision how far the node's first result is from that of the model as it was."""
    results = {
        node.name or node.outputs[0].name: node.outputs[0].name
        for node in original.graph
        if node.outputs
    }
    names = [results.get(decision.node) or "" for decision in ctx.decisions]
    errors = verification.errors(model, [name for name in names if name])
    ctx.decisions[:] = [
        dataclasses.replace(decision, error=errors.get(name))
        for decision, name in zip(ctx.decisions, names, strict=True)
    ]


_MOST = 6
"""Reasons that are named one by one."""

_QUIET = {"types", "subgraphs", "functions"}
"""Who decides on nodes that have no float32 values of their own."""


def summary(ctx: Context, name: str) -> str:
    """Return a line on the decisions of a run, with counts of the nodes that stay wide by reason.

    Args:
        ctx: has the decisions and counters of the run.
        name: of the narrow type.
    """
    narrow = wide = 0
    reasons: Counter[str] = Counter()
    for item in ctx.decisions:
        if item.by in _QUIET and not item.decision.startswith("red"):
            continue
        if item.decision.endswith("narrow"):
            narrow += 1
        elif item.decision.endswith("wide"):
            wide += 1
            reasons[_general(item.reason) or "it follows its neighbours"] += 1
    text = (
        f"{narrow} of {narrow + wide} nodes in {name}, {_number(ctx, 'casts', 'cast')}, "
        f"{_number(ctx, 'constants', 'constant')} stored narrow"
    )
    if "upgraded-to" in ctx.counters:
        text += f"; operator set upgraded to {ctx.counters['upgraded-to']}"
    if not wide:
        return text
    counted = [f"{count} ({reason})" for reason, count in reasons.most_common(_MOST)]
    rest = wide - sum(count for _, count in reasons.most_common(_MOST))
    counted += [f"{rest} for other reasons"] if rest else []
    return f"{text}; float32 stay {', '.join(counted)}"


def _general(reason: str) -> str:
    """Return a reason without the names of values, so that equal ones are counted together."""
    return re.sub(r"'[^']*'", "a value", re.sub(r" in '[^']*'$", " in a constant", reason))


def _number(ctx: Context, counter: str, word: str) -> str:
    count = ctx.counters[counter]
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
