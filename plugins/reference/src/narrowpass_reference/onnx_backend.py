"""narrowpass as an `onnx.backend.base.Backend`, for programs and test suites that take one.

The module can be used as the class: ``import narrowpass_reference.onnx_backend as backend``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.backend.base import Backend, BackendRep, Device, DeviceType

from narrowpass.bundle import Bundle
from narrowpass.errors import DataError, UsageError
from narrowpass.framework.config import registry_for
from narrowpass.framework.context import Context
from narrowpass.framework.pipeline import Pipeline
from narrowpass.framework.plugins import Plugins, Registry, load_plugins
from narrowpass.runtime.backend import CompileOptions, Program
from narrowpass_ir.verify import verify

__all__ = [
    "NarrowpassBackend",
    "NarrowpassRep",
    "prepare",
    "run_model",
    "run_node",
    "supports_device",
]


class NarrowpassRep(BackendRep):
    """A model that was prepared; `run` takes its inputs in order.

    Attributes:
        program: what runs, with one method, ``main``.
    """

    def __init__(self, program: Program, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        self.program = program
        self._inputs = tuple(inputs)
        self._outputs = tuple(outputs)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model.

        Args:
            inputs: a value for each input in order; trailing ones that have defaults may be left
                out. Or a mapping by name. Numpy scalars count as arrays without dimensions.
            **kwargs: ignored, as the interface allows.

        Returns:
            The outputs in order.

        Raises:
            DataError: values that do not fit the inputs.
            BackendError: the computation failed.
        """
        if isinstance(inputs, Mapping):
            feeds = dict(inputs)
        else:
            values = inputs if isinstance(inputs, list | tuple) else [inputs]
            if len(values) > len(self._inputs):
                raise DataError(
                    f"the model has {len(self._inputs)} inputs, but {len(values)} values were "
                    "given; leave the surplus out"
                )
            feeds = dict(zip(self._inputs, values, strict=False))
        results = self.program.run({name: _as_array(value) for name, value in feeds.items()})
        return tuple(results[name] for name in self._outputs)


class NarrowpassBackend(Backend):
    """Runs ONNX protos through the IR, the verifier, a pipeline and a backend of narrowpass."""

    @classmethod
    def prepare(
        cls,
        model: onnx.ModelProto,
        device: str = "CPU",
        *,
        backend: str = "reference",
        pipeline: str = "",
        threads: int | None = None,
        plugins: Plugins | None = None,
        **kwargs: Any,
    ) -> NarrowpassRep:
        """Compile a model.

        Args:
            model: the model; it is not changed.
            device: ``CPU``.
            backend: name of the backend.
            pipeline: pipeline text to apply first.
            threads: number of threads that a run may use.
            plugins: the plugins to use; None for the installed ones, found anew for each model.
            **kwargs: ignored, as the interface allows.

        Raises:
            UsageError: another device, or a backend that is not installed.
            PipelineError: pipeline text that does not parse.
            ModelError: a model that is not valid.
            BackendError: a model that the backend cannot compile.
        """
        if not cls.supports_device(device):
            raise UsageError(f"device {device!r} is not supported; use 'CPU'")
        plugins = plugins or load_plugins()
        registry = registry_for(plugins) if pipeline else plugins.registry
        program = _compile(ir.from_proto(model), registry, backend, pipeline, threads)
        defaults = {tensor.name for tensor in model.graph.initializer}
        formals = [value.name for value in model.graph.input]
        # As the interface wants it: inputs that have no default come first.
        inputs = [n for n in formals if n not in defaults] + [n for n in formals if n in defaults]
        return NarrowpassRep(program, inputs, [value.name for value in model.graph.output])

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        """Compile a model and run it once; see `prepare` and `NarrowpassRep.run`."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one node.

        Args:
            node: the node.
            inputs: a value for each input that has a name, in order; or a mapping by name.
            device: ``CPU``.
            outputs_info: ignored; the types are inferred.
            **kwargs: `opset_version` (the newest by default), and what `prepare` takes.

        Returns:
            The outputs that have a name, in order.
        """
        version = int(kwargs.pop("opset_version", 0)) or _newest_opset(node.domain)
        names = list(dict.fromkeys(name for name in node.input if name))
        if not isinstance(inputs, Mapping):
            inputs = dict(zip(names, inputs, strict=True))
        model = _one_node_model(node, {n: _as_array(v) for n, v in inputs.items()}, version)
        return cls.run_model(model, inputs, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether `device` is the CPU."""
        try:
            return bool(Device(device).type == DeviceType.CPU)
        except (AttributeError, ValueError):
            return False


def _compile(
    model: ir.Model, registry: Registry, backend: str, pipeline: str, threads: int | None
) -> Program:
    chosen = registry.backend(backend)
    passes = Pipeline.parse(pipeline, registry)
    verify(model)
    ctx = Context(target=chosen, classifiers=registry.classifiers)
    model = passes.run(model, ctx, in_place=True).model
    return chosen.compile(Bundle({"main": model}), CompileOptions(threads=threads))


def _as_array(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, np.generic) else value


def _newest_opset(domain: str) -> int:
    versions = [s.since_version for s in onnx.defs.get_all_schemas() if s.domain == domain]
    return onnx.defs.onnx_opset_version() if not domain else max(versions, default=1)


def _one_node_model(
    node: onnx.NodeProto, feeds: Mapping[str, Any], version: int
) -> onnx.ModelProto:
    """Create a model of a node whose inputs have the types of `feeds`; outputs are inferred."""
    inputs = [onnx.helper.make_value_info(name, _type_of(value)) for name, value in feeds.items()]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = onnx.helper.make_graph([node], "node", inputs, outputs)
    opsets = [onnx.helper.make_opsetid(node.domain, version)]
    if node.domain:
        opsets.append(onnx.helper.make_opsetid("", onnx.defs.onnx_opset_version()))
    model = onnx.helper.make_model(graph, opset_imports=opsets)
    return onnx.shape_inference.infer_shapes(model)


def _type_of(value: Any) -> onnx.TypeProto:
    if isinstance(value, list):
        return onnx.helper.make_sequence_type_proto(_type_of(value[0]))
    dtype = value.dtype
    element = (
        onnx.TensorProto.STRING
        if dtype.kind in "OU"
        else onnx.helper.np_dtype_to_tensor_dtype(dtype)
    )
    return onnx.helper.make_tensor_type_proto(element, value.shape)


prepare = NarrowpassBackend.prepare
run_model = NarrowpassBackend.run_model
run_node = NarrowpassBackend.run_node
supports_device = NarrowpassBackend.supports_device
