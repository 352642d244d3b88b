"""What is asked for and not installed: who has it, and what to install."""

from __future__ import annotations

import onnx
import pytest
from plugins_kit import REFERENCE

import narrowpass
from narrowpass.errors import PluginError
from narrowpass.framework.classify import choose_classifiers
from narrowpass.framework.missing import provider_of

CPU = "which is not installed; run: pip install 'narrowpass[cpu]'"
ALONE = "which is not installed; run: pip install"
LLM = "which is not installed; run: pip install 'narrowpass[llm]'"
PROTO = onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["": 21]>
    g (float[n] x) => (float[n] y) { y = Neg(x) }
""")


@pytest.fixture(autouse=True)
def _nothing_of_the_repository_is_installed(monkeypatch):
    monkeypatch.setattr("narrowpass.framework.missing._is_installed", lambda _: False)


@pytest.fixture
def plugins():
    return narrowpass.load_plugins(entry_points=REFERENCE)


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("commands", "generate", f"generate is a command of narrowpass-generate, {LLM}"),
        ("passes", "int8-sym", f"int8-sym is a pass of narrowpass-int8-sym, {CPU}"),
        ("importers", ".gguf", f".gguf is read by narrowpass-gguf, {LLM}"),
        ("importers", "a folder", f"a folder is read by narrowpass-huggingface, {LLM}"),
        ("types", "int4", f"int4 is made by narrowpass-int4, {CPU}"),
        (
            "passes",
            "hello",
            f"hello is a pass of narrowpass-hello, {ALONE} narrowpass-hello",
        ),
        ("passes", "elsewhere", ""),
        ("instruments", "elsewhere", ""),
    ],
)
def test_who_has_it(kind, name, said):
    assert provider_of(kind, name) == said


def test_what_is_installed_is_disabled_or_failed(monkeypatch):
    monkeypatch.setattr("narrowpass.framework.missing._is_installed", lambda _: True)
    assert provider_of("passes", "int8-sym") == ""


def test_a_distribution_is_looked_for_by_its_metadata(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(
        "narrowpass.framework.missing._providers",
        lambda: {"passes": {"one": "narrowpass", "other": "narrowpass-elsewhere"}, "extras": {}},
    )
    assert provider_of("passes", "one") == ""
    assert "pip install narrowpass-elsewhere" in provider_of("passes", "other")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("generate", "m.narrow"), f"generate is a command of narrowpass-generate, {LLM}"),
        (("passes", "int8-sym"), f"int8-sym is a pass of narrowpass-int8-sym, {CPU}"),
        (("backends", "xnn-cpu"), f"xnn-cpu is a backend of narrowpass-xnn-cpu, {CPU}"),
        (
            ("build", "m.onnx", "-o", "m.narrow", "-p", "int8-sym"),
            f"int8-sym is a pass of narrowpass-int8-sym, {CPU}\n  int8-sym\n  ^",
        ),
        (
            ("build", "m.onnx", "-o", "m.narrow", "--target", "xnn-cpu"),
            f"xnn-cpu is a backend of narrowpass-xnn-cpu, {CPU}",
        ),
        (
            ("build", "m.onnx", "-o", "m.narrow", "--report", "x.html"),
            f"--report x.html: html is a format of narrowpass-report, {CPU}",
        ),
        (
            ("build", "m.onnx", "-o", "m.narrow", "--report", "x.txt"),
            f"--report x.txt: txt is a format of narrowpass-report, {CPU}",
        ),
        (
            ("build", "m.onnx", "-o", "m.narrow", "--max-error", "rel:1e-2"),
            f"--max-error is an option of narrowpass-auto, {CPU}",
        ),
        (
            ("build", "m.gguf", "-o", "m.narrow"),
            f"m.gguf: .gguf is read by narrowpass-gguf, {LLM}",
        ),
        (
            ("build", "model", "-o", "m.narrow"),
            f"model: a folder is read by narrowpass-huggingface, {LLM}",
        ),
    ],
)
def test_commands_say_who_has_it(call, install, tmp_path, arguments, said):
    install()
    onnx.save(PROTO, tmp_path / "m.onnx")
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    assert f"narrowpass: error: {said}\n" in call(*arguments, code=2).err


def test_functions_say_who_has_it(plugins, tmp_path):
    with pytest.raises(PluginError, match=r"int4 is made by narrowpass-int4, .*\[cpu\]"):
        narrowpass.quantize(PROTO, to="int4", plugins=plugins)
    with pytest.raises(PluginError, match=r"--max-error is an option of narrowpass-auto, "):
        narrowpass.optimize(PROTO, max_error="rel:1e-2", plugins=plugins)
    with pytest.raises(PluginError, match=r"sized is a classifier of narrowpass-fp16, "):
        choose_classifiers("sized", {})
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(PluginError, match=r"\.gguf is read by narrowpass-gguf"):
        narrowpass.load(path, plugins=plugins)


def test_folders_with_a_model_or_nothing_in_them_are_no_importers(plugins, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "model").mkdir()
    onnx.save(PROTO, tmp_path / "model" / "m.onnx")
    for name in ("empty", "model"):
        with pytest.raises(narrowpass.errors.UsageError, match="is a folder; pass the"):
            narrowpass.build(tmp_path / name, "", plugins=plugins)
