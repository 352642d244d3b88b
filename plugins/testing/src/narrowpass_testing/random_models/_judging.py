"""What the oracles say about a model, and where results are not what they say."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from narrowpass_testing.random_models._cases import Case
from narrowpass_testing.random_models._differences import difference, differences
from narrowpass_testing.random_models._doubts import is_doubtful
from narrowpass_testing.random_models._elements import Array
from narrowpass_testing.random_models._nodes import part_of
from narrowpass_testing.random_models._oracles import Values, run_evaluator, run_onnxruntime
from narrowpass_testing.random_models._rounding import is_rounding
from narrowpass_testing.random_models._traits import DISCONTINUOUS, DRAWN_BY_CHANCE, EXACT


@dataclass(frozen=True)
class Verdict:
    """What the oracles say about a case.

    Attributes:
        candidates: the outputs of each oracle that ran, by its name, without those of onnx's
            evaluator that are doubtful: all of them where it ran alone, those that differ where
            both ran. One that refuses a model has the outputs of which it runs what they need.
        apart: how they differ, by the outputs about which both count.
        alone: outputs about which onnxruntime decides, as they differ and are doubtful.
        both: whether each oracle runs the whole model, with nodes that no output needs.
    """

    candidates: dict[str, Values]
    apart: Mapping[str, str] = field(default_factory=dict)
    alone: frozenset[str] = frozenset()
    both: bool = False

    @property
    def values(self) -> Values:
        """All outputs that an oracle has, onnxruntime's where both have one."""
        found: Values = {}
        for outputs in reversed(self.candidates.values()):
            found.update(outputs)
        return found


def judge(model: onnx.ModelProto, feeds: Mapping[str, Array], slack: float = 0.0) -> Verdict:
    """Ask both oracles; onnx's evaluator decides nothing alone where it may be wrong."""
    with _without_warnings():
        whole = [run(model, feeds) for run in (run_onnxruntime, run_evaluator)]
        runtime = _by_output(run_onnxruntime, model, feeds) if whole[0] is None else whole[0]
        other = _by_output(run_evaluator, model, feeds) if whole[1] is None else whole[1]
    shared = {name: value for name, value in runtime.items() if name in other}
    apart = differences(other, shared, None, slack)
    doubtful = {n for n in other if (n in apart or n not in shared) and is_doubtful(model, n)}
    sure = {name: value for name, value in other.items() if name not in doubtful}
    return Verdict(
        {name: found for name, found in (("onnxruntime", runtime), ("onnx", sure)) if found},
        {name: text for name, text in apart.items() if name not in doubtful},
        frozenset(doubtful & apart.keys()),
        None not in whole,
    )


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Keep what the oracles log of odd models, up to warnings, out of the caller's output."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        yield
    finally:
        logging.disable(before)


def _by_output(
    run: Callable[[onnx.ModelProto, Mapping[str, Any]], Values | None],
    model: onnx.ModelProto,
    feeds: Mapping[str, Array],
) -> Values:
    """Return what an oracle says that does not run a model, but may run what an output needs."""
    found: Values = {}
    if len(model.graph.output) == 1:
        return found
    for output in model.graph.output:
        part = part_of(model, output.name)
        given = {v.name: feeds[v.name] for v in part.graph.input if v.name in feeds}
        found.update(run(part, given) or {})
    return found


def mismatches(
    case: Case, got: Values, verdict: Verdict, tolerance: float | None = None
) -> Iterator[tuple[str, str]]:
    """Yield a kind and a message for the first output that is not what the oracles say.

    The kinds: ``wrong`` where both oracles agree, ``not as the only oracle`` where one runs,
    ``as neither oracle`` where they are apart, ``wrong type or shape`` for numbers drawn by chance.

    Args:
        case: what ran.
        got: its results.
        verdict: of `judge`.
        tolerance: relative to the largest element; None for that of the type. With one, models
            whose operators jump, such as Floor, are not compared: a small error is no small one
            behind them.
    """
    kinds = {node.op_type for node in case.model.graph.node}
    if kinds & DRAWN_BY_CHANCE:
        for name, value in verdict.values.items():
            zero = difference(np.zeros_like(got[name]), np.zeros_like(value), None)
            if zero:
                yield "wrong type or shape", f"{name}: {zero}"
                return
        return
    if tolerance is not None and not _is_continuous(case, verdict):
        return
    found = {
        oracle: differences(got, values, tolerance, case.slack)
        for oracle, values in verdict.candidates.items()
    }
    for name in dict.fromkeys(name for values in verdict.candidates.values() for name in values):
        texts = [wrong[name] for wrong in found.values() if name in wrong]
        judges = sum(name in values for values in verdict.candidates.values())
        if not texts or (name in verdict.apart and len(texts) < judges):
            continue
        theirs = [values[name] for values in verdict.candidates.values() if name in values]
        if tolerance is None and any(is_rounding(case, name, got.get(name), v) for v in theirs):
            continue
        if name in verdict.apart:
            each = "; ".join(f"{oracle}: {wrong[name]}" for oracle, wrong in found.items())
            yield "as neither oracle", f"{name}: {each}; theirs: {verdict.apart[name]}"
        else:
            yield "wrong" if judges == 2 else "not as the only oracle", f"{name}: {texts[0]}"
        return


def _is_continuous(case: Case, verdict: Verdict) -> bool:
    """Report whether rounding to a narrow type leaves results about where they are."""
    kinds = {node.op_type for node in case.model.graph.node}
    jumps = kinds & (DISCONTINUOUS - EXACT)
    whole = any(isinstance(v, np.ndarray) and v.dtype.kind != "f" for v in verdict.values.values())
    return not jumps and not whole
