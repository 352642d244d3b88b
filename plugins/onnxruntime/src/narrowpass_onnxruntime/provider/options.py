"""The provider's options, as text beside its name, and the entries of a session that it knows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from narrowpass.errors import UsageError

_TRUE, _FALSE = ("1", "true", "yes"), ("0", "false", "no")


@dataclass(frozen=True)
class Options:
    """What a session asks of the provider.

    Attributes:
        threads: that a run may use; None for all processors that it may use.
        pipeline: text of the passes that run on each group of nodes; empty for none.
        max_error: of the outputs of each group, within which the pass ``auto`` may narrow its
            nodes, such as ``rel:1e-2``; None to narrow nothing that the pipeline does not.
        objective: what ``auto`` minimizes: ``latency``, ``bytes`` or ``mix``; None for its default.
        calibration: samples of the model's inputs for passes that need data: a folder of ``.npz``
            files, one such file, or ``module:function``; None for none.
        cache_dir: the folder of packed weights; None for the user's cache directory.
        require_native: whether a node that is left to another provider is an error.
    """

    threads: int | None = None
    pipeline: str = ""
    max_error: str | None = None
    objective: str | None = None
    calibration: str | None = None
    cache_dir: Path | None = None
    require_native: bool = False

    @classmethod
    def parse(cls, entries: Mapping[str, str]) -> Options:
        """Read the options.

        Args:
            entries: text by the option's name.

        Raises:
            UsageError: an unknown option, or a value that does not fit; with what would.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name in entries:
            if name not in known:
                raise UsageError(
                    f"unknown option {name!r} of the provider; known are {', '.join(known)}"
                )
        folder = entries.get("cache_dir", "")
        return cls(
            threads=_count(entries.get("threads", "")),
            pipeline=entries.get("pipeline", ""),
            max_error=entries.get("max_error") or None,
            objective=entries.get("objective") or None,
            calibration=entries.get("calibration") or None,
            cache_dir=Path(folder).expanduser() if folder else None,
            require_native=_flag("require_native", entries.get("require_native", "false")),
        )


def _count(text: str) -> int | None:
    if not text or text == "0":
        return None  # as onnxruntime's own options have it
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"`threads` is a number, 0 for all processors, not {text!r}")
    return int(text)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in (*_TRUE, *_FALSE):
        raise UsageError(f"`{name}` is true or false, not {text!r}")
    return text.lower() in _TRUE


LEFT_ALONE = "narrowpass.left_alone"
"""1: the session stays on the providers that it names, where programs run on this one unasked."""

ADDED = "narrowpass.added_initializer."
"""With the name behind it: `SessionOptions.add_initializer` was called for this initializer."""

SPINNING = "session.intra_op.allow_spinning"
"""onnxruntime's: 0 where its threads do not spin while they wait for work."""
