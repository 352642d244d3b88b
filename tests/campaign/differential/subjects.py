"""What is tested: each backend, thread count and pipeline runs a case, and is compared."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import onnx_ir as ir

import narrowpass
from differential.cases import Case
from differential.elements import Array
from differential.oracles import PHASE, Values, Verdict, difference, differences, judge
from differential.rounding import is_rounding
from differential.traits import DRAWN_BY_CHANCE
from narrowpass import Bundle, CompileOptions, Program
from narrowpass.errors import NarrowpassError
from narrowpass.framework.plugins import load_plugins


@dataclass(frozen=True)
class Finding:
    """What is wrong with one subject on one case.

    Attributes:
        kind: a word for the class: it is what shrinking keeps.
        subject: the name of what is tested.
        message: the details.
    """

    kind: str
    subject: str
    message: str


@dataclass(frozen=True)
class Subject:
    """A way to run a model.

    Attributes:
        name: as findings name it.
        backend: a backend's name.
        threads: of the program.
        pipeline: passes before; None for none.
        tolerance: relative to the largest element; None for that of the type. Narrow types have
            one that separates a wrong operand from rounding, and nothing more.
    """

    name: str
    backend: str
    threads: int = 1
    pipeline: str | None = None
    tolerance: float | None = None

    def program(self, case: Case) -> Program:
        """Compile a case."""
        model = ir.from_proto(case.model)
        if self.pipeline is None:
            backend = plugins().registry.backend(self.backend)
            options = CompileOptions(threads=self.threads, cache=False)
            return backend.compile(Bundle({"main": model}), options)
        bundle = narrowpass.build(model, self.pipeline, plugins=plugins())
        return narrowpass.load(
            bundle, self.backend, threads=self.threads, cache=False, plugins=plugins()
        )


@cache
def plugins() -> Any:
    """Return what is installed, found once."""
    return load_plugins()


BACKENDS = (
    Subject("reference", "reference"),
    Subject("xnn-cpu", "xnn-cpu"),
    Subject("xnn-cpu on 2 threads", "xnn-cpu", threads=2),
    Subject("onnxruntime", "onnxruntime"),
)
"""Each runs every case."""

PIPELINES = (
    Subject("fold", "xnn-cpu", pipeline="fold"),
    Subject("fold, upgraded", "xnn-cpu", pipeline="fold,upgrade-opset,fold"),
    Subject("fold on reference", "reference", pipeline="fold"),
    Subject("expanded", "xnn-cpu", pipeline="expand-operators,store-weights", tolerance=2e-2),
    Subject("float16", "xnn-cpu", pipeline="fold,fp16", tolerance=5e-2),
    Subject("bfloat16", "xnn-cpu", pipeline="fold,fp16{dtype=bfloat16}", tolerance=0.2),
    Subject("int8, dynamic", "xnn-cpu", pipeline="fold,int8-sym{mode=dynamic}", tolerance=0.3),
    Subject("int8 weights", "xnn-cpu", pipeline="fold,int8-sym{mode=weight-only}", tolerance=0.2),
)
"""One of them runs each case, in turn."""


def available() -> tuple[list[Subject], list[Subject]]:
    """Return the subjects whose backends and passes are installed: all cases', and one of each."""
    registry = plugins().registry
    passes = set(registry.passes)
    found = [s for s in BACKENDS if s.backend in registry.backends]
    chosen = [
        s
        for s in PIPELINES
        if s.backend in registry.backends
        and all(part.split("{")[0] in passes for part in (s.pipeline or "").split(","))
    ]
    return found, chosen


def run_case(
    case: Case, seed: int, counts: dict[str, int], subjects: Sequence[Subject] | None = None
) -> Iterator[Finding]:
    """Judge a case and run it everywhere.

    Args:
        case: model and feeds.
        seed: selects the pipeline.
        counts: where runs, and what the oracles said, are counted.
        subjects: what to test; by default all backends and one pipeline.
    """
    verdict = judge(case.model, case.feeds, case.slack)
    if not verdict.candidates:
        _count(counts, "cases that no oracle runs")
        return
    _count(counts, _word(verdict))
    if subjects is None:
        always, turns = available()
        subjects = [*always, *([turns[seed % len(turns)]] if turns else [])]
    judged = Sizes(case)
    for subject in subjects:
        yield from run_subject(case, subject, verdict, counts, judged)


class Sizes:
    """Feeds of a case at other sizes of its symbols, with what the oracles say about each.

    A symbol may be the rank of something, as that of ConstantOfShape of int64[M]: sizes at which an
    output has other axes than the model declares are left out.

    The oracles run once for all subjects.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self._judged: list[tuple[dict[str, Array], Verdict]] | None = None

    def judged(self) -> list[tuple[dict[str, Array], Verdict]]:
        """Return the feeds about which both oracles agree."""
        if self._judged is None:
            self._judged = []
            for more in (1, 3):
                sizes = {name: size + more for name, size in self.case.sizes.items()}
                feeds = self.case.resized(sizes)
                verdict = judge(self.case.model, feeds, self.case.slack)
                # Where they do not, sizes are bound by constants of the model.
                agree = verdict.both and not (verdict.apart or verdict.alone)
                if agree and _has_ranks(verdict.values, self.case):
                    self._judged.append((feeds, verdict))
        return self._judged


def _has_ranks(values: Values, case: Case) -> bool:
    """Report whether outputs have as many axes as the model declares."""
    types = {value.name: value.type.tensor_type for value in case.model.graph.output}
    return all(
        not types[name].HasField("shape") or np.ndim(value) == len(types[name].shape.dim)
        for name, value in values.items()
    )


def run_subject(
    case: Case,
    subject: Subject,
    verdict: Verdict,
    counts: dict[str, int],
    judged: Sizes | None = None,
) -> Iterator[Finding]:
    """Run one subject: the feeds of the case, other sizes of its symbols, the first ones again."""
    judged = judged or Sizes(case)
    PHASE(subject.name)
    found: list[Finding] = []

    def guarded(action: Callable[[], Any], must: bool) -> Any:
        try:
            with warnings.catch_warnings(action="ignore"), np.errstate(all="ignore"):
                return action()
        except NarrowpassError as error:
            if must:
                found.append(Finding("refused", subject.name, str(error)))
        except Exception as error:  # noqa: BLE001  # it is what is looked for
            text = f"{type(error).__name__}: {error}"
            found.append(Finding("exception", subject.name, text))
        return None

    both = verdict.both and not verdict.alone
    program = guarded(lambda: subject.program(case), both)
    if program is not None:
        with program:
            _count(counts, f"runs of {subject.name}")
            got = guarded(lambda: program.run(_copies(case.feeds)), both)
            if got is not None:
                found += compare(case, subject, got, verdict)
                if case.sizes and subject.pipeline is None and not found:
                    found += _sizes(case, subject, program, guarded, counts, verdict, judged)
    yield from found


def _sizes(
    case: Case,
    subject: Subject,
    program: Program,
    guarded: Callable[[Callable[[], Any], bool], Any],
    counts: dict[str, int],
    first: Verdict,
    judged: Sizes,
) -> list[Finding]:
    found: list[Finding] = []
    others = judged.judged()
    PHASE(subject.name)
    for feeds, verdict in others:
        _count(counts, f"runs of {subject.name}")
        got = guarded(lambda feeds=feeds: program.run(_copies(feeds)), True)  # type: ignore[misc]
        if got is not None:
            resized = replace(case, feeds=feeds)
            found += compare(resized, subject, got, verdict, "at other sizes: ")
    got = guarded(lambda: program.run(_copies(case.feeds)), True)
    if got is not None:
        found += compare(case, subject, got, first, "at the first sizes again: ")
    return found


def compare(
    case: Case, subject: Subject, got: Values, verdict: Verdict, where: str = ""
) -> list[Finding]:
    """Compare a subject's outputs with the oracles'."""
    kinds = {node.op_type for node in case.model.graph.node}
    if kinds & DRAWN_BY_CHANCE:
        for name, value in verdict.values.items():
            zero = difference(np.zeros_like(got[name]), np.zeros_like(value), None)
            if zero:
                return [Finding("wrong type or shape", subject.name, f"{where}{name}: {zero}")]
        return []
    tolerance = subject.tolerance
    if tolerance is not None and not _continuous(case, verdict):
        return []
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
            text = f"{where}{name}: {each}; theirs: {verdict.apart[name]}"
            return [Finding("as neither oracle", subject.name, text)]
        kind = "wrong" if judges == 2 else "not as the only oracle"
        return [Finding(kind, subject.name, f"{where}{name}: {texts[0]}")]
    return []


def _continuous(case: Case, verdict: Verdict) -> bool:
    """Report whether rounding to a narrow type leaves results about where they are."""
    from differential.traits import DISCONTINUOUS, EXACT

    kinds = {node.op_type for node in case.model.graph.node}
    jumps = kinds & (DISCONTINUOUS - EXACT)
    whole = any(isinstance(v, np.ndarray) and v.dtype.kind != "f" for v in verdict.values.values())
    return not jumps and not whole


def _copies(feeds: Mapping[str, Array]) -> dict[str, Array]:
    return {name: array.copy() for name, array in feeds.items()}


def _word(verdict: Verdict) -> str:
    if verdict.apart or verdict.alone:
        return "cases with oracles apart"
    if len(verdict.candidates) == 1:
        return f"cases that only {next(iter(verdict.candidates))} runs"
    if not verdict.both:
        return "cases that the oracles run in parts"
    return "cases with oracles that agree"


def _count(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1
