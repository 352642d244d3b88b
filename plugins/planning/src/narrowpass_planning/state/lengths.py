"""Rewrites what a graph computes from the rows of its caches, so that they are data and no shape.

Exporters compute positions and masks from the shapes of caches, which are those of buffers once
rows are appended in place. What depends on the rows is known as a function of indices
(`symbolic`): positions are added to the number of rows, an input; masks become `CausalMask`,
which the attention of a backend computes by itself; shapes of expanded heads become those of the
buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from narrowpass_ir.state import State
from narrowpass_planning.state.emitting import SizeEmitter
from narrowpass_planning.state.errors import AppendError
from narrowpass_planning.state.fed import Fed, FedMask
from narrowpass_planning.state.operators import CAUSAL_MASK, DOMAIN, MASK_PREFIX
from narrowpass_planning.state.symbolic import elements
from narrowpass_planning.state.symbolic.affine import ROWS, Affine, Dims, index
from narrowpass_planning.state.symbolic.arithmetic import constant_of
from narrowpass_planning.state.symbolic.evaluation import Evaluation
from narrowpass_planning.state.symbolic.masks import Mask, added_mask, chosen_mask
from narrowpass_planning.state.symbolic.movement import integers
from narrowpass_planning.state.symbolic.tensor import Tensor

_SIZED = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "OneHot": (1,),
    "Pad": (1,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Slice": (1, 2),
    "Split": (1,),
    "Tile": (1,),
}
"""Operators whose results have sizes that these operands say."""


@dataclass(frozen=True)
class Appended:
    """A cache and the node that appends to it.

    Attributes:
        state: that the cache is.
        past: the input.
        concat: the node that appends new rows.
    """

    state: State
    past: ir.Value
    concat: ir.Node

    @property
    def whole(self) -> ir.Value:
        """The cache with the new rows."""
        return self.concat.outputs[0]

    @property
    def new(self) -> ir.Value:
        """The new rows."""
        found = self.concat.inputs[1]
        if found is None:
            raise AppendError(f"node {self.concat.name!r} appends nothing")
        return found


class Lengths:
    """The rewriting of one graph.

    Args:
        graph: changed by `replace`.
        caches: that are appended to.
        views: values that have the elements of caches in other shapes, by ``id``.
        length: the input with the number of rows before a run, int64[1].

    Attributes:
        grown: inputs with a column for each row of the caches, whose feeds are 0 or 1.
    """

    def __init__(
        self,
        graph: ir.Graph,
        caches: Sequence[Appended],
        views: Sequence[ir.Value],
        length: ir.Value,
    ) -> None:
        self._graph, self._length = graph, length
        self._views = {id(view) for view in views}
        self._fed: dict[str, FedMask] = {}
        self._dropped: list[str] = []
        self._pasts = [cache.past for cache in caches]
        self._masks: dict[tuple[int, Mask, bool], ir.Value] = {}
        names = {d.value for v in graph.inputs for d in v.shape or () if not isinstance(d, int)}
        taken = {id(cache.past) for cache in caches}
        rows = _new_rows(graph, caches, names)
        self._rows, total = rows, Affine.of(ROWS) + rows
        dims: dict[int, Dims] = {}
        for cache in caches:
            known = _declared(cache.past, names)
            axis = cache.state.axis or 0
            dims[id(cache.past)] = (*known[:axis], Affine.of(ROWS), *known[axis + 1 :])
            dims[id(cache.whole)] = (*known[:axis], total, *known[axis + 1 :])
        feeds: dict[str, Tensor] = {}
        growing = _growing_names(graph, caches)
        self.grown: dict[str, ir.Value] = {}
        for value in graph.inputs:
            if id(value) in taken or not _is_row_mask(value, growing, graph):
                continue
            name = value.name or ""
            whole = (*_declared(value, names)[:-1], total)
            batch = Affine() if whole[0] == Affine.number(1) else Affine.of(index(2))
            feeds[name] = Tensor(whole, elements.FedIsOne(name, (batch, Affine.of(index(1)))))
            dims[id(value)] = whole
            self.grown[name] = value
        self._known = Evaluation(graph, dims, feeds)
        buffer = caches[0].past, caches[0].state.axis or 0
        self._emit = SizeEmitter(graph, self._known.sources, length, buffer, rows)

    def replace(self) -> None:
        """Rewrite all nodes that read what depends on the rows of caches.

        Raises:
            AppendError: one that reads it otherwise; the message names it.
        """
        self._check_subgraphs()
        self._remove_dead()
        sized: set[int] = set()  # from views of caches, whose elements are not to be computed
        for node in tuple(self._graph):
            if node.graph is None:
                continue
            if self._evaluated(node):
                read = {id(value) for value in node.inputs}
                if not sized.isdisjoint(read) or not self._views.isdisjoint(read):
                    sized.update(map(id, node.outputs))
                continue
            for at, value in enumerate(node.inputs):
                if value is None:
                    continue
                tensor, flat = self._known.tensor(value), self._known.flat(value)
                if flat is not None and (self._depends(flat.tensor) or id(value) in sized):
                    raise _no_mask(node, value)
                if tensor is None:
                    continue
                if self._depends(tensor):
                    self._replace_use(node, at, value, tensor)
                elif id(value) in sized:
                    dtype = value.dtype or ir.DataType.INT64
                    same = self._emit.data(tensor, dtype, node)
                    if same is not None:
                        node.replace_input_with(at, same)
        for value in self._graph.outputs:
            flat = self._known.flat(value)
            tensor = self._known.tensor(value) if flat is None else flat.tensor
            if tensor is not None and self._depends(tensor):
                raise AppendError(
                    f"output {value.name!r} is computed from the rows of caches alone"
                )
        self._remove_dead()
        for value in self.grown.values():
            if value.uses():
                reader = next(iter(value.uses())).node
                raise AppendError(
                    f"node {_label(reader)!r} ({reader.op_type}) computes with {value.name!r}, "
                    "which has a column for each row of the caches; feed the mask of attention"
                )
        self._drop_unread()

    def _drop_unread(self) -> None:
        """Remove inputs that nothing reads, of which feeds have other shapes in each run."""
        states = {id(value) for value in self._pasts}
        for value in tuple(self._graph.inputs):
            if not value.uses() and id(value) not in states and not value.is_graph_output():
                self._graph.inputs.remove(value)
                self._dropped.append(value.name or "")

    def follows(self, value: ir.Value) -> bool:
        """Return whether what is computed from the shape of a value was replaced."""
        return self._known.follows(value)

    def fed(self) -> Fed:
        """Return what a session takes of its feeds."""
        rows: int | tuple[str, int] | None = None
        if self._rows.is_number:
            rows = self._rows.constant
        elif self._rows.terms[0][0] in self._known.sources:
            value, axis = self._known.sources[self._rows.terms[0][0]]
            rows = value.name or "", axis
        return Fed(rows, tuple(self.grown), tuple(self._fed.values()), dropped=tuple(self._dropped))

    def _evaluated(self, node: ir.Node) -> bool:
        known = self._known
        return all((known.tensor(v) or known.flat(v)) is not None for v in node.outputs)

    def _depends(self, tensor: Tensor) -> bool:
        return ROWS in tensor.symbols()

    def _replace_use(self, node: ir.Node, at: int, value: ir.Value, tensor: Tensor) -> None:
        expands = not node.domain and node.op_type in ("Expand", "Reshape") and at == 1
        if expands and id(node.inputs[0]) in self._views:
            sizes = integers(tensor)
            shape = None if sizes is None else self._emit.shape(sizes, node)
            if shape is not None:
                node.replace_input_with(at, shape)
                return
        if any(ROWS in dict(dim.terms) for dim in tensor.dims):
            self._replace_mask(node, at, value, tensor)
            return
        sized = () if node.domain else _SIZED.get(node.op_type, ())
        dtype = value.dtype or ir.DataType.INT64
        data = None if at in sized else self._emit.data(tensor, dtype, node)
        if data is None:
            raise AppendError(
                f"node {_label(node)!r} ({node.op_type}) computes {value.name!r} from the rows of "
                "a cache in a way that is not followed; compute it from an input of the model"
            )
        node.replace_input_with(at, data)

    def _replace_mask(self, node: ir.Node, at: int, value: ir.Value, tensor: Tensor) -> None:
        mask, swap = None, False
        if not node.domain and node.op_type == "Add":
            mask = added_mask(tensor)
        elif not node.domain and node.op_type == "Where" and at == 0:
            fills = [_fill(self._known.tensor(part)) for part in node.inputs[1:]]
            swap = fills[0] is not None
            low = fills[0] if swap else fills[1]
            mask = None if low is None else chosen_mask(tensor, low, filled=swap)
        if mask is None:
            raise _no_mask(node, value)
        added = node.op_type == "Add"
        node.replace_input_with(at, self._mask(value, mask, added=added))
        if swap:
            fill, scores = node.inputs[1:]
            node.replace_input_with(1, scores)
            node.replace_input_with(2, fill)

    def _mask(self, value: ir.Value, mask: Mask, *, added: bool) -> ir.Value:
        key = id(value), mask, added
        if key not in self._masks:
            given = [self._length]
            if mask.fed:
                given.append(self._fed_mask(mask, added=added))
            dtype = value.dtype if added and value.dtype is not None else ir.DataType.BOOL
            node = ir.Node(
                DOMAIN,
                CAUSAL_MASK,
                given,
                [
                    ir.AttrInt64("causal", int(mask.causal)),
                    ir.AttrInt64("window_size", mask.window_size),
                ],
                name=f"{value.name}.causal",
                outputs=[
                    ir.Value(
                        name=f"{value.name}.{'added' if added else 'kept'}.{len(self._masks)}",
                        type=ir.TensorType(dtype),
                        shape=ir.Shape([None, None]),
                    )
                ],
            )
            first = self._graph[0]
            self._graph.insert_before(first, node)
            self._masks[key] = node.outputs[0]
        return self._masks[key]

    def _fed_mask(self, mask: Mask, *, added: bool) -> ir.Value:
        low = mask.low if added else None
        name = f"{MASK_PREFIX}{mask.fed}{'' if low is None else f'.{low}'}"
        for value in self._graph.inputs:
            if value.name == name:
                return value
        source = self.grown[mask.fed]
        batch = None if source.shape is None else source.shape[0]
        dtype = ir.DataType.FLOAT if added else ir.DataType.BOOL
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape([batch, 1, 1, None]))
        self._graph.inputs.append(value)
        self._fed[name] = FedMask(name, mask.fed, low)
        return value

    def _check_subgraphs(self) -> None:
        """Refuse branches and bodies that read a cache, or what its rows determine."""
        pasts = {id(value) for value in self._pasts}
        results = [value for node in self._graph for value in node.outputs]
        for value in (*self._graph.inputs, *results):
            tensor = self._known.tensor(value)
            if id(value) not in pasts and (tensor is None or not self._depends(tensor)):
                continue
            for use in value.uses():
                if use.node.graph is not self._graph:
                    raise AppendError(
                        f"node {_label(use.node)!r} ({use.node.op_type}) of a subgraph reads "
                        f"{value.name!r}, which depends on the rows of a cache; compute it outside "
                        "of the subgraph from an input of the model"
                    )

    def _remove_dead(self) -> None:
        outputs = {id(value) for value in self._graph.outputs}
        for node in reversed(tuple(self._graph)):
            if all(not value.uses() and id(value) not in outputs for value in node.outputs):
                self._graph.remove(node, safe=True)


def _no_mask(node: ir.Node, value: ir.Value) -> AppendError:
    return AppendError(
        f"node {_label(node)!r} ({node.op_type}) reads {value.name!r}, which has an element for "
        "each row of a cache and is no causal mask of attention, with or without a sliding window; "
        "feed it as an input of the model"
    )


def _label(node: ir.Node) -> str:
    return node.name or node.outputs[0].name or ""


def _fill(tensor: Tensor | None) -> float | None:
    """Return the constant that takes the place of masked scores."""
    if tensor is None or tensor.element is None or not all(d.is_number for d in tensor.dims):
        return None
    return constant_of(tensor.element)


def _declared(value: ir.Value, names: set[str | None]) -> Dims:
    """Return the dimensions of a value as declared; those that have no name get one."""
    return tuple(
        Affine.number(dim)
        if isinstance(dim, int)
        else Affine.of(dim.value if dim.value in names and dim.value else f"{value.name}[{axis}]")
        for axis, dim in enumerate(value.shape or ())
    )


def _growing_names(graph: ir.Graph, caches: Sequence[Appended]) -> set[str]:
    """Return the names that outputs have for the rows of caches, with the new ones."""
    states = {cache.state.output: cache.state.axis or 0 for cache in caches}
    found = set()
    for value in graph.outputs:
        axis = states.get(value.name or "")
        dim = None if axis is None or value.shape is None else value.shape[axis]
        if dim is not None and not isinstance(dim, int) and dim.value:
            found.add(dim.value)
    return found


def _is_row_mask(value: ir.Value, growing: set[str], graph: ir.Graph) -> bool:
    """Return whether an input has a 0 or 1 for each row of the caches, by its type and names.

    That it has is checked in each run.
    """
    integers = ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL
    if value.shape is None or len(value.shape) != 2 or value.dtype not in integers:
        return False
    dim = value.shape[1]
    if isinstance(dim, int) or dim.value in growing:
        return not isinstance(dim, int)
    others = [each.shape[1:] for each in graph.inputs if each is not value and each.shape]
    return value.name == "attention_mask" and all(dim not in shape for shape in others)


def _new_rows(graph: ir.Graph, caches: Sequence[Appended], names: set[str | None]) -> Affine:
    """Return the number of new rows: what their shape says, or the second axis of other inputs.

    That they are equal is checked in each run.
    """
    for cache in caches:
        dim = None if cache.new.shape is None else cache.new.shape[cache.state.axis or 0]
        if isinstance(dim, int):
            return Affine.number(dim)
        if dim is not None and dim.value in names and dim.value:
            return Affine.of(dim.value)
    pasts = {id(cache.past) for cache in caches}
    growing = _growing_names(graph, caches)
    found = {}
    for value in graph.inputs:
        if id(value) in pasts or value.shape is None or len(value.shape) < 2:
            continue
        if _is_row_mask(value, growing, graph):
            continue
        dim = value.shape[1]
        if isinstance(dim, int):
            found[Affine.number(dim)] = True
        elif dim.value:
            found[Affine.of(dim.value)] = True
    if len(found) != 1:
        return Affine.of("narrowpass.new rows")
    return next(iter(found))
