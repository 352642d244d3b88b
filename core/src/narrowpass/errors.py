"""Every exception that narrowpass raises on purpose.

Those of models and files, and the base class, are `narrowpass_ir.errors`, which says how exit
codes follow from the two families, `InputError` and `UsageError`.
"""

from __future__ import annotations

from narrowpass_ir.errors import (
    DataError,
    InputError,
    ModelError,
    NarrowpassError,
    OutputError,
    SchemaError,
    UpgradeError,
    UsageError,
    VerificationError,
)

__all__ = [
    "AttributesError",
    "BackendError",
    "BundleError",
    "DataError",
    "InputError",
    "ModelError",
    "NarrowpassError",
    "OutputError",
    "PassError",
    "PipelineError",
    "PluginError",
    "SchemaError",
    "ToleranceError",
    "UpgradeError",
    "UsageError",
    "VerificationError",
]


class PassError(InputError):
    """A pass cannot do its work on this model, or broke it."""


class BundleError(InputError):
    """A bundle is damaged, incomplete, or of a format that this version does not read."""


class BackendError(InputError):
    """A backend cannot compile or run a method."""


class AttributesError(BackendError):
    """Attributes or operands that an operator may not have: of another type, or out of range."""


class ToleranceError(InputError):
    """Outputs differ by more than the caller allows."""


class PipelineError(UsageError):
    """Pipeline text that does not parse, or passes in an order that one of them rejects."""


class PluginError(UsageError):
    """A plugin that is asked for is missing, broken, blocked, or in conflict with another."""
