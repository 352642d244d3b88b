"""Operators of our kernels: a problem, its packed weights, and the parameters of C.

A kernel is a record: how it packs the constants of a problem, and how it plans a run of given
sizes. One operator class for convolutions and one for matmuls are parameterised by it. Operators
are never changed: `Convolution.variant` shares the packed weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from narrowpass.errors import BackendError
from narrowpass_planning.weights.entry import Block
from narrowpass_planning.weights.weight import Array, Weight
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.operator import Fields, Operator
from narrowpass_xnn_cpu.native.own.by_rows import ByRows
from narrowpass_xnn_cpu.native.own.panels import Layout, Panels
from narrowpass_xnn_cpu.native.own.tiling import image_fields
from narrowpass_xnn_cpu.native.pool import ThreadPool
from narrowpass_xnn_cpu.native.problems.bounds import Shape, checked_shape
from narrowpass_xnn_cpu.native.problems.convolution import Convolution
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.matmul import Matmul
from narrowpass_xnn_cpu.native.problems.quantization import Requantized
from narrowpass_xnn_cpu.native.tape import aligned
from narrowpass_xnn_cpu.native.weights_cache import Session, pointer


@dataclass(frozen=True)
class Packing:
    """How the constants of a problem are packed, and what a plan needs of that.

    Attributes:
        parameters: all that the packed bytes follow from beside the constants.
        kernel: multiplied with the inputs.
        bias: added to accumulators, or None.
        scales: of accumulators, or None.
        size: bytes of the packed form.
        write: fills it: called with its address, and those of kernel, bias and scales.
        form: what plans depend on: lanes of float32, or the layout of int8.
        zeros: zero points of weights in the order of the panels, None for 0.
    """

    parameters: object
    kernel: Weight
    bias: Weight | None
    scales: Weight | None
    size: int
    write: Callable[..., None]
    form: Any = None
    zeros: Array | None = None


@dataclass(frozen=True)
class Run:
    """Sizes that a plan is for.

    Attributes:
        image: [N, H, W, C]; rows of a matmul are its height.
        out: the output's height and width.
        threads: that compute.
        rows: of the output that one thread computes at a time; 0 for the plan's choice.
    """

    image: Shape
    out: tuple[int, int]
    threads: int
    rows: int = 0

    @property
    def fields(self) -> Fields:
        """The fields of all kernels of images."""
        return image_fields(self.image, self.out)


@dataclass(frozen=True)
class ConvolutionKernel:
    """A kernel of ours that computes convolutions, or matmuls as such.

    Attributes:
        name: of the kernel, for people.
        call: of the tape.
        kind: names what is packed in weights caches.
        layout: name of the constant that versions the packed form.
        struct: of the parameters.
        pack: packs the constants of a problem.
        plan: returns the fields of the parameters, with ``thread_scratch``.
        fuses_epilogue: whether it ends with an epilogue of float32.
        offsets: whether it reads and writes int8 with an offset of +128, where it has VNNI.
        adds: whether it adds a second input to int8, where it has VNNI.
    """

    name: str
    call: str
    kind: str
    layout: str
    struct: str
    pack: Callable[[Convolution], Packing]
    plan: Callable[[Convolution, Packing, Run], Fields]
    fuses_epilogue: bool = False
    offsets: bool = False
    adds: bool = False

    def create(self, problem: Convolution, session: Session | None = None) -> PackedConvolution:
        """Pack the weights, in a session of the weights cache if there is one.

        Raises:
            UnfitError: constants that cannot be computed with exactly.
            BackendError: what is not valid otherwise.
        """
        return PackedConvolution(self, problem, session)


@dataclass(frozen=True)
class MatmulKernel:
    """A kernel of ours that multiplies rows with a constant matrix; see `ConvolutionKernel`.

    Attributes:
        panels: returns how the packed matrix lies, where the kernel for few rows reads that.
        unit: bytes that ``thread_scratch`` counts.
    """

    name: str
    call: str
    kind: str
    layout: str
    struct: str
    pack: Callable[[Matmul], Packing]
    plan: Callable[[Matmul, Packing, Run], Fields]
    fuses_epilogue: bool = False
    panels: Callable[[Matmul, Packing], Layout | None] | None = None
    unit: int = 1

    def create(self, problem: Matmul, session: Session | None = None) -> PackedMatmul:
        """Pack the matrix, in a session of the weights cache if there is one.

        Raises:
            UnfitError: constants that cannot be computed with exactly.
            BackendError: what is not valid otherwise.
        """
        return PackedMatmul(self, problem, session)


class Packed(Operator):
    """Packed weights in a session of the weights cache, or in memory of their own."""

    def _pack(self, session: Session | None, kind: str, layout: str, packing: Packing) -> None:
        self._session = session  # what it packed must live as long as the operator
        self._packing = packing
        ffi = self._ffi
        constants = packing.kernel, packing.bias, packing.scales
        if session is not None:
            version = getattr(self._lib, layout)
            self.packed = session.pack_own(
                kind, packing.parameters, *constants, version, packing.size, packing.write
            )
            return
        arrays = [None if weight is None else weight.array() for weight in constants]
        self._memory = aligned(packing.size)
        self.packed = ffi.from_buffer(self._memory)
        packing.write(
            self.packed,
            *(ffi.NULL if array is None else pointer(ffi, array) for array in arrays),
        )
        packing.kernel.drop()

    @property
    def owner(self) -> object:
        """What keeps the packed weights in memory."""
        return self._session or self._memory

    def _set(self, struct: str, fields: Fields, factor: int) -> None:
        """Fill the parameters: those of a plan, and what all kernels have.

        The workspace has `factor` times the bytes of ``thread_scratch``.
        """
        found = {**fields, "packed": self.packed, "target": kernels.code()}
        if self._packing.zeros is not None:
            found["weight_zeros"] = pointer(self._ffi, self._packing.zeros)
        self.workspace = factor * fields["thread_scratch"]
        self.params = self._ffi.new(f"struct {struct} *", found)


class PackedConvolution(Packed):
    """A convolution over [N, H, W, C] by a kernel of ours.

    Attributes:
        kernel: which one.
        problem: what it computes.
        channels: of the input.
        outputs: channels of the output.
    """

    def __init__(
        self, kernel: ConvolutionKernel, problem: Convolution, session: Session | None
    ) -> None:
        super().__init__()
        self.kernel, self.problem = kernel, problem
        self.call, self.name, self.fuses_epilogue = kernel.call, kernel.name, kernel.fuses_epilogue
        packing = kernel.pack(problem)
        windows = problem.windows
        self.channels, self.outputs = windows.channels, windows.outputs
        self._pack(session, kernel.kind, kernel.layout, packing)

    def variant(self, **changes: Any) -> PackedConvolution:
        """Return an operator with the same packed weights for a problem with these changes.

        They are changes of what is not packed: ``added`` and ``offsets``.
        """
        made = object.__new__(PackedConvolution)
        made.__dict__.update(self.__dict__, workspace=0, params=None)
        made.problem = dataclasses.replace(self.problem, **changes)
        return made

    @property
    def _is_vnni(self) -> bool:
        return isinstance(self.problem.result, Requantized) and self._packing.form.group == 4

    @property
    def can_offset(self) -> bool:
        """Whether the problem may have `Offsets`."""
        return self.kernel.offsets and self._is_vnni

    @property
    def can_add(self) -> bool:
        """Whether a second input can be added to the result, which has none yet."""
        return self.kernel.adds and self._is_vnni and self.problem.added is None

    def output_size(self, shape: Sequence[int]) -> tuple[int, int]:
        """Return the output's height and width for an input of `shape` [N, H, W, C]."""
        return self.problem.windows.over(shape)[1]

    def reshape(
        self,
        shape: Sequence[int],
        pool: ThreadPool,
        rows: int = 0,
        *,
        epilogue: Epilogue | None = None,
    ) -> tuple[int, int]:
        """Reshape for an input of `shape` [N, H, W, C]; return the output's height and width.

        Args:
            shape: of the input.
            pool: the threads.
            rows: of the output that are computed at a time, by one thread; 0 for all.
            epilogue: in place of the problem's.
        """
        image, out = self.problem.windows.over(shape)
        run = Run(image, out, pool.threads, rows)
        fields = dict(self.kernel.plan(self.problem, self._packing, run))
        if self.fuses_epilogue:
            fields["epilogue"] = (epilogue or self.problem.epilogue).params()
        self._set(self.kernel.struct, fields, pool.threads)
        return out


class PackedMatmul(ByRows, Packed):
    """Rows times a constant matrix by a kernel of ours.

    Attributes:
        kernel: which one.
        problem: what it computes.
        channels: of a row.
        outputs: of a row of the result.
    """

    def __init__(self, kernel: MatmulKernel, problem: Matmul, session: Session | None) -> None:
        super().__init__()
        self.kernel, self.problem = kernel, problem
        self.call, self.fuses_epilogue = kernel.call, kernel.fuses_epilogue
        self.channels, self.outputs = problem.sizes
        self._pack(session, kernel.kind, kernel.layout, kernel.pack(problem))

    def panels(self) -> Panels | None:
        """See `ByRows.panels`."""
        if self.kernel.panels is None:
            return None
        layout = self.kernel.panels(self.problem, self._packing)
        if layout is None:
            return None
        block = Block(self.packed, layout.size(self.channels, self.outputs))
        return Panels(block, self.owner, layout, self.channels, self.outputs)

    def _end(self) -> Epilogue:
        return self.problem.epilogue

    def reshape(self, rows: int, pool: ThreadPool, *, epilogue: Epilogue | None = None) -> Any:
        """Reshape for `rows` rows; return the parameters. `epilogue` replaces the problem's."""
        checked_shape((rows, max(self.channels, self.outputs)))
        run = Run((1, rows, 1, self.channels), (rows, 1), pool.threads)
        self._plan(run, epilogue)
        return self.params

    def reshape_image(self, shape: Sequence[int], pool: ThreadPool, rows: int) -> tuple[int, int]:
        """Reshape for the pixels of [N, H, W, C], `rows` image rows at a time; return H and W."""
        image = checked_shape(shape, 4)
        if image[3] != self.channels:
            raise BackendError(f"a product of {self.channels} channels got {image[3]}")
        out = image[1], image[2]
        self._plan(Run(image, out, pool.threads, rows), None)
        return out

    def _plan(self, run: Run, epilogue: Epilogue | None) -> None:
        fields = dict(self.kernel.plan(self.problem, self._packing, run))
        if self.fuses_epilogue:
            fields["epilogue"] = (epilogue or self.problem.epilogue).params()
        self._set(self.kernel.struct, fields, run.threads * self.kernel.unit)
