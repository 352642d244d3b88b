"""The provider in sessions of programs that do not ask for it."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from narrowpass.errors import BackendError, UsageError
from narrowpass_onnxruntime.provider.options import LEFT_ALONE, Options
from narrowpass_onnxruntime.provider.registration import NAME, register

_OURS_FIRST = frozenset({"AzureExecutionProvider", "CPUExecutionProvider"})
"""Providers that this one goes before; a program that names another one wants that."""

_METHOD = "_create_inference_session"
_MARK = "_narrowpass_prefers"


def prefer(text: str) -> None:
    """Let each session that would run on onnxruntime's CPU provider try this one first.

    Where that is not possible, a warning says why, and sessions are as they were.

    Args:
        text: options as ``threads=1;max_error=rel:1e-2``; empty or ``1`` for the defaults.
    """
    from onnxruntime.capi import onnxruntime_inference_collection as collection

    cls = collection.InferenceSession
    create = getattr(cls, _METHOD, None)
    if hasattr(create, _MARK):
        return
    try:
        options = parse(text)
        register()
        if create is None:
            raise BackendError("this version of onnxruntime creates its sessions otherwise")
    except (BackendError, UsageError) as error:
        warnings.warn(
            f"narrowpass is not in front of onnxruntime's providers: {error}", stacklevel=2
        )
        return

    @functools.wraps(create)
    def creating(
        session: Any,
        providers: Sequence[Any] | None,
        provider_options: Sequence[Any] | None,
        *rest: Any,
        **others: Any,
    ) -> None:
        held = session._sess_options  # noqa: SLF001  # there is no other way to them
        chosen = front(providers, provider_options, options, held)
        if chosen is None:
            create(session, providers, provider_options, *rest, **others)
            return
        try:
            create(session, chosen, None, *rest, **others)
        except Exception as error:  # whatever it is, the program asked for none of this
            if options.get("require_native", "false") != "false":
                raise
            create(
                session, providers, provider_options, *rest, **others
            )  # its own error comes here
            warnings.warn(f"a session runs without narrowpass: {error}", stacklevel=4)

    setattr(creating, _MARK, True)
    setattr(cls, _METHOD, creating)


def parse(text: str) -> dict[str, str]:
    """Read options that are separated by semicolons.

    Raises:
        UsageError: an unknown option or a value that does not fit.
    """
    found: dict[str, str] = {}
    for part in text.split(";") if text not in ("", "1") else ():
        name, equals, value = part.strip().partition("=")
        if not equals:
            raise UsageError(f"options are written NAME=VALUE and separated by ;, not {part!r}")
        found[name] = value
    Options.parse(found)
    return found


def front(
    providers: Sequence[Any] | None,
    provider_options: Sequence[Any] | None,
    options: Mapping[str, str],
    session_options: Any,
) -> list[tuple[str, dict[str, Any]]] | None:
    """Return the providers of a session with this one in front; None to leave them.

    Args:
        providers: as `onnxruntime.InferenceSession` takes them.
        provider_options: likewise.
        options: of this provider. Without ``threads``, those of the session are taken.
        session_options: of the session, or None.
    """
    if session_options is not None and (
        session_options.has_providers() or _is_left_alone(session_options)
    ):
        return None
    given: list[tuple[str, dict[str, Any]]] = []
    settings = provider_options if provider_options is not None else [{}] * len(providers or ())
    for each, setting in zip(
        providers or ("CPUExecutionProvider",), settings or ({},), strict=False
    ):
        given.append(each if isinstance(each, tuple) else (each, setting))
    if not all(name in _OURS_FIRST for name, _ in given):
        return None
    ours: dict[str, Any] = dict(options)
    threads = 0 if session_options is None else session_options.intra_op_num_threads
    if threads and "threads" not in ours:
        ours["threads"] = str(threads)
    return [(NAME, ours), *given]


def _is_left_alone(session_options: Any) -> bool:
    try:
        return bool(session_options.get_session_config_entry(LEFT_ALONE) == "1")
    except RuntimeError:  # there is no such entry
        return False
