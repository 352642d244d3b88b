"""narrowpass: converts ONNX models to narrow types and runs them natively on a CPU.

The names below are the public interface. They are imported on first use, so that a plugin's
entry module, which needs few of them, stays cheap to import.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import narrowpass_ir as _ir  # noqa: F401  # before onnx_ir, whose import it shortens

if TYPE_CHECKING:
    from narrowpass.bundle import Bundle
    from narrowpass.calibration.histogram import Histogram
    from narrowpass.calibration.samples import Samples
    from narrowpass.driver import build, load, open_bundle
    from narrowpass.errors import NarrowpassError
    from narrowpass.framework.classify import (
        ClassifierChain,
        Color,
        OpClassifier,
        OpDtypes,
        choose_classifiers,
        classifier_of,
        matching_nodes,
    )
    from narrowpass.framework.context import Candidate, Context, Decision, Observer
    from narrowpass.framework.fixed_point import FixedPoint
    from narrowpass.framework.instruments import Instrument
    from narrowpass.framework.passes import Pass, PassResult
    from narrowpass.framework.pipeline import Pipeline
    from narrowpass.framework.plugins import PluginInfo, Plugins, Registry, hookimpl, load_plugins
    from narrowpass.framework.reports import ReportWriter
    from narrowpass.narrowing import optimize, quantize
    from narrowpass.runtime.backend import (
        Accept,
        Backend,
        CompileOptions,
        NodePlan,
        NodeTime,
        Program,
        Reject,
    )
    from narrowpass.state.session import Session
    from narrowpass_ir.importing import Imported, Importer
    from narrowpass_ir.io import load_model, save_model
    from narrowpass_ir.state import State
    from narrowpass_ir.torch_export import from_torch

_HOME = {
    "narrowpass.bundle": "Bundle",
    "narrowpass.calibration.histogram": "Histogram",
    "narrowpass.calibration.samples": "Samples",
    "narrowpass.driver": "build load open_bundle",
    "narrowpass.errors": "NarrowpassError",
    "narrowpass.framework.classify": "ClassifierChain Color OpClassifier OpDtypes "
    "choose_classifiers classifier_of matching_nodes",
    "narrowpass.framework.context": "Candidate Context Decision Observer",
    "narrowpass.framework.fixed_point": "FixedPoint",
    "narrowpass.framework.instruments": "Instrument",
    "narrowpass.framework.passes": "Pass PassResult",
    "narrowpass.framework.pipeline": "Pipeline",
    "narrowpass.framework.plugins": "PluginInfo Plugins Registry hookimpl load_plugins",
    "narrowpass.framework.reports": "ReportWriter",
    "narrowpass.narrowing": "optimize quantize",
    "narrowpass.runtime.backend": "Accept Backend CompileOptions NodePlan NodeTime Program Reject",
    "narrowpass.state.session": "Session",
    "narrowpass_ir.importing": "Imported Importer",
    "narrowpass_ir.io": "load_model save_model",
    "narrowpass_ir.state": "State",
    "narrowpass_ir.torch_export": "from_torch",
}
"""Public names by the module that they are imported from, on first use."""
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names.split()}

__all__ = [
    "Accept",
    "Backend",
    "Bundle",
    "Candidate",
    "ClassifierChain",
    "Color",
    "CompileOptions",
    "Context",
    "Decision",
    "FixedPoint",
    "Histogram",
    "Imported",
    "Importer",
    "Instrument",
    "NarrowpassError",
    "NodePlan",
    "NodeTime",
    "Observer",
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
    "ReportWriter",
    "Samples",
    "Session",
    "State",
    "build",
    "choose_classifiers",
    "classifier_of",
    "from_torch",
    "hookimpl",
    "load",
    "load_model",
    "load_plugins",
    "matching_nodes",
    "open_bundle",
    "optimize",
    "quantize",
    "save_model",
]


def __getattr__(name: str) -> object:
    """Import a public name, or return the version."""
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("narrowpass")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'narrowpass' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
