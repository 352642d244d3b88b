"""The class of actors, without Ray: rows, types, lengths, errors of single rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray_kit import TOLERANCE, expected, linear_bundle, rows_of, token_bundle

from narrowpass.errors import DataError, UsageError
from narrowpass_ray import Predictor, Settings
from narrowpass_ray.feeding import Padding


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> str:
    return linear_bundle(tmp_path_factory.mktemp("linear"))


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> str:
    return token_bundle(tmp_path_factory.mktemp("tokens"))


def ragged(rows: list[Any]) -> Any:
    column = np.empty(len(rows), object)
    for number, row in enumerate(rows):
        column[number] = row
    return column


def test_a_batch_is_what_numpy_computes(linear: str) -> None:
    x = rows_of(0, 5)
    found = Predictor(Settings(linear))({"x": x})
    np.testing.assert_allclose(found["y"], expected(x), atol=TOLERANCE)
    assert found["error"].tolist() == [""] * 5


def test_a_batch_is_fed_without_a_copy(linear: str, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = Predictor(Settings(linear))
    fed: list[Any] = []
    run = predictor.program.run
    monkeypatch.setattr(
        predictor.program, "run", lambda feeds, *rest: (fed.append(feeds), run(feeds, *rest))[1]
    )
    x = rows_of(0, 5)
    x.flags.writeable = False  # as arrays in Ray's object store are
    predictor({"x": x})
    assert np.shares_memory(fed[0]["x"], x)


def test_rows_of_a_wrong_shape_stand_alone(linear: str) -> None:
    x = rows_of(0, 6)
    rows = ragged([x[0], x[1], x[2, :3], x[3], np.zeros((2, 8), np.float32), x[5]])
    outcome = Predictor(Settings(linear)).predict({"x": list(rows)})
    assert sorted(outcome.errors) == [2, 4]
    assert "axis 1 is 3, not 8" in outcome.errors[2]
    y = outcome.columns["y"]
    assert y[2] is None
    assert y[4] is None
    for row in (0, 1, 3, 5):
        np.testing.assert_allclose(y[row], expected(x[row]), atol=TOLERANCE)


def test_results_of_rows_with_errors_are_not_numbers_in_a_dataset(linear: str) -> None:
    x = rows_of(0, 2)
    found = Predictor(Settings(linear), keep=["id"])(
        {"x": ragged([x[0], x[1, :2]]), "id": np.array([7, 8])}
    )
    assert np.isnan(found["y"][1]).all()
    assert np.isfinite(found["y"][0]).all()
    assert found["id"].tolist() == [7, 8]
    assert found["error"][0] == ""
    assert "axis 1 is 2" in found["error"][1]


def test_the_first_error_can_be_raised(linear: str) -> None:
    x = rows_of(0, 2)
    predictor = Predictor(Settings(linear), on_error="raise")
    assert set(predictor({"x": x})) == {"y"}
    with pytest.raises(DataError, match=r"row 1 of a batch: .*axis 1 is 2"):
        predictor({"x": ragged([x[0], x[1, :2]])})


@pytest.mark.parametrize("count", [1, 4, 6])
def test_a_model_of_four_rows_computes_any_number(tmp_path: Path, count: int) -> None:
    x = rows_of(0, count)
    outcome = Predictor(Settings(linear_bundle(tmp_path, "4"))).predict({"x": x})
    assert not outcome.errors
    np.testing.assert_allclose(np.stack(list(outcome.columns["y"])), expected(x), atol=TOLERANCE)


@pytest.mark.parametrize("lengths", [(), (4, 9)])
def test_ragged_rows_are_padded_and_cropped(tokens: str, lengths: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    ids = [rng.integers(1, 50, size) for size in (3, 9, 1, 4, 7)]
    padding = Padding({"ids": 0, "mask": 0}, lengths)
    columns = {"ids": ids, "mask": [np.ones(len(row), np.int64) for row in ids]}
    outcome = Predictor(Settings(tokens, padding=padding)).predict(columns)
    assert not outcome.errors
    for row, tokens_of_row in enumerate(ids):
        assert np.asarray(outcome.columns["double"][row]).tolist() == (2 * tokens_of_row).tolist()
        assert int(outcome.columns["total"][row]) == tokens_of_row.sum()


def test_runs_have_the_lengths_of_buckets(tokens: str, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = Predictor(Settings(tokens, padding=Padding({"ids": 0, "mask": 0}, (4, 9))))
    shapes: list[tuple[int, ...]] = []
    run = predictor.program.run
    monkeypatch.setattr(
        predictor.program,
        "run",
        lambda feeds, *rest: (shapes.append(feeds["ids"].shape), run(feeds, *rest))[1],
    )
    ids = [np.ones(size, np.int64) for size in (3, 9, 1, 4, 7)]
    predictor.predict({"ids": ids, "mask": ids})
    assert sorted(shapes) == [(2, 9), (3, 4)]


def test_a_row_longer_than_the_last_bucket_is_an_error_of_its_own(tokens: str) -> None:
    ids = [np.ones(size, np.int64) for size in (3, 10, 4)]
    predictor = Predictor(Settings(tokens, padding=Padding({"ids": 0, "mask": 0}, (4, 9))))
    outcome = predictor.predict({"ids": ids, "mask": ids})
    assert list(outcome.errors) == [1]
    assert "more than the last bucket, 9" in outcome.errors[1]
    assert int(outcome.columns["total"][2]) == 4


def test_ragged_rows_without_padding_are_grouped_by_shape(tokens: str) -> None:
    ids = [np.full(size, 2, np.int64) for size in (3, 1, 3)]
    ones = [np.ones(len(row), np.int64) for row in ids]
    outcome = Predictor(Settings(tokens)).predict({"ids": ids, "mask": ones})
    assert [int(v) for v in outcome.columns["total"]] == [6, 2, 6]


def test_types_are_converted_where_values_stay(linear: str, tokens: str) -> None:
    x = rows_of(0, 2)
    found = Predictor(Settings(linear)).predict({"x": x.astype(np.float64)})
    np.testing.assert_allclose(found.columns["y"], expected(x), atol=TOLERANCE)
    small = np.ones((2, 3), np.int8)
    found = Predictor(Settings(tokens)).predict({"ids": small, "mask": small})
    assert found.columns["total"].tolist() == [3, 3]
    wrong = Predictor(Settings(tokens)).predict({"ids": x, "mask": small})
    assert set(wrong.errors) == {0, 1}
    outcome = Predictor(Settings(tokens)).predict({"ids": np.ones((1, 2)), "mask": small[:1]})
    assert "takes int64, and the column has float64" in outcome.errors[0]


def test_a_function_that_fails_on_a_row_costs_that_row(linear: str) -> None:
    def halves(batch: dict[str, Any]) -> dict[str, Any]:
        if any(row[0] == 5 for row in batch["x"]):
            raise ZeroDivisionError("five")
        return {"x": np.stack(batch["x"]) / 2}

    x = rows_of(0, 7)
    x[3, 0] = 5
    outcome = Predictor(Settings(linear, preprocess=halves)).predict({"x": x})
    assert outcome.errors == {3: "ZeroDivisionError: five"}
    for row in (0, 1, 2, 4, 5, 6):
        np.testing.assert_allclose(outcome.columns["y"][row], expected(x[row] / 2), atol=TOLERANCE)


def test_postprocess_computes_the_columns(linear: str) -> None:
    x = rows_of(0, 4)
    settings = Settings(linear, postprocess=lambda found: {"best": found["y"].argmax(1)})
    outcome = Predictor(settings).predict({"x": x})
    assert outcome.columns["best"].tolist() == expected(x).argmax(1).tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": {"z": "x"}}, "no input 'z'"),
        ({"outputs": ("z",)}, "no output 'z'"),
        ({"method": "z"}, "z"),
        ({"padding": Padding({"z": 0})}, "no input 'z'"),
    ],
)
def test_names_that_are_not_there(linear: str, options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Predictor(Settings(linear, **options))


def test_columns_that_are_not_there_are_no_error_of_a_row(linear: str) -> None:
    with pytest.raises(UsageError, match="no column 'x' for input 'x'; there are 'z'"):
        Predictor(Settings(linear)).predict({"z": rows_of(0, 2)})


def test_a_bundle_that_is_not_on_the_node(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="this node has no bundle there"):
        Predictor(Settings(str(tmp_path / "nowhere")))


@pytest.mark.parametrize("lengths", [(0,), (4, 4), (9, 4)])
def test_buckets_ascend(lengths: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="ascending"):
        Padding({}, lengths)
