"""What a pass may ask and report while it runs. No globals: all of it is here.

This module imports neither onnx nor numpy, so that a plugin's entry module may import it.
"""

from __future__ import annotations

import abc
import logging
import numbers
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from narrowpass.errors import PassError

if TYPE_CHECKING:
    import onnx_ir as ir

    from narrowpass.calibration.histogram import Histogram
    from narrowpass.calibration.samples import Samples
    from narrowpass.framework.classify import OpClassifier, Target
    from narrowpass.runtime.backend import Backend

Number = int | float
Progress = Callable[[str, int, int], object]


def _nothing(what: str, done: int, total: int) -> None:
    return


def _plain(value: Any) -> Any:
    """Return a number of numpy as one of Python, which JSON knows."""
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else value


@dataclass(frozen=True)
class Decision:
    """What a pass decided about one node, for the report.

    Attributes:
        node: the node's name, or the value's where the decision is about a value.
        op_type: the node's operator, empty for a value.
        decision: what was decided, such as ``folded``, ``green``, ``kept``.
        by: who decided: a classifier, an option, a rule.
        reason: why, as a sentence; empty where the decision says all.
        measured: the value that was compared, where there was one.
        limit: what it was compared with.
        error: how far the node's result was from that of the model as it was, on data: the
            largest difference over the largest magnitude; None where nobody looked.
        sqnr: how far the value's quantized elements are from the true ones, on data: the ratio of
            signal to quantization noise in dB. Infinite where they are equal.
        histogram: of the value's elements on data, with the clipping range that was chosen for it.
        open: whether a later run of the pass may decide otherwise, as for a node that was left
            alone. Where passes run to a fixed point, the last word counts.
    """

    node: str
    op_type: str
    decision: str
    by: str
    reason: str = ""
    measured: Number | None = None
    limit: Number | None = None
    error: Number | None = None
    sqnr: Number | None = None
    histogram: Histogram | None = None
    open: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the fields that say something, for JSON."""
        fields = asdict(self)
        del fields["open"]  # in a finished report nothing is
        return {key: _plain(value) for key, value in fields.items() if value not in (None, "")}


def check_report(ctx: Context) -> None:
    """Check what a pass left in a context, and turn counts of numpy into those of Python.

    Raises:
        PassError: a decision that is no `Decision`, or a count that is no whole number.
    """
    decisions: list[Any] = ctx.decisions
    for decision in decisions:
        if not isinstance(decision, Decision):
            raise PassError(f"it decided {decision!r}, which is no narrowpass.Decision")
    counted: dict[Any, Any] = dict(ctx.counters)  # of a plugin: it may hold anything
    for name, count in counted.items():
        if not isinstance(name, str) or not isinstance(count, numbers.Integral):
            raise PassError(f"it counted {count!r} as {name!r}; counts are whole numbers by name")
        ctx.counters[name] = int(count)


@dataclass(frozen=True)
class Observer:
    """Who watches a pass while it runs.

    Attributes:
        log: for warnings and notes.
        progress: called in long work with what is being done, how much of it is done, and how much
            there is (0 where that is not known). Instruments hear it, and a terminal shows a bar.
        strict: whether each pass, also one within another, is checked to report truly whether it
            changed the model. For tests: it costs time.
        reads_decisions: whether anybody reads them. Where nobody does, as in trials of a pass that
            chooses among others, what only decisions show need not be measured.
    """

    log: logging.Logger = logging.getLogger("narrowpass")
    progress: Progress = _nothing
    strict: bool = False
    reads_decisions: bool = True


@dataclass(frozen=True)
class Context:
    """What `Pass.run` may ask and report.

    Attributes:
        target: the backend that the model is built for; None where there is none.
        classifiers: the installed op classifiers by name.
        samples: calibration data, None where the caller gave none.
        counters: what the pass counts, by name; shown in its summary line.
        decisions: what the pass decided, node by node; written to ``reports/NN-pass.json``.
        observer: who watches the pass: its log and its progress.
        candidates: the installed candidates by name.
        exhibits: plots and tables beside the decisions, as JSON, which the writers of reports draw;
            the reference describes the form.
        used: names of candidates that rewrote the model; the manifest names their plugins.
    """

    target: Backend | None = None
    classifiers: Mapping[str, OpClassifier] = field(default_factory=dict)
    samples: Samples | None = None
    counters: Counter[str] = field(default_factory=Counter)
    decisions: list[Decision] = field(default_factory=list)
    observer: Observer = field(default_factory=Observer)
    candidates: Mapping[str, Candidate] = field(default_factory=dict)
    exhibits: list[Mapping[str, Any]] = field(default_factory=list)
    used: set[str] = field(default_factory=set)


class Candidate(abc.ABC):
    """One way to make nodes narrow, such as int8 weights with rows quantized at run time.

    A pass that chooses types tries it: it measures what single nodes take and lose when they are
    rewritten so, and then rewrites those for which it is the best.

    Attributes:
        name: what ``allow=[NAME, ...]`` of such a pass says, in lower case with hyphens.
        rank: candidates of lower rank rewrite a model before those of higher rank, which see
            nodes that are narrow already.
        needs_data: whether `rewrite` needs `Context.samples`.
    """

    name: str
    rank: int = 50
    needs_data: bool = False

    @abc.abstractmethod
    def rewrite(self, model: ir.Model, nodes: Collection[str], ctx: Context) -> ir.Model:
        """Make nodes narrow, and leave all others as they are.

        Args:
            model: a valid model, in which each node has a name of its own. It may be changed.
            nodes: names of the nodes that may be narrow. One that cannot be stays as it is, with
                a `Decision` in `Context.decisions` that says why.
            ctx: as for `Pass.run`.

        Returns:
            The model, or a new one.

        Raises:
            PassError: the rewrite is not possible on this model.
        """

    def gain(self, node: ir.Node, target: Target) -> float:
        """Estimate the seconds that a node saves in a run, where nothing can be measured.

        Args:
            node: in its float32 form, with types and shapes as far as they are known.
            target: what the model is built for; `Backend.gain` may know.
        """
        return 0.0

    def reject_reason(self, target: Backend | None) -> str:
        """Return why the candidate is of no use on a target; empty where it is of use.

        Args:
            target: what the model is built for.
        """
        return ""
