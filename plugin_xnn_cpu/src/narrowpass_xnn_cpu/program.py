"""A bundle compiled for XNNPACK."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from narrowpass.runtime.backend import CompileOptions
from narrowpass_planning.program import evaluate_by
from narrowpass_planning.program.program import PlannedProgram
from narrowpass_xnn_cpu.lower.numerics import DEFAULT, Numerics
from narrowpass_xnn_cpu.lowering import XnnLowering
from narrowpass_xnn_cpu.native import weights_cache
from narrowpass_xnn_cpu.native.packer import PACKER
from narrowpass_xnn_cpu.native.runtime.pool import ThreadPool, shared

if TYPE_CHECKING:
    from narrowpass.bundle import Bundle


class XnnProgram(PlannedProgram):
    """Runs methods on XNNPACK and our kernels. Threads may share it; a method runs once at a time.

    Args:
        bundle: what to compile.
        options: see `CompileOptions`.
        numerics: which roundings kernels may choose.
        spin: whether the threads of the pool spin-wait for the next run.
        share_workspace: whether all methods compute in one arena.
        fallback: what runs nodes without a kernel; see `XnnCpuBackend`.

    Raises:
        BackendError: a method that cannot be compiled.
        UsageError: a value to keep that no method has, a number of threads out of range, or an
            unknown fallback.
    """

    _pool: ThreadPool

    def __init__(
        self,
        bundle: Bundle,
        options: CompileOptions,
        numerics: Numerics = DEFAULT,
        *,
        spin: bool = False,
        share_workspace: bool = False,
        fallback: str = "reference",
    ) -> None:
        pool = shared(options.threads, spin=spin)
        super().__init__(
            bundle,
            options,
            lowering=XnnLowering(numerics, evaluate_by(fallback, pool.threads)),
            cache=weights_cache.shared(),
            packer=PACKER,
            pool=pool,
            share_workspace=share_workspace,
        )

    def threads(self) -> ThreadPool:
        """Return the thread pool; a new one after a fork, which copies no threads."""
        if self._pool.process != os.getpid():
            self._pool = shared(self._pool.threads, spin=self._pool.spin)
        return self._pool
