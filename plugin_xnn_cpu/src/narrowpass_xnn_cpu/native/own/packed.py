"""Operators of our kernels: a problem, its packed weights, and the parameters for C.

A kernel is a record of functions: one packs the constants of a problem, one plans blocking and
threads for given sizes. There is one operator class for convolutions and one for matmuls. What an
operator computes never changes: `PackedConvolution.variant` returns another one with the same
packed weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from narrowpass.errors import BackendError
from narrowpass_planning.weights.entry import Block
from narrowpass_planning.weights.weight import Array, Weight
from narrowpass_xnn_cpu.native import calls, kernels
from narrowpass_xnn_cpu.native.operator import Fields, Operator
from narrowpass_xnn_cpu.native.own.panels import PanelLayout, Panels
from narrowpass_xnn_cpu.native.own.row_dispatch import RowDispatch
from narrowpass_xnn_cpu.native.own.tiling import image_fields
from narrowpass_xnn_cpu.native.problems.bounds import Shape, checked_shape
from narrowpass_xnn_cpu.native.problems.convolution import Convolution
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.matmul import Matmul
from narrowpass_xnn_cpu.native.problems.quantization import Requantized
from narrowpass_xnn_cpu.native.runtime.pool import ThreadPool
from narrowpass_xnn_cpu.native.runtime.tape import aligned
from narrowpass_xnn_cpu.native.weights_cache import Session, pointer

P = TypeVar("P", Convolution, Matmul)


@dataclass(frozen=True)
class Packing:
    """How the constants of a problem are packed.

    Attributes:
        parameters: everything beside the constants that determines the packed bytes.
        kernel: the weights.
        bias: added to accumulators, or None.
        scales: factors of accumulators, or None.
        size: bytes of the packed weights.
        write: packs; called with the destination, kernel, bias and scales as addresses, NULL for
            None.
        form: what plans depend on: SIMD lanes of float32, or the layout of int8.
        zeros: zero points of weights in the order of columns within panels; None for 0.
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
class RunSizes:
    """The sizes of a run, which blocking and threads are planned for.

    Attributes:
        image: [N, H, W, C] of the input; a matmul has its rows as H.
        out: the output's height and width.
        threads: threads that compute.
        rows: output rows of a row tile; 0 where the plan chooses.
    """

    image: Shape
    out: tuple[int, int]
    threads: int
    rows: int = 0

    @property
    def fields(self) -> Fields:
        """The fields that all kernels over images have."""
        return image_fields(self.image, self.out)


@dataclass(frozen=True)
class PackedKernel(Generic[P]):
    """A kernel of ours, of a kind of problems.

    Attributes:
        name: of the kernel, as plans print it.
        call: its name in ``kernels.def``.
        kind: part of the names of packed weights in weights caches.
        layout: name of the C constant that is the version of the packed layout.
        pack: checks the constants of a problem; returns how they are packed.
        plan: returns the fields of the parameters, with ``thread_scratch``.
        fuses_epilogue: whether it has a fused epilogue of float32.
    """

    name: str
    call: str
    kind: str
    layout: str
    pack: Callable[[P], Packing]
    plan: Callable[[P, Packing, RunSizes], Fields]
    fuses_epilogue: bool = False


@dataclass(frozen=True)
class ConvolutionKernel(PackedKernel[Convolution]):
    """A kernel of ours that computes convolutions; see `PackedKernel`.

    Attributes:
        offsets: whether its VNNI code reads and writes int8 stored with an offset of +128.
        adds: whether its VNNI code adds a second int8 input to the result.
    """

    offsets: bool = False
    adds: bool = False

    def create(self, problem: Convolution, session: Session | None = None) -> PackedConvolution:
        """Pack the weights, in a session of the weights cache if there is one.

        Raises:
            UnfitError: constants for which the kernel would not be exact.
            BackendError: other invalid shapes or types.
        """
        return PackedConvolution(self, problem, session)


@dataclass(frozen=True)
class MatmulKernel(PackedKernel[Matmul]):
    """A kernel of ours that multiplies rows with a constant matrix; see `PackedKernel`.

    Attributes:
        panels: returns the layout of the packed matrix if the GEMV kernel reads it, else None.
        unit: bytes of the unit of ``thread_scratch``.
    """

    panels: Callable[[Matmul, Packing], PanelLayout | None] | None = None
    unit: int = 1

    def create(self, problem: Matmul, session: Session | None = None) -> PackedMatmul:
        """Pack the matrix; see `ConvolutionKernel.create`."""
        return PackedMatmul(self, problem, session)


class Packed(Operator):
    """An operator with packed weights, in a session of the weights cache or in its own memory."""

    def _pack(self, session: Session | None, kind: str, layout: str, packing: Packing) -> None:
        self._session = session  # keeps its packed weights as long as the operator
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
        """The object that keeps the packed weights in memory."""
        return self._session or self._memory

    def _reshape(
        self,
        kernel: PackedKernel[P],
        problem: P,
        run: RunSizes,
        epilogue: Epilogue | None,
        unit: int,
    ) -> None:
        """Allocate the parameters from planned fields and those that all kernels have.

        Args:
            kernel: the kernel.
            problem: what it computes.
            run: the sizes.
            epilogue: the fused epilogue; None for the problem's.
            unit: bytes of the unit of ``thread_scratch``.
        """
        planned = kernel.plan(problem, self._packing, run)
        fields = {**planned, "packed": self.packed, "target": kernels.code()}
        if kernel.fuses_epilogue:
            fields["epilogue"] = (epilogue or problem.epilogue).params()
        if self._packing.zeros is not None:
            fields["weight_zeros"] = pointer(self._ffi, self._packing.zeros)
        self.workspace = run.threads * unit * planned["thread_scratch"]
        self.params = calls.parameters(self.call, fields)


class PackedConvolution(Packed):
    """A convolution over [N, H, W, C] by a kernel of ours.

    Attributes:
        kernel: the kernel.
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
        geometry = problem.geometry
        self.channels, self.outputs = geometry.channels, geometry.outputs
        self._pack(session, kernel.kind, kernel.layout, packing)

    def variant(self, **changes: Any) -> PackedConvolution:
        """Return an operator for a changed problem that shares the packed weights.

        Args:
            changes: fields of the problem that packing does not depend on: `added`, `offsets`.
        """
        variant = object.__new__(PackedConvolution)
        variant.__dict__.update(self.__dict__, workspace=0, params=None)
        variant.problem = dataclasses.replace(self.problem, **changes)
        return variant

    @property
    def _is_vnni(self) -> bool:
        return isinstance(self.problem.result, Requantized) and self._packing.form.group == 4

    @property
    def can_offset(self) -> bool:
        """Whether its tensors may be stored with an offset of +128 (`Offsets`)."""
        return self.kernel.offsets and self._is_vnni

    @property
    def can_add(self) -> bool:
        """Whether a second int8 input can be added to the result; false if there is one already."""
        return self.kernel.adds and self._is_vnni and self.problem.added is None

    def output_size(self, shape: Sequence[int]) -> tuple[int, int]:
        """Return the output's height and width for an input of `shape` [N, H, W, C]."""
        return self.problem.geometry.infer_sizes(shape)[1]

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
            rows: output rows of a row tile; 0 where the plan chooses.
            epilogue: the fused epilogue; None for the problem's.
        """
        image, out = self.problem.geometry.infer_sizes(shape)
        run = RunSizes(image, out, pool.threads, rows)
        self._reshape(self.kernel, self.problem, run, epilogue, 1)
        return out


class PackedMatmul(RowDispatch, Packed):
    """Rows times a constant matrix by a kernel of ours.

    Attributes:
        kernel: the kernel.
        problem: what it computes.
        channels: K, the columns of the input.
        outputs: N, the columns of the result.
    """

    def __init__(self, kernel: MatmulKernel, problem: Matmul, session: Session | None) -> None:
        super().__init__()
        self.kernel, self.problem = kernel, problem
        self.call, self.fuses_epilogue = kernel.call, kernel.fuses_epilogue
        self.channels, self.outputs = problem.sizes
        self._pack(session, kernel.kind, kernel.layout, kernel.pack(problem))

    def panels(self) -> Panels | None:
        """See `RowDispatch.panels`."""
        if self.kernel.panels is None:
            return None
        layout = self.kernel.panels(self.problem, self._packing)
        if layout is None:
            return None
        block = Block(self.packed, layout.size(self.channels, self.outputs))
        return Panels(block, self.owner, layout, self.channels, self.outputs)

    @property
    def form(self) -> Any:
        """See `Packing.form`."""
        return self._packing.form

    def _default_epilogue(self) -> Epilogue:
        return self.problem.epilogue

    def reshape(self, rows: int, pool: ThreadPool, *, epilogue: Epilogue | None = None) -> Any:
        """Reshape for `rows` rows; return the parameters. `epilogue` replaces the problem's."""
        checked_shape((rows, max(self.channels, self.outputs)))
        run = RunSizes((1, rows, 1, self.channels), (rows, 1), pool.threads)
        self._plan(run, epilogue)
        return self.params

    def reshape_image(self, shape: Sequence[int], pool: ThreadPool, rows: int) -> tuple[int, int]:
        """Reshape for the pixels of [N, H, W, C] in row tiles of `rows`; return H and W."""
        image = checked_shape(shape, 4)
        if image[3] != self.channels:
            raise BackendError(f"a matmul of {self.channels} channels got {image[3]}")
        out = image[1], image[2]
        self._plan(RunSizes(image, out, pool.threads, rows), None)
        return out

    def _plan(self, run: RunSizes, epilogue: Epilogue | None) -> None:
        self._reshape(self.kernel, self.problem, run, epilogue, self.kernel.unit)
