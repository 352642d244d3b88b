"""Options that commands of Ray share, and the functions that options name."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from narrowpass.errors import UsageError
from narrowpass.framework.boundary import translate_errors

if TYPE_CHECKING:
    from narrowpass_ray.predictor import Function


concurrency_option = click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of actors.  [default: as many as the cluster has CPUs for]",
)
cpus_option = click.option(
    "--num-cpus",
    type=click.FloatRange(min=0, min_open=True),
    default=1,
    show_default=True,
    metavar="N",
    help="CPUs, and threads, of an actor or a trial.",
)
address_option = click.option(
    "--address",
    metavar="ADDRESS",
    help="Of the cluster.  [default: RAY_ADDRESS, or Ray on this machine]",
)


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
