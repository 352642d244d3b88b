"""Registration of the provider with onnxruntime."""

from __future__ import annotations

import threading

from narrowpass.errors import BackendError

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
