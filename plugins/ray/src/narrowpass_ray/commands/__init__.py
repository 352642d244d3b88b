"""``narrowpass ray``: what runs on many machines."""

from __future__ import annotations

import logging
import os
import sys

import click

from narrowpass_ray.commands.build import build
from narrowpass_ray.commands.map import map_command
from narrowpass_ray.commands.sweep import sweep


@click.group()
def ray() -> None:
    """Run models on many machines with Ray.

    The commands use the cluster of RAY_ADDRESS or --address; without one they start Ray on this
    machine, and end it.
    """
    quieten()


def quieten() -> None:
    """Leave out what Ray Data notes of each dataset: commands show progress of their own."""
    os.environ.setdefault("RAY_DATA_LOG_LEVEL", "ERROR")  # read when it is imported
    if "ray.data" in sys.modules:
        logging.getLogger("ray.data").setLevel(os.environ["RAY_DATA_LOG_LEVEL"])


ray.add_command(build)
ray.add_command(map_command)
ray.add_command(sweep)
