"""A bundle compiled for XNNPACK."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from narrowpass.runtime.backend import CompileOptions
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

    Raises:
        BackendError: a method that cannot be compiled.
        UsageError: a value to keep that no method has, or a number of threads out of range.
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
    ) -> None:
        super().__init__(
            bundle,
            options,
            lowering=XnnLowering(numerics),
            cache=weights_cache.shared(),
            packer=PACKER,
            pool=shared(options.threads, spin=spin),
            share_workspace=share_workspace,
        )

    def threads(self) -> ThreadPool:
        """Return the thread pool; a new one after a fork, which copies no threads."""
        if self._pool.process != os.getpid():
            self._pool = shared(self._pool.threads, spin=self._pool.spin)
        return self._pool
