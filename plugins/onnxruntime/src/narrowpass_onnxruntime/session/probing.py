"""What session options hold that onnxruntime lets nobody read: found by a session that is created.

``SessionOptions`` has methods that add overrides of free dimensions and initializers, and none that
returns them. A model of a few bytes that has the same symbols and names shows what they do.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from narrowpass_onnxruntime.session.errors import unsupported
from narrowpass_onnxruntime.session.metadata import Interface
from narrowpass_onnxruntime.session.options import NATIVE_ONLY, config_entry
from narrowpass_onnxruntime.session.overrides import Overrides

Array = np.ndarray[Any, Any]

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
