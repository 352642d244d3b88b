"""What the noise of single units does to the outputs, by runs that add it to one unit at a time.

The model gets an Add after each unit, of noise that is fed, times a number that is fed: 1 for one
unit, 0 for all others. So it is compiled once, and run once for each unit, candidate and sample,
with the very noise that the candidate has there. Effects of several units are taken to add, as
those of independent roundings do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from narrowpass.bundle import Bundle
from narrowpass.runtime.backend import CompileOptions
from narrowpass_auto.graph.flat import input_of

if TYPE_CHECKING:
    from narrowpass.runtime.backend import Backend, Feeds, Outputs, Program
    from narrowpass_auto.graph.units import Unit

Array = np.ndarray[Any, Any]

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
        self._program, self._units, self._feeds = program, units, feeds
        self._silence = [
            {_noise(unit): np.zeros_like(results[unit.index][sample]) for unit in units}
            | {_switch(unit): _OFF for unit in units}
            for sample in range(len(feeds))
        ]
        self._right = [
            {name: _copied(value) for name, value in program.run({**fed, **silence}).items()}
            for fed, silence in zip(feeds, self._silence, strict=True)
        ]

    def harm(self, noise: Mapping[int, Sequence[Array]]) -> dict[int, tuple[float, ...]]:
        """Return for each unit the noise of the worst output over its power, on each sample.

        Args:
            noise: of the first result of each unit on each sample, by its index. Units that are not
                there, or cannot be given noise, are not in the result.
        """
        units = [unit for unit in self._units if unit.index in noise]
        harms: dict[int, list[float]] = {unit.index: [] for unit in units}
        # Units within samples: a program whose shapes change from run to run is sized each time.
        for sample, (fed, silence) in enumerate(zip(self._feeds, self._silence, strict=True)):
            for unit in units:
                added = {_noise(unit): noise[unit.index][sample], _switch(unit): _ON}
                got = self._program.run({**fed, **silence, **added})
                harms[unit.index].append(_worst_noise(self._right[sample], got))
        return {index: tuple(found) for index, found in harms.items()}


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


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value


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
