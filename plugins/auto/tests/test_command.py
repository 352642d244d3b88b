"""``narrowpass tune``, and ``build --max-error``."""

import json

import numpy as np
import pytest
from auto_kit import dense, rows
from click.testing import CliRunner

from narrowpass import save_model
from narrowpass.cli import app
from narrowpass_auto.measure.database import Database, default_path


def _run(*arguments):
    """Run a command in this process; errors become exit codes there as in a process."""
    return CliRunner().invoke(app, arguments)


@pytest.fixture
def times():
    database = Database(default_path())
    for name in ("a", "b"):
        database.add("one", name, (1.0, 0.0, 0.0))
    database.add("two", "a", (2.0, 0.0, 0.0))
    database.close()
    return default_path()


def test_list(times):
    result = _run("tune", "list")
    assert result.exit_code == 0
    assert "3 times" in result.output
    found = json.loads(_run("tune", "list", "--json").output)
    assert found["path"] == str(times)
    assert [row["seconds"][0] for row in found["times"]] == [1.0, 1.0, 2.0]


def test_prune_of_one_processor(times):
    result = _run("tune", "prune", "--processor", "one", "--json")
    assert json.loads(result.output)["deleted"] == 2
    assert _run("tune", "prune", "--processor", "one").exit_code == 2
    assert json.loads(_run("tune", "prune", "--json").output)["deleted"] == 1
    assert not times.exists()
    assert "deleted 0 times" in _run("tune", "prune").output


def test_prune_deletes_a_damaged_file(times):
    times.write_bytes(b"damaged" * 1000)
    assert _run("tune", "prune").exit_code == 0
    assert not times.exists()


def test_export_and_import(times, tmp_path):
    file = tmp_path / "times.json"
    assert _run("tune", "export", str(file)).exit_code == 0
    _run("tune", "prune")
    result = _run("tune", "import", str(file))
    assert "added 3 of 3" in result.output
    assert "added 0 of 3" in _run("tune", "import", str(file)).output


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"format": "other", "times": []}',
        '{"format": "narrowpass-tuning-1", "times": [{"processor": 1}]}',
        json.dumps(
            {
                "format": "narrowpass-tuning-1",
                "times": [
                    {"processor": "p", "key": "k", "what": "w", "seconds": [-1], "created": 0}
                ],
            }
        ),
    ],
)
def test_import_of_what_is_none(times, tmp_path, text):
    file = tmp_path / "times.json"
    file.write_text(text)
    result = _run("tune", "import", str(file))
    assert result.exit_code == 1
    assert "times.json" in result.output
    assert _run("tune", "import", str(tmp_path / "missing")).exit_code == 2


@pytest.mark.usefixtures("steady_times")
def test_build_with_max_error(tmp_path):
    pytest.importorskip("narrowpass_int8_sym")
    pytest.importorskip("narrowpass_xnn_cpu")
    save_model(dense(4, 128), tmp_path / "m.onnx")
    (tmp_path / "data").mkdir()
    for number, feeds in enumerate(rows(8, 128, 32)):
        np.savez(tmp_path / "data" / f"{number}.npz", **feeds)
    call = ["build", str(tmp_path / "m.onnx"), "-p", "", "-o", str(tmp_path / "m.narrow")]
    result = _run(
        *call, "--max-error", "rel:0.05", "--objective", "bytes",
        "--calibration", str(tmp_path / "data"), "--report", str(tmp_path / "r.html"), "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["pipeline"] == "auto{max-error=rel:0.05,objective=bytes}"
    (row,) = document["passes"]
    assert "on samples held out" in row["summary"]
    page = (tmp_path / "r.html").read_text()
    assert "Bytes and error of the runs" in page
    assert "<svg" in page


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--objective", "bytes"], "--max-error"),
        (["--max-error", "rel"], "METRIC:LIMIT"),
        (["--max-error", "cosine:7"], "cosine"),
        (["--max-error", "rel:1", "--objective", "size"], "latency"),
    ],
)
def test_options_that_are_wrong(tmp_path, options, text):
    save_model(dense(), tmp_path / "m.onnx")
    result = _run("build", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.narrow"), *options)
    assert result.exit_code == 2
    assert text in result.output
