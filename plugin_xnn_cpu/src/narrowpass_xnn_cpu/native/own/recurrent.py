"""The recurrence of LSTM, GRU and RNN, by our own kernel.

The inputs' part of the gates comes from a GEMM over all steps. What is left is a matmul of
the states with the recurrence weights in each step, whose epilogue computes the new states.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Array, Weight
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.own.packed import Packed, Packing
from narrowpass_xnn_cpu.native.pool import ThreadPool
from narrowpass_xnn_cpu.native.problems.bounds import checked_shape
from narrowpass_xnn_cpu.native.problems.quantization import UnfitError, check_terms
from narrowpass_xnn_cpu.native.weights_cache import Session, pointer

KINDS = ("LSTM", "GRU", "GRU after", "RNN")
"""In the order of ``NP_RECURRENT_*``. The second one resets the product in place of the state."""
GATES = {"LSTM": 4, "GRU": 3, "GRU after": 3, "RNN": 1}

FUNCTIONS = (
    "sigmoid",
    "tanh",
    "relu",
    "affine",
    "leakyrelu",
    "thresholdedrelu",
    "scaledtanh",
    "hardsigmoid",
    "elu",
    "softsign",
    "softplus",
)
"""In the order of ``NP_ACTIVATION_*``."""

_LEAST_WORK = 1 << 16
"""Multiplications of a step and thread from which threads divide a step: some 2 µs, as a barrier
takes 1."""


@dataclass(frozen=True)
class Activation:
    """An activation, of those in `FUNCTIONS`."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0


@dataclass(frozen=True)
class Cell:
    """What a step does.

    Attributes:
        kind: one of `KINDS`.
        functions: f, g, h of each direction, as many as there are.
        backwards: whether the only direction begins with the last row.
        clip: bounds what f and g take; infinity for none.
        coupled: whether the forget gate of an LSTM is 1 less the input gate.
    """

    kind: str
    functions: Sequence[Sequence[Activation]]
    backwards: bool = False
    clip: float = math.inf
    coupled: bool = False


class Recurrence(Packed):
    """Steps over rows whose gates have the inputs' part already.

    Args:
        cell: what a step does.
        weights: float32 [directions, gates * hidden, hidden], or int8 where there are scales.
        extra: float32 [directions, vectors, hidden]: the peepholes of an LSTM, of gates i, o, f, or
            the bias of the product that a GRU resets; None for none.
        session: of the weights cache; None to pack for this operator alone.
        scales: float32 [directions, gates * hidden], of int8 weights: states are quantized in each
            step, too. None for float32.
        zeros: int32 [directions, gates * hidden], the zero points of int8 weights; None for 0.

    Attributes:
        quantized: whether states are multiplied as bytes.

    Raises:
        BackendError: sizes that do not fit together.
        UnfitError: int8 weights on a processor without the kernel, or too many hidden units.
    """

    call = "NP_RECURRENT"

    def __init__(
        self,
        cell: Cell,
        weights: Weight,
        extra: Weight | None,
        session: Session | None = None,
        scales: Weight | None = None,
        zeros: Array | None = None,
    ) -> None:
        super().__init__()
        directions, rows, hidden = checked_shape(weights.shape, 3)
        gates = GATES[cell.kind]
        if directions not in (1, 2) or rows != gates * hidden:
            raise BackendError(f"{list(weights.shape)} are no recurrence weights of {cell.kind}")
        extras = 1 if cell.kind == "GRU after" else 0 if extra is None else 3
        if (None if extra is None else extra.shape) != (
            (directions, extras, hidden) if extras else None
        ):
            raise BackendError(f"{cell.kind} takes {extras} vectors beside its weights")
        self.cell, self.directions, self.hidden, self.gates = cell, directions, hidden, gates
        self._extras = extras
        lib = self._lib
        self._lanes = int(lib.np_recurrent_lanes(kernels.code()))
        kind = KINDS.index(cell.kind)
        self.quantized = scales is not None
        self._zeros = None if zeros is None else self._zeros_of(zeros)
        if scales is not None:
            check_terms(hidden, "hidden units", zeros)
            self._pack_bytes(session, (directions, kind, hidden, extras), weights, extra, scales)
            return
        sizes = directions, kind, hidden, extras, self._lanes
        size = 4 * lib.np_recurrent_packed_floats(*sizes)

        def write(to: Any, k: Any, b: Any, _: Any) -> None:
            lib.np_recurrent_pack(*sizes, k, b, to)

        self._pack_as(session, Packing(sizes, weights, extra, None, size, write))

    def _pack_as(self, session: Session | None, packing: Packing) -> None:
        self._pack(session, "recurrent", "NP_RECURRENT_LAYOUT", packing)

    def _pack_bytes(
        self,
        session: Session | None,
        sizes: tuple[int, int, int, int],
        weights: Weight,
        extra: Weight | None,
        scales: Weight,
    ) -> None:
        lib = self._lib
        if not lib.np_recurrent_takes_bytes(kernels.code()):
            raise UnfitError("this processor has no kernel for recurrence weights of int8")
        if weights.dtype != np.int8 or scales.shape != weights.shape[:2]:
            raise BackendError(f"weights of {weights.dtype} with {list(scales.shape)} scales")
        size = lib.np_recurrent_packed_bytes(*sizes)

        def write(to: Any, k: Any, b: Any, s: Any) -> None:
            lib.np_recurrent_pack_bytes(*sizes, k, s, b, to)

        self._pack_as(session, Packing((*sizes, "int8"), weights, extra, scales, size, write))

    def _zeros_of(self, zeros: Array) -> Array:
        """Return zero points as int32 [directions, gates, hidden units in whole vectors]."""
        shape = self.directions, self.gates, self.hidden
        if zeros.dtype != np.int32 or zeros.size != math.prod(shape):
            raise BackendError(
                f"{zeros.size} zero points of {zeros.dtype} are not those of {shape}"
            )
        rest = -self.hidden % self._lanes
        return np.ascontiguousarray(np.pad(zeros.reshape(shape), ((0, 0), (0, 0), (0, rest))))

    def reshape(
        self,
        steps: int,
        batch: int,
        pool: ThreadPool,
        inputs: Mapping[str, int],
        places: Mapping[str, Any],
    ) -> Any:
        """Reshape for gates [steps, batch, directions, gates, hidden]; return the parameters.

        Args:
            steps: rows of time.
            batch: sequences.
            pool: the threads.
            inputs: the places of ``hidden``, ``cell`` and ``lengths`` among the inputs.
            places: fields of the struct that say where results lie.
        """
        checked_shape((steps, batch, self.directions, self.gates, self.hidden))
        lib, cell = self._lib, self.cell
        sizes = self.directions, batch, self.hidden, self._lanes
        parts = self._parts(batch, pool.threads)
        copies = max(1, parts) if self.quantized else 0
        self.workspace = 4 * lib.np_recurrent_scratch_floats(*sizes, copies)
        functions = [
            {"kind": FUNCTIONS.index(f.name), "alpha": f.alpha, "beta": f.beta}
            for each in cell.functions
            for f in (*each, *(Activation("tanh"),) * (3 - len(each)))
        ]
        fields = {
            "packed": self.packed,
            "steps": steps,
            "batch": batch,
            "hidden": self.hidden,
            "directions": self.directions,
            "lanes": self._lanes,
            "kind": KINDS.index(cell.kind),
            "backwards": cell.backwards,
            "coupled": cell.coupled,
            "peepholes": cell.kind == "LSTM" and self._extras > 0,
            "functions": functions,
            "clip": cell.clip,
            **{f"{name}_input": place for name, place in inputs.items()},
            **places,
            "parts": parts,
            "target": kernels.code(),
            "quantized": self.quantized,
            "zeros": self._ffi.NULL if self._zeros is None else pointer(self._ffi, self._zeros),
        }
        self.params = self._ffi.new("struct np_recurrent_params *", fields)
        return self.params

    def _parts(self, batch: int, threads: int) -> int:
        """Return how many parts threads divide the units of a direction into; 0 for none."""
        work = batch * self.gates * self.hidden**2
        blocks = -(-self.hidden // self._lanes)
        each = -(-threads // self.directions)
        wanted = min(each, blocks, work // _LEAST_WORK)
        return int(wanted) if wanted > 1 else 0


def identity_of_zeros(shape: tuple[int, ...]) -> Weight:
    """Return zeros as a weight of float32."""
    return Weight(
        shape, np.dtype(np.float32), f"zeros {shape}", lambda: np.zeros(shape, np.float32)
    )
