"""The backend on onnx's reference evaluator."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar

from narrowpass.runtime.backend import Accept, Backend, CompileOptions, Program, Reject

if TYPE_CHECKING:
    import onnx_ir as ir

    from narrowpass.bundle import Bundle


class ReferenceBackend(Backend):
    """Runs everything that onnx's reference evaluator can, slowly and exactly.

    It is the oracle that other backends are measured against, and what they fall back to.
    """

    name: ClassVar[str] = "reference"
    priority: ClassVar[int] = 0
    is_oracle: ClassVar[bool] = True

    def default_pipeline(self, passes: Collection[str]) -> str:
        """Return ``fold`` where it is installed."""
        return "fold" if "fold" in passes else ""

    def supports(self, node: ir.Node) -> Accept | Reject:
        """Accept what has an implementation, or a function body in its schema or its model.

        A node outside the standard domains is accepted: whether its model has a function of that
        name is known only when the model is compiled, which rejects it by name if not.
        """
        version = node.version
        if version is None and node.graph is not None:
            version = node.graph.opset_imports.get(node.domain)
        return _supported(node.domain, node.op_type, version)

    def compile(self, bundle: Bundle, options: CompileOptions) -> Program:
        """Compile all methods of `bundle`.

        Raises:
            BackendError: a node that the evaluator cannot run; the message names it and why.
            UsageError: a value to keep that no method has.
        """
        from narrowpass_reference.program import ReferenceProgram

        return ReferenceProgram(bundle, options)


@functools.cache
def _supported(domain: str, op_type: str, version: int | None) -> Accept | Reject:
    import onnx

    from narrowpass.errors import BackendError
    from narrowpass_reference._evaluator import Evaluator

    if domain not in {"", *(schema.domain for schema in onnx.defs.get_all_schemas())}:
        return Accept()
    if version is None:
        version = onnx.defs.onnx_opset_version() if not domain else 1
    probe = Evaluator(onnx.GraphProto(), opsets={domain: version})
    try:
        probe.find(onnx.helper.make_node(op_type, [], [], op_type, domain=domain))
    except BackendError as error:
        return Reject(str(error))
    return Accept()
