"""Models whose files are replaced are loaded anew."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from narrowpass_serve.models.repository import Repository

_log = logging.getLogger("narrowpass.serve")


async def watch(repository: Repository, every: float) -> None:
    """Look at the files of the loaded models, and load what was replaced; never returns.

    A replacement that cannot be loaded is a warning: what was served still is.

    Args:
        repository: whose models.
        every: seconds between two looks.
    """
    while True:
        await asyncio.sleep(every)
        for name in await asyncio.to_thread(repository.changed):
            try:
                served = await asyncio.to_thread(repository.load, name)
            except Exception as error:  # noqa: BLE001  # the next look must come, whatever this was
                _log.warning("model %r was replaced, but the former one is served: %s", name, error)
            else:
                _log.info("model %r was replaced; version %s is served", name, served.version)
