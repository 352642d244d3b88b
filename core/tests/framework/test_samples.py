from __future__ import annotations

import numpy as np
import pytest

from narrowpass import Samples
from narrowpass.errors import DataError, UsageError


def test_a_folder_has_one_sample_a_file_in_name_order_every_time(tmp_path):
    for index in (2, 0, 1):
        np.savez(tmp_path / f"{index}.npz", x=np.full(3, index))
    samples = Samples.parse(str(tmp_path))
    for _ in range(2):
        assert [int(feeds["x"][0]) for feeds in samples] == [0, 1, 2]


def test_one_file_is_one_sample(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(3), y=np.ones(2))
    (sample,) = Samples.parse(str(tmp_path / "a.npz"))
    assert sorted(sample) == ["x", "y"]


def test_a_function_is_called_for_each_round(tmp_path, monkeypatch):
    (tmp_path / "my_feeds.py").write_text(
        "import numpy as np\n"
        "def feeds():\n    for i in range(2):\n        yield {'x': np.array(i)}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nowhere"])
    samples = Samples.parse("my_feeds:feeds")
    assert list(samples) == list(samples) == [{"x": 0}, {"x": 1}]


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("nothing", UsageError, "pass a folder of .npz files"),
        ("/no/such/place:x", UsageError, "no data at '/no/such/place:x'"),
        ("no_such_module:f", UsageError, "no_such_module:f cannot be imported"),
        ("json:no_such_function", UsageError, "json:no_such_function cannot be imported"),
        ("json:__name__", UsageError, "is not a function"),
    ],
)
def test_what_is_no_data_is_refused(text, kind, message):
    with pytest.raises(kind, match=message):
        Samples.parse(text)


def test_unusable_files_are_named(tmp_path):
    with pytest.raises(DataError, match=r"has no \.npz files"):
        Samples.parse(str(tmp_path))
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(DataError, match=r"a\.npz cannot be read"):
        list(Samples.parse(str(tmp_path)))
    np.save(tmp_path / "b.npy", np.zeros(2))
    with pytest.raises(DataError, match=r"b\.npy is not an \.npz file"):
        list(Samples.parse(str(tmp_path / "b.npy")))
    np.savez(tmp_path / "c.npz", x=np.array([object()], dtype=object))
    with pytest.raises(DataError, match=r"c\.npz cannot be read"):
        list(Samples.parse(str(tmp_path / "c.npz")))


def test_samples_from_python():
    assert Samples.of(None) is None
    samples = Samples.of({"x": np.array(index)} for index in range(2))
    assert samples is not None
    assert list(samples) == list(samples) == [{"x": 0}, {"x": 1}]
    assert Samples.of(samples) is samples
    with pytest.raises(DataError, match="holds no samples"):
        list(Samples.of([]))
    with pytest.raises(DataError, match=r"sample 1 .* is list"):
        list(Samples.of([[1]]))


def _raises():
    raise RuntimeError("no camera")


def _raises_late():
    yield {"x": np.zeros(2)}
    raise RuntimeError("no film")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (_raises, "^_raises failed: RuntimeError: no camera"),
        (_raises_late, "^sample 2 of _raises_late failed: RuntimeError: no film"),
        (lambda: 3, "lambda> gave int, and not an iterable of samples"),
        (lambda: None, "lambda> gave NoneType"),
        (lambda needed: [], "lambda> failed: TypeError"),
        (lambda: [{"x": [1.0, 2.0]}], "sample 1 of <lambda>: 'x' is list, not a numpy array"),
        (lambda: [{"x": np.zeros(1)}, {"x": 1.0}], "sample 2 of <lambda>: 'x' is float"),
        (lambda: [[np.zeros(1)]], "sample 1 of <lambda> is list, not a dict"),
        (list, "list holds no samples"),
    ],
)
def test_a_function_that_does_not_do_what_it_should_is_named(function, message):
    samples = Samples.of(function)
    with pytest.raises(DataError, match=message):
        list(samples)


def test_sequences_and_empty_optionals_are_samples():
    feeds = {"x": [np.zeros(1), np.ones(2)], "y": None, "z": []}
    assert list(Samples.of([feeds])) == [feeds]


@pytest.mark.parametrize("given", [3, {"x": np.zeros(2)}])
def test_what_cannot_be_samples(given):
    with pytest.raises(UsageError, match="pass a list of samples"):
        Samples.of(given)
