"""The largest element that each value has on data, in float32."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from narrowpass import Samples
from narrowpass_analysis.values import check_elements, check_numbers, run_on_samples, split_groups
from narrowpass_analysis.verification import judging_backends
from narrowpass_fp16.data.probes import NOT_RUN, Probes
from narrowpass_fp16.data.runnable import cut_off
from narrowpass_fp16.graph.schemas import is_float
from narrowpass_ir.subgraphs import model_nodes, subgraphs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from narrowpass import Context
    from narrowpass.runtime.backend import Feeds


@dataclass(frozen=True)
class Ranges:
    """What was measured, by the numbers that `numbered` assigns to values; it holds for clones too.

    Attributes:
        largest: the largest finite magnitude of values that were computed.
        excused: why others could not be measured, where that is no reason to keep them wide.
    """

    largest: Mapping[int, float] = field(default_factory=dict)
    excused: Mapping[int, str] = field(default_factory=dict)

    def of(self, model: ir.Model) -> Measured:
        """Return them by value: of the model that was observed, or of a clone."""
        numbers = numbered(model)
        known = self.largest.keys() | self.excused.keys()
        return Measured(
            {value: self.largest[n] for value, n in numbers.items() if n in self.largest},
            {value: self.excused[n] for value, n in numbers.items() if n in self.excused},
            {value for value, n in numbers.items() if self.largest and n not in known},
        )


@dataclass(frozen=True)
class Measured:
    """What was measured, by value; see `Ranges`.

    Attributes:
        unseen: computed values of which nothing can be said, though there is data.
    """

    largest: Mapping[ir.Value, float]
    excused: Mapping[ir.Value, str]
    unseen: Set[ir.Value]


def numbered(model: ir.Model) -> dict[ir.Value, int]:
    """Number the values of a model, those of subgraphs and functions included."""
    found: dict[ir.Value, int] = {}
    values = list(model.graph.inputs)
    for node in model_nodes(model):
        values.extend(node.outputs)
        for graph in subgraphs(node):
            values.extend(graph.inputs)
    for function in model.functions.values():
        values.extend(function.inputs)
    for value in values:
        found.setdefault(value, len(found))
    return found


def observe(
    model: ir.Model, samples: Samples, ctx: Context, red: Collection[ir.Node] = ()
) -> Ranges:
    """Run a model on samples, and return the largest finite magnitude of each float32 value.

    Values behind a node that nothing can run are left out, and so are those within a branch or a
    loop that no sample enters.

    Args:
        model: as it was before anything is narrow, with types; not changed.
        samples: gone through once for every `narrowpass_analysis.values.AT_ONCE` values.
        ctx: has the target, which runs it; the reference evaluator if there is none.
        red: nodes that stay wide. Values of the main graph that only these read and write are not
            measured: a pass that narrows few nodes at a time keeps few values.

    Raises:
        DataError: an input is NaN on a sample, or nothing is computed of it; the message names
            both.
        BackendError: the model cannot be run.
    """
    spared = _spared(model, red)
    clone = model.clone()
    numbers = numbered(clone)
    excused = {numbers[value]: reason for value, reason in cut_off(clone, ctx).items()}
    outer = {
        value.name: numbers[value]
        for node in clone.graph
        for value in node.outputs
        if value.name and is_float(value)
    }
    # One at least: inputs are measured by the way.
    touched = {name: number for name, number in outer.items() if number not in spared}
    outer = touched or dict(islice(outer.items(), 1))
    excused |= dict.fromkeys(spared, "only nodes that stay wide touch it")
    probes = Probes(clone, numbers)
    asked = outer | probes.scalars
    if not clone.graph.outputs:  # all are behind what nothing can run
        last = next((v for node in reversed(clone.graph) for v in node.outputs if v.name), None)
        clone.graph.outputs.extend([] if last is None else [last])
    inputs = {value.name: numbers[value] for value in clone.graph.inputs}
    backend = judging_backends(ctx.target)[-1]
    largest: dict[int, float] = {}
    for group in split_groups(list(asked)):
        for at, feeds, values in run_on_samples(clone, group, _checked(samples), backend):
            check_elements(feeds, values, f"sample {at} of {samples.source}")
            found = [(asked[name], array) for name, array in values.items()]
            found += [(inputs[name], array) for name, array in feeds.items() if _is_wide(array)]
            for number, array in found:
                size = _largest(array)
                if size != NOT_RUN:
                    largest[number] = max(largest.get(number, 0.0), size)
            del values, found, array  # before the next ones are computed
    for number in {*probes.scalars.values()} - largest.keys():
        excused[number] = "no sample enters what it is in"
    for number in {*inputs.values()} - largest.keys():
        excused[number] = "no sample feeds it"
    return Ranges(largest, excused)


def _spared(model: ir.Model, red: Collection[ir.Node]) -> set[int]:
    """Return the numbers of values of the main graph that only red nodes read and write.

    None of what a subgraph or a call reads: it has nodes of its own.
    """
    numbers = numbered(model)
    around = {node for node in model_nodes(model) if node not in red or any(subgraphs(node))}
    touched = {value for node in around for value in (*node.inputs, *node.outputs)}
    return {
        numbers[value]
        for node in model.graph
        for value in node.outputs
        if node in red and value not in touched
    }


def _is_wide(array: object) -> bool:
    return np.asarray(array).dtype == np.float32


def _checked(samples: Samples) -> Samples:
    """Return samples that are refused, before anything runs on them, where an input is NaN."""

    def opened() -> Iterator[Feeds]:
        for number, feeds in enumerate(samples, start=1):
            check_numbers(feeds, f"sample {number} of {samples.source}")
            yield feeds

    return Samples(samples.source, opened)


def _largest(array: object) -> float:
    """Return the largest finite magnitude, or what a probe says.

    Infinity is what a mask adds, and NaN what some models put where nothing is known; both stay
    what they are in the narrow type.
    """
    if not isinstance(array, np.ndarray) or not array.size:
        return 0.0
    if array.size == 1 and array.item() == NOT_RUN:
        return NOT_RUN
    size = max(float(array.max()), -float(array.min()))  # without an array of magnitudes
    if np.isfinite(size):
        return size
    finite = np.abs(array[np.isfinite(array)])
    return float(finite.max()) if finite.size else 0.0
