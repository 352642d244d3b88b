"""Free dimensions that a caller fixes, and initializers that it replaces, in one session.

``SessionOptions`` has methods that add them, and none that returns them. So a session is created
of a model of a few bytes that has the same symbols and names, which shows what they do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from narrowpass_ir.subgraphs import nested_graphs
from narrowpass_onnxruntime.session.errors import error, unsupported
from narrowpass_onnxruntime.session.metadata import Dim, Interface, NodeArg
from narrowpass_onnxruntime.session.options import NATIVE_ONLY, config_entry

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Overrides:
    """What session options change in a model.

    Attributes:
        by_name: of the dimensions that have a symbolic name.
        by_denotation: of the inputs' dimensions that have a denotation, such as ``DATA_BATCH``.
        initializers: values that take the place of those in the model, by name.
    """

    by_name: Mapping[str, int] = field(default_factory=dict)
    by_denotation: Mapping[str, int] = field(default_factory=dict)
    initializers: Mapping[str, Array] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.by_name or self.by_denotation or self.initializers)

    def __str__(self) -> str:
        digests = {
            name: hashlib.sha256(array.tobytes()).hexdigest()
            for name, array in self.initializers.items()
        }
        each = (self.by_name, self.by_denotation, digests)
        return " ".join(str(sorted(values.items())) for values in each)

    def apply(self, model: ir.Model, interface: Interface) -> None:
        """Change a model, in place.

        Raises:
            Fail: an initializer of another type or shape than the one that it replaces.
        """
        if not self:
            return
        for name, array in self.initializers.items():
            _replace(model.graph.initializers[name], array)
        for value in _values(model):
            if value.shape is not None:
                value.shape = ir.Shape(
                    self._sized(str(dim.value), dim) if isinstance(dim, ir.SymbolicDim) else dim
                    for dim in value.shape
                )
        for value in model.graph.inputs:
            denotations = interface.denotations.get(value.name or "", ())
            if value.shape is not None and denotations:
                value.shape = ir.Shape(
                    self.by_denotation.get(denotation, dim)
                    for denotation, dim in zip(denotations, value.shape, strict=True)
                )

    def _sized(self, name: str, dim: ir.SymbolicDim) -> int | ir.SymbolicDim:
        return self.by_name.get(name, dim)

    def shown(self, interface: Interface) -> Interface:
        """Return the interface of a model that was changed."""
        if not self:
            return interface
        return dataclasses.replace(
            interface,
            inputs=tuple(self._arg(arg, interface) for arg in interface.inputs),
            outputs=tuple(self._arg(arg, interface) for arg in interface.outputs),
            overridable=tuple(self._arg(arg, interface) for arg in interface.overridable),
        )

    def _arg(self, arg: NodeArg, interface: Interface) -> NodeArg:
        denotations = interface.denotations.get(arg.name) or ("",) * len(arg.shape)
        shape: list[Dim] = [
            self.by_denotation.get(denotation, self.by_name.get(dim, dim))
            if isinstance(dim, str)
            else self.by_denotation.get(denotation, dim)
            for denotation, dim in zip(denotations, arg.shape, strict=True)
        ]
        return NodeArg(arg.name, arg.type, shape)


def _replace(value: ir.Value, array: Array) -> None:
    """Replace the tensor of an initializer."""
    tensor, given = value.const_value, ir.tensor(array, name=value.name)
    if tensor is None or (given.dtype, given.shape) != (tensor.dtype, tensor.shape):
        found = "" if tensor is None else f"{tensor.dtype.name.lower()}{list(tensor.shape)}"
        raise error(
            "Fail",
            f"SessionOptions.add_initializer has {given.dtype.name.lower()}{list(given.shape)} "
            f"for {value.name!r}, which is {found} in the model; pass one like it",
        )
    value.const_value = given


def forget_names(model: ir.Model) -> None:
    """Leave free dimensions without names, in place: those of one name may have several sizes."""
    for value in _values(model):
        if value.shape is not None:
            value.shape = ir.Shape(
                ir.SymbolicDim(None) if isinstance(dim, ir.SymbolicDim) else dim
                for dim in value.shape
            )


def _values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in nested_graphs(model.graph):
        yield from graph.inputs
        for node in graph:
            yield from node.outputs


_MARK = np.array([0x7FC54321], np.uint32).view(np.float32)
"""The value of each initializer of the probe, a NaN; another one has been put in its place."""

_QUIET: Mapping[str, Any] = {
    "enable_profiling": False,
    "optimized_model_filepath": "",
    "intra_op_num_threads": 1,
}
"""Options that the probe must not have: they write files, or start threads."""

_turn = threading.Lock()


def overrides_of(options: Any, interface: Interface) -> Overrides:
    """Return what session options change in a model.

    Args:
        options: ``onnxruntime.SessionOptions``.
        interface: of the model.

    Raises:
        NotImplemented: external initializers are given with the options.
    """
    symbols = _symbols(interface)
    denotations = sorted({name for each in interface.denotations.values() for name in each if name})
    probe = _probe(symbols, denotations, interface.initializers)
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    with _turn, _quiet(options):
        session = state.InferenceSession(options, probe, False, False)
        try:
            session.initialize_session([], [], set())
        except Exception as problem:
            if "ReplaceInitializedTensor" in str(problem):
                raise unsupported(
                    "SessionOptions.add_external_initializers", "store them with the model"
                ) from problem
            raise
    sizes = [arg.shape[0] for arg in session.inputs_meta][1:]
    named = zip(symbols, sizes, strict=False)
    denoted = zip(denotations, sizes[len(symbols) :], strict=True)
    return Overrides(
        {name: size for name, size in named if isinstance(size, int)},
        {name: size for name, size in denoted if isinstance(size, int)},
        _replaced(session, interface.initializers),
    )


def _symbols(interface: Interface) -> list[str]:
    args = (*interface.inputs, *interface.outputs, *interface.overridable)
    return sorted({dim for arg in args for dim in arg.shape if isinstance(dim, str)})


def _probe(symbols: list[str], denotations: list[str], initializers: tuple[str, ...]) -> bytes:
    """Return a model with an input for each symbol and denotation, and initializers as outputs."""
    taken = {*initializers}
    inputs = [helper.make_tensor_value_info(_free("x", taken), TensorProto.FLOAT, [1])]
    for index, symbol in enumerate(symbols):
        name = _free(f"s{index}", taken)
        inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [symbol]))
    for index, denotation in enumerate(denotations):
        name = _free(f"d{index}", taken)
        value = helper.make_tensor_value_info(name, TensorProto.FLOAT, [None])
        value.type.tensor_type.shape.dim[0].denotation = denotation
        inputs.append(value)
    first = _free("y", taken)
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        for name in (first, *initializers)
    ]
    graph = helper.make_graph(
        [helper.make_node("Identity", [inputs[0].name], [first])],
        "probe",
        inputs,
        outputs,
        [numpy_helper.from_array(_MARK, name) for name in initializers],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    serialized: bytes = model.SerializeToString()
    return serialized


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _replaced(session: Any, initializers: tuple[str, ...]) -> dict[str, Array]:
    """Return the initializers of the probe that are not what it was created with.

    Raises:
        NotImplemented: one of a type that onnxruntime does not return as an array.
    """
    if not initializers:
        return {}
    feeds = {
        arg.name: np.zeros(arg.shape[0] if isinstance(arg.shape[0], int) else 1, np.float32)
        for arg in session.inputs_meta
    }
    try:
        found = session.run(list(initializers), feeds, None)
    except Exception as problem:
        raise unsupported(
            "SessionOptions.add_initializer with a value of this type",
            "store the initializer in the model",
        ) from problem
    return {
        name: array
        for name, array in zip(initializers, found, strict=True)
        if array.dtype != _MARK.dtype
        or array.shape != _MARK.shape
        or array.view(np.uint32)[0] != _MARK.view(np.uint32)[0]
    }


@contextlib.contextmanager
def _quiet(options: Any) -> Iterator[None]:
    """Set options aside that have effects beyond the session, and put them back."""
    before = {name: getattr(options, name) for name in _QUIET}
    strict = config_entry(options, NATIVE_ONLY) == "1"  # the probe has the CPU's provider alone
    try:
        if strict:
            options.add_session_config_entry(NATIVE_ONLY, "0")
        for name, value in _QUIET.items():
            setattr(options, name, value)
        yield
    finally:
        if strict:
            options.add_session_config_entry(NATIVE_ONLY, "1")
        for name, value in before.items():
            setattr(options, name, value)
