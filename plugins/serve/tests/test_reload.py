"""Models that are replaced, loaded and unloaded while they are served."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from serve_kit import matmul, result, row_of, serving, tensor, wait_until, weights

from narrowpass.errors import BackendError, UsageError
from narrowpass_serve import Metrics, Settings, Source, find_sources
from narrowpass_serve.models.served import Served

INPUT = tensor("x", row_of(0))
LOAD, UNLOAD = "/v2/repository/models/m/load", "/v2/repository/models/m/unload"


def is_of(answer, seed):
    # 16 terms of a dot product in float32, each of size about 1.
    return np.allclose(result(answer), row_of(0) @ weights(seed), rtol=0, atol=1e-5)


def test_a_replacement_is_served_when_it_is_loaded(tmp_path):
    path = matmul(tmp_path / "m.narrow")
    with serving({"m": path}, control=True) as server:
        assert is_of(server.infer("m", INPUT), 0)
        matmul(path, seed=1)
        assert server.repository.changed() == ["m"]
        assert is_of(server.infer("m", INPUT), 0)
        assert server.client.post(LOAD).status_code == 200
        answer = server.infer("m", INPUT)
        assert is_of(answer, 1)
        assert answer.json()["model_version"] == "2"
        assert server.repository.changed() == []
        assert server.metric("narrowpass_model_version", model="m") == 2


def test_no_request_is_lost_while_models_are_replaced(tmp_path):
    path = matmul(tmp_path / "m.narrow")
    done = False
    with serving({"m": path}, max_delay=0.002) as server:

        def ask():
            found = []
            while not done:
                answer = server.infer("m", INPUT)
                version = int(answer.json()["model_version"])
                found.append((answer.status_code, version, is_of(answer, version - 1)))
            return found

        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(ask) for _ in range(4)]
            for seed in range(1, 5):
                matmul(path, seed=seed)
                server.repository.load("m")
            done = True
        found = [each for one in asked for each in one.result()]
    assert {(status, right) for status, _, right in found} == {(200, True)}
    assert len({version for _, version, _ in found}) > 1


def test_a_version_is_closed_when_nobody_uses_it(tmp_path):
    with serving({"m": matmul(tmp_path / "m.narrow")}) as server:
        with server.repository.lease("m") as old:
            server.repository.load("m")
            assert old.submit(old.method(""), {"x": row_of(0)}).result().keys() == {"y"}
        program = old._instances[0].program

        def is_closed():
            try:
                program.inputs()
            except UsageError:
                return True
            return False

        assert wait_until(is_closed)


def test_a_broken_replacement_leaves_the_former_one(tmp_path):
    path = matmul(tmp_path / "m.narrow")
    with serving({"m": path}, control=True) as server:
        (path / "manifest.json").write_text("{")
        answer = server.client.post(LOAD)
        assert 400 <= answer.status_code < 600
        assert "manifest.json" in answer.json()["error"]
        assert is_of(server.infer("m", INPUT), 0)
        (entry,) = server.client.post("/v2/repository/index").json()
        assert entry["state"] == "READY"
        assert "manifest.json" in entry["reason"]
        assert server.repository.changed() == []  # it is not tried again and again
        shutil.rmtree(path)
        assert server.client.post(LOAD).status_code >= 400
        assert is_of(server.infer("m", INPUT), 0)


def test_a_model_is_unloaded_and_loaded_again(tmp_path):
    def index(**asked):
        rows = server.client.post("/v2/repository/index", json=asked).json()
        return [(row["name"], row["state"]) for row in rows]

    with serving({"m": matmul(tmp_path / "m.narrow")}, control=True) as server:
        assert index() == index(ready=True) == [("m", "READY")]
        assert server.client.post(UNLOAD).status_code == 200
        answer = server.infer("m", INPUT)
        assert answer.status_code == 404
        assert "not loaded: it was unloaded" in answer.json()["error"]
        assert server.client.get("/v2/health/ready").status_code == 503
        assert server.client.get("/v2/models/m/ready").status_code == 503
        assert index() == [("m", "UNAVAILABLE")]
        assert index(ready=True) == []
        assert server.client.post(LOAD).status_code == 200
        assert is_of(server.infer("m", INPUT), 0)


@pytest.mark.parametrize("path", [LOAD, UNLOAD])
def test_clients_load_nothing_unless_they_may(tmp_path, path):
    with serving({"m": matmul(tmp_path / "m.narrow")}) as server:
        answer = server.client.post(path)
        assert answer.status_code == 403
        assert "--control" in answer.json()["error"]


def test_models_of_a_folder(tmp_path):
    matmul(tmp_path / "one.narrow")
    matmul(tmp_path / "two.narrow")
    found = find_sources([str(tmp_path), f"three={tmp_path / 'one.narrow'}"])
    assert found["one"] == Source("one", tmp_path / "one.narrow")
    assert list(found) == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{folder}/none.narrow", "no such bundle"),
        ("{folder}/empty", "no bundle or ONNX file"),
        ("{folder}/a b.narrow", "cannot ask for the name 'a b'"),
    ],
)
def test_what_cannot_be_served(tmp_path, text, message):
    (tmp_path / "empty").mkdir()
    matmul(tmp_path / "a b.narrow")
    with pytest.raises(UsageError, match=message):
        find_sources([text.format(folder=tmp_path)])


def test_two_models_of_one_name(tmp_path):
    path = matmul(tmp_path / "m.narrow")
    with pytest.raises(UsageError, match="would both be served as 'm'"):
        find_sources([str(path), f"m={path}"])


def started_until(monkeypatch, count):
    """Let only so many threads of the server start; return the names of those that asked."""
    asked, start = [], threading.Thread.start

    def limited(thread):
        if thread.name.startswith(("serve-", "generate-", "close-")):
            asked.append(thread.name)
            if len(asked) > count:
                raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    return asked


@pytest.mark.parametrize("count", [0, 1])
def test_a_model_without_threads_is_not_served(tmp_path, monkeypatch, count):
    source = Source("m", matmul(tmp_path / "m.narrow"))
    asked = started_until(monkeypatch, count)
    with pytest.raises(BackendError, match="no thread can be started for 'serve-m'"):
        Served(source, 1, Settings(instances=2), Metrics())
    assert asked == ["serve-m"] * (count + 1)
    assert not [thread for thread in threading.enumerate() if thread.name == "serve-m"]


def test_a_version_is_closed_where_no_thread_is_left_for_it(tmp_path, monkeypatch):
    path = matmul(tmp_path / "m.narrow")
    with serving({"m": path}, control=True) as server:
        asked = started_until(monkeypatch, 1)
        matmul(path, seed=1)
        assert server.client.post(LOAD).status_code == 200
        wait_until(lambda: asked == ["serve-m", "close-m"])
        assert is_of(server.infer("m", INPUT), 1)
        wait_until(lambda: sum(t.name == "serve-m" for t in threading.enumerate()) == 1)
