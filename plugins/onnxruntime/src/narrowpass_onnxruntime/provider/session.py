"""What the provider does for one session: it chooses nodes, and compiles them in groups.

A node's level counts how often the path of nodes that leads to it changes between native nodes and
others. Native nodes of one level are a group: no path leads from one to another through a node
of another kind, since that would raise the level. So groups are convex, and no cycle arises.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

import narrowpass
from narrowpass.errors import BackendError
from narrowpass.framework.plugins import installed_plugins
from narrowpass_onnxruntime.provider.compiling import GroupCompiler
from narrowpass_onnxruntime.provider.graph import (
    Graph,
    Node,
    computed_names,
    input_names,
    is_nested,
    output_names,
    read_graph,
)
from narrowpass_onnxruntime.provider.group import Group
from narrowpass_onnxruntime.provider.library import Log, check, ffi, lib, ort
from narrowpass_onnxruntime.provider.models import model_of, results_of
from narrowpass_onnxruntime.provider.options import SPINNING, Options
from narrowpass_planning.program import ListsFallbacks

_FEW = 4
"""Nodes that compute: fewer of them do not pay for the calls into and out of a group."""

_HEAVY = frozenset(
    {
        "Attention",
        "Conv",
        "ConvInteger",
        "ConvTranspose",
        "GRU",
        "Gemm",
        "GroupQueryAttention",
        "LSTM",
        "MatMul",
        "MatMulInteger",
        "MatMulNBits",
        "MultiHeadAttention",
        "QLinearConv",
        "QLinearMatMul",
        "RNN",
        "TreeEnsemble",
        "TreeEnsembleClassifier",
        "TreeEnsembleRegressor",
    }
)
"""Operators that pay alone."""

_LIGHT = frozenset(
    {
        "Cast",
        "Concat",
        "Constant",
        "ConstantOfShape",
        "Expand",
        "Flatten",
        "Gather",
        "Identity",
        "Range",
        "Reshape",
        "Shape",
        "Size",
        "Slice",
        "Split",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    }
)
"""Operators that move elements, or nothing: groups of these alone do not pay."""


def groups_of(nodes: Sequence[Node], native: Callable[[Node], bool]) -> list[list[Node]]:
    """Return the native nodes in groups, each in order.

    Args:
        nodes: of a graph, in topological order.
        native: whether a node may be in a group.
    """
    level: dict[str, int] = {}  # of the node that computes a value
    kinds: dict[str, bool] = {}
    found: dict[int, list[Node]] = {}
    for node in nodes:
        kind = native(node)
        own = 0 if kind else 1  # native nodes have even levels
        for name in (*node.inputs, *node.captured):
            if name in level:
                own = max(own, level[name] + (kinds[name] != kind))
        for name in node.outputs:
            level[name], kinds[name] = own, kind
        if kind:
            found.setdefault(own, []).append(node)
    return [found[key] for key in sorted(found)]


def pays(nodes: Iterable[Node]) -> bool:
    """Return whether a group that is not the whole graph is worth its calls."""
    types = [node.op_type for node in nodes]
    return any(kind in _HEAVY for kind in types) or (
        sum(kind not in _LIGHT for kind in types) >= _FEW
    )


_BACKEND = "xnn-cpu"
_SHOWN = 10
"""Nodes that a message names."""

_DOMAINS = ("", "ai.onnx.ml", "com.microsoft")


class ProviderSession:
    """The provider of one session of onnxruntime.

    Args:
        options: of the provider.
        log: of the session.
        replaced: names of initializers that the session's options replace, of which the provider is
            shown those of the model.
        spins: whether threads of onnxruntime spin after what they run.

    Raises:
        UsageError: the backend is not installed.
        PipelineError: text of a pipeline that does not parse.
        DataError: samples that cannot be read.
        BackendError: it cannot run here.
    """

    def __init__(
        self,
        options: Options,
        log: Log,
        replaced: frozenset[str] = frozenset(),
        *,
        spins: bool = True,
    ) -> None:
        self._options, self._log, self._replaced = options, log, replaced
        self._spins = spins and options.threads != 1
        registry = installed_plugins().registry
        backend = registry.backend(_BACKEND)
        if not isinstance(backend, ListsFallbacks):
            raise BackendError(f"this version of {_BACKEND} does not list fallbacks; upgrade it")
        self._backend, self._lists = backend, backend
        self._compiler = GroupCompiler(self._backend, options, log)
        self._groups: list[Group] = []  # that have no kernel yet
        self._refusal: BackendError | None = None
        self._warned = False

    def choose(self, pointer: Any, info: Any) -> None:
        """Compile the groups of a graph, and claim the nodes of those that compiled.

        Args:
            pointer: ``const OrtGraph *``.
            info: ``OrtEpGraphSupportInfo *``.

        Raises:
            OrtError: onnxruntime refuses to say something.
        """
        graph = read_graph(pointer)
        reasons = self._reasons(graph)
        groups = groups_of(graph.nodes, lambda node: node.name not in reasons)
        whole = not reasons and len(groups) == 1 and not is_nested(pointer)
        for nodes in groups:
            if not whole and not self._options.require_native and not pays(nodes):
                reasons.update((node.name, "a small group does not pay") for node in nodes)
                continue
            try:
                group = self._compile(graph, nodes)
            except Exception as error:  # noqa: BLE001  # the session runs without the group
                named = f"{len(nodes)} nodes from {nodes[0].op_type} {nodes[0].name!r} on"
                self._warn(f"{named} are left to other providers: {error}")
                reasons.update((node.name, str(error)) for node in nodes)
                continue
            self._groups.append(group)
            _claim(info, nodes)
        left = [node for node in graph.nodes if node.name in reasons]
        self._report(graph, left, reasons)
        if left and self._options.require_native:
            shown = "\n  ".join(_line(node, reasons) for node in left[:_SHOWN])
            self._refusal = BackendError(
                f"{len(left)} nodes are not native, and all must be:\n  {shown}"
            )
            # An error here would only be logged; compilation is where a session can be refused.
            if not self._groups:
                _claim(info, left[:1])

    def kernels(self, graphs: Sequence[Any], fused: Sequence[Any]) -> list[Group]:
        """Return the compiled groups of graphs that onnxruntime has fused.

        Args:
            graphs: each ``const OrtGraph *``, of the nodes of one group.
            fused: the node in place of each, ``const OrtNode *``.

        Raises:
            BackendError: nodes are left, and none may be.
        """
        if self._refusal is not None:
            raise self._refusal
        found = []
        for graph, node in zip(graphs, fused, strict=True):
            computed = computed_names(graph)
            # The last graph comes first: branches of one If may use the same names.
            group = next(each for each in reversed(self._groups) if each.computed == computed)
            self._groups.remove(group)
            group.inputs, group.outputs = input_names(node), output_names(node)
            found.append(group)
        return found

    def _reasons(self, graph: Graph) -> dict[str, str]:
        """Return why nodes cannot be in groups, by their names."""
        reasons: dict[str, str] = {}
        for node in graph.nodes:
            reason = _outside(graph, node) or self._replacement(node)
            if reason:
                reasons[node.name] = reason
        while True:
            left = [node for node in graph.nodes if node.name not in reasons]
            found = self._fallbacks(graph, left)
            if not found:
                return reasons
            reasons.update(found)

    def _replacement(self, node: Node) -> str:
        for name in (*node.inputs, *node.captured):
            if name in self._replaced:
                return f"options of the session replace {name!r}, and the provider is not shown it"
        return ""

    def _fallbacks(self, graph: Graph, nodes: Sequence[Node]) -> dict[str, str]:
        if not nodes:
            return {}
        outputs = results_of(graph, nodes, _others(graph, nodes))
        model = model_of(graph, nodes, outputs, copy=False)
        try:
            return dict(self._lists.fallbacks(model))
        except BackendError as error:
            # Some operator is unknown: each is asked for alone.
            alone = {
                node.name: answer.reason
                for node, given in zip(nodes, model.graph, strict=True)
                if isinstance(answer := self._backend.supports(given), narrowpass.Reject)
            }
            return alone or {node.name: str(error) for node in nodes}

    def _compile(self, graph: Graph, nodes: Sequence[Node]) -> Group:
        others = _others(graph, nodes)
        program = self._compiler.compile(graph, nodes, results_of(graph, nodes, others))
        computed = frozenset(name for node in nodes for name in node.outputs if name)
        return Group(nodes[0].name, program, computed)

    def _warn(self, message: str) -> None:
        """Log a warning; further ones of the session are for verbose ones."""
        (self._log.info if self._warned else self._log.warn)(message)
        self._warned = True

    def _report(self, graph: Graph, left: Sequence[Node], reasons: Mapping[str, str]) -> None:
        self._log.info(f"{len(graph.nodes) - len(left)} of {len(graph.nodes)} nodes are taken")
        for node in left:
            self._log.info(f"left to other providers: {_line(node, reasons)}")
        if self._spins and 0 < len(left) < len(graph.nodes):
            self._log.info(
                "threads of onnxruntime spin after the nodes that are left, and take processors "
                f"from those that are taken; set the session's entry {SPINNING} to 0"
            )


def _line(node: Node, reasons: Mapping[str, str]) -> str:
    return f"{node.op_type} {node.name!r}: {reasons[node.name]}"


def _others(graph: Graph, nodes: Sequence[Node]) -> list[Node]:
    inside = {node.name for node in nodes}
    return [node for node in graph.nodes if node.name not in inside]


def _outside(graph: Graph, node: Node) -> str:
    """Return why a node cannot be in any group; empty where it may."""
    if node.taken:
        return "another provider has it"
    if node.nested:
        return "it has subgraphs"
    if node.domain not in _DOMAINS:
        return f"operators of the domain {node.domain!r} are not known"
    if node.attributes is None:
        return "an attribute cannot be read"
    for name in (*node.inputs, *node.outputs):
        if name and name not in graph.types:
            return f"{name!r} is no tensor, or its type is not known"
        if name and graph.types[name] == ir.DataType.STRING:
            return f"{name!r} holds strings"
    return ""


def _claim(info: Any, nodes: Collection[Node]) -> None:
    options = ffi.new("OrtNodeFusionOptions *")
    options.version, options.drop_constant_initializers = lib.NP_API_VERSION, True
    pointers = ffi.new("const OrtNode *[]", [node.pointer for node in nodes])
    add = ort().ep.EpGraphSupportInfo_AddNodesToFuse
    check(add(info, pointers, len(nodes), options))
