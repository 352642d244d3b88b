"""Registration of the provider with onnxruntime."""

from __future__ import annotations

import functools
import threading
from typing import Any

from narrowpass.errors import BackendError
from narrowpass_onnxruntime.provider.options import ADDED

NAME = "NarrowpassExecutionProvider"

_lock = threading.Lock()


def register() -> None:
    """Register the provider with onnxruntime; a second call does nothing.

    Raises:
        BackendError: this version of onnxruntime does not fit, or the library cannot be loaded.
            Sessions then run on onnxruntime's own providers.
    """
    import onnxruntime

    from narrowpass_onnxruntime.provider import callbacks
    from narrowpass_onnxruntime.provider.library import PATH

    with _lock:
        if NAME in onnxruntime.get_available_providers():
            return
        callbacks.start()
        try:
            onnxruntime.register_execution_provider_library(NAME, PATH)
        except Exception as error:  # its classes have no base of their own
            raise BackendError(
                f"{NAME} cannot be registered with onnxruntime {onnxruntime.__version__}: {error}; "
                "sessions run on its own providers"
            ) from error
        _note_added_initializers(onnxruntime.SessionOptions)


def _note_added_initializers(options: Any) -> None:
    """Let `add_initializer` leave an entry: onnxruntime shows providers the model's values only.

    Args:
        options: the class `onnxruntime.SessionOptions`.
    """
    add = options.add_initializer

    @functools.wraps(add)
    def adding(self: Any, name: str, value: Any) -> None:
        add(self, name, value)
        self.add_session_config_entry(f"{ADDED}{name}", "1")

    options.add_initializer = adding
