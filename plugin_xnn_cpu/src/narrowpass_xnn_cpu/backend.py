"""The backend that plans what XNNPACK computes and what is left to others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from narrowpass import Accept, Backend, CompileOptions, Program, Reject

if TYPE_CHECKING:
    import onnx_ir as ir

    from narrowpass import OpClassifier, OpDtypes
    from narrowpass.bundle import Bundle
    from narrowpass.runtime.quantization import QuantizationSpec


@dataclass(frozen=True)
class XnnCpuBackend(Backend):
    """Runs models on the CPU, with XNNPACK and kernels of its own.

    What neither has runs on the reference evaluator, node by node; `Program.explain` says why.

    Attributes:
        winograd: whether convolutions of floats may be computed by Winograd's algorithm, which
            needs fewer multiplications and rounds more.
        spin: whether the threads of the pool spin-wait for the next run, for two milliseconds.
            Runs that follow soon start sooner; other processes have less of the processor.
        share_workspace: whether all methods compute in one arena. They then take turns.
    """

    winograd: bool = True
    spin: bool = False
    share_workspace: bool = False

    name: ClassVar[str] = "xnn-cpu"
    priority: ClassVar[int] = 100
    observes: ClassVar[bool] = True

    def available(self) -> str | None:
        """Give None where the library can be loaded, else the reason why not."""
        from narrowpass_xnn_cpu.native import unavailable

        return unavailable()

    def details(self) -> Mapping[str, str]:
        """Give the instruction sets in use, and those of the processor where they are capped."""
        from narrowpass_xnn_cpu.native import isa
        from narrowpass_xnn_cpu.native.library import extension

        lib = extension().lib
        used, detected = isa.in_use(lib), isa.detected(lib)
        return {"isa": used} if used == detected else {"isa": used, "processor": detected}

    def default_pipeline(self, passes: Collection[str]) -> str:
        """Give ``fold``, and ``repair-quantized`` for models that are quantized, if installed.

        Operators whose activations are quantized at run time are left as they are: they are
        computed exactly.
        """
        wanted = {"fold": "fold", "repair-quantized": "repair-quantized{dynamic=keep}"}
        return ",".join(text for name, text in wanted.items() if name in passes)

    def supports(self, node: ir.Node) -> Accept | Reject:
        """Accept what has a kernel of ours, by the types and shapes that the node's values have."""
        from narrowpass_planning.program.support import supports
        from narrowpass_xnn_cpu.lowering import XnnLowering

        return supports(XnnLowering(), node)

    @property
    def classifier(self) -> OpClassifier:  # type: ignore[override]  # made when it is asked for
        """What has no native kernel stays wide."""
        from narrowpass_xnn_cpu.gain import XnnCpuClassifier

        return XnnCpuClassifier()

    def gain(self, node: ir.Node, dtypes: OpDtypes) -> float:
        """Estimate the seconds that a product with a constant matrix saves in a narrow type."""
        from narrowpass_xnn_cpu.gain import seconds_saved

        return seconds_saved(node, dtypes)

    def quantization_spec(self) -> QuantizationSpec:
        """Give what is computed in int8, and what XNNPACK needs of its scales.

        An operator beyond that is computed in float between its bytes, and `explain` says why.
        Weights have one scale and zero point, or one for each output channel; ConvTranspose takes
        the zero point 0 alone.
        """
        from narrowpass_xnn_cpu.constraints import spec

        return spec()

    @property
    def stages(self) -> Sequence[str]:
        """The stages of lowering, in the order in which they run."""
        from narrowpass_xnn_cpu.stages import STAGES

        return STAGES

    def plan_text(self, bundle: Bundle, stage: str, options: CompileOptions) -> str:
        """Return what a stage of lowering decided for each method, as text."""
        from narrowpass_xnn_cpu.stages import plans

        return "".join(
            plan.text() for plan in plans(bundle, stage, options, winograd=self.winograd)
        )

    def compile(self, bundle: Bundle, options: CompileOptions) -> Program:
        """Compile all methods of `bundle`.

        Raises:
            BackendError: a node that nothing can run; the message names it and why.
            UsageError: a value to keep that no method has.
        """
        from narrowpass_xnn_cpu.program import XnnProgram

        return XnnProgram(
            bundle,
            options,
            winograd=self.winograd,
            spin=self.spin,
            share_workspace=self.share_workspace,
        )
