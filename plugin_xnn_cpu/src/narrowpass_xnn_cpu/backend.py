"""The backend ``xnn-cpu``: its options, and what passes and users can query."""

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
    from narrowpass_xnn_cpu.lower.numerics import Numerics


@dataclass(frozen=True)
class XnnCpuBackend(Backend):
    """Runs models on the CPU, with XNNPACK and kernels of its own.

    Nodes without a native kernel run where `fallback` says; `Program.explain` reports why.

    Attributes:
        winograd: whether float32 convolutions may be computed by Winograd's algorithm, which needs
            fewer multiplications and has larger rounding errors.
        spin: whether worker threads spin-wait for two milliseconds after a run. The next run starts
            sooner if it follows in that time; other processes get less processor time.
        share_workspace: whether all methods share one arena; then only one of them runs at a time.
        deterministic: whether the bits of a row may not depend on the number of rows. They do not
            anyway, but where tiles of AMX multiply many rows in bfloat16 (attention, and weights of
            4 bits), XNNPACK few rows in float16, or dot products few rows of a computed matrix.
        fallback: what runs nodes that have neither a native kernel nor one of numpy: the name of a
            backend that runs single nodes, such as ``onnxruntime``; ``reference`` for the Python
            evaluator, which also runs what that backend leaves; ``auto`` for a backend that is
            installed, and ``reference`` without one or where `deterministic`.
    """

    winograd: bool = True
    spin: bool = False
    share_workspace: bool = False
    deterministic: bool = False
    fallback: str = "auto"

    name: ClassVar[str] = "xnn-cpu"
    priority: ClassVar[int] = 100
    observes: ClassVar[bool] = True

    def available(self) -> str | None:
        """Return None if the native library can be loaded, else the reason why not."""
        from narrowpass_xnn_cpu.native import unavailable

        return unavailable()

    def details(self) -> Mapping[str, str]:
        """Return the instruction sets in use, and those of the processor where they are others.

        ``build`` says that the library lacks kernels for the processor's highest level, ``amx`` why
        a processor's AMX cannot be used, and ``xnnpack`` what stands in for it, where that is so.
        """
        from narrowpass_xnn_cpu.native import isa
        from narrowpass_xnn_cpu.native.library import extension, is_portable

        lib = extension().lib
        used, processor = isa.in_use(lib), isa.of_processor(lib)
        found = {"isa": used} if used == processor else {"isa": used, "processor": processor}
        if isa.detected(lib) != processor:
            found["build"] = f"has no kernels for {processor}: {isa.HOW_TO_BUILD}"
        if reason := isa.unused_amx(lib):
            found["amx"] = reason
        if is_portable():
            found["xnnpack"] = "not in this build: its operators are plain C, on one thread"
        return found

    def instruction_sets(self) -> Mapping[str, Mapping[str, str]]:
        """Return the levels of the processor and the build, with the variable that caps at each.

        ``sse4``, which is faster without FMA and has other bits, is left out.
        """
        from narrowpass_xnn_cpu.native import isa
        from narrowpass_xnn_cpu.native.library import extension

        highest = max(isa.in_use(extension().lib), isa.SAME_BITS[0], key=isa.LEVELS.index)
        levels = isa.SAME_BITS[: isa.SAME_BITS.index(highest) + 1]
        present = isa.built(extension().lib)
        return {level: {isa.VARIABLE: level} for level in levels if level in present}

    def default_pipeline(self, passes: Collection[str]) -> str:
        """Return ``fold``, and ``repair-quantized`` for quantized models, those that are installed.

        Dynamically quantized operators are kept: their kernels are exact.
        """
        wanted = {"fold": "fold", "repair-quantized": "repair-quantized{dynamic=keep}"}
        return ",".join(text for name, text in wanted.items() if name in passes)

    def supports(self, node: ir.Node) -> Accept | Reject:
        """Accept a node that has a native kernel for the types and shapes of its values."""
        from narrowpass_planning.program.support import supports
        from narrowpass_xnn_cpu.lowering import XnnLowering

        return supports(XnnLowering(), node)

    def fallbacks(self, model: ir.Model) -> Mapping[str, str]:
        """Return the nodes that a program would not run in a partition, by name, with the reasons.

        Raises:
            BackendError: an operator that nothing computes.
        """
        from narrowpass_planning.program import fallbacks
        from narrowpass_xnn_cpu.lowering import XnnLowering

        return fallbacks(XnnLowering(self._numerics()), model)

    @property
    def classifier(self) -> OpClassifier:  # type: ignore[override]  # created when read
        """Keeps nodes without a native kernel in their original type."""
        from narrowpass_xnn_cpu.gain import XnnCpuClassifier

        return XnnCpuClassifier()

    def gain(self, node: ir.Node, dtypes: OpDtypes) -> float:
        """Estimate the seconds that a matmul or convolution saves with weights of a narrow type."""
        from narrowpass_xnn_cpu.gain import seconds_saved

        return seconds_saved(node, dtypes)

    def quantization_spec(self) -> QuantizationSpec:
        """Return the operators that have int8 kernels, and the limits of scales and zero points.

        Any other Q/DQ operator is computed in float32, and `explain` reports why. Weights have one
        scale and zero point, or one for each output channel; ConvTranspose needs the zero point 0.
        """
        from narrowpass_xnn_cpu.constraints import spec

        return spec()

    @property
    def stages(self) -> Sequence[str]:
        """The stages of lowering, in the order in which they run."""
        from narrowpass_xnn_cpu.stages import STAGES

        return STAGES

    def plan_text(self, bundle: Bundle, stage: str, options: CompileOptions) -> str:
        """Return the lowered plan of each method after a stage, as text."""
        from narrowpass_xnn_cpu.stages import plans

        return "".join(plan.text() for plan in plans(bundle, stage, options, self._numerics()))

    def compile(self, bundle: Bundle, options: CompileOptions) -> Program:
        """Compile all methods of `bundle`.

        Raises:
            BackendError: a node that neither this backend nor its fallback runs.
            UsageError: a value to keep that no method has, or an unknown `fallback`.
        """
        from narrowpass_xnn_cpu.program import XnnProgram

        return XnnProgram(
            bundle,
            options,
            self._numerics(),
            spin=self.spin,
            share_workspace=self.share_workspace,
            fallback="reference"
            if self.deterministic and self.fallback == "auto"
            else self.fallback,
        )

    def _numerics(self) -> Numerics:
        from narrowpass_xnn_cpu.lower.numerics import Numerics

        return Numerics(self.winograd, self.deterministic)
