"""The providers that a caller asks for, and the options of narrowpass among theirs."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from narrowpass_onnxruntime.session.errors import error

PROVIDER = "NarrowpassExecutionProvider"
"""What stands for narrowpass among the providers of a session."""

CPU = "CPUExecutionProvider"
"""What programs ask for, and look for; a session reports it after `PROVIDER`."""

_OPTIONS = (
    "threads",
    "pipeline",
    "max_error",
    "objective",
    "calibration",
    "backend",
    "cache",
    "cache_dir",
    "require_native",
)
_FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


@dataclass(frozen=True)
class ProviderOptions:
    """The options of `PROVIDER`.

    Attributes:
        threads: that a run may use; None for what the session's options say.
        pipeline: pipeline text; None for the backend's default.
        max_error: the error within which the pass ``auto`` may narrow nodes, such as
            ``rel:1e-2``; None to narrow nothing that the pipeline does not.
        objective: what ``auto`` minimizes: ``latency``, ``bytes`` or ``mix``; None for its default.
        calibration: path of samples for passes that need data.
        backend: text of the backend; None for the available one of highest priority.
        cache: whether what is built and packed is kept on disk; ``memory``: shared in the process.
        cache_dir: where it is kept; None for narrowpass's own folder.
        require_native: whether a node without a native kernel is an error.
    """

    threads: int | None = None
    pipeline: str | None = None
    max_error: str | None = None
    objective: str | None = None
    calibration: str | None = None
    backend: str | None = None
    cache: bool | Literal["memory"] = True
    cache_dir: str | None = None
    require_native: bool = False

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> ProviderOptions:
        """Read options from text, as provider options are given.

        Raises:
            InvalidArgument: an unknown option, or a value that it cannot have.
        """
        for name in given:
            if name not in _OPTIONS:
                raise error(
                    "InvalidArgument",
                    f"{PROVIDER} has no option {name!r}; its options: {', '.join(_OPTIONS)}",
                )
        values: dict[str, Any] = {name: text for name, text in given.items() if text != ""}
        if "threads" in values:
            values["threads"] = _threads(values["threads"])
        if "cache" in values and values["cache"] != "memory":
            values["cache"] = _flag("cache", values["cache"], "1, 0 or memory")
        if "require_native" in values:
            values["require_native"] = _flag("require_native", values["require_native"], "1 or 0")
        if given.get("pipeline") == "":
            values["pipeline"] = ""  # no pass, which is not the default
        return cls(**values)


def _threads(text: str) -> int | None:
    if not (text.isascii() and text.isdigit()):
        raise error(
            "InvalidArgument",
            f"threads of {PROVIDER} is {text!r}; pass a number, or 0 for one for each processor",
        )
    return int(text) or None


def _flag(name: str, text: str, values: str) -> bool:
    if text.lower() not in _FLAGS:
        raise error("InvalidArgument", f"{name} of {PROVIDER} is {text!r}; pass {values}")
    return _FLAGS[text.lower()]


@dataclass(frozen=True)
class Providers:
    """The providers of a session, as it reports them.

    Attributes:
        options: of `PROVIDER`.
        reported: options as text, by provider.
    """

    options: ProviderOptions
    reported: Mapping[str, Mapping[str, str]]

    @classmethod
    def of(
        cls,
        providers: Sequence[str | tuple[str, dict[Any, Any]]] | None,
        provider_options: Sequence[dict[Any, Any]] | None,
        *,
        strict: bool = False,
    ) -> Providers:
        """Check providers as onnxruntime does.

        Other providers than `CPU` and `PROVIDER` are left out; a warning names those that
        onnxruntime does not have either.

        Args:
            providers: as onnxruntime takes them.
            provider_options: likewise.
            strict: whether one that is not available is an error.

        Raises:
            RuntimeError: a provider that is not available, where that is an error.
            ValueError: arguments of other forms than onnxruntime takes.
            InvalidArgument: an option that `PROVIDER` does not have.
        """
        given: dict[str, dict[str, str]] = {}
        for name, options in _pairs(providers, provider_options):
            if name in given:
                warnings.warn(f"provider {name!r} is named twice; the first counts", stacklevel=4)
                continue
            given[name] = {str(key): str(value) for key, value in options.items()}
        unknown = [name for name in given if name not in _available()]
        if unknown and strict:
            raise RuntimeError(
                f"Unknown Provider Type: {unknown[0]}; pass {PROVIDER}"  # programs look for it
            )
        if unknown:
            warnings.warn(
                f"{', '.join(unknown)}: not available here, and left out; the session runs on "
                f"{PROVIDER}",
                stacklevel=4,
            )
        own = given.get(PROVIDER, {})
        return cls(ProviderOptions.parse(own), {PROVIDER: own, CPU: {}})


def _available() -> Sequence[str]:
    """Return the providers that a program may ask for without a warning.

    Those of onnxruntime count only where the program has imported it: whoever has not can know
    of no other than these two.
    """
    loaded = sys.modules.get("onnxruntime")
    others = () if loaded is None else loaded.get_available_providers()
    return (PROVIDER, CPU, *others)


def _pairs(providers: object, provider_options: object) -> Iterable[tuple[str, Mapping[Any, Any]]]:
    if providers is None:
        return []
    if not isinstance(providers, Sequence):
        raise ValueError("`providers` must be a list of names, or of tuples of name and options")
    if provider_options is None:
        return [_pair(provider) for provider in providers]
    if not isinstance(provider_options, Sequence):
        raise ValueError("`provider_options` must be a list of dicts, one for each provider")
    if len(providers) != len(provider_options):
        raise ValueError(
            f"`providers` has {len(providers)} entries and `provider_options` "
            f"{len(provider_options)}; pass a dict for each provider"
        )
    if not all(isinstance(name, str) for name in providers):
        raise ValueError("`providers` must be names where `provider_options` is given")
    if not all(isinstance(options, dict) for options in provider_options):
        raise ValueError("`provider_options` must be dicts, one for each provider")
    return list(zip(providers, provider_options, strict=True))


def _pair(provider: object) -> tuple[str, Mapping[Any, Any]]:
    if isinstance(provider, str):
        return provider, {}
    if isinstance(provider, tuple) and len(provider) == 2:  # name and options
        name, options = provider
        if isinstance(name, str) and isinstance(options, dict):
            return name, options
    raise ValueError("`providers` must be names, or tuples of a name and a dict of options")
