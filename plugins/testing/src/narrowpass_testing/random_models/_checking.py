"""Runs a model in a backend, in many ways, and says what is wrong with its results."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

import narrowpass
from narrowpass import Bundle, CompileOptions, Plugins, Program, load_plugins
from narrowpass.errors import NarrowpassError
from narrowpass_testing.random_models._bits import batched, is_fixed, of_rows
from narrowpass_testing.random_models._cases import Case, Finding
from narrowpass_testing.random_models._differences import difference, other_bits
from narrowpass_testing.random_models._elements import Array
from narrowpass_testing.random_models._judging import Verdict, judge, mismatches
from narrowpass_testing.random_models._known import is_known
from narrowpass_testing.random_models._oracles import PHASE, Values


@dataclass(frozen=True)
class Subject:
    """A way to run a model.

    Attributes:
        name: as findings name it.
        backend: a backend's name, with options if it has any.
        threads: of the program.
        pipeline: passes before; None for none.
        tolerance: relative to the largest element; None for that of the type. Narrow types have
            one that separates a wrong operand from rounding, and nothing more.
        like: a subject whose bits it must have.
        calibrated: whether passes have the feeds of the case as samples.
        rows: whether a row alone has the same bits, where rows do not depend on each other.
        target: whether passes are asked for the limits of the backend.
    """

    name: str
    backend: str
    threads: int = 1
    pipeline: str | None = None
    tolerance: float | None = None
    like: Subject | None = None
    calibrated: bool = False
    rows: bool = False
    target: bool = False

    def is_installed(self) -> bool:
        """Report whether the backend and the passes are there."""
        registry = plugins().registry
        texts = re.sub(r"{.*?}", "", self.pipeline or "").split(",")
        passes = [text for text in texts if text]
        return self.backend.partition("{")[0] in registry.backends and all(
            name in registry.passes for name in passes
        )

    def program(self, case: Case) -> Program:
        """Compile a case."""
        model = ir.from_proto(case.model)
        if self.pipeline is None:
            backend = plugins().registry.backend(self.backend)
            options = CompileOptions(threads=self.threads, cache=False)
            return backend.compile(Bundle({"main": model}), options)
        bundle = narrowpass.build(
            model,
            self.pipeline,
            plugins=plugins(),
            calibration=[copies(case.feeds)] if self.calibrated else None,
            target=self.backend if self.target else None,
        )
        return narrowpass.load(
            bundle, self.backend, threads=self.threads, cache=False, plugins=plugins()
        )


@cache
def plugins() -> Plugins:
    """Return what is installed, found once."""
    return load_plugins()


def copies(feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return feeds that a program may write to."""
    return {name: array.copy() for name, array in feeds.items()}


class Sizes:
    """Feeds of a case at other sizes of its symbols, with what the oracles say about each.

    A symbol may be the rank of something, as that of ConstantOfShape of int64[M]: sizes at which an
    output has other axes than the model declares are left out.

    The oracles run once for all subjects.

    Attributes:
        runs: what each subject computed, by its name and by where.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self.runs: dict[str, dict[str, Values]] = {}
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


@dataclass
class _Run:
    """One subject with a case.

    Attributes:
        found: what is wrong.
        counts: where runs are counted.
    """

    case: Case
    subject: Subject
    verdict: Verdict
    sizes: Sizes
    counts: dict[str, int]
    found: list[Finding] = field(default_factory=list)

    def note(self, kind: str, message: str) -> None:
        self.found.append(Finding(kind, self.subject.name, message))

    def count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    def guarded(self, action: Callable[[], Any], must: bool) -> Any:
        """Return what an action returns; note an error, a refusal only if it must succeed."""
        try:
            with warnings.catch_warnings(action="ignore"), np.errstate(all="ignore"):
                return action()
        except NarrowpassError as error:
            if must:
                self.note("refused", str(error))
        except Exception as error:  # noqa: BLE001  # it is what is looked for
            self.note("exception", f"{type(error).__name__}: {error}")
        return None

    def compare(self, got: Values, verdict: Verdict, case: Case, where: str = "") -> None:
        """Note where outputs are not those of the oracles."""
        for kind, message in mismatches(case, got, verdict, self.subject.tolerance):
            self.note(kind, f"{where}{message}")

    def whole(self) -> None:
        """Run the feeds of the case, other sizes of its symbols, the first ones again."""
        case, subject = self.case, self.subject
        both = self.verdict.both and not self.verdict.alone
        rows = batched(case, self.verdict.values) if subject.rows else None
        PHASE(subject.name)
        program = self.guarded(lambda: subject.program(rows or case), both)
        runs, foreign = self.sizes.runs.setdefault(subject.name, {}), False
        if program is not None:
            with program:
                # onnxruntime divides a convolution among its threads in its own way.
                foreign = subject.like is not None and ("Conv", "onnxruntime") in {
                    (plan.op_type, plan.kernel) for plan in program.explain()
                }
                self.count(f"runs of {subject.name}")
                got = self.guarded(lambda: program.run(copies(case.feeds)), both)
                if got is not None:
                    runs[""] = got
                    self.compare(got, self.verdict, case)
                    if not self.found and subject.pipeline is None:
                        self.guarded(lambda: self.contract(program, got), True)
                    if rows is not None and not self.found:
                        self.count(f"rows alone of {subject.name}")
                        self.rows(program, got)
                    if case.sizes and subject.pipeline is None and rows is None and not self.found:
                        self.other_sizes(program)
        if subject.like is not None and is_fixed(case) and not self.found and not foreign:
            for where, values in self.sizes.runs.get(subject.like.name, {}).items():
                text = other_bits(runs[where], values) if where in runs else ""
                if text:
                    self.note("other bits", f"{where}{text}")
                    break

    def contract(self, program: Program, got: Values) -> None:
        """Run again with feeds that are laid out otherwise, and with arrays for some outputs.

        A run writes to none of its feeds, and to all of ``out``; results share no memory.
        """
        choice = random.Random(self.case.model.graph.name)
        given = {name: _laid_out(array, choice) for name, array in self.case.feeds.items()}
        arrays = {name: value for name, value in got.items() if isinstance(value, np.ndarray)}
        out = {n: np.empty_like(a) for n, a in arrays.items() if choice.random() < 0.5}
        again = program.run(given, out=out)
        for name, array in self.case.feeds.items():
            if given[name].tobytes() != array.tobytes():
                self.note("contract", f"the run wrote to the feed {name!r}")
        for name, array in out.items():
            if again[name] is not array:
                self.note("contract", f"{name}: another array than that of out")
        results = [(name, again[name]) for name in arrays]
        for index, (name, array) in enumerate(results):
            others = [*given.values(), *(other for _, other in results[:index])]
            if array.size and any(np.may_share_memory(array, other) for other in others):
                self.note("contract", f"{name}: shares memory with a feed or another output")
            if not array.flags.writeable:
                self.note("contract", f"{name}: cannot be written to")
        if is_fixed(self.case):
            for name, array in arrays.items():
                # The layout may change the order in which terms are added.
                text = difference(again[name], array, None, self.case.slack)
                if text and self.subject.tolerance is None and not self.verdict.apart:
                    self.note("contract", f"{name}: {text} with feeds that are laid out otherwise")

    def rows(self, program: Program, whole: Values) -> None:
        """Compare the bits of rows alone, and of a part of them, with those of all rows."""
        count = next(iter(self.case.feeds.values())).shape[0]
        for rows in (slice(0, 1), slice(count - 1, count), slice(count // 2, count)):
            feeds = of_rows(self.case.feeds, rows)
            got = self.guarded(lambda feeds=feeds: program.run(feeds), True)  # type: ignore[misc]
            text = "" if got is None else other_bits(got, of_rows(whole, rows))
            if text:
                last = rows.stop - 1
                self.note("other bits", f"rows {rows.start} to {last} of {count} alone: {text}")
                return

    def other_sizes(self, program: Program) -> None:
        """Run at two other sizes, then at the first ones again."""
        others = self.sizes.judged()
        PHASE(self.subject.name)
        places = ("at other sizes: ", "at larger sizes: ")
        runs = [(*one, where) for one, where in zip(others, places, strict=False)]
        runs.append((self.case.feeds, self.verdict, "at the first sizes again: "))
        for feeds, verdict, where in runs:
            self.count(f"runs of {self.subject.name}")
            got = self.guarded(lambda feeds=feeds: program.run(copies(feeds)), True)  # type: ignore[misc]
            if got is not None:
                self.sizes.runs[self.subject.name][where] = got
                self.compare(got, verdict, replace(self.case, feeds=feeds), where)


def _laid_out(array: Array, choice: random.Random) -> Array:
    """Return a copy of a feed, whose elements may not lie one behind the other."""
    form = choice.randrange(4) if array.ndim else 3
    if form == 0:
        return np.asfortranarray(array.copy())
    if form == 1:
        return np.flip(np.flip(array, 0).copy(), 0)
    if form == 2:
        wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
        wide[..., ::2] = array
        return wide[..., ::2]
    return array.copy()


def run_subject(
    case: Case,
    subject: Subject,
    verdict: Verdict,
    counts: dict[str, int] | None = None,
    sizes: Sizes | None = None,
) -> Iterator[Finding]:
    """Run one subject and yield what is wrong.

    Args:
        case: what to run.
        subject: how.
        verdict: of `judge`.
        counts: where runs are counted.
        sizes: of this case, where several subjects run it.
    """
    sizes = sizes or Sizes(case)
    if subject.like is not None and subject.like.name not in sizes.runs:
        _Run(case, subject.like, verdict, sizes, {}).whole()
    run = _Run(case, subject, verdict, sizes, {} if counts is None else counts)
    run.whole()
    yield from run.found


def findings(case: Case, subject: Subject | str) -> list[Finding]:
    """Return what is wrong with a subject, or with a backend by its name, on a case.

    The list is empty, too, where no oracle runs the model; `judge` says so.
    """
    if isinstance(subject, str):
        subject = Subject(subject, subject)
    verdict = judge(case.model, case.feeds, case.slack)
    return list(run_subject(case, subject, verdict)) if verdict.candidates else []


def check(
    case: Case,
    backend: str,
    *,
    pipeline: str | None = None,
    threads: Sequence[int] = (1,),
    tolerance: float | None = None,
    known: Callable[[Case, Finding], bool] | None = None,
) -> bool:
    """Assert that a backend computes what the oracles do, and keeps the contract of programs.

    The model runs with the feeds of the case, with the same feeds laid out otherwise and arrays
    for the outputs, and at other sizes where it has symbols. onnxruntime and onnx's evaluator
    judge; where they disagree, each output must be that of one of them.

    Args:
        case: such as `random_models` yields.
        backend: its name, with options if it has any.
        pipeline: passes to build the model with; None for none.
        threads: numbers of threads, of which each has a program. All must have the same bits.
        tolerance: relative to the largest element, for pipelines to narrow types; None for that of
            the type. Models whose operators jump, such as Floor, are left out with one.
        known: whether a finding is none; None for `is_known`: forms that the oracles get wrong.

    Returns:
        Whether an oracle runs the model; else nothing was compared.

    Raises:
        AssertionError: something is wrong. The message has the findings, the model as text, and
            where the seed came from.
    """
    verdict = judge(case.model, case.feeds, case.slack)
    if not verdict.candidates:
        return False
    known = known or is_known
    sizes, first = Sizes(case), None
    found: list[Finding] = []
    for count in threads:
        name = backend if count == 1 else f"{backend} on {count} threads"
        subject = Subject(name, backend, count, pipeline, tolerance, like=first)
        found += run_subject(case, subject, verdict, None, sizes)
        first = first or subject
    found = [finding for finding in found if not known(case, finding)]
    if found:
        lines = [case.model.graph.name, *map(str, found), "", onnx.printer.to_text(case.model)]
        raise AssertionError("\n".join(lines))
    return True
