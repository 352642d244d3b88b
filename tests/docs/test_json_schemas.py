"""What each command prints with ``--json`` is what its published schema says."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path

import click
import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import narrowpass
from narrowpass.cli import app
from narrowpass.cli.output import JSON_VERSION
from narrowpass_testing import model_from_text

jsonschema = pytest.importorskip("jsonschema")

ROOT = Path(__file__).parents[2]
PLUGINS = {
    *("analysis", "auto", "constant-folding", "demo", "fp16", "generate", "gguf", "huggingface"),
    *("int4", "int8-sym", "ray", "reference", "report", "serve", "signing", "xnn-cpu"),
}
"""Those whose commands, passes and backends are described; others are left out."""

SCHEMAS = ROOT / "docs" / "reference" / "schemas"

MODEL = """
g (float[n, 4] x) => (float[n, 4] y) {
    a = Add(x, x)
    b = Identity(a)
    [act] y = Erf(b)
}
"""
STATEFUL = """
g (float[1, 1, 2] x, float[1, p, 2] past) => (float[1, q, 2] present, float[1, 1, 2] y)
{ present = Concat<axis = 1>(past, x) y = Relu(x) }
"""

CASES = [
    ("build", "m.onnx -o out.narrow -p fold"),
    ("build", "m.onnx -o out.onnx -p fold --report report.html"),
    ("build", "one=m.onnx two=m.onnx -o out.narrow -p fold"),
    ("build", "s.onnx -o out.narrow -p fold --state past=present@1"),
    ("plugins", ""),
    ("passes", ""),
    ("passes", "fold"),
    ("backends", ""),
    ("bench", "m.onnx --shape x=2x4 --runs 2 --profile --backend xnn-cpu"),
    ("bench", "m.onnx --shape x=2x4 --runs 2 --backend reference"),
    ("compare", "m.onnx m.narrow --shape x=2x4"),
    ("compare", "m.onnx m.narrow --data data.npz --tolerance rel:1"),
    ("compare", "m.onnx --across threads --shape x=2x4"),
    ("convert", "m.narrow c.onnx"),
    ("convert", "m.narrow folder"),
    ("demo", "--runs 1"),
    ("explain", "m.narrow"),
    ("explain", "q.narrow"),
    ("explain", "m.onnx --backend reference"),
    ("inspect", "m.onnx"),
    ("inspect", "m.narrow --verify"),
    ("new-plugin", "fresh-plugin"),
    ("replay", "reproducer"),
    ("run", "m.onnx --input x=x.npy -o y.npz"),
    ("run", "m.onnx --input x=x.npy"),
    ("cache list", ""),
    ("cache verify", ""),
    ("cache prune", "--max-size 1GB"),
    ("tune list", ""),
    ("tune prune", ""),
    ("generate", "tiny.narrow hello --tokens 2 --greedy"),
    ("ray map", "m.narrow --input rows.jsonl --output results"),
    ("ray sweep", "m.onnx --data data.npz --grid fold --output sweep --runs 1"),
]
"""Commands with their arguments, in a folder that `folder` prepares."""


def names(command, prefix=""):
    """Yield the names of all commands that take ``--json``."""
    context = click.Context(command)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            yield from names(command.get_command(context, name), f"{prefix} {name}".strip())
    elif any("--json" in parameter.opts for parameter in command.params):
        yield prefix


def schema_name(command, arguments=""):
    """Return the name of a schema: `compare` has another for ``--across``."""
    name = command.replace(" ", "-")
    return f"{name}-across" if "--across" in arguments else name


def schema_of(name):
    return json.loads((SCHEMAS / f"{name}.json").read_text("utf-8"))


@pytest.fixture(autouse=True)
def _plugins():
    installed = {point.name for point in importlib.metadata.entry_points(group="narrowpass")}
    if missing := PLUGINS - installed:
        pytest.skip(f"plugins are not installed: {', '.join(missing)}")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with models, data, a reproducer and a language model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NARROWPASS_CACHE_DIR", str(tmp_path / "cache"))
    model = model_from_text(MODEL)
    x = np.ones((2, 4), np.float32)
    narrowpass.save_model(model, "m.onnx")
    narrowpass.save_model(model_from_text(STATEFUL), "s.onnx")
    narrowpass.build(model, "fold", "m.narrow")
    proto = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
        g (float[n, 1024] x) => (float[n, 1024] y) { y = MatMul(x, w) }""")
    weight = np.ones((1024, 1024), np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(proto, "w.onnx")
    np.save("x.npy", x)
    np.savez("data.npz", x=x)
    Path("rows.jsonl").write_text('{"x": [1, 2, 3, 4]}\n' * 2, encoding="utf-8")
    return tmp_path


def prepare(command, folder):
    """Create what one command alone needs."""
    if command == "replay":
        write_reproducer()
    if command.startswith("cache"):
        with narrowpass.load("w.onnx", "xnn-cpu") as program:
            program.run({"x": np.ones((1, 1024), np.float32)})
    if command == "explain":
        narrowpass.build("w.onnx", "int4", "q.narrow")
    if command.startswith("tune"):
        from narrowpass_auto.measure.database import Database, default_path

        database = Database(default_path())
        database.add("a processor", "a kernel", (1.0, 0.5, 0.25))
        database.close()
    if command == "generate":
        write_language_model(folder)


def write_reproducer():
    """Write what a pass that fails leaves behind."""
    from narrowpass.framework.instruments.reproducer import Reproducer

    registry = narrowpass.load_plugins().registry
    (pass_,) = narrowpass.Pipeline.parse("dead-code", registry)
    written = Reproducer(dir="reproducer")
    written.before_pass(pass_, model_from_text(MODEL), narrowpass.Context())
    written.failed(pass_, RuntimeError("it failed"))


def write_language_model(folder):
    """Write a decoder of one layer, with a tokenizer of bytes."""
    sys.path.insert(0, str(ROOT / "plugins" / "generate" / "tests"))
    try:
        from generate_kit import write_files
        from llama_kit import Shape, models_of
    finally:
        sys.path.pop(0)
    narrowpass.build(models_of(Shape(vocabulary=320, layers=1)), "", out="tiny.narrow")
    write_files(folder / "tiny.narrow", generation={"eos_token_id": 319})


def printed(command, arguments):
    """Return the document that a command prints."""
    installed = {point.name for point in importlib.metadata.entry_points(group="narrowpass")}
    strangers = installed - PLUGINS
    disabled = [part for name in strangers for part in ("--disable-plugin", name)]
    words = [*disabled, *command.split(), *arguments.split(), "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


# Ray warns of its own use of its own options.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(("command", "arguments"), CASES, ids=lambda text: text or "-")
def test_documents_fit_their_schemas(folder, command, arguments):
    prepare(command, folder)
    document = printed(command, arguments)
    schema = schema_of(schema_name(command, arguments))
    validator = jsonschema.Draft202012Validator(schema)
    assert [error.message for error in validator.iter_errors(document)] == []
    # The schema says something: neither a key that is missing nor another one fits it.
    assert not validator.is_valid({**document, "another": 1})
    for key in schema["required"]:
        assert not validator.is_valid({k: v for k, v in document.items() if k != key}), key
    assert not validator.is_valid({**document, "version": JSON_VERSION + 1})


def test_every_command_with_json_has_a_schema_and_a_case():
    ours = {name for name in names(app) if name.split()[0] != "hello"}
    assert {command for command, _ in CASES} == ours
    schemas = {schema_name(*case) for case in CASES}
    assert {path.stem for path in SCHEMAS.glob("*.json")} == schemas


@pytest.mark.parametrize("path", sorted(SCHEMAS.glob("*.json")), ids=lambda path: path.stem)
def test_schemas_are_schemas(path):
    schema = json.loads(path.read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["properties"]["version"] == {"const": JSON_VERSION}
    assert schema["additionalProperties"] is False
    assert "version" in schema["required"]
