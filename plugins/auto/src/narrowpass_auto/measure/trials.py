"""Candidates on single units: what each loses, and what a run of it takes, side by side."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from narrowpass import Candidate, Context, Observer
from narrowpass.calibration.samples import Samples
from narrowpass.errors import PassError, VerificationError
from narrowpass.framework.boundary import translate_errors
from narrowpass.framework.classify import ACTIVATIONS
from narrowpass_auto.graph.flat import Flat, component_nodes
from narrowpass_auto.graph.units import is_constant
from narrowpass_auto.measure.evaluation import compiled
from narrowpass_ir.constants import constant_tensor
from narrowpass_ir.verify import verify

if TYPE_CHECKING:
    from narrowpass.runtime.backend import Backend, Outputs, Program
    from narrowpass_auto.graph.units import Unit


Array = np.ndarray[Any, Any]

CONVERSIONS = frozenset({"Cast", "QuantizeLinear", "DequantizeLinear"})
"""Operators that a candidate puts around a unit, and that neighbours of the same type spare."""

_RUNS = 7


@dataclass(frozen=True)
class Offer:
    """What one candidate offers one unit.

    Attributes:
        loss: the noise of its results over their power, with the operands as they were: the mean
            of squared errors over the mean of squares.
        harm: the noise of the model's outputs over their power where this unit alone has it, on
            each of some samples.
        seconds: that a run of it takes on the target, conversions included; None where nothing
            could be measured.
        entering: seconds of that for conversions of its operands.
        leaving: the same for its results.
        bytes: of its constants.
        key: identifies its kernels, for the tuning database: operators, types and shapes.
    """

    loss: float
    harm: tuple[float, ...]
    seconds: float | None
    entering: float
    leaving: float
    bytes: int
    key: str


def quiet_context(ctx: Context, samples: Samples | None) -> Context:
    """Return a context for trials, whose notes and counts nobody reads."""
    log = logging.Logger("narrowpass.trial")  # noqa: LOG001  # not in the hierarchy: it discards all
    log.addHandler(logging.NullHandler())
    return dataclasses.replace(
        ctx,
        samples=samples,
        counters=Counter(),
        decisions=[],
        exhibits=[],
        observer=Observer(log, reads_decisions=False),
    )


def rewrite(
    candidate: Candidate, model: ir.Model, nodes: Sequence[str], ctx: Context
) -> tuple[ir.Model, Context]:
    """Let a candidate rewrite a clone; return it with the context that has its decisions.

    Raises:
        PassError: it cannot, or what it returned is no valid model; the message names it.
    """
    quiet = quiet_context(ctx, ctx.samples)
    with translate_errors(f"candidate {candidate.name!r} failed", PassError):
        found: object = candidate.rewrite(model.clone(), nodes, quiet)
        if not isinstance(found, ir.Model):
            raise PassError(f"candidate {candidate.name!r} gave {found!r}, and no model")
    try:
        verify(found, unknown_operators=True)
    except VerificationError as error:
        raise PassError(f"candidate {candidate.name!r}: {error}") from error
    return found, quiet


class Baseline:
    """Units as they are: their results on samples, and what a run of each takes.

    Args:
        flat: a model of the units.
        units: that it has.
        backend: runs it.
        ctx: of the pass.
        timed: whether runs are timed; else seconds are None.

    Attributes:
        offers: what the units are as they are, by index.
        results: the first result of each unit on each sample, by its index.

    Raises:
        BackendError: the units cannot be run.
    """

    def __init__(
        self, flat: Flat, units: Sequence[Unit], backend: Backend, ctx: Context, *, timed: bool
    ) -> None:
        self.flat, self.units = flat, units
        self._backend, self._timed = backend, timed
        samples = [dict(feeds) for feeds in flat.samples]
        self._ctx = quiet_context(ctx, Samples("values of the model", lambda: samples))
        with compiled(backend, flat.model) as program:
            self._right = [program.run(feeds) for feeds in flat.samples]
            self.offers = self._describe(flat.model, program, self._right)
        self.results = self._first(self._right)

    def offers_of(
        self, candidate: Candidate
    ) -> tuple[dict[int, Offer], dict[int, str], dict[int, list[Array]]]:
        """Return what a candidate offers each unit, why it offers others nothing, and its noise.

        The noise is that of the first result of each unit on each sample.

        Raises:
            PassError: it cannot rewrite the units at all.
            BackendError: the backend cannot run what it wrote.
        """
        names = [unit.name for unit in self.units]
        model, quiet = rewrite(candidate, self.flat.model, names, self._ctx)
        reasons = {item.node: item.reason for item in quiet.decisions}
        kept = {
            unit.index: reasons.get(unit.name) or "it leaves the node as it is"
            for unit in self.units
            if form_of(model, self.flat.outputs[unit.index]) == self.offers[unit.index].key
        }
        if len(kept) == len(self.units):
            return {}, kept, {}
        with compiled(self._backend, model) as program:
            found = [program.run(feeds) for feeds in self.flat.samples]
            offers = self._describe(model, program, found)
        changed = {index: offer for index, offer in offers.items() if index not in kept}
        noise = {
            index: [got - right for got, right in zip(results, self.results[index], strict=True)]
            for index, results in self._first(found).items()
            if index in changed
        }
        return changed, kept, noise

    def _first(self, outputs: Sequence[Outputs]) -> dict[int, list[Array]]:
        return {
            unit.index: [values[self.flat.outputs[unit.index][0]] for values in outputs]
            for unit in self.units
        }

    def _describe(
        self, model: ir.Model, program: Program, found: Sequence[Outputs]
    ) -> dict[int, Offer]:
        seconds = self._times(model, program) if self._timed else {}
        described = {}
        for unit in self.units:
            outputs = self.flat.outputs[unit.index]
            total, entering, leaving = seconds.get(unit.index, (None, 0.0, 0.0))
            described[unit.index] = Offer(
                loss=(loss := max(_noise(self._right, found, name) for name in outputs)),
                harm=(loss,) * len(self.flat.samples),
                seconds=total,
                entering=entering,
                leaving=leaving,
                bytes=_constant_bytes(component_nodes(model, outputs)),
                key=form_of(model, outputs),
            )
        return described

    def _times(
        self, model: ir.Model, program: Program
    ) -> dict[int, tuple[float | None, float, float]]:
        """Return the seconds of each unit, and those of conversions before and after it."""
        owners: dict[str, int] = {}
        sides: dict[str, int] = {}
        for unit in self.units:
            found = component_nodes(model, self.flat.outputs[unit.index])
            for node in found:
                for name in (
                    node.name,
                    *(value.name for value in (*node.inputs, *node.outputs) if value),
                ):
                    owners.setdefault(name or "", unit.index)
                if node.op_type in CONVERSIONS and node.name:
                    leaves = any(
                        value.name in self.flat.outputs[unit.index] for value in node.outputs
                    )
                    sides[node.name] = 1 if leaves else 0
        times: dict[int, list[float]] = {unit.index: [0.0, 0.0, 0.0] for unit in self.units}
        for row in program.profile(self.flat.samples[0], runs=_RUNS):
            owner = owners.get(row.node, owners.get(row.node.partition(" ")[0]))
            if owner is None:
                continue
            times[owner][0] += row.seconds
            if row.node in sides:
                times[owner][1 + sides[row.node]] += row.seconds
        return {index: (row[0], row[1], row[2]) for index, row in times.items()}


def _noise(right: Sequence[Outputs], found: Sequence[Outputs], name: str) -> float:
    """Return the noise of an output over its power, of all samples."""
    noise = power = 0.0
    for wanted, got in zip(right, found, strict=True):
        if not isinstance(wanted[name], np.ndarray) or wanted[name].dtype.kind != "f":
            continue
        exact = wanted[name].astype(np.float64)
        noise += float(np.sum((got[name].astype(np.float64) - exact) ** 2))
        power += float(np.sum(exact**2))
    if not math.isfinite(noise):
        return math.inf
    return noise / power if power else (math.inf if noise else 0.0)


def _constant_bytes(nodes: Sequence[ir.Node]) -> int:
    return sum(
        tensor.nbytes
        for value in {value for node in nodes for value in node.inputs if value is not None}
        if is_constant(value) and (tensor := constant_tensor(value)) is not None
    )


def form_of(model: ir.Model, outputs: Sequence[str]) -> str:
    """Return the operators, types and shapes of a component: what its time depends on."""
    return ";".join(sorted(forms(component_nodes(model, outputs))))


def forms(nodes: Sequence[ir.Node]) -> Iterator[str]:
    """Yield operator, types, shapes and attributes of each node as text."""
    for node in nodes:
        operands = ",".join(
            f"{getattr(value.dtype, 'name', '?')}{list(value.shape or ())}" if value else ""
            for value in node.inputs
        )
        attributes = ",".join(
            f"{key}={_text(node.attributes[key])}" for key in sorted(node.attributes)
        )
        asked = node.metadata_props.get(ACTIVATIONS, "")
        yield f"{node.domain}::{node.op_type}({operands})[{attributes}]{asked}"


def _text(attribute: ir.Attr) -> str:
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        return f"{tensor.dtype.name}{list(tensor.shape)}"
    return str(attribute.value)


def model_key(model: ir.Model) -> str:
    """Return a hash of operators, attributes, types and shapes; weights do not count."""
    digest = hashlib.sha256()
    for value in model.graph.inputs:
        digest.update(f"{value.name} {value.dtype} {value.shape}\n".encode())
    for line in forms(list(model.graph.all_nodes())):
        digest.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()[:32]
