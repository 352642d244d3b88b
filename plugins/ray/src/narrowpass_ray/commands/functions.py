"""Functions that options name."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from narrowpass.errors import UsageError
from narrowpass.framework.boundary import translate_errors

if TYPE_CHECKING:
    from narrowpass_ray.predictor import Function


def imported(option: str, text: str | None) -> Function | None:
    """Return the function that ``module:function`` names; its module is sent to workers.

    Raises:
        UsageError: there is none.
    """
    if text is None:
        return None
    import ray

    module, colon, name = text.partition(":")
    if not colon or not name:
        raise UsageError(f"{option} {text}: pass module:function")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    with translate_errors(f"{option} {text} cannot be imported", UsageError):
        found: Any = getattr(importlib.import_module(module), name)
        # Sent with its code: nodes need not have the module.
        ray.cloudpickle.register_pickle_by_value(sys.modules[module])
    if not callable(found):
        raise UsageError(f"{option} {text} is not a function")
    result: Function = found
    return result
