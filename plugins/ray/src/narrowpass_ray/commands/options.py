"""Options that commands of Ray share."""

from __future__ import annotations

import click

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
