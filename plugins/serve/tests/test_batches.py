"""Batches: rows have the bits that they have alone, errors stay with their request."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from serve_kit import (
    fixed,
    matmul,
    mixing,
    outer,
    result,
    row_of,
    serving,
    table,
    tensor,
    wait_until,
    weights,
)

import narrowpass
from narrowpass_ir.verify import ValueSpec
from narrowpass_serve.errors import RequestError
from narrowpass_serve.models.methods import random_rows
from narrowpass_serve.models.queueing import Job, JobQueue

DELAY = 0.3
"""Seconds that tests wait for others to join; those that they start at once come within it."""


def at_once(server, model, inputs):
    with ThreadPoolExecutor(len(inputs)) as pool:
        return list(pool.map(lambda each: server.infer(model, each), inputs))


def test_joined_rows_have_the_bits_of_rows_alone(tmp_path):
    path = matmul(tmp_path / "m.narrow")
    counts = [1, 3, 2, 1, 7, 1, 5, 1]
    feeds = [row_of(i, rows) for i, rows in enumerate(counts)]
    with narrowpass.load(path) as program:
        alone = [program.run({"x": rows})["y"] for rows in feeds]
    with serving({"m": path}, max_delay=DELAY, max_batch=sum(counts)) as server:
        answers = at_once(server, "m", [tensor("x", rows) for rows in feeds])
        assert server.metric("narrowpass_batch_rows_count", model="m") < len(counts)
        assert server.metric("narrowpass_batch_rows_sum", model="m") == sum(counts)
    for answer, expected, rows in zip(answers, alone, feeds, strict=True):
        assert result(answer).tobytes() == expected.tobytes()
        # 16 terms of a dot product in float32, each of size about 1.
        np.testing.assert_allclose(expected, rows @ weights(), rtol=0, atol=1e-5)


def test_rows_to_compare_are_indices_of_any_table_and_numbers_that_round():
    kinds = ("int64", "bool", "float", "float16", "string")
    specs = [ValueSpec(kind, kind, ("n", "m")) for kind in kinds]
    rows = random_rows(specs, 64)
    assert {array.shape[1] for array in rows.values()} == {64}
    for kind in ("int64", "bool"):
        assert np.unique(rows[kind]).tolist() == [0, 1]
    assert set(rows["string"].flat) == {"0", "1"}
    for kind, dtype in (("float", np.float32), ("float16", np.float16)):
        assert rows[kind].dtype == dtype
        assert (rows[kind] % 1 != 0).mean() > 0.9


def test_a_request_of_more_rows_than_a_batch(tmp_path):
    rows = row_of(0, 23)
    with serving({"m": matmul(tmp_path / "m.narrow")}, max_batch=4) as server:
        answer = server.infer("m", tensor("x", rows))
    np.testing.assert_allclose(result(answer), rows @ weights(), rtol=0, atol=1e-5)


def test_rows_that_depend_on_each_other_are_not_joined(tmp_path):
    with serving({"m": mixing(tmp_path / "m.narrow")}, max_delay=DELAY) as server:
        with server.repository.lease("m") as served:
            assert "other bits" in served.method("").unjoined
        answers = at_once(server, "m", [tensor("x", np.ones((2, 4)))] * 4)
        assert [result(each).tolist() for each in answers] == [[[0.5] * 4] * 2] * 4
        assert server.metric("narrowpass_batch_rows_count", model="m") == 4


@pytest.mark.parametrize(
    ("model", "reason"), [(fixed, "does not begin with a dimension"), (outer, "could not be tried")]
)
def test_other_models_are_not_joined(tmp_path, model, reason):
    paths = {"m": model(tmp_path / "m.narrow")}
    with serving(paths) as server, server.repository.lease("m") as served:
        assert reason in served.method("").unjoined


def test_a_row_that_fails_fails_alone(tmp_path):
    good, bad = np.array([[0, 1, 2]]), np.array([[0, 1, 99]])
    with serving({"m": table(tmp_path / "m.narrow")}, max_delay=DELAY) as server:
        inputs = [tensor("ids", each, "INT64") for each in (good, bad, good, good)]
        answers = at_once(server, "m", inputs)
    assert [each.status_code for each in answers] == [200, 500, 200, 200]
    assert "99" in answers[1].json()["error"] or "out of" in answers[1].json()["error"]
    for answer in (answers[0], *answers[2:]):
        np.testing.assert_array_equal(result(answer)[0], weights()[good[0]])


def test_a_request_that_memory_does_not_suffice_for_fails_alone(tmp_path, monkeypatch):
    with serving({"m": matmul(tmp_path / "m.narrow")}, max_delay=DELAY) as server:
        with server.repository.lease("m") as served:
            kind = type(served._instances[0].program)
        run = kind.run

        def short(self, feeds, *arguments, **named):
            if (feeds["x"] == 7).any():
                raise MemoryError
            return run(self, feeds, *arguments, **named)

        monkeypatch.setattr(kind, "run", short)
        inputs = [row_of(0), np.full((1, 16), 7.0, np.float32), row_of(1)]
        answers = at_once(server, "m", [tensor("x", each) for each in inputs])
    assert [each.status_code for each in answers] == [200, 503, 200]
    assert "memory" in answers[1].json()["error"]
    assert answers[1].headers["Retry-After"] == "1"
    for answer, rows in zip(answers[::2], inputs[::2], strict=True):
        np.testing.assert_allclose(result(answer), rows @ weights(), rtol=0, atol=1e-5)


def test_too_many_wait(tmp_path):
    settings = {"max_delay": 30.0, "max_queue": 2, "timeout": 60.0}
    paths = {"m": matmul(tmp_path / "m.narrow")}
    with serving(paths, **settings) as server, ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(server.infer, "m", tensor("x", row_of(i))) for i in range(2)]
        assert wait_until(lambda: server.metric("narrowpass_waiting_requests", model="m") == 2)
        refused = server.infer("m", tensor("x", row_of(2)))
        assert refused.status_code == 503
        assert refused.headers["Retry-After"] == "1"
        server.repository.close()  # those that wait are still answered
        assert [each.result().status_code for each in waiting] == [200, 200]


def test_a_request_that_takes_too_long_never_runs(tmp_path):
    settings = {"max_delay": 1.0, "timeout": 0.2}
    with serving({"m": matmul(tmp_path / "m.narrow")}, **settings) as server:
        answer = server.infer("m", tensor("x", row_of(0)))
        assert answer.status_code == 504
        assert "--timeout" in answer.json()["error"]
        assert wait_until(lambda: server.metric("narrowpass_waiting_requests", model="m") == 0)
        assert server.metric("narrowpass_batch_rows_sum", model="m") == 0


def test_instances_run_side_by_side(tmp_path):
    path = matmul(tmp_path / "m.narrow")
    with serving({"m": path}, instances=2, max_batch=1) as server:
        with server.repository.lease("m") as served:
            assert len({each.program for each in served._instances}) == 2
        answers = at_once(server, "m", [tensor("x", row_of(i)) for i in range(6)])
        for i, answer in enumerate(answers):
            np.testing.assert_allclose(result(answer), row_of(i) @ weights(), rtol=0, atol=1e-5)


def job(rows=1, kind="a"):
    return Job("main", {}, rows=rows, kind=kind)


def test_a_queue_takes_jobs_of_one_kind_up_to_its_rows():
    queue = JobQueue(most=10, rows=4, delay=0.0)
    jobs = [job(2), job(1, "b"), job(1), job(2), job(1, None)]
    for each in jobs:
        queue.put(each)
    assert queue.take() == [jobs[0], jobs[2]]
    assert queue.take() == [jobs[1]]
    assert queue.take() == [jobs[3]]
    assert queue.take() == [jobs[4]]
    queue.close()
    assert queue.take() == []
    with pytest.raises(RequestError, match="being closed"):
        queue.put(job())


def test_a_full_batch_does_not_wait():
    queue = JobQueue(most=10, rows=2, delay=3600.0)
    found = []
    thread = threading.Thread(target=lambda: found.append(queue.take()))
    thread.start()
    queue.put(job(1, "b"))
    for _ in range(2):
        time.sleep(0.01)
        queue.put(job())
    thread.join(60)
    assert [each.kind for each in found[0]] == ["a", "a"]
