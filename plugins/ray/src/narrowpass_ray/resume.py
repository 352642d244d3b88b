"""What earlier runs of a job have left in its output folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from narrowpass.errors import DataError, UsageError
from narrowpass_ir.tensors.threads import ThreadPool
from narrowpass_ray.places import Place
from narrowpass_ray.predictor import ERROR
from narrowpass_ray.shards import Shard


def claim(output: Place, name: str, identity: Mapping[str, Any]) -> None:
    """Write into a folder what its files are results of, or compare with what is there.

    Args:
        output: the folder; created where it is missing.
        name: of the file.
        identity: bundle, input and options, as JSON.

    Raises:
        UsageError: the folder has results of another job, or other files.
        OutputError: it cannot be written.
    """
    data = output.inside(name).read()
    if data is None:
        if output.exists() and output.listed():
            raise UsageError(f"{output.path} has other files: results need a folder of their own")
        output.inside(name).write(json.dumps(identity, indent=1).encode())
        return
    try:
        found: object = json.loads(data)
    except ValueError as error:
        raise DataError(f"{output.path}/{name} is damaged: {error}; delete the folder") from error
    if found != identity:
        known = found if isinstance(found, dict) else {}
        differing = [key for key in identity if known.get(key) != identity[key]] or ["format"]
        raise UsageError(
            f"{output.path} has results of another job, which differs in {', '.join(differing)}; "
            "choose another folder, or delete this one"
        )


def missing(output: Place, shards: Sequence[Shard], *, retry_errors: bool) -> list[Shard]:
    """Return the shards that have no file yet, or one with errors if these are retried."""
    known = {file.name for file in output.listed()} if output.exists() else set()
    waiting = [shard for shard in shards if shard.output not in known]
    if retry_errors:
        done = [shard for shard in shards if shard.output in known]
        with ThreadPool(16) as pool:
            flags = pool.map(lambda shard: has_errors(output.inside(shard.output)), done)
            waiting += [shard for shard, bad in zip(done, flags, strict=True) if bad]
    return sorted(waiting, key=lambda shard: shard.number)


def has_errors(file: Place) -> bool:
    """Return whether a file of results has a row with an error, or cannot be read."""
    try:
        with file.files.open_input_file(file.path) as source:
            column = pq.read_table(source, columns=[ERROR]).column(ERROR)
    except (OSError, pa.ArrowException):
        return True
    return bool(pc.count(column, mode="only_valid").as_py())
