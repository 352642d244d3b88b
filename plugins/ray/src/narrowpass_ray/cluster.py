"""The connection to a cluster of Ray."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator

from narrowpass.errors import BackendError, UsageError
from narrowpass.framework.boundary import message
from narrowpass.runtime.processors import usable_processors


@contextlib.contextmanager
def connected(address: str | None = None, cpus: int | None = None) -> Iterator[None]:
    """Use a cluster while the block runs; one that the process is connected to is used as it is.

    Args:
        address: of the cluster; None for that of ``RAY_ADDRESS``, or Ray on this machine.
        cpus: of Ray on this machine; None for those that the process may use.

    Raises:
        UsageError: there is no cluster at the address.
    """
    import ray

    if ray.is_initialized():
        yield
        return
    given = address or os.environ.get("RAY_ADDRESS")
    own = None if given else cpus or usable_processors()
    try:
        ray.init(
            # Not None, for which Ray would look for a cluster of somebody else on this machine.
            address=given or "local",
            num_cpus=own,
            include_dashboard=None if given else False,
            log_to_driver=False,
            logging_level=logging.WARNING,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = given or "this machine"
        raise UsageError(f"Ray does not start on {where}: {message(error)}") from error
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def ray_errors(what: str) -> Iterator[None]:
    """Translate what Ray raises where it cannot go on.

    Args:
        what: was computed, for the message.

    Raises:
        BackendError: with Ray's message.
    """
    from ray.exceptions import RayError

    try:
        yield
    except RayError as error:
        raise BackendError(f"Ray ended {what}: {message(error)}") from error
