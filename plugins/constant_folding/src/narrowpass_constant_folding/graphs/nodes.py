"""New nodes in the place of old ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir


def clone_as(
    node: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    attributes: Iterable[ir.Attr],
    outputs: Sequence[ir.Value],
) -> ir.Node:
    """Return a node of the standard domain that has the name and the comments of an old one.

    Args:
        node: the old one; it stays as it is.
        op_type: the operator of the new one.
        inputs: what it reads.
        attributes: its attributes.
        outputs: its outputs; no other node may have them.
    """
    return ir.Node(
        "",
        op_type,
        inputs,
        attributes,
        outputs=outputs,
        name=node.name,
        doc_string=node.doc_string,
        metadata_props=dict(node.metadata_props),
    )
