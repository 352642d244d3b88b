"""narrowpass on Ray: batch inference, sweeps, calibration on many machines, Ray Serve.

This is the plugin's entry module, and the public one. It imports neither ray nor numpy: a name is
imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from narrowpass import hookimpl

if TYPE_CHECKING:
    import click

    from narrowpass_ray.calibrate import shared_samples
    from narrowpass_ray.job import map_files
    from narrowpass_ray.mapping import map_batches
    from narrowpass_ray.predictor import Predictor, Settings
    from narrowpass_ray.serve import deployment
    from narrowpass_ray.sweeping import sweep
    from narrowpass_ray.trial import Judging

_HOME = {
    "Predictor": "predictor",
    "Settings": "predictor",
    "deployment": "serve",
    "map_batches": "mapping",
    "map_files": "job",
    "shared_samples": "calibrate",
    "sweep": "sweeping",
    "Judging": "trial",
}

__all__ = [
    "Judging",
    "Predictor",
    "Settings",
    "deployment",
    "map_batches",
    "map_files",
    "narrowpass_commands",
    "shared_samples",
    "sweep",
]


@hookimpl
def narrowpass_commands() -> list[click.Command]:
    """Register ``narrowpass ray``."""
    from narrowpass_ray.commands import ray

    return [ray]


def __getattr__(name: str) -> object:
    """Import a public name."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
