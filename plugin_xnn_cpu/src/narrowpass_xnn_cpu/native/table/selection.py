"""Selection: the first row of the table that fits a problem on a processor."""

from __future__ import annotations

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native import target as targets
from narrowpass_xnn_cpu.native.own.few_rows import FewRows
from narrowpass_xnn_cpu.native.own.packed import PackedConvolution, PackedMatmul
from narrowpass_xnn_cpu.native.problems.convolution import Convolution
from narrowpass_xnn_cpu.native.problems.matmul import Matmul
from narrowpass_xnn_cpu.native.problems.quantization import UnfitError
from narrowpass_xnn_cpu.native.table import convolution, matmul
from narrowpass_xnn_cpu.native.table.convolution import ConvolutionRow
from narrowpass_xnn_cpu.native.table.matmul import MatmulRow
from narrowpass_xnn_cpu.native.table.row import Candidate, O_co, P, Row, considered
from narrowpass_xnn_cpu.native.target import Target
from narrowpass_xnn_cpu.native.weights_cache import Session
from narrowpass_xnn_cpu.native.xnnpack.convolution import XnnConvolution
from narrowpass_xnn_cpu.native.xnnpack.matmul import XnnMatmul

AnyConvolution = PackedConvolution | XnnConvolution
AnyMatmul = PackedMatmul | XnnMatmul | FewRows


def candidates(
    problem: Convolution | Matmul, target: Target
) -> list[Candidate[Convolution, AnyConvolution]] | list[Candidate[Matmul, AnyMatmul]]:
    """Return the rows for a problem in order, and why each was passed over."""
    if isinstance(problem, Matmul):
        return list(considered(matmul.ROWS, "matmul", problem, target))
    return list(considered(convolution.ROWS, problem.kind, problem, target))


def select(problem: Convolution | Matmul, target: Target) -> ConvolutionRow | MatmulRow:
    """Return the first row that fits a problem on a processor.

    Raises:
        BackendError: there is none; the message has the reasons.
    """
    if isinstance(problem, Matmul):
        return _fitting(list(considered(matmul.ROWS, "matmul", problem, target)), problem)[0]
    found = list(considered(convolution.ROWS, problem.kind, problem, target))
    return _fitting(found, problem)[0]


def _fitting(found: list[Candidate[P, O_co]], problem: P) -> list[Row[P, O_co]]:
    fitting = [each.row for each in found if not each.passed_over]
    if not fitting:
        reasons = "; ".join(f"{each.row.kernel.name}: {each.passed_over}" for each in found)
        raise BackendError(
            f"no kernel computes {problem.dtypes} here ({reasons or 'there is none'})"
        )
    return fitting


def create_convolution(problem: Convolution, session: Session | None = None) -> AnyConvolution:
    """Return the operator of a convolution on this processor.

    Args:
        problem: what is to be computed.
        session: of the weights cache; None to pack for this operator alone.

    Raises:
        UnfitError: constants that cannot be computed with exactly.
        BackendError: what is not valid otherwise; an epilogue where the kernel has none.
    """
    target = targets.current()
    found = list(considered(convolution.ROWS, problem.kind, problem, target))
    return _create(_fitting(found, problem), problem, session)


def create_matmul(problem: Matmul, session: Session | None = None) -> AnyMatmul:
    """Return the operator of a matmul on this processor; see `create_convolution`."""
    found = list(considered(matmul.ROWS, "matmul", problem, targets.current()))
    return _create(_fitting(found, problem), problem, session)


def _create(rows: list[Row[P, O_co]], problem: P, session: Session | None) -> O_co:
    for row in rows:
        try:
            return row.create(problem, session)
        except UnfitError:
            # Weights that overflow when they are transformed are found when they are packed: then
            # the convolution is computed directly, and `explain` names it so.
            if not row.may_be_unfit:
                raise
    raise BackendError(f"no kernel computes {problem.dtypes} with these constants")
