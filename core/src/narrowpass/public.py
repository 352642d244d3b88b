"""The modules that plugins and programs may import, beside `narrowpass` itself.

What is in no module of this list may change with any version. A name that begins with an
underscore is internal wherever it stands.
"""

from __future__ import annotations

PUBLIC_MODULES = (
    "narrowpass.bundle",
    "narrowpass.calibration.histogram",
    "narrowpass.calibration.samples",
    "narrowpass.cli",
    "narrowpass.cli.options",
    "narrowpass.cli.output",
    "narrowpass.cli.state",
    "narrowpass.driver",
    "narrowpass.errors",
    "narrowpass.framework.arguments",
    "narrowpass.framework.classify",
    "narrowpass.framework.config",
    "narrowpass.framework.context",
    "narrowpass.framework.docstrings",
    "narrowpass.framework.documents",
    "narrowpass.framework.files",
    "narrowpass.framework.options",
    "narrowpass.framework.pipeline",
    "narrowpass.framework.plugins",
    "narrowpass.ir.attributes",
    "narrowpass.ir.constants",
    "narrowpass.ir.inference",
    "narrowpass.ir.io",
    "narrowpass.ir.movement",
    "narrowpass.ir.sizes",
    "narrowpass.ir.subgraphs",
    "narrowpass.ir.upgrading",
    "narrowpass.ir.verify",
    "narrowpass.public",
    "narrowpass.runtime.backend",
    "narrowpass.runtime.feeds",
    "narrowpass.runtime.meters",
    "narrowpass.runtime.oracle",
    "narrowpass.runtime.quantization",
    "narrowpass.runtime.requests",
)
"""Dotted names, sorted."""
