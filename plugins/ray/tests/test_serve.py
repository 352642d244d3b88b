"""Ray Serve: requests collected to batches; one that does not fit costs no other."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray_kit import QUIET, TOLERANCE, expected, linear_bundle, rows_of

from narrowpass.errors import DataError
from narrowpass_ray import Settings
from narrowpass_ray.serve import Replica

pytestmark = QUIET


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> str:
    return linear_bundle(tmp_path_factory.mktemp("linear"))


def test_rows_are_computed_together(linear: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replica = Replica(Settings(linear))
    x = rows_of(0, 5)
    found = replica.compute([{"x": row} for row in x])
    np.testing.assert_allclose([row["y"] for row in found], expected(x), atol=TOLERANCE)


def test_a_row_that_does_not_fit_is_its_own_error(linear: str) -> None:
    replica = Replica(Settings(linear))
    x = rows_of(0, 3)
    found = replica.compute([{"x": x[0]}, {"x": [1.0]}, {"z": x[1]}, {"x": x[2]}])
    assert isinstance(found[1], DataError)
    assert "no column 'x'" in str(found[2])
    np.testing.assert_allclose(found[0]["y"], expected(x[0]), atol=TOLERANCE)
    np.testing.assert_allclose(found[3]["y"], expected(x[2]), atol=TOLERANCE)


@pytest.mark.long
def test_a_deployment_answers(linear: str, one_core: Any, tmp_path: Path) -> None:
    pytest.importorskip("starlette")
    from ray import serve

    from narrowpass_ray import deployment

    x = rows_of(0, 6)
    serve.start(http_options={"port": _free_port()})
    try:
        handle = serve.run(deployment(linear), route_prefix="/linear")
        answers = [handle.predict.remote({"x": row}) for row in x]
        found = [answer.result(timeout_s=60)["y"] for answer in answers]
        np.testing.assert_allclose(found, expected(x), atol=TOLERANCE)
        url = f"http://127.0.0.1:{_PORT[0]}/linear"
        assert _post(url, {"x": x[0].tolist()})[0] == 200
        status, answer = _post(url, {"x": [1.0]})
        assert status == 400
        assert "axis 1 is 1, not 8" in answer["error"]
        status, answer = _post(url, [1])
        assert status == 400
        assert '"x": [8]' in answer["error"]
        status, answer = _post(url, {"z": [1.0]})
        assert status == 400
        assert "no column 'x'" in answer["error"]
    finally:
        serve.shutdown()


_PORT: list[int] = []


def _free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        _PORT[:] = [found.getsockname()[1]]
    return _PORT[0]


def _post(url: str, body: Any) -> tuple[int, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), method="POST")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
