"""What the code offers is in the reference, and the reference names nothing else."""

import dataclasses
import importlib
import inspect
import json
import re
from pathlib import Path

import generated_reference as reference
import numpy as np
import onnx_ir as ir
import pytest

import narrowpass
import narrowpass_ir.public
from narrowpass import Decision, Pass, PassResult, Pipeline, errors
from narrowpass.bundle import Manifest
from narrowpass.framework.options import option_types
from narrowpass.framework.plugins import hookspecs
from narrowpass_testing import model_from_text

ROOT = Path(__file__).parents[2]
PUBLIC_MODULES = (
    "narrowpass.bundle",
    "narrowpass.runtime.meters",
    "narrowpass.runtime.processors",
    "narrowpass_analysis.metrics",
    "narrowpass_reference.onnx_backend",
    "narrowpass_reference",
    "narrowpass_testing",
    "narrowpass_testing.random_models",
)


@pytest.fixture
def page(docs):
    def read(name):
        return reference.expand((docs / name).read_text("utf-8"))

    return read


def test_hooks(page):
    hooks = {name for name in vars(hookspecs) if name.startswith("narrowpass_")}
    described = set(
        re.findall(
            r"autofunction:: narrowpass\.framework\.plugins\.hookspecs\.(\w+)",
            page("reference/hooks.md"),
        )
    )
    assert described == hooks
    for name in hooks:
        docstring = getattr(hookspecs, name).__doc__
        assert "Called" in docstring, name
        assert "Returns:" in docstring, name
        assert "Since version" in docstring, name


def test_commands_and_options(page):
    text = page("reference/command-line.md")
    sections = dict(re.findall(r"^## `(.+?)`\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    commands = reference.commands()
    assert list(sections) == list(commands)
    for name, command in commands.items():
        assert command.help, name
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.hidden:
                for flag in parameter.opts:
                    assert flag in sections[name], f"{name} {flag}"
                assert parameter.help, f"{name} {parameter.opts}"


def test_commands_of_plugins_are_left_out(monkeypatch):
    import click

    from narrowpass.cli._app import CommandLine

    stranger = {"stranger": click.Command("stranger")}
    monkeypatch.setattr(CommandLine, "_plugin_commands", lambda self, ctx: stranger)
    assert not [name for name in reference.commands() if "stranger" in name]


def test_public_names(page):
    text = page("reference/python.md")
    described = set(
        re.findall(r"^\.\. auto(?:class|function|data|exception):: (\w+)$", text, re.MULTILINE)
    )
    assert described == set(narrowpass.__all__)


@pytest.mark.parametrize("module", [*PUBLIC_MODULES, *narrowpass_ir.public.PUBLIC_MODULES])
def test_public_modules(page, module):
    name = "models.md" if module.startswith("narrowpass_ir") else "python.md"
    name = "errors.md" if module == "narrowpass_ir.errors" else name
    described = module.replace("narrowpass_ir.errors", "narrowpass.errors")
    assert f".. automodule:: {described}\n   :members:" in page(f"reference/{name}")
    loaded = importlib.import_module(module)
    # Sphinx leaves out what has no docstring.
    for name in getattr(loaded, "__all__", ()):
        value = getattr(loaded, name)
        if inspect.isclass(value) or inspect.isroutine(value):
            assert inspect.getdoc(value), f"{module}.{name}"


def test_exceptions(page):
    rows = dict(
        re.findall(r"^\| `(\w+)` \| `\w+` \| (\d) \|", page("reference/errors.md"), re.MULTILINE)
    )
    known = {
        name: str(value.exit_code)
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, Exception)
    }
    assert rows == known


def test_environment_variables(page):
    described = set(
        re.findall(r"^`(NARROWPASS_\w+)`$", page("reference/environment.md"), re.MULTILINE)
    )
    patterns = (
        "core/src/**/*.py",
        "plugin*/**/src/**/*.py",
        "plugin_xnn_cpu/build_tools/bundle.py",
        "plugin_xnn_cpu/build_tools/instruction_sets.py",
    )
    sources = [source for pattern in patterns for source in ROOT.glob(pattern)]
    used = {
        name
        for source in sources
        for name in re.findall(r"\"(NARROWPASS_[A-Z_]+)\"", source.read_text("utf-8"))
    }
    assert described == used


def test_passes(page):
    text = page("reference/passes.md")
    for name, cls in reference.own_passes().items():
        assert f"## `{name}`" in text
        for field in dataclasses.fields(cls):
            option = field.name.replace("_", "-")
            shown = option if option in option_types(cls) else field.name
            assert f"`{shown}` (" in text, (name, field.name)


def test_backends(page):
    text = page("reference/backends.md")
    assert {"reference", "xnn-cpu"} <= reference.own_backends().keys()
    for name, backend in reference.own_backends().items():
        section = text.partition(f"## `{name}`")[2].partition("\n## ")[0]
        assert all(f"`{option}` (" in section for option in option_types(type(backend))), name


def test_instruments(page):
    text = page("reference/instruments.md")
    registry = narrowpass.load_plugins().registry
    own = {
        n
        for n in registry.instruments
        if registry.owner("instruments", n).startswith("narrowpass ")
    }
    assert set(re.findall(r"^## `(.+)`$", text, re.MULTILINE)) == own


def test_grammar_is_shown(page):
    assert 'item     = name [ "{"' in page("reference/pipeline-text.md")


@dataclasses.dataclass(frozen=True)
class Idle(Pass):
    """Leaves every model as it is."""

    name = "idle"

    def run(self, model, ctx):
        return PassResult(model, modified=False)


def manifest_of(folder):
    values = ir.tensor(np.ones(100, np.float32), name="w")
    model = model_from_text("g (float[100] x, float[100] w) => (float[100] y) { y = Add(x, w) }")
    weight = model.graph.inputs.pop(1)
    weight.const_value = values
    model.graph.register_initializer(weight)
    narrowpass.build(model, Pipeline((Idle(),)), folder)
    return json.loads((folder / "manifest.json").read_bytes())


def test_manifest_fields(page, tmp_path):
    text = page("explanation/bundle.md")
    described = text.partition("<!-- fields -->")[2].partition("<!-- end of fields -->")[0]
    manifest = manifest_of(tmp_path / "m.narrow")
    top = set(re.findall(r"^`(\w+)`$", described, re.MULTILINE))
    assert top == set(manifest)
    sections = dict(re.findall(r"^`(\w+)`\n(.*?)(?=^`|\Z)", described, re.MULTILINE | re.DOTALL))
    for field, value in manifest.items():
        if field == "plugins":
            continue  # its keys are names
        keyed = field == "tensors"
        for name in names_within(next(iter(value.values())) if keyed else value):
            assert f"`{name}`" in sections[field], f"{field}: {name}"
    assert {field.name for field in dataclasses.fields(Manifest)} <= top
    # Nor does the page describe what methods no longer have.
    items = set(re.findall(r"^  `(\w+)`", sections["methods"], re.MULTILINE))
    assert items <= set(manifest["methods"][0])


def test_report_fields(page, tmp_path):
    text = page("explanation/bundle.md").partition("## Reports")[2].partition("\n## ")[0]
    manifest_of(tmp_path / "m.narrow")
    report = json.loads((tmp_path / "m.narrow/reports/00-idle.json").read_bytes())
    assert set(re.findall(r"^`(\w+)`$", text, re.MULTILINE)) == set(report)
    decision = Decision("n", "Op", "kept", "rule", "why", 1, 2).to_json()
    for name in (*report["methods"]["main"], *decision):
        assert f"`{name}`" in text


def names_within(value):
    """Return the field names anywhere within a JSON value."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from names_within(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from names_within(inner)
