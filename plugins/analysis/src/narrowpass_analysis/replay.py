"""``narrowpass replay``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from narrowpass.cli.options import json_option
from narrowpass.cli.output import print_json
from narrowpass.cli.state import State, pass_state
from narrowpass.cli.watch import Watch, watch_options
from narrowpass.errors import NarrowpassError, UsageError


@click.command()
@click.argument("folder", metavar="DIR")
@watch_options
@json_option
@pass_state
def replay(state: State, folder: str, as_json: bool, **watch: Any) -> None:
    """Run a pass that failed again.

    DIR is a folder that `build --reproducer DIR` wrote.

    The exit code is that of the failure, or 0 where the pass no longer fails.

    The JSON document has the keys folder, pipeline, target, was (the error then) and error (the
    error now, or null).
    """
    from narrowpass.driver import build
    from narrowpass.framework.instruments.reproducer import Reproduction

    found = Reproduction.read(Path(folder))
    calibration: str | None = found.calibration or None
    if calibration is not None and not _is_there(calibration):
        state.note(f"the calibration data ({calibration}) is not here; running without it")
        calibration = None
    watching = Watch(watch.pop("time_"), **watch)
    state.note(f"pipeline: {found.pipeline}")
    state.note(f"it failed with: {found.error}")
    failure: NarrowpassError | None = None
    try:
        build(
            found.model,
            found.pipeline,
            target=found.target or None,
            calibration=calibration,
            instruments=watching.instruments(state, ["main"]),
            plugins=state.plugins,
        )
    except NarrowpassError as error:
        failure = error
    if as_json:
        print_json(
            {
                "folder": folder,
                "pipeline": found.pipeline,
                "target": found.target,
                "was": found.error,
                "error": None if failure is None else str(failure),
            }
        )
    if failure is not None:
        raise failure
    if not as_json:
        click.echo(f"{found.pipeline} no longer fails on {found.model}")


def _is_there(calibration: str) -> bool:
    from narrowpass.calibration.samples import Samples

    try:
        Samples.parse(calibration)
    except UsageError:
        return False
    return True
