"""What the noise of single units does to the outputs, by runs that add it to one unit at a time.

The model gets an Add after each unit, of noise that is fed, times a number that is fed: 1 for one
unit, 0 for all others. So it is compiled once, and run once for each unit and sample, with the very
noise that one candidate has there. Of small noise the effect grows with its power, whatever
candidate it is of: the share of it that reaches the outputs is the unit's *gain*, which differs by
15 % between candidates (median of MobileNet's units; 40 % in one of ten). Effects of several units
are taken to add, as those of independent roundings do.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from narrowpass.bundle import Bundle
from narrowpass.runtime.backend import CompileOptions
from narrowpass_auto.graph.flat import input_of
from narrowpass_auto.measure.evaluation import copied

if TYPE_CHECKING:
    from narrowpass.runtime.backend import Backend, Feeds, Outputs, Program
    from narrowpass_auto.graph.units import Unit

Array = np.ndarray[Any, Any]

_RUNS = 128
"""Runs with noise, at one for each unit at least; as many samples are fed as that allows."""

_OFF, _ON = np.zeros((), np.float32), np.ones((), np.float32)


class Injection:
    """A model whose units can be given noise.

    Args:
        program: of the model with noise; see `injected`.
        units: those that can be given noise.
        right: the outputs of each sample without noise.
        results: what each unit has on each sample, by its index.
        feeds: the samples.
    """

    def __init__(
        self,
        program: Program,
        units: Sequence[Unit],
        results: Mapping[int, Sequence[Array]],
        feeds: Sequence[Feeds],
    ) -> None:
        self._program, self._units = program, units
        self._samples = max(1, min(len(feeds), _RUNS // max(len(units), 1)))
        self._feeds = feeds[: self._samples]
        self._gains: dict[int, list[float]] = {}
        self._silence = [
            {_noise(unit): np.zeros_like(results[unit.index][sample]) for unit in units}
            | {_switch(unit): _OFF for unit in units}
            for sample in range(self._samples)
        ]
        self._right = [
            {name: copied(value) for name, value in program.run({**fed, **silence}).items()}
            for fed, silence in zip(self._feeds, self._silence, strict=True)
        ]

    def harm(self, noise: Mapping[int, Sequence[Array]]) -> dict[int, tuple[float, ...]]:
        """Return for each unit the noise of the worst output over its power, on each sample.

        Runs the units that no earlier call had noise of.

        Args:
            noise: of the first result of each unit on each sample, by its index. Units that are not
                there, or cannot be given noise, are not in the result.
        """
        powers = {
            unit.index: [_power(array) for array in noise[unit.index]]
            for unit in self._units
            if unit.index in noise
        }
        self._measure(noise, powers)
        harms = {}
        for index, power in powers.items():
            gains = self._gains.get(index)
            if gains is None:  # it has no noise, or none that is finite
                harms[index] = tuple(0.0 if one == 0.0 else math.inf for one in power)
                continue
            mean = statistics.fmean(gains)
            rest = [mean] * (len(power) - len(gains))
            harms[index] = tuple(a * b for a, b in zip([*gains, *rest], power, strict=True))
        return harms

    def _measure(
        self, noise: Mapping[int, Sequence[Array]], powers: Mapping[int, Sequence[float]]
    ) -> None:
        """Run the model for units whose gain is not known, and which have noise on all samples."""
        units = [
            unit
            for unit in self._units
            if unit.index in noise
            and unit.index not in self._gains
            and all(0.0 < power < math.inf for power in powers[unit.index])
        ]
        # Units within samples: a program whose shapes change from run to run is sized each time.
        for sample in range(self._samples):
            silence = {**self._feeds[sample], **self._silence[sample]}
            for unit in units:
                added = {_noise(unit): noise[unit.index][sample], _switch(unit): _ON}
                reached = _worst_noise(self._right[sample], self._program.run({**silence, **added}))
                gain = reached / powers[unit.index][sample]
                self._gains.setdefault(unit.index, []).append(gain)


@contextmanager
def injected(
    model: ir.Model,
    units: Sequence[Unit],
    results: Mapping[int, Sequence[Array]],
    feeds: Sequence[Feeds],
    backend: Backend,
) -> Iterator[Injection]:
    """Compile a model whose units can be given noise.

    Args:
        model: that the units are of; not changed.
        units: those that get noise. One whose result is an output of the model is left out.
        results: the first result of each unit on each sample, by its index.
        feeds: the samples.
        backend: runs the model.

    Raises:
        BackendError: it cannot.
    """
    outputs = set(model.graph.outputs)
    usable = [
        unit
        for unit in units
        if unit.node.outputs[0] not in outputs and results[unit.index][0].dtype == np.float32
    ]
    clone = _with_noise(model, usable, results)
    with backend.compile(Bundle({"main": clone}), CompileOptions(cache=False)) as program:
        yield Injection(program, usable, results, feeds)


def _switch(unit: Unit) -> str:
    return f"narrowpass.switch.{unit.index}"


def _noise(unit: Unit) -> str:
    return f"narrowpass.noise.{unit.index}"


def _with_noise(
    model: ir.Model, units: Sequence[Unit], results: Mapping[int, Sequence[Array]]
) -> ir.Model:
    clone = model.clone()
    graph = clone.graph
    nodes = {node.name: node for node in graph}
    for unit in units:
        node = nodes[unit.name]
        result = node.outputs[0]
        uses = list(result.uses())
        switch = input_of(_switch(unit), [_OFF])
        noise = input_of(_noise(unit), results[unit.index])
        graph.inputs.extend([switch, noise])
        scaled = ir.node("Mul", [noise, switch], name=f"{_noise(unit)}/Mul")
        added = ir.node("Add", [result, scaled.outputs[0]], name=f"{_noise(unit)}/Add")
        graph.insert_after(node, [scaled, added])
        for use in uses:
            use.node.replace_input_with(use.idx, added.outputs[0])
    return clone


def _power(noise: Array) -> float:
    return float(np.sum(np.square(noise, dtype=np.float64)))


def _worst_noise(right: Outputs, got: Outputs) -> float:
    """Return the noise of the worst output over its power."""
    worst = 0.0
    for name, exact in right.items():
        if getattr(exact, "dtype", np.dtype(bool)).kind != "f" or not exact.size:
            continue
        wide = exact.astype(np.float64)
        power = float(np.sum(wide**2))
        noise = float(np.sum((got[name].astype(np.float64) - wide) ** 2))
        if power > 0.0:
            worst = max(worst, noise / power)
    return worst
