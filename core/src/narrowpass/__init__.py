"""narrowpass: makes ONNX models narrow and runs them natively on a CPU.

The names below are the public interface. They are imported on first use, so that a plugin's
entry module, which needs few of them, stays cheap to import.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from narrowpass.backend import (
        Accept,
        Backend,
        CompileOptions,
        NodePlan,
        NodeTime,
        Program,
        Reject,
    )
    from narrowpass.bundle import Bundle
    from narrowpass.calibration import Samples
    from narrowpass.classify import (
        ClassifierChain,
        Color,
        OpClassifier,
        OpDtypes,
        choose_classifiers,
        classifier_of,
        matching_nodes,
    )
    from narrowpass.context import Context, Decision
    from narrowpass.driver import build, load, open_bundle
    from narrowpass.errors import NarrowpassError
    from narrowpass.fixed_point import FixedPoint
    from narrowpass.histogram import Histogram
    from narrowpass.instruments import Instrument
    from narrowpass.io import load_model, save_model
    from narrowpass.passes import Pass, PassResult
    from narrowpass.pipeline import Pipeline
    from narrowpass.plugins import PluginInfo, Plugins, Registry, hookimpl, load_plugins

_HOME = {
    "narrowpass.backend": (
        "Accept",
        "Backend",
        "CompileOptions",
        "NodePlan",
        "NodeTime",
        "Program",
        "Reject",
    ),
    "narrowpass.bundle": ("Bundle",),
    "narrowpass.calibration": ("Samples",),
    "narrowpass.classify": (
        "ClassifierChain",
        "Color",
        "OpClassifier",
        "OpDtypes",
        "choose_classifiers",
        "classifier_of",
        "matching_nodes",
    ),
    "narrowpass.context": ("Context", "Decision"),
    "narrowpass.driver": ("build", "load", "open_bundle"),
    "narrowpass.errors": ("NarrowpassError",),
    "narrowpass.fixed_point": ("FixedPoint",),
    "narrowpass.histogram": ("Histogram",),
    "narrowpass.instruments": ("Instrument",),
    "narrowpass.io": ("load_model", "save_model"),
    "narrowpass.passes": ("Pass", "PassResult"),
    "narrowpass.pipeline": ("Pipeline",),
    "narrowpass.plugins": ("PluginInfo", "Plugins", "Registry", "hookimpl", "load_plugins"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Accept",
    "Backend",
    "Bundle",
    "ClassifierChain",
    "Color",
    "CompileOptions",
    "Context",
    "Decision",
    "FixedPoint",
    "Histogram",
    "Instrument",
    "NarrowpassError",
    "NodePlan",
    "NodeTime",
    "OpClassifier",
    "OpDtypes",
    "Pass",
    "PassResult",
    "Pipeline",
    "PluginInfo",
    "Plugins",
    "Program",
    "Registry",
    "Reject",
    "Samples",
    "build",
    "choose_classifiers",
    "classifier_of",
    "hookimpl",
    "load",
    "load_model",
    "load_plugins",
    "matching_nodes",
    "open_bundle",
    "save_model",
]


def __getattr__(name: str) -> object:
    """Import a public name, or give the version."""
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("narrowpass")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'narrowpass' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
