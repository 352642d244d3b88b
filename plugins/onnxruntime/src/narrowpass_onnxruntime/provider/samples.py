"""Samples of what a group of nodes is fed, from samples of the model's inputs.

What other nodes compute for the group, onnxruntime's CPU provider computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import narrowpass
from narrowpass.bundle import Bundle
from narrowpass.calibration.samples import Samples
from narrowpass.errors import DataError
from narrowpass_onnxruntime.backend import OnnxRuntimeBackend
from narrowpass_onnxruntime.provider.graph import Graph, Node
from narrowpass_onnxruntime.provider.models import fed_to, model_of


def samples_of(graph: Graph, nodes: Sequence[Node], samples: Samples) -> Samples:
    """Return samples for a group of nodes; valid as long as the graph.

    Args:
        graph: that the nodes belong to.
        nodes: of the group, in topological order.
        samples: feeds of the model that the graph is of.

    Returns:
        Samples whose rounds raise DataError where a value of the group is not fed, and follows
        from no feed by nodes that can be run apart.
    """
    wanted = fed_to(graph, nodes)
    needed = _producers(graph, wanted)
    computed = {name for node in needed for name in node.outputs}
    return Samples(samples.source, lambda: _feeds(graph, needed, wanted, computed, samples))


def _feeds(
    graph: Graph,
    needed: Sequence[Node],
    wanted: Sequence[str],
    computed: set[str],
    samples: Samples,
) -> Iterator[dict[str, Any]]:
    if not needed:
        for feeds in samples:
            yield {name: _fed(feeds, name) for name in wanted}
        return
    inner = [name for name in wanted if name in computed]
    fed = fed_to(graph, needed)
    for node in needed:
        if node.attributes is None:
            raise DataError(
                f"node {node.name!r} ({node.op_type}), which computes what a group is fed, "
                "cannot be run apart from its model, so that samples do not reach the group"
            )
    model = model_of(graph, needed, inner, copy=False)
    bundle = Bundle({"main": model}, states=())
    with narrowpass.load(bundle, OnnxRuntimeBackend()) as program:
        for feeds in samples:
            found = program.run({name: _fed(feeds, name) for name in fed})
            yield {name: found[name] if name in computed else _fed(feeds, name) for name in wanted}


def _fed(feeds: Mapping[str, Any], name: str) -> Any:
    if name not in feeds:
        raise DataError(
            f"a sample has no {name!r}, which the model is fed; it has {', '.join(sorted(feeds))}"
        )
    return feeds[name]


def _producers(graph: Graph, names: Sequence[str]) -> list[Node]:
    """Return the nodes that the values of these names follow from, in order."""
    wanted = set(names)
    found = []
    for node in reversed(graph.nodes):
        if any(name in wanted for name in node.outputs if name):
            found.append(node)
            wanted.update((*node.inputs, *node.captured))
    return found[::-1]
