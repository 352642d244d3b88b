"""What turns a bundle and the decisions of its passes into a page to read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from narrowpass.errors import PluginError
from narrowpass.framework.missing import provider_of

if TYPE_CHECKING:
    from narrowpass.bundle import Bundle

DEFAULT = "html"
"""The writer of files whose ending no writer has."""


class ReportWriter(ABC):
    """Writes reports of one format, for ``--report OUT.ENDING``.

    Attributes:
        name: the ending of the files' names, without the dot.
    """

    name: ClassVar[str]

    @abstractmethod
    def render(self, bundle: Bundle, title: str) -> str:
        """Return the content of the file, which is written as UTF-8.

        Args:
            bundle: with the reports of its passes; not changed.
            title: what was built; not to be taken for markup.
        """


def writer_of(file: str, writers: Mapping[str, ReportWriter]) -> ReportWriter:
    """Return the writer for a file: the one of its ending, else that of `DEFAULT`.

    Args:
        file: the name of the file.
        writers: those that are installed, by name.

    Raises:
        PluginError: there is none.
    """
    _, dot, ending = file.rpartition(".")
    for name in (ending if dot else DEFAULT, DEFAULT):
        if name in writers:
            return writers[name]
    listing = ", ".join(sorted(writers)) or "none"
    raise PluginError(
        f"--report {file}: "
        + (
            (provider_of("reports", ending) if dot else "")
            or provider_of("reports", DEFAULT)
            or f"nothing that writes this is installed; report writers: {listing}"
        )
    )
