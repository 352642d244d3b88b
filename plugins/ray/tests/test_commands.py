"""``narrowpass ray``: what is wrong with a call is said before Ray starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from ray_kit import linear_bundle, write_parquet

from narrowpass.cli import app


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> str:
    return linear_bundle(tmp_path_factory.mktemp("linear"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--pad", "x"], "INPUT=VALUE"),
        (["--pad", "x=a"], "pass INPUT=NUMBER"),
        (["--buckets", "1,b"], "pass lengths"),
        (["--buckets", "4,2"], "ascending"),
        (["--column", "x"], "INPUT=COLUMN"),
        (["--preprocess", "nowhere"], "pass module:function"),
        (["--preprocess", "nowhere:f"], "cannot be imported"),
        (["--preprocess", "sys:path"], "is not a function"),
        (["--format", "csv"], "no format 'csv'"),
        (["--batch-size", "0"], "--batch-size"),
        (["--num-cpus", "0"], "--num-cpus"),
    ],
)
def test_options_of_map(linear: str, tmp_path: Path, options: list[str], message: str) -> None:
    write_parquet(tmp_path / "in", files=1, rows=4, group=4)
    out = tmp_path / "out"
    places = ["--input", str(tmp_path / "in"), "--output", str(out)]
    found = CliRunner().invoke(app, ["ray", "map", linear, *places, *options])
    assert found.exit_code == 2
    assert message in found.stderr
    assert not out.exists()


@pytest.mark.parametrize("place", ["nowhere", "gopher://x/y"])
def test_an_input_that_is_not_there(linear: str, tmp_path: Path, place: str) -> None:
    places = ["--input", place, "--output", str(tmp_path / "out")]
    found = CliRunner().invoke(app, ["ray", "map", linear, *places])
    assert found.exit_code in (1, 2)
    assert "narrowpass: error: " in found.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--grid", "a<b"], "write alternatives as <a|b>"),
        (["--grid", "fold", "--report", "model.onnx"], "is the model that is read"),
    ],
)
def test_options_of_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.onnx").write_bytes(b"")
    command = ["ray", "sweep", "model.onnx", "--data", "samples", "--output", "out", *options]
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 2
    assert message in found.stderr


def test_help_imports_no_ray() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from narrowpass.cli import app\n"
        "print(CliRunner().invoke(app, ['ray', 'map', '--help']).output)\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "--retry-errors" in done.stdout
    assert {"ray", "pyarrow"}.isdisjoint(done.stdout.splitlines()[-1].split())
