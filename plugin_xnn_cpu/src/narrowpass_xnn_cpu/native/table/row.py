"""Rows of the kernel table, and their evaluation for a problem."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from narrowpass_xnn_cpu.native.problems.convolution import Convolution
from narrowpass_xnn_cpu.native.problems.matmul import Matmul
from narrowpass_xnn_cpu.native.target import Target
from narrowpass_xnn_cpu.native.weights_cache import Session


@dataclass(frozen=True)
class Selection:
    """A kernel, and why it was selected; all as text.

    Attributes:
        kernel: ``own`` or ``xnnpack``, name and call; the name alone if it has no row in the table.
        packing: the packed layout of constants; empty if it has none.
        reason: the measurement behind the selection; empty if there is no other kernel.
    """

    kernel: str
    packing: str = ""
    reason: str = ""

    def facts(self) -> Mapping[str, str]:
        """Return the fields that a printed plan has, without empty ones."""
        fields = {"kernel": self.kernel, "packing": self.packing, "reason": self.reason}
        return {name: text for name, text in fields.items() if text}


P = TypeVar("P", Convolution, Matmul)
O_co = TypeVar("O_co", covariant=True)
P_contra = TypeVar("P_contra", Convolution, Matmul, contravariant=True)


class Kernel(Protocol[P_contra, O_co]):
    """A kernel that a row selects. It packs the constants of a problem and returns the operator.

    Attributes:
        name: of the kernel, as plans print it.
        call: its name in ``kernels.def``.
    """

    @property
    def name(self) -> str:
        """The kernel's name, as plans print it."""

    @property
    def call(self) -> str:
        """The kernel's name in ``kernels.def``."""

    def create(self, problem: P_contra, session: Session | None = None) -> O_co:
        """Pack the constants of a problem, and return its operator.

        Args:
            problem: what is to be computed.
            session: of the weights cache; None to pack for this operator alone.

        Raises:
            UnfitError: constants for which the kernel would not be exact.
            BackendError: other invalid shapes or types.
        """


@dataclass(frozen=True)
class Row(Generic[P, O_co]):
    """A kernel and the problems that it is selected for.

    Attributes:
        kind: kind of the problems.
        dtypes: dtypes of the problems.
        kernel: the kernel.
        packing: its packed layout, as text.
        where: processors and shapes that it is selected for, as text.
        reason: the measurement behind the selection, as text.
        reject_reason: returns why a problem is left to the rows below; empty if it is accepted.
        may_be_unfit: whether packing may raise `UnfitError`; the next row is tried then.
    """

    kind: str
    dtypes: str
    kernel: Kernel[P, O_co]
    packing: str
    where: str
    reason: str
    reject_reason: Callable[[P, Target], str] = lambda problem, target: ""
    may_be_unfit: bool = False

    @property
    def provider(self) -> str:
        """``xnnpack`` or ``own``, as the folder of the kernel is called."""
        return "xnnpack" if type(self.kernel).__name__.startswith("Xnn") else "own"

    @property
    def selection(self) -> Selection:
        """Kernel, packing and reason, as a plan prints them."""
        return Selection(str(self), self.packing, self.reason)

    def __str__(self) -> str:
        return f"{self.provider} {self.kernel.name} ({self.kernel.call})"


@dataclass(frozen=True)
class Candidate(Generic[P, O_co]):
    """A row of the problem's kind and dtypes, and why it was rejected; empty if it was accepted."""

    row: Row[P, O_co]
    reject_reason: str

    def __str__(self) -> str:
        return f"{self.row}: {self.reject_reason or 'accepted'}"


def evaluate_rows(
    rows: tuple[Row[P, O_co], ...], kind: str, problem: P, target: Target
) -> Iterator[Candidate[P, O_co]]:
    """Yield the rows for a problem's kind and dtypes in order, with their reasons to reject it."""
    dtypes = problem.dtypes
    for row in rows:
        if row.kind == kind and row.dtypes == dtypes:
            yield Candidate(row, row.reject_reason(problem, target))
