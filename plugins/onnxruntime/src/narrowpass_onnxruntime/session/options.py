"""What the class reads of ``onnxruntime.SessionOptions`` and ``onnxruntime.RunOptions``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from narrowpass_onnxruntime.session.errors import error, unsupported

NATIVE_ONLY = "session.disable_cpu_ep_fallback"
"""The config entry that forbids nodes without a native kernel."""

_ORT_FORMAT = "ORT"
_REFUSED = {
    "ep.context_enable": "leave it out: what is compiled is kept in narrowpass's cache",
    "session.disable_model_compile": "leave it out: a session always compiles its model",
}
"""Config entries that ask for something else when they are ``1``."""


@dataclass(frozen=True)
class SessionSettings:
    """What a session does otherwise because of its options.

    Attributes:
        threads: that a run may use; None for one for each processor.
        optimize: False where no pass is to run.
        optimized_path: where the model is written after the passes; empty for nowhere.
        external_name: the file of its weights, beside it; empty for the place that narrowpass
            chooses.
        external_least: bytes from which a weight goes there.
        data_folder: of external data of a model given as bytes; empty for the current folder.
        profile: whether runs are recorded.
        profile_prefix: how the name of the profile begins.
        native_only: whether a node without a native kernel is an error.
    """

    threads: int | None = None
    optimize: bool = True
    optimized_path: str = ""
    external_name: str = ""
    external_least: int = 1024
    data_folder: str = ""
    profile: bool = False
    profile_prefix: str = "onnxruntime_profile_"
    native_only: bool = False

    @classmethod
    def of(cls, options: Any) -> SessionSettings:
        """Read session options: onnxruntime's, or any object with its attributes; None for none.

        What only tunes onnxruntime's speed, memory and logs has no meaning here.

        Raises:
            TypeError: no session options.
            NotImplemented: an option that asks for what this class cannot do.
        """
        if options is None:
            return cls()
        if not hasattr(options, "intra_op_num_threads"):
            raise TypeError(
                f"`sess_options` must be onnxruntime.SessionOptions or None, not {options!r}"
            )
        for key in ("session.load_model_format", "session.save_model_format"):
            if config_entry(options, key).upper() == _ORT_FORMAT:
                raise unsupported(f"{key}={_ORT_FORMAT}", "use models in ONNX's own format")
        for key, instead in _REFUSED.items():
            if config_entry(options, key) == "1":
                raise unsupported(f"{key}=1", instead)
        level = getattr(options, "graph_optimization_level", None)
        return cls(
            threads=int(options.intra_op_num_threads) or None,
            optimize=getattr(level, "name", "") != "ORT_DISABLE_ALL",
            optimized_path=_path(getattr(options, "optimized_model_filepath", "")),
            external_name=config_entry(
                options, "session.optimized_model_external_initializers_file_name"
            ),
            external_least=int(
                config_entry(
                    options, "session.optimized_model_external_initializers_min_size_in_bytes"
                )
                or 1024
            ),
            data_folder=config_entry(
                options, "session.model_external_initializers_file_folder_path"
            ),
            profile=bool(getattr(options, "enable_profiling", False)),
            profile_prefix=_path(getattr(options, "profile_file_prefix", "")),
            native_only=config_entry(options, NATIVE_ONLY) == "1",
        )


def _path(given: Any) -> str:
    return given.decode() if isinstance(given, bytes) else str(given or "")


def config_entry(options: Any, key: str) -> str:
    """Return a config entry; empty where it is not set, which onnxruntime reports as an error."""
    try:
        return str(options.get_session_config_entry(key))
    except (AttributeError, RuntimeError):
        return ""


def check_run_options(options: Any) -> None:
    """Check the options of a run, of which only a request to end it has a meaning here.

    Raises:
        TypeError: no run options.
        Fail: the caller has ended the run.
    """
    if not hasattr(options, "terminate"):
        raise TypeError(f"`run_options` must be onnxruntime.RunOptions or None, not {options!r}")
    if options.terminate:
        raise error("Fail", "the run has been ended: `terminate` of its run options is set")
