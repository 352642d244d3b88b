"""The backend ``onnxruntime``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from narrowpass.runtime.backend import Accept, Backend, CompileOptions, Program, Reject

if TYPE_CHECKING:
    import onnx_ir as ir

    from narrowpass.bundle import Bundle
    from narrowpass_onnxruntime.node import NodeSession

_DOMAINS = ("", "ai.onnx.ml", "com.microsoft")


@dataclass(frozen=True, eq=False)
class OnnxRuntimeBackend(Backend):
    """Runs bundles on onnxruntime's CPU provider, weights where they are mapped.

    Attributes:
        optimize: which of its graph optimizations onnxruntime runs.
        spin: whether its worker threads spin while they wait for the next run. It starts sooner;
            other processes get less processor time.
    """

    name: ClassVar[str] = "onnxruntime"
    priority: ClassVar[int] = 50

    optimize: Literal["all", "extended", "basic", "none"] = "all"
    spin: bool = False

    def available(self) -> str | None:
        """Return None where onnxruntime can be imported, else why not."""
        try:
            import onnxruntime
        except Exception as error:  # noqa: BLE001  # a library that does not load raises anything
            return f"onnxruntime cannot be imported: {error}"
        return None if onnxruntime.get_available_providers() else "onnxruntime has no provider"

    def details(self) -> Mapping[str, str]:
        """Return the version of onnxruntime."""
        import onnxruntime

        return {"version": onnxruntime.__version__}

    def default_pipeline(self, passes: Collection[str]) -> str:
        """Return ``fold`` where it is installed."""
        return "fold" if "fold" in passes else ""

    def supports(self, node: ir.Node) -> Accept | Reject:
        """Accept nodes of the domains that onnxruntime has kernels of.

        Which types a kernel takes is known only when a model is compiled.
        """
        if node.domain in _DOMAINS:
            return Accept()
        return Reject(f"onnxruntime has no operators of the domain {node.domain!r}")

    def evaluator(self, node: ir.Node, model: ir.Model, threads: int) -> NodeSession | None:
        """Return what runs a node for another backend; see `narrowpass_planning.EvaluatesNodes`.

        Nodes are left whose values are no tensors of numbers that numpy has, or of unknown types,
        that have subgraphs or draw random numbers, and those that onnxruntime refuses.
        """
        from narrowpass_onnxruntime.node import node_session

        return node_session(node, model, threads, self.compile)

    def compile(self, bundle: Bundle, options: CompileOptions) -> Program:
        """Compile all methods of `bundle`.

        Raises:
            BackendError: a method that onnxruntime refuses, with its reason.
            UsageError: a value to keep that no method has.
        """
        from narrowpass_onnxruntime.program import OnnxRuntimeProgram

        return OnnxRuntimeProgram(bundle, options, self.optimize, spin=self.spin)
