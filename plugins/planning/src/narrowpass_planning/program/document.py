"""A compiled method as a JSON document, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from narrowpass.runtime.backend import NodePlan
from narrowpass_ir.data.feeds import FeedChecker, FeedSpec
from narrowpass_planning.host.nodes import HostUnit
from narrowpass_planning.plan.partition import Partition, ValueLayout
from narrowpass_planning.plan.shapes import ShapeNode, ShapeSource
from narrowpass_planning.plan.step import Slot, Step
from narrowpass_planning.program.compiled_graph import CompiledGraph
from narrowpass_planning.program.method import Graphs, Interface, Method
from narrowpass_planning.program.shape_nodes import rebuilt
from narrowpass_planning.state.fed import Fed, FedMask
from narrowpass_planning.stored.codec import LARGEST, Decoder, Encoder
from narrowpass_planning.stored.storage import NotStorableError
from narrowpass_planning.weights.weight import Weight

if TYPE_CHECKING:
    from narrowpass_planning.program.compiled_graph import CompileContext
    from narrowpass_planning.stored.storage import StepStorage
    from narrowpass_planning.stored.tensors import NamedTensors

CLASSES: Mapping[str, type[Any]] = {
    each.__name__: each for each in (Fed, FedMask, NodePlan, ShapeSource)
}
"""The dataclasses of documents that are no backend's."""


Appends = tuple[FeedChecker, Fed]
"""What a method whose caches are appended to has beside: its feeds' checker, and what it takes."""


def document_of(
    method: Method, appends: Appends | None, storage: StepStorage, tensors: NamedTensors
) -> dict[str, Any]:
    """Return a compiled method as a document.

    Args:
        method: compiled, with all weights named.
        appends: of a method whose caches are appended to; else None.
        storage: of the backend.
        tensors: of the bundle.

    Raises:
        NotStorableError: it has what the format does not: control flow, nodes that the reference
            evaluator runs, or values to keep; or a tensor of the bundle is damaged.
    """
    interface = method.interface
    if type(method.graphs) is not Graphs or interface.defaults or interface.observable:
        raise NotStorableError("it is compiled for shapes or feeds that are not known yet")
    encoder = Encoder(tensors, {**CLASSES, **storage.classes()})
    graph = method.graphs.last
    constants = {name: encoder.array(weight.view()) for name, weight in graph.constants.items()}
    document = {
        "name": interface.name,
        "inputs": [_spec(spec) for spec in interface.checker.inputs],
        "outputs": list(interface.outputs),
        "types": {name: _type(kind) for name, kind in interface.types.items()},
        "known": sorted(interface.known),
        "units": [_unit(unit, encoder, storage) for unit in graph.units],
        "constants": constants,
        "plans": [list(dataclasses.astuple(plan)) for plan in graph.plans],
        "appends": None if appends is None else _appends(*appends, encoder),
        "slots": encoder.slots,
        "weights": encoder.weights,
    }
    tensors.check(None if encoder.copies_much else LARGEST)
    return document


def _appends(checker: FeedChecker, fed: Fed, encoder: Encoder) -> list[Any]:
    return [[_spec(spec) for spec in checker.inputs], encoder.value(fed)]


def _type(kind: ir.TypeProtocol | None) -> int | None:
    if kind is None:
        return None
    if type(kind) is not ir.TensorType:
        raise NotStorableError(f"a value is no tensor: {kind}")
    return int(kind.dtype)


def _spec(spec: FeedSpec) -> list[Any]:
    shape = None if spec.shape is None else list(spec.shape)
    return [spec.name, _type(spec.type), shape, spec.has_default]


def _unit(unit: Partition | HostUnit, encoder: Encoder, storage: StepStorage) -> dict[str, Any]:
    if isinstance(unit, HostUnit):
        items = [_shape_node(item, encoder) for item in unit.items]
        return {"items": items, "outputs": list(unit.outputs)}

    def stored(item: Step | ShapeNode) -> Any:
        if isinstance(item, Step):
            return encoder.value(storage.record(item))
        return _shape_node(item, encoder)

    return {
        "number": unit.number,
        "items": [stored(item) for item in unit.items],
        "inputs": _slots(unit.inputs, encoder),
        "outputs": _slots(unit.outputs, encoder),
        "fixed": _slots({name: slot for slot, name in unit.fixed.items()}, encoder),
        "places": [[at.name, encoder.slot(at.slot), list(at.perm)] for at in unit.places],
    }


def _slots(slots: Mapping[str, Slot], encoder: Encoder) -> dict[str, int]:
    return {name: encoder.slot(slot) for name, slot in slots.items()}


def _shape_node(item: object, encoder: Encoder) -> Any:
    if not isinstance(item, ShapeNode) or item.source is None:
        raise NotStorableError("a node runs on the host")
    return encoder.value(item.source)


def restored(
    document: Mapping[str, Any],
    storage: StepStorage,
    tensors: NamedTensors,
    context: CompileContext,
) -> tuple[Method, Appends | None]:
    """Return the method of a document, and `Appends`; see `document_of`.

    Raises:
        StaleError: weights that are not packed yet, or tensors that the bundle does not have.
    """
    classes = {**CLASSES, **storage.classes()}
    decoder = Decoder(tensors, classes, document["slots"], document["weights"])
    name = document["name"]
    interface = Interface(
        name,
        _checker(name, document["inputs"]),
        tuple(document["outputs"]),
        {value: _restored_type(kind) for value, kind in document["types"].items()},
        frozenset(document["known"]),
    )
    graph = CompiledGraph(
        [_restored_unit(unit, decoder, storage, context) for unit in document["units"]],
        {name: Weight.of(decoder.value(stored)) for name, stored in document["constants"].items()},
        [NodePlan(*plan) for plan in document["plans"]],
    )
    method, appends = Method(interface, Graphs(graph), context), document["appends"]
    if appends is None:
        return method, None
    inputs, fed = appends
    return method, (_checker(name, inputs), decoder.value(fed))


def _checker(method: str, specs: Sequence[Sequence[Any]]) -> FeedChecker:
    return FeedChecker(method, tuple(_restored_spec(*spec) for spec in specs))


def _restored_type(dtype: int | None) -> ir.TypeProtocol | None:
    return None if dtype is None else ir.TensorType(ir.DataType(dtype))


def _restored_spec(
    name: str, dtype: int | None, shape: list[Any] | None, has_default: bool
) -> FeedSpec:
    dims = None if shape is None else tuple(shape)
    return FeedSpec(name, _restored_type(dtype), dims, has_default)


def _restored_unit(
    unit: Mapping[str, Any], decoder: Decoder, storage: StepStorage, context: CompileContext
) -> Partition | HostUnit:
    values = map(decoder.value, unit["items"])
    items = [
        rebuilt(value) if isinstance(value, ShapeSource) else storage.step(value, context.session)
        for value in values
    ]
    if "number" not in unit:
        nodes = [item for item in items if isinstance(item, ShapeNode)]
        return HostUnit(nodes, tuple(unit["outputs"]))
    slots = decoder.slots
    inputs, outputs, fixed = (
        {name: slots[index] for name, index in unit[each].items()}
        for each in ("inputs", "outputs", "fixed")
    )
    places = [ValueLayout(name, slots[index], tuple(perm)) for name, index, perm in unit["places"]]
    return Partition(
        unit["number"],
        items,
        inputs,
        outputs,
        fixed,
        places,
        context.workspace,
        context.lowering.executor,
    )
