"""The modules that plugins and programs may import, beside `narrowpass` itself.

`narrowpass_ir.public` lists those of the library for models.

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
    "narrowpass.cli.watch",
    "narrowpass.driver",
    "narrowpass.errors",
    "narrowpass.framework.boundary",
    "narrowpass.framework.classify",
    "narrowpass.framework.config",
    "narrowpass.framework.context",
    "narrowpass.framework.docstrings",
    "narrowpass.framework.instruments.reproducer",
    "narrowpass.framework.options",
    "narrowpass.framework.pipeline",
    "narrowpass.framework.plugins",
    "narrowpass.narrowing",
    "narrowpass.public",
    "narrowpass.runtime.arrays",
    "narrowpass.runtime.backend",
    "narrowpass.runtime.feeds",
    "narrowpass.runtime.meters",
    "narrowpass.runtime.oracle",
    "narrowpass.runtime.processors",
    "narrowpass.runtime.quantization",
    "narrowpass.runtime.requests",
    "narrowpass.state.plain",
    "narrowpass.state.session",
)
"""Dotted names, sorted."""
