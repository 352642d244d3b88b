"""A bundle compiled for onnxruntime."""

from __future__ import annotations

import json
import statistics
import tempfile
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
import onnxruntime
from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession

from narrowpass.errors import BackendError, UsageError
from narrowpass.runtime.backend import CompileOptions, Feeds, NodePlan, NodeTime, Outputs, Program
from narrowpass.runtime.processors import usable_processors
from narrowpass.runtime.requests import (
    check_kept,
    check_targets,
    choose_method,
    choose_outputs,
    write_outputs,
)
from narrowpass_ir.arguments import count_of
from narrowpass_ir.data.feeds import FeedChecker
from narrowpass_ir.verify import Signature
from narrowpass_onnxruntime.model import Prepared, prepare
from narrowpass_onnxruntime.provider.options import LEFT_ALONE

if TYPE_CHECKING:
    from narrowpass.bundle import Bundle

_LEVELS = {
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "none": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
_PROVIDERS = ["CPUExecutionProvider"]
_ERRORS_ONLY = 3


@dataclass(frozen=True)
class _Settings:
    """How sessions are created.

    Attributes:
        threads: of a run.
        optimize: the level of graph optimizations.
        spin: whether worker threads spin.
    """

    threads: int
    optimize: str
    spin: bool


@dataclass(frozen=True)
class _Method:
    """One method, ready to run.

    Attributes:
        session: of onnxruntime.
        prepared: what the session was created from. It holds the weights, which the session reads.
        checker: what may be fed.
        outputs: names of the outputs, in order.
        readable: types of the outputs and of the values that were kept, by name.
        known: names of all values of the graph, for messages.
        plans: the nodes.
    """

    session: Any
    prepared: Prepared
    checker: FeedChecker
    outputs: tuple[str, ...]
    readable: Mapping[str, ir.TypeProtocol | None]
    known: frozenset[str]
    plans: tuple[NodePlan, ...]


class OnnxRuntimeProgram(Program):
    """Runs methods with onnxruntime. Several threads may run it at once.

    Args:
        bundle: what to compile. Its weights stay where they are; onnxruntime packs copies of them.
        options: see `CompileOptions`. `cache` has no meaning here.
        optimize: see `OnnxRuntimeBackend`.
        spin: likewise.
    """

    def __init__(
        self, bundle: Bundle, options: CompileOptions, optimize: str, *, spin: bool
    ) -> None:
        threads = options.threads or usable_processors()
        self._settings = _Settings(threads, optimize, spin)
        self._methods = {
            name: _compile(name, model, options.keep, self._settings)
            for name, model in bundle.methods.items()
        }
        self._signatures = {name: Signature.of(model) for name, model in bundle.methods.items()}
        self._closed = False
        self._profiling = threading.Lock()
        known = frozenset().union(*(method.known for method in self._methods.values()))
        check_kept(options.keep, known)

    @property
    def methods(self) -> Sequence[str]:
        """The names of the methods, in the order of the bundle."""
        return tuple(self._methods)

    def signature(self, method: str = "main") -> Signature:
        """Return the inputs and outputs of a method; see `Program.signature`."""
        self._check_open()
        return choose_method(self._signatures, method)[1]

    def run(
        self,
        feeds: Feeds,
        method: str = "main",
        outputs: Sequence[str] | None = None,
        out: Outputs | None = None,
    ) -> Outputs:
        """Run a method; see `Program.run`."""
        name, chosen = self._choose(method)
        wanted = choose_outputs(name, outputs, chosen.outputs, chosen.readable, chosen.known)
        targets = {} if out is None else out
        check_targets(name, targets, wanted)
        values = _run(name, chosen, chosen.session, chosen.checker.check(feeds), wanted)
        given = {key: value for key, value in values.items() if key not in targets}
        given |= write_outputs(values, targets)
        return {key: given[key] for key in wanted}

    def explain(self) -> list[NodePlan]:
        """Report the nodes of the model; onnxruntime fuses some of them."""
        self._check_open()
        return [plan for method in self._methods.values() for plan in method.plans]

    def profile(self, feeds: Feeds, method: str = "main", runs: int = 5) -> list[NodeTime]:
        """Run a method `runs` times in a session of its own; report the median time of each node.

        Nodes are those of the model that onnxruntime optimized.

        Raises:
            UsageError: an unknown method, or `runs` below 1.
            DataError: feeds that do not fit the method's inputs.
            BackendError: the computation failed.
        """
        name, chosen = self._choose(method)
        runs = count_of(runs, "`runs`")
        checked = chosen.checker.check(feeds)
        with self._profiling, tempfile.TemporaryDirectory() as folder:
            session = _session(name, chosen.prepared, self._settings, Path(folder, "profile"))
            for _ in range(runs):
                _run(name, chosen, session, checked, chosen.outputs)
            events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        times: dict[tuple[str, str], list[float]] = defaultdict(list)
        for event in events:
            if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
                node = event["name"].removesuffix("_kernel_time")
                times[node, event["args"].get("op_name", "")].append(event["dur"] / 1e6)
        return [
            NodeTime(node, op_type, "onnxruntime", statistics.median(seconds))
            for (node, op_type), seconds in times.items()
        ]

    def stats(self) -> dict[str, Any]:
        """Return counts of methods and nodes, the threads, and the bytes of mapped weights."""
        self._check_open()
        methods = self._methods.values()
        return {
            "methods": len(self._methods),
            "nodes": sum(len(method.plans) for method in methods),
            "threads": self._settings.threads,
            "weight_bytes": sum(
                array.nbytes for method in methods for array in method.prepared.weights.values()
            ),
        }

    def close(self) -> None:
        """Free the sessions, once no run is going on. A second call does nothing."""
        self._closed = True
        self._methods = {}

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the program is closed; compile the bundle again to run it")

    def _choose(self, method: str) -> tuple[str, _Method]:
        methods = self._methods  # before the check: another thread may close the program after it
        self._check_open()
        return choose_method(methods, method)


def _compile(name: str, model: ir.Model, keep: Sequence[str], settings: _Settings) -> _Method:
    graph = model.graph
    values = {value.name: value for value in (*graph.inputs, *graph.initializers.values())}
    values.update((value.name, value) for node in graph for value in node.outputs)
    computed = {value.name for node in graph for value in node.outputs}
    outputs = tuple(value.name or "" for value in graph.outputs)
    kept = [value for value in keep if value in computed]
    readable = {value: values[value].type for value in kept}
    readable.update((value.name or "", value.type) for value in graph.outputs)
    try:
        prepared = prepare(model, kept)
    except BackendError as error:
        raise BackendError(f"method {name!r}: {error}") from error
    return _Method(
        session=_session(name, prepared, settings),
        prepared=prepared,
        checker=FeedChecker.of(graph, name),
        outputs=outputs,
        readable=readable,
        known=frozenset(value for value in values if value),
        plans=tuple(_plan(name, node) for node in graph.all_nodes()),
    )


def _session(
    name: str, prepared: Prepared, settings: _Settings, profile: Path | None = None
) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    options.intra_op_num_threads = settings.threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = _LEVELS[settings.optimize]
    entries = {
        LEFT_ALONE: "1",
        "session.intra_op.allow_spinning": str(int(settings.spin)),
        # Its default quantizes the rows of matmuls whose weights are dequantized.
        "session.qdq_matmulnbits_accuracy_level": "1",
    }
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile)
    if prepared.weights:
        given = [_weight(array) for array in prepared.weights.values()]
        options.add_external_initializers(list(prepared.weights), given)
    try:
        # Not onnxruntime.InferenceSession: programs may have put another class there.
        return InferenceSession(prepared.text, options, providers=_PROVIDERS)
    except Exception as error:  # its classes have no base of their own
        raise BackendError(f"method {name!r}: onnxruntime refuses it: {error}") from error


def _weight(array: Any) -> Any:
    """Return a weight that lies where the array does."""
    plain = np.asarray(array, order="C")
    if plain.dtype.type.__module__ == "numpy":
        return onnxruntime.OrtValue.ortvalue_from_numpy(plain)
    kind = int(ir.DataType.from_numpy(plain.dtype))
    raw = plain.view(np.uint16 if plain.dtype.itemsize == 2 else np.uint8)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, kind)


def _run(
    name: str,
    method: _Method,
    session: Any,
    feeds: Mapping[str, Any],
    wanted: Sequence[str],
) -> dict[str, Any]:
    """Run a session on feeds that were checked, and return values of the declared types."""
    places = [*method.outputs, *(key for key in method.readable if key not in method.outputs)]
    names = {key: method.prepared.outputs[places.index(key)] for key in wanted}
    given = {key: _fed(value) for key, value in feeds.items() if value is not None}
    try:
        found = session.run(list(names.values()), given)
    except Exception as error:  # its classes have no base of their own
        raise BackendError(f"method {name!r}: onnxruntime failed: {error}") from error
    return {
        key: _returned(value, method.readable[key]) for key, value in zip(names, found, strict=True)
    }


def _fed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_fed(each) for each in value]
    known = value.dtype.type.__module__ == "numpy"
    return np.asarray(value if known else value.astype(np.float32), order="C")


def _returned(value: Any, kind: ir.TypeProtocol | None) -> Any:
    if isinstance(value, np.ndarray) and isinstance(kind, ir.TensorType):
        if kind.dtype == ir.DataType.STRING:
            return value.astype(object)
        if kind.dtype != ir.DataType.UNDEFINED:
            return value.astype(kind.dtype.numpy(), copy=False)
    return value


def _plan(method: str, node: ir.Node) -> NodePlan:
    dtype = node.outputs[0].dtype if node.outputs else None
    return NodePlan(
        method=method,
        node=node.name or next((value.name for value in node.outputs if value.name), ""),
        op_type=f"{node.domain}.{node.op_type}" if node.domain else node.op_type,
        dtype="" if dtype is None else dtype.name.lower(),
        partition=None,
        kernel="onnxruntime",
    )
