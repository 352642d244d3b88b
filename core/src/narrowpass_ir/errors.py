"""The base of all exceptions that narrowpass raises on purpose, and those of models and files.

`narrowpass.errors` has these and the exceptions of passes, bundles, backends and plugins, which
derive from them.

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


class SchemaError(ModelError):
    """A node is not what its operator's schema allows: an attribute of another type."""


class UpgradeError(ModelError):
    """A model cannot be written with a newer operator set."""


class VerificationError(ModelError):
    """The structure of a model breaks a rule of the IR.

    Attributes:
        problems: one sentence per broken rule, each naming a node or a value.
    """

    def __init__(self, message: str, problems: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems


class DataError(InputError):
    """Calibration, comparison or feed data does not fit the model."""


class OutputError(InputError):
    """A result cannot be written: a full disk, a read-only folder."""
