"""Bundles: methods over one named data map, in memory or as a ``.narrow`` folder."""

from __future__ import annotations

from narrowpass.bundle._files import is_bundle, verify
from narrowpass.bundle.bundle import Bundle, NamedData, check_method_names
from narrowpass.bundle.manifest import (
    FileInfo,
    InitializerInfo,
    Manifest,
    MethodInfo,
    StateInfo,
    TensorInfo,
    ValueInfo,
    WeightsInfo,
)
from narrowpass.bundle.report import MethodReport, Report

__all__ = [
    "Bundle",
    "FileInfo",
    "InitializerInfo",
    "Manifest",
    "MethodInfo",
    "MethodReport",
    "NamedData",
    "Report",
    "StateInfo",
    "TensorInfo",
    "ValueInfo",
    "WeightsInfo",
    "check_method_names",
    "is_bundle",
    "verify",
]
