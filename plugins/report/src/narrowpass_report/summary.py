"""What there is to know of a method at a glance: bars of bytes, precisions and colours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from html import escape

import onnx_ir as ir

from narrowpass.cli.output import format_bytes
from narrowpass_ir.sizes import count_nodes
from narrowpass_report.graph import Drawing
from narrowpass_report.texts import PRECISIONS, dtype_name, precision

_ORDER = list(PRECISIONS)


def summary(model: ir.Model, drawing: Drawing) -> str:
    """Return the bars of a method."""
    by_type = _bytes_by_type(model)
    sized = {dtype_name(dtype): size for dtype, size in by_type.items()}
    classes = {dtype_name(dtype): precision(dtype) for dtype in by_type}
    kinds = {PRECISIONS[key]: drawing.precisions.get(key, 0) for key in _ORDER}
    names = {text: key for key, text in PRECISIONS.items()}
    colors = {key: drawing.colors[key] for key in ("green", "gray", "red")}
    bars = [
        _bar("Weight bytes by type", sized, classes, sizes=True),
        _bar("Nodes by precision they compute in", kinds, names),
        _bar("Nodes by colour decided", colors, {key: f"decided-{key}" for key in colors}),
    ]
    facts = (
        (f"{count_nodes(model):,}", "nodes"),
        (f"{drawing.casts:,}", "casts"),
        (format_bytes(sum(sized.values())), "weights"),
    )
    shown = "".join(f"<div><b>{escape(value)}</b> {name}</div>" for value, name in facts)
    return f'<div class="facts">{shown}</div>\n<div class="bars">\n{"".join(bars)}</div>\n'


def _bytes_by_type(model: ir.Model) -> Counter[ir.DataType]:
    """Return the bytes of initializers; one tensor used by several counts once."""
    tensors = {
        id(value.const_value): value.const_value
        for graph in model.graphs()
        for value in graph.initializers.values()
        if value.const_value is not None
    }
    found: Counter[ir.DataType] = Counter()
    for tensor in tensors.values():
        found[tensor.dtype] += tensor.nbytes
    return found


def _bar(
    title: str, parts: Mapping[str, int], classes: Mapping[str, str], *, sizes: bool = False
) -> str:
    total = sum(parts.values())
    if not total:
        return ""
    largest = sorted(parts.items(), key=lambda item: (-item[1], item[0]))
    pieces, words = [], []
    for name, count in largest:
        if count:
            kind, share = classes[name], count / total
            label = f"{name} {format_bytes(count) if sizes else f'{count:,}'}"
            text = escape(f"{label} ({share:.1%})")
            pieces.append(f'<i class="{kind}" style="flex-grow:{share:.6f}" title="{text}"></i>')
            words.append(f'<li class="{kind}">{text}</li>')
    return (
        f'<div><h4>{title}</h4><div class="bar" aria-hidden="true">{"".join(pieces)}</div>'
        f"<ul>{''.join(words)}</ul></div>\n"
    )
