"""Selection: the first row of the kernel table that accepts a problem on a processor."""

from __future__ import annotations

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native import target as targets
from narrowpass_xnn_cpu.native.own.gemv import Gemv
from narrowpass_xnn_cpu.native.own.packed import PackedConvolution, PackedMatmul
from narrowpass_xnn_cpu.native.problems.convolution import Convolution
from narrowpass_xnn_cpu.native.problems.matmul import Matmul
from narrowpass_xnn_cpu.native.problems.quantization import UnfitError
from narrowpass_xnn_cpu.native.table import convolution, matmul
from narrowpass_xnn_cpu.native.table.convolution import ConvolutionRow
from narrowpass_xnn_cpu.native.table.matmul import MatmulRow
from narrowpass_xnn_cpu.native.table.row import Candidate, O_co, P, Row, evaluate_rows
from narrowpass_xnn_cpu.native.target import Target
from narrowpass_xnn_cpu.native.weights_cache import Session
from narrowpass_xnn_cpu.native.xnnpack.convolution import XnnConvolution
from narrowpass_xnn_cpu.native.xnnpack.matmul import XnnMatmul

AnyConvolution = PackedConvolution | XnnConvolution
AnyMatmul = PackedMatmul | XnnMatmul | Gemv


def candidates(
    problem: Convolution | Matmul, target: Target
) -> list[Candidate[Convolution, AnyConvolution]] | list[Candidate[Matmul, AnyMatmul]]:
    """Return the rows for a problem's kind and dtypes in order, with their reasons to reject."""
    if isinstance(problem, Matmul):
        return list(evaluate_rows(matmul.ROWS, "matmul", problem, target))
    return list(evaluate_rows(convolution.ROWS, problem.kind, problem, target))


def select(problem: Convolution | Matmul, target: Target) -> ConvolutionRow | MatmulRow:
    """Return the first row that accepts a problem on a processor.

    Raises:
        BackendError: all rows reject it; the message has the reasons.
    """
    if isinstance(problem, Matmul):
        return _accepted(list(evaluate_rows(matmul.ROWS, "matmul", problem, target)), problem)[0]
    found = list(evaluate_rows(convolution.ROWS, problem.kind, problem, target))
    return _accepted(found, problem)[0]


def _accepted(found: list[Candidate[P, O_co]], problem: P) -> list[Row[P, O_co]]:
    accepted = [each.row for each in found if not each.reject_reason]
    if not accepted:
        reasons = "; ".join(f"{each.row.kernel.name}: {each.reject_reason}" for each in found)
        raise BackendError(
            f"no kernel computes {problem.dtypes} here ({reasons or 'there is none'})"
        )
    return accepted


def create_convolution(problem: Convolution, session: Session | None = None) -> AnyConvolution:
    """Return the operator of a convolution on this processor.

    Args:
        problem: what is to be computed.
        session: of the weights cache; None to pack for this operator alone.

    Raises:
        UnfitError: constants for which no kernel would be exact.
        BackendError: other invalid shapes or types, or an epilogue that the kernel does not have.
    """
    target = targets.current()
    found = list(evaluate_rows(convolution.ROWS, problem.kind, problem, target))
    return _create(_accepted(found, problem), problem, session)


def create_matmul(problem: Matmul, session: Session | None = None) -> AnyMatmul:
    """Return the operator of a matmul on this processor; see `create_convolution`."""
    found = list(evaluate_rows(matmul.ROWS, "matmul", problem, targets.current()))
    return _create(_accepted(found, problem), problem, session)


def _create(rows: list[Row[P, O_co]], problem: P, session: Session | None) -> O_co:
    for row in rows:
        try:
            return row.kernel.create(problem, session)
        except UnfitError:
            # Weights too large for Winograd are found when they are packed. The convolution is then
            # computed directly, and `explain` reports that kernel.
            if not row.may_be_unfit:
                raise
    raise BackendError(f"no kernel computes {problem.dtypes} with these constants")
