"""A deployment of Ray Serve: replicas that load a bundle once, and collect requests to batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from narrowpass.errors import DataError, NarrowpassError, UsageError
from narrowpass_ray.mapping import threads_of
from narrowpass_ray.predictor import Predictor, Settings

if TYPE_CHECKING:
    from ray.serve import Application

_Batch: TypeAlias = "Callable[[Any, list[Mapping[str, Any]]], Any]"

NOT_INPUTS = "the body must be a JSON object with a value for each input, such as {example}"


class Replica:
    """Answers requests, each of one row.

    Args:
        settings: what is computed.
    """

    def __init__(self, settings: Settings) -> None:
        self._predictor = Predictor(settings)

    def compute(self, rows: list[Mapping[str, Any]]) -> list[Any]:
        """Compute rows in one batch.

        Args:
            rows: a value for each input, without the axis of the rows.

        Returns:
            For each row a dict of arrays by output, or an error to raise.
        """
        names = rows[0].keys()
        alike = [row for row in rows if row.keys() == names]
        if len(alike) < len(rows):
            return [self.compute([row])[0] for row in rows]
        try:
            columns = {name: [np.asarray(row[name]) for row in rows] for name in names}
            outcome = self._predictor.predict(columns)
        except NarrowpassError as error:
            return [error] * len(rows)
        return [
            DataError(outcome.errors[number])
            if number in outcome.errors
            else {name: np.asarray(column[number]) for name, column in outcome.columns.items()}
            for number in range(len(rows))
        ]

    def example(self) -> str:
        """Return what a request may look like, for messages."""
        shown = (
            f'"{spec.name}": {list((spec.shape or ())[1:]) or "a number"}'
            for spec in self._predictor.feeder.inputs
        )
        return "{" + ", ".join(shown) + "} (shapes)"


def deployment(
    bundle: str,
    *,
    num_cpus: float = 1,
    num_replicas: int | str = 1,
    max_batch_size: int = 16,
    batch_wait: float = 0.005,
    **settings: Any,
) -> Application:
    """Return a deployment of a bundle, for ``ray.serve.run``.

    A POST of a JSON object with a value for each input answers with one for each output. A handle
    has a method ``predict`` that takes and returns dicts of arrays. Both are of one row; rows that
    arrive within `batch_wait` are computed together. What does not fit an input is status 400, with
    the reason, and costs no other request.

    Args:
        bundle: the path of a bundle's folder, which every node can read.
        num_cpus: CPUs of a replica; it computes with as many threads.
        num_replicas: how many, or ``auto``. Those on one host map the same packed weights.
        max_batch_size: the largest number of rows in one run.
        batch_wait: seconds that a request waits for others.
        settings: further fields of `Settings`.

    Raises:
        UsageError: Ray Serve is not installed, or a number is out of range.
    """
    try:
        from ray import serve
        from starlette.requests import Request
        from starlette.responses import JSONResponse
    except ImportError as error:
        raise UsageError(
            "Ray Serve is not installed: pip install 'narrowpass-ray[serve]'"
        ) from error
    if max_batch_size < 1 or batch_wait < 0:
        raise UsageError(f"a batch of {max_batch_size} rows after {batch_wait} s is not possible")
    chosen = Settings(bundle, threads=threads_of(num_cpus), **settings)

    collected: Callable[[_Batch], Any] = serve.batch(
        max_batch_size=max_batch_size, batch_wait_timeout_s=batch_wait
    )

    class Narrowpass:
        """The deployment; defined here, since its batches have options of their own."""

        def __init__(self) -> None:
            self._replica = Replica(chosen)

        @collected
        async def _batch(self, rows: list[Mapping[str, Any]]) -> list[Any]:
            return self._replica.compute(rows)

        async def predict(self, row: Mapping[str, Any]) -> dict[str, Any]:
            """Compute a row."""
            found: Any = await self._batch(row)
            if isinstance(found, Exception):
                raise found
            answer: dict[str, Any] = found
            return answer

        async def __call__(self, request: Request) -> JSONResponse:
            """Answer a request."""
            try:
                row = await request.json()
            except ValueError:
                row = None
            if not isinstance(row, dict) or not row:
                text = NOT_INPUTS.format(example=self._replica.example())
                return JSONResponse({"error": text}, 400)
            try:
                found = await self.predict(row)
            except (NarrowpassError, ValueError) as error:
                return JSONResponse({"error": str(error)}, 400)
            return JSONResponse({name: array.tolist() for name, array in found.items()})

    return serve.deployment(num_replicas=num_replicas, ray_actor_options={"num_cpus": num_cpus})(
        Narrowpass
    ).bind()
