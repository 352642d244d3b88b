"""The modules of this library that programs may import.

What is in no module of this list may change with any version. A name that begins with an
underscore is internal wherever it stands.
"""

from __future__ import annotations

PUBLIC_MODULES = (
    "narrowpass_ir.arguments",
    "narrowpass_ir.attributes",
    "narrowpass_ir.constants",
    "narrowpass_ir.data.arrays",
    "narrowpass_ir.data.documents",
    "narrowpass_ir.data.feeds",
    "narrowpass_ir.data.npz",
    "narrowpass_ir.data.records",
    "narrowpass_ir.data.trust",
    "narrowpass_ir.errors",
    "narrowpass_ir.files",
    "narrowpass_ir.garbage",
    "narrowpass_ir.importing",
    "narrowpass_ir.inference",
    "narrowpass_ir.inferred_types",
    "narrowpass_ir.io",
    "narrowpass_ir.io.steps",
    "narrowpass_ir.movement",
    "narrowpass_ir.public",
    "narrowpass_ir.siblings",
    "narrowpass_ir.sizes",
    "narrowpass_ir.sources",
    "narrowpass_ir.state",
    "narrowpass_ir.state_finding",
    "narrowpass_ir.subgraphs",
    "narrowpass_ir.tensors",
    "narrowpass_ir.tensors.distinct",
    "narrowpass_ir.tensors.safetensors",
    "narrowpass_ir.tensors.streaming",
    "narrowpass_ir.tensors.threads",
    "narrowpass_ir.torch_export",
    "narrowpass_ir.upgrading",
    "narrowpass_ir.verify",
)
"""Dotted names, sorted."""
