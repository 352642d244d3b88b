"""The recurrence of LSTM, GRU and RNN.

One GEMM over all time steps computes X·Wᵀ for the gates. The kernel here adds H·Rᵀ in each step, a
GEMV or skinny GEMM with the recurrence weights, whose epilogue computes gates and the new state.
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
from narrowpass_xnn_cpu.native.problems.bounds import checked_shape
from narrowpass_xnn_cpu.native.problems.quantization import check_accumulator_headroom
from narrowpass_xnn_cpu.native.runtime.pool import ThreadPool
from narrowpass_xnn_cpu.native.weights_cache import Session, pointer

KINDS = ("LSTM", "GRU", "GRU after", "RNN")
"""In the order of ``NP_RECURRENT_*``. ``GRU after`` has ``linear_before_reset``: the reset gate is
applied to H·Rᵀ and not to H."""
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
"""Multiply-accumulates of a step for each thread, at least, where threads divide it: about 2 µs, of
which a barrier takes 1."""


@dataclass(frozen=True)
class Activation:
    """An activation function of ONNX: one of `FUNCTIONS`, with alpha and beta."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0


@dataclass(frozen=True)
class Cell:
    """The equations of a time step, with ONNX's names.

    Attributes:
        kind: one of `KINDS`.
        functions: activations f, g, h of each direction; GRU has two and RNN one.
        backwards: whether the only direction is ``reverse``.
        clip: threshold of the arguments of f and g; infinity for none.
        coupled: ``input_forget``: whether the forget gate of an LSTM is 1 - the input gate.
    """

    kind: str
    functions: Sequence[Sequence[Activation]]
    backwards: bool = False
    clip: float = math.inf
    coupled: bool = False


class Recurrence(Packed):
    """The time steps of a recurrent layer, whose input is X·Wᵀ of the gates.

    Args:
        cell: the equations of a step.
        weights: R, float32 [directions, gates * hidden, hidden], or int8 where there are scales.
        extra: float32 [directions, vectors, hidden]: the peepholes of an LSTM for gates i, o, f, or
            the recurrence bias of the hidden gate of ``GRU after``; None for none.
        session: of the weights cache; None to pack for this operator alone.
        scales: float32 [directions, gates * hidden], of int8 weights: states are then quantized
            dynamically in each step. None for float32.
        zeros: int32 [directions, gates * hidden], the zero points of int8 weights; None for 0.

    Attributes:
        quantized: whether states and weights are multiplied as int8.

    Raises:
        BackendError: sizes that do not fit together.
        UnfitError: int8 weights with too many hidden units for the headroom of an accumulator.
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
        self._zeros = None if zeros is None else self._padded_zeros(zeros)
        sizes = directions, kind, hidden, extras
        packing = self._packing_of(sizes, weights, extra, scales, zeros)
        self._pack(session, "recurrent", "NP_RECURRENT_LAYOUT", packing)

    def _packing_of(
        self,
        sizes: tuple[int, int, int, int],
        weights: Weight,
        extra: Weight | None,
        scales: Weight | None,
        zeros: Array | None,
    ) -> Packing:
        lib, lanes = self._lib, self._lanes
        if scales is None:
            return Packing(
                (*sizes, lanes),
                weights,
                extra,
                None,
                4 * lib.np_recurrent_packed_floats(*sizes, lanes),
                lambda to, k, b, _: lib.np_recurrent_pack(*sizes, lanes, k, b, to),
            )
        check_accumulator_headroom(sizes[2], "hidden units", zeros)
        if weights.dtype != np.int8 or scales.shape != weights.shape[:2]:
            raise BackendError(f"weights of {weights.dtype} with {list(scales.shape)} scales")
        return Packing(
            (*sizes, lanes, "int8"),
            weights,
            extra,
            scales,
            lib.np_recurrent_packed_bytes(*sizes, lanes),
            lambda to, k, b, s: lib.np_recurrent_pack_bytes(*sizes, lanes, k, s, b, to),
        )

    def _padded_zeros(self, zeros: Array) -> Array:
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
            steps: time steps.
            batch: sequences.
            pool: the threads.
            inputs: indices of ``hidden``, ``cell`` and ``lengths`` among the inputs.
            places: fields of the struct with the offsets of results.
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
        """Return the parts that threads divide the hidden units of a direction into; 0 for none."""
        work = batch * self.gates * self.hidden**2
        blocks = -(-self.hidden // self._lanes)
        each = -(-threads // self.directions)
        wanted = min(each, blocks, work // _LEAST_WORK)
        return int(wanted) if wanted > 1 else 0


def zeros_weight(shape: tuple[int, ...]) -> Weight:
    """Return a float32 constant of zeros."""
    return Weight(
        shape, np.dtype(np.float32), f"zeros {shape}", lambda: np.zeros(shape, np.float32)
    )
