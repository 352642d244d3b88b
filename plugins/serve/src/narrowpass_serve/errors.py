"""Requests that are refused, and the statuses that errors are answered with."""

from __future__ import annotations

from asyncio import CancelledError

from narrowpass.errors import DataError, NarrowpassError, UsageError


class RequestError(UsageError):
    """A request that is not answered with what it asks for.

    Args:
        message: what is wrong, and what to do.
        status: of HTTP.
        parameter: the parameter of the request that is at fault; empty for none.
    """

    def __init__(self, message: str, status: int = 400, *, parameter: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.parameter = parameter


def status_of(error: BaseException) -> int:
    """Return the status of HTTP that stands for an error."""
    if isinstance(error, RequestError):
        return error.status
    if _is_memory(error):
        return 503
    if isinstance(error, CancelledError):  # the client went away; nobody reads it
        return 499
    if isinstance(error, TimeoutError):
        return 504
    if isinstance(error, DataError | UsageError):
        return 400
    return 500


def _is_memory(error: BaseException | None) -> bool:
    """Return whether there is too little memory; a backend names the method that needs it."""
    return error is not None and (isinstance(error, MemoryError) or _is_memory(error.__cause__))


def message_of(error: BaseException) -> str:
    """Return what a client reads of an error: nothing of the inside of a defect of ours."""
    if isinstance(error, NarrowpassError):
        return str(error)
    if isinstance(error, MemoryError):
        return "there is not enough memory for this request; send fewer rows, or shorter ones"
    if isinstance(error, TimeoutError):
        return "the request was not answered in time; send fewer at once, or raise --timeout"
    return "the server failed; its log has the reason"


def is_defect(error: BaseException) -> bool:
    """Return whether an error is one that neither requests nor models lead to."""
    return not isinstance(error, NarrowpassError | MemoryError | TimeoutError | CancelledError)
