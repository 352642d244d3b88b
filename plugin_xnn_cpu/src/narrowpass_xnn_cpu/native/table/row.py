"""Rows of the kernel table, and the selection among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from narrowpass_xnn_cpu.native.problems.convolution import Convolution
from narrowpass_xnn_cpu.native.problems.matmul import Matmul
from narrowpass_xnn_cpu.native.table.selected import Selection
from narrowpass_xnn_cpu.native.target import Target
from narrowpass_xnn_cpu.native.weights_cache import Session

P = TypeVar("P", Convolution, Matmul)
O_co = TypeVar("O_co", covariant=True)
P_contra = TypeVar("P_contra", Convolution, Matmul, contravariant=True)


class Kernel(Protocol[P_contra, O_co]):
    """What a row selects: packs the constants of a problem, and returns the operator.

    Attributes:
        name: of the kernel, for people.
        call: of the tape.
    """

    @property
    def name(self) -> str:
        """The kernel's name, for people."""

    @property
    def call(self) -> str:
        """The call of the tape."""

    def create(self, problem: P_contra, session: Session | None = None) -> O_co:
        """Pack, in a session of the weights cache if there is one."""


@dataclass(frozen=True)
class Row(Generic[P, O_co]):
    """A kernel and the problems that it is selected for.

    Attributes:
        kind: of the problem.
        dtypes: of the problem.
        kernel: packs the constants, and returns the operator.
        packing: how it packs, for people.
        where: the processors and shapes that it is selected for, for people.
        reason: what was measured.
        passed_over: returns why a problem is left to the rows below; empty where it is selected.
        may_be_unfit: whether constants may turn out to be unfit for it when they are packed: the
            rows below compute them then.
    """

    kind: str
    dtypes: str
    kernel: Kernel[P, O_co]
    packing: str
    where: str
    reason: str
    passed_over: Callable[[P, Target], str] = lambda problem, target: ""
    may_be_unfit: bool = False

    def create(self, problem: P, session: Session | None = None) -> O_co:
        """Pack the constants of a problem, and return its operator.

        Args:
            problem: what is to be computed.
            session: of the weights cache; None to pack for this operator alone.

        Raises:
            UnfitError: constants that cannot be computed with exactly.
            BackendError: what is not valid otherwise.
        """
        return self.kernel.create(problem, session)

    @property
    def maker(self) -> str:
        """``xnnpack`` or ``own``, as the folder of the kernel is called."""
        return "xnnpack" if type(self.kernel).__name__.startswith("Xnn") else "own"

    @property
    def selection(self) -> Selection:
        """What a plan says of it."""
        return Selection(str(self), self.packing, self.reason)

    def __str__(self) -> str:
        return f"{self.maker} {self.kernel.name} ({self.kernel.call})"


@dataclass(frozen=True)
class Candidate(Generic[P, O_co]):
    """A row that was considered, and why it was passed over; empty for one that fits."""

    row: Row[P, O_co]
    passed_over: str

    def __str__(self) -> str:
        return f"{self.row}: {self.passed_over or 'it fits'}"


def considered(
    rows: tuple[Row[P, O_co], ...], kind: str, problem: P, target: Target
) -> Iterator[Candidate[P, O_co]]:
    """Yield the rows for a problem of this kind in order, and why each was passed over."""
    for row in rows:
        if row.kind == kind and row.dtypes == problem.dtypes:
            yield Candidate(row, row.passed_over(problem, target))
