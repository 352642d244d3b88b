"""The tutorial plugin, installed beside the core the way that anybody's plugin would be."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest

import narrowpass
import narrowpass_testing as testing

hello = pytest.importorskip("narrowpass_hello")

TEXT = """
g (float[n] x, bool c) => (float[n] y) {
    a = Relu(x)
    y = If (c) <
        then_branch = t () => (float[n] p) { p = Neg(a) },
        else_branch = e () => (float[n] q) { q = Identity(a) }
    >
}
"""


def cli(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "narrowpass", *map(str, arguments)]
    env = {**os.environ, **environment}
    return subprocess.run(command, check=False, capture_output=True, text=True, env=env)


def listed(*arguments: str, **environment: str) -> dict[str, Any]:
    """Return what ``narrowpass plugins --json`` says of the plugin; empty where it is not there."""
    done = cli(*arguments, "plugins", "--json", **environment)
    assert done.returncode == 0, done.stderr
    plugins = json.loads(done.stdout)["plugins"]
    return next((item for item in plugins if item["name"] == "hello"), {})


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    file = tmp_path / "model.onnx"
    narrowpass.save_model(testing.model_from_text(TEXT), file)
    return file


def doc_strings(path: Path) -> list[str]:
    model = ir.from_proto(onnx.load(path))
    return [node.doc_string or "" for node in model.graph.all_nodes()]


def test_it_is_listed_with_its_distribution() -> None:
    plugin = listed()
    assert plugin["status"] == "loaded"
    assert (
        plugin["distribution"]
        == f"narrowpass-hello {importlib.metadata.version('narrowpass-hello')}"
    )


def test_it_runs_in_a_pipeline(tmp_path: Path, model_file: Path) -> None:
    out = tmp_path / "out.onnx"
    done = cli("build", model_file, "-o", out, "-p", "hello")
    assert done.returncode == 0, done.stderr
    assert len(doc_strings(out)) == 4
    assert all(text.startswith("hello, ") for text in doc_strings(out))
    assert not any(doc_strings(model_file))


def test_it_runs_into_a_bundle_that_names_it(tmp_path: Path, model_file: Path) -> None:
    out = tmp_path / "out.narrow"
    done = cli("build", model_file, "-o", out, "-p", 'hello{greeting="good day"}')
    assert done.returncode == 0, done.stderr
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    assert "good day" in manifest["pipeline"]
    assert "narrowpass-hello" in json.dumps(manifest["plugins"])
    assert all(text.startswith("good day, ") for text in doc_strings(out / "main.onnx"))


def test_a_wrong_option_is_refused(tmp_path: Path, model_file: Path) -> None:
    done = cli("build", model_file, "-o", tmp_path / "out.onnx", "-p", "hello{greting=hi}")
    assert done.returncode == 2
    assert "greeting" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["--disable-plugin", "hello"], {}),
        (["--disable-plugin", "hel*"], {}),
        ([], {"NARROWPASS_DISABLE_PLUGINS": "hello"}),
        ([], {"NARROWPASS_DISABLE_PLUGINS": "other, hello"}),
    ],
)
def test_it_can_be_blocked(
    tmp_path: Path, model_file: Path, arguments: list[str], environment: dict[str, str]
) -> None:
    assert listed(*arguments, **environment)["status"] == "disabled"
    out = tmp_path / "out.onnx"
    done = cli(*arguments, "build", model_file, "-o", out, "-p", "hello", **environment)
    assert done.returncode == 2
    assert "hello" in done.stderr
    assert not out.exists()


def test_it_keeps_the_contract_of_passes() -> None:
    """What the author of a plugin would write."""
    before = testing.model_from_text(TEXT)
    after = testing.run_pass("hello", before).model
    testing.assert_signature_unchanged(before, after)
    testing.assert_equivalent(before, after)
    once = testing.assert_idempotent(hello.Hello(greeting="hi"), before)
    assert all(node.doc_string.startswith("hi, ") for node in once.graph.all_nodes())
