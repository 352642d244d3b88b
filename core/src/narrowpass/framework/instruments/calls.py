"""Calls of instruments, which are code of plugins: one that fails is named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from narrowpass.errors import NarrowpassError, PluginError
from narrowpass.framework.boundary import sentence, translate_errors

if TYPE_CHECKING:
    import logging

    from narrowpass.framework.instruments import Instrument
    from narrowpass.framework.passes import Pass


def notify(instruments: Sequence[Instrument], event: str, *arguments: object) -> None:
    """Call the method `event` of each instrument.

    Raises:
        PluginError: an instrument fails; or what one raises of ours, as it is.
    """
    for instrument in instruments:
        name = getattr(instrument, "name", type(instrument).__name__)
        with translate_errors(
            f"instrument {name!r} failed in {event}", PluginError, "leave it out"
        ):
            getattr(instrument, event)(*arguments)


def notify_failure(
    instruments: Sequence[Instrument], pass_: Pass, error: BaseException, log: logging.Logger
) -> None:
    """Notify the instruments of a pass that failed; one that fails, too, hides no error.

    Args:
        instruments: all are notified.
        pass_: the pass.
        error: what it raised; an error of ours stands for what is no `Exception`.
        log: takes a warning for each instrument that fails.
    """
    shown = error if isinstance(error, Exception) else PluginError(sentence(error))
    for instrument in instruments:
        try:
            notify([instrument], "failed", pass_, shown)
        except NarrowpassError as problem:
            log.warning("%s", problem)
