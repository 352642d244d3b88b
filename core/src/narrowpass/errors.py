"""Every exception that narrowpass raises on purpose.

Two families, distinguished by who must change something. They are also the exit codes of the
command line: `InputError` ends it with 1 (the model or the data is at fault), `UsageError`
with 2 (the call is at fault). A message names the file, node or option, and says what to do.
"""

from __future__ import annotations

from typing import ClassVar


class NarrowpassError(Exception):
    """Base of all errors that narrowpass raises on purpose."""

    exit_code: ClassVar[int] = 1


class InputError(NarrowpassError):
    """The model or the data is at fault."""

    exit_code = 1


class UsageError(NarrowpassError):
    """The call is at fault: an option, a name, a path that the caller gave."""

    exit_code = 2


class ModelError(InputError):
    """A model file cannot be read, or what it holds cannot be used."""


class VerificationError(ModelError):
    """The structure of a model breaks a rule of the IR.

    Attributes:
        problems: one sentence per broken rule, each naming a node or a value.
    """

    def __init__(self, message: str, problems: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems


class PassError(InputError):
    """A pass cannot do its work on this model, or broke it."""


class BundleError(InputError):
    """A bundle is damaged, incomplete, or of a format that this version does not read."""


class DataError(InputError):
    """Calibration, comparison or feed data does not fit the model."""


class BackendError(InputError):
    """A backend cannot compile or run a method."""


class AttributesError(BackendError):
    """Attributes or operands that an operator may not have: of another type, or out of range."""


class ToleranceError(InputError):
    """Outputs differ by more than the caller allows."""


class OutputError(InputError):
    """A result cannot be written: a full disk, a read-only folder."""


class PipelineError(UsageError):
    """Pipeline text that does not parse, or passes in an order that one of them rejects."""


class PluginError(UsageError):
    """A plugin that is asked for is missing, broken, blocked, or in conflict with another."""
