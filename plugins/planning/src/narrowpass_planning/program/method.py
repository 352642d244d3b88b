"""A method compiled: its feeds are checked, and a form of its graph runs that fits their shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from narrowpass.runtime.backend import NodePlan
from narrowpass.runtime.feeds import FeedChecker
from narrowpass_planning.branches.deciding import Decisions, WrongBranchError, decide, decides
from narrowpass_planning.branches.selecting import select
from narrowpass_planning.plan.bound import Bound
from narrowpass_planning.plan.executor import Pool
from narrowpass_planning.plan.partition import Partition
from narrowpass_planning.plan.prepared import Prepared
from narrowpass_planning.plan.step import Times
from narrowpass_planning.program.form import Form
from narrowpass_planning.program.lowering import Lowering
from narrowpass_planning.program.premises import Premises

if TYPE_CHECKING:
    from narrowpass.runtime.meters import Meter

Array = np.ndarray[Any, Any]

_MOST_FORMS = 8
"""Forms of one graph that are kept; where shapes decide in more ways, Ifs are run as they come."""


class Method:
    """A compiled method. Several threads may run it; they take turns.

    Args:
        name: the method's.
        model: with types and shapes inferred; not changed.
        kept: names of values to keep readable.
        overridden: inputs that are fed in each run although they have defaults. The defaults of
            others are constants.
        premises: what it has from its program.
        observe: whether kept values are only looked at, by `observe`.

    Attributes:
        defaults: names of the inputs that have defaults.
        types: of the outputs, and of the values that a run can give beside them, by name.
        observable: names of the values that `observe` can be asked for.
        alike: whether the feeds that were checked last were like those before them.
        decided: whether shapes decide what runs, so that `model` is needed for other shapes.
    """

    def __init__(
        self,
        name: str,
        model: ir.Model,
        kept: Sequence[str],
        overridden: frozenset[str],
        premises: Premises,
        *,
        observe: bool = False,
    ) -> None:
        graph = model.graph
        self.name = name
        self.checker = FeedChecker.of(graph, name)
        self.outputs = tuple(value.name or "" for value in graph.outputs)
        self.defaults = frozenset(
            value.name or "" for value in graph.inputs if value.name in graph.initializers
        )
        known = {value.name: value for value in (*graph.inputs, *graph.initializers.values())}
        known.update((value.name, value) for node in graph for value in node.outputs)
        self.known = frozenset(name for name in known if name)
        kept = [value for value in kept if value in known]
        self.observable = frozenset((*self.outputs, *kept)) if observe else frozenset()
        lowering = self._lowering = premises.lowering
        observed = [
            value.name
            for value in known.values()
            if value.name in self.observable and lowering.observes(value)
        ]
        kept = [value for value in kept if value not in observed]
        self.types = {value: known[value].type for value in (*self.outputs, *kept)}
        self.workspace = premises.workspace
        self.alike = False
        self._checked: list[tuple[Any, ...]] | None = None
        self._forms = _Forms(name, model, kept, observed, overridden, premises)
        self.decided = self._forms.decided

    def check(self, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        """Check feeds, unless they are of the types and shapes of the last ones.

        Returns:
            The feeds; see `FeedChecker.check`.

        Raises:
            DataError: see `FeedChecker.check`.
        """
        try:
            signature = [(name, type(x), x.dtype, x.shape) for name, x in feeds.items()]
        except AttributeError:
            signature = None  # something else than arrays: sequences, or a mistake
        if signature is not None and signature == self._checked:
            self.alike = True
            return feeds
        self.alike = False
        checked = self.checker.check(feeds)
        # Each string is looked at, and so is what a subclass of arrays may hold.
        fixed = signature is not None and not any(
            kind is not np.ndarray or dtype.hasobject for _, kind, dtype, _ in signature
        )
        self._checked = signature if fixed else None
        return checked

    @property
    def raw(self) -> dict[int, int]:
        """The bytes of constants that are used as they are, by where they lie."""
        return {
            array.ctypes.data: array.nbytes
            for partition in self.partitions
            for array in partition.constants
        }

    @property
    def partitions(self) -> list[Partition]:
        """The native partitions, in order."""
        return self._forms.last.partitions

    @property
    def plans(self) -> tuple[NodePlan, ...]:
        """Where nodes run."""
        return self._forms.last.plans

    @property
    def fresh(self) -> Set[str]:
        """Names of the values that the last run has made anew."""
        return self._forms.last.fresh

    def run(
        self,
        feeds: Mapping[str, Any],
        wanted: Sequence[str],
        pool: Pool,
        out: Mapping[str, Array],
        times: Times | None = None,
    ) -> dict[str, Any]:
        """Run the method on feeds that were checked.

        Args:
            feeds: by input name.
            wanted: names of outputs and kept values.
            pool: the threads.
            out: dense arrays of the outputs' types, which may be written to.
            times: takes the seconds of each step and host node, where given.

        Returns:
            The values. They may be views of feeds or weights; those that were computed in an
            array of `out` are that array.
        """
        with self.workspace.entered():
            return self.run_within(feeds, wanted, pool, out, times)

    def run_within(
        self,
        feeds: Mapping[str, Any],
        wanted: Sequence[str],
        pool: Pool,
        out: Mapping[str, Array],
        times: Times | None = None,
    ) -> dict[str, Any]:
        """Run the method as `run` does; who calls has entered its workspace."""
        if not self.decided:
            return self._forms.last.run(feeds, wanted, pool, out, times)
        form = self._forms.choose(feeds)
        while True:
            try:
                return form.run(feeds, wanted, pool, out, times)
            except WrongBranchError as wrong:
                form = self._forms.other(wrong, feeds)

    @property
    def alone(self) -> bool:
        """Whether one partition runs and nothing else."""
        return self._forms.last.alone

    def prepare(self, feeds: Mapping[str, Any], pool: Pool) -> Prepared | None:
        """Return what runs for other feeds of the types and shapes of these; see `Form.prepare`."""
        return self._forms.last.prepare(feeds, self.outputs, self.workspace, pool)

    def bind(
        self, feeds: Mapping[str, Any], pool: Pool
    ) -> tuple[Bound, dict[str, Array | str]] | None:
        """Return what runs for feeds, where that is one partition; see `Form.bind`."""
        form = self._forms.choose(feeds)
        while True:
            try:
                return form.bind(feeds, self.outputs, pool)
            except WrongBranchError as wrong:
                form = self._forms.other(wrong, feeds)

    def observe(self, feeds: Mapping[str, Any], meters: Mapping[str, Meter], pool: Pool) -> None:
        """Run the method on feeds that were checked, and let meters take in its values."""
        with self.workspace.entered():
            if self.decided:
                self.run(feeds, (), pool, {})  # finds the form before anything is looked at
            places = self._forms.last.meters
            native = {name: meter for name, meter in meters.items() if name in places}
            others = [name for name in meters if name not in native]
            scratch = self._lowering.scratch(native.values(), pool)
            for name, meter in native.items():
                places[name].begin(meter, scratch)
            try:
                values = self.run(feeds, others, pool, {})
            finally:
                for name, meter in native.items():
                    places[name].end(meter)
        for name in others:
            meters[name].add(values[name], f"value {name!r}")


class _Forms:
    """The forms of a method's graph, each for other decisions of Ifs that follow from shapes.

    Attributes:
        last: the form that ran last.
        decided: whether there are such Ifs.
    """

    def __init__(
        self,
        name: str,
        model: ir.Model,
        kept: Sequence[str],
        observed: Sequence[str],
        overridden: frozenset[str],
        premises: Premises,
    ) -> None:
        self._name = name
        self._model = model
        self._kept, self._observed, self._overridden = kept, observed, overridden
        self._premises = premises
        self._forms: list[tuple[Decisions, Form]] = []
        self._chosen: dict[tuple[Any, ...], Form] = {}
        if decides(model):
            self.last = self._compile({}, premises)
            self.decided = bool(self._forms[0][0])
        else:
            self.last = self._form(model, premises)
            self.decided = False
        if not self.decided:
            del self._model  # it is large

    def choose(self, feeds: Mapping[str, Any]) -> Form:
        """Return the form that ran with feeds of these shapes, or the last one."""
        if len(self._forms) > 1:
            self.last = self._chosen.get(_signature(feeds), self.last)
        return self.last

    def other(self, wrong: WrongBranchError, feeds: Mapping[str, Any]) -> Form:
        """Return a form that takes another branch than the last one."""
        decisions = next(known for known, form in self._forms if form is self.last)
        until = {**decisions}
        for label in [*decisions][[*decisions].index(wrong.label) :]:
            del until[label]
        until[wrong.label] = wrong.taken
        found = next((form for known, form in self._forms if until.items() <= known.items()), None)
        if found is None:
            found = self._compile_for(until, feeds)
        if len(self._chosen) > 256:
            self._chosen.clear()
        self._chosen[_signature(feeds)] = found
        self.last = found
        return found

    def _compile_for(self, decisions: Decisions, feeds: Mapping[str, Any]) -> Form:
        # Weights are packed for this form alone: the session of the others is closed.
        premises = dataclasses.replace(self._premises, session=None, identities={})
        if len(self._forms) >= _MOST_FORMS:
            general = self._form(self._model, premises)
            self._forms = [({}, general)]
            self.decided = False
            return general
        dims = {name: x.shape for name, x in feeds.items() if isinstance(x, np.ndarray)}
        follow = decide(self._model.clone(), decisions, self._overridden, dims)
        return self._compile({**follow, **decisions}, premises)

    def _compile(self, guesses: Decisions, premises: Premises) -> Form:
        lowering = premises.lowering
        model, decisions = _chosen(self._model, guesses, self._overridden, lowering)
        form = self._form(model, premises)
        self._forms.append((decisions, form))
        return form

    def _form(self, model: ir.Model, premises: Premises) -> Form:
        return Form(self._name, model, self._kept, self._observed, self._overridden, premises)


def canonical(model: ir.Model, lowering: Lowering[Any]) -> ir.Model:
    """Return a graph as it is compiled first: a branch in the place of each If that has one."""
    return _chosen(model, {}, frozenset(), lowering)[0] if decides(model) else model


def _chosen(
    model: ir.Model, guesses: Decisions, overridden: frozenset[str], lowering: Lowering[Any]
) -> tuple[ir.Model, Decisions]:
    clone = model.clone()
    decisions = decide(clone, guesses, overridden)
    select(clone)
    lowering.infer(clone)
    return clone, decisions


def _signature(feeds: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple([x.shape if isinstance(x, np.ndarray) else None for x in feeds.values()])


def compile_body(name: str, model: ir.Model, premises: Premises) -> Method:
    """Compile the body of a control flow operator."""
    return Method(name, model, (), frozenset(), premises)
