"""Importers: which one reads a source, what it returns, and where it ends up in a bundle."""

from __future__ import annotations

import types

import numpy as np
import onnx_ir as ir
import pytest
from plugins_kit import REFERENCE

import narrowpass
from narrowpass import Bundle, Imported, Importer, hookimpl, load_plugins
from narrowpass.bundle import verify
from narrowpass.errors import BundleError, ModelError, PluginError, UsageError
from narrowpass_testing import model_from_text


def adds(number: float) -> ir.Model:
    return model_from_text(
        f"g (float[2] x) => (float[2] y) <float[1] c = {{{number}}}> {{ y = Add(x, c) }}"
    )


class Numbers(Importer):
    """Reads a text file of numbers: a method for each line, which adds its number."""

    name = "numbers"
    suffixes = (".num",)

    def probe(self, path):
        return path.endswith(self.suffixes)

    def load(self, path):
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            lines = file.read().split()
        methods = {f"add{index}": adds(float(line)) for index, line in enumerate(lines)}
        return Imported(methods, {"tokenizer.json": b"{}"}, ("it was text",))


class Point:
    """An entry point of a plugin that registers importers."""

    dist = None
    value = "fake"

    def __init__(self, *importers, name="fake"):
        self.name = name
        module = types.ModuleType(name)

        def narrowpass_importers():
            return list(importers)

        module.narrowpass_importers = hookimpl(narrowpass_importers)
        self._module = module

    def load(self):
        return self._module


def plugins(*importers):
    return load_plugins(entry_points=[Point(*importers), *REFERENCE])


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "model.num"
    path.write_text("1\n2\n")
    return path


X = np.array([1, 2], np.float32)


def test_a_source_becomes_methods_and_assets(source, tmp_path, caplog):
    out = tmp_path / "out.narrow"
    bundle = narrowpass.build(source, "", out, target="reference", plugins=plugins(Numbers()))
    assert list(bundle.methods) == ["add0", "add1"]
    assert (out / "tokenizer.json").read_bytes() == b"{}"
    assert "it was text" in caplog.text
    loaded = Bundle.load(out)
    assert dict(loaded.assets) == {"tokenizer.json": b"{}"}
    with narrowpass.load(out, "reference") as program:
        assert program.run({"x": X}, "add1")["y"].tolist() == [3, 4]
    loaded.save(tmp_path / "again.narrow")
    assert (tmp_path / "again.narrow" / "tokenizer.json").read_bytes() == b"{}"
    assert verify(tmp_path / "again.narrow") == []


def test_a_source_loads_without_a_bundle(source):
    found = plugins(Numbers())
    with narrowpass.load(source, "reference", pipeline="", plugins=found) as program:
        assert program.run({"x": X}, "add0")["y"].tolist() == [2, 3]


def test_one_method_gets_the_name_of_the_caller(source):
    source.write_text("5")
    named = {"five": str(source), "six": adds(6)}
    bundle = narrowpass.build(named, "", target="reference", plugins=plugins(Numbers()))
    assert list(bundle.methods) == ["five", "six"]


def test_several_methods_do_not_fit_one_name(source):
    with pytest.raises(UsageError, match=r"several methods .*build it alone"):
        narrowpass.build(
            {"a": str(source), "b": adds(6)}, "", target="reference", plugins=plugins(Numbers())
        )


def test_unknown_files_name_the_importers(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(b"no model")
    with pytest.raises(ModelError, match=r"installed: numbers \(\.num\)"):
        narrowpass.build(path, "", target="reference", plugins=plugins(Numbers()))
    with pytest.raises(ModelError, match="installed: none"):
        narrowpass.build(path, "", target="reference", plugins=plugins())


def test_two_importers_of_one_source(source):
    class Other(Numbers):
        name = "other"

    with pytest.raises(UsageError, match=r"several importers read it \(numbers, other\)"):
        narrowpass.build(source, "", target="reference", plugins=plugins(Numbers(), Other()))


def test_importers_that_fail(source):
    class Broken(Numbers):
        def load(self, path):
            raise ZeroDivisionError("odd")

    class Odd(Numbers):
        def load(self, path):
            return 3

    with pytest.raises(ModelError, match=r"importer 'numbers' failed on .*odd"):
        narrowpass.build(source, "", target="reference", plugins=plugins(Broken()))
    with pytest.raises(PluginError, match="no Imported"):
        narrowpass.build(source, "", target="reference", plugins=plugins(Odd()))


def test_a_plugin_that_registers_no_importer():
    registry = plugins(3).registry
    assert "not an instance of narrowpass.Importer" in registry.failed["fake"].error


@pytest.mark.parametrize(
    "name", ["../up", "a/b", "", "manifest.json", "Main.onnx", "reports", ".hidden", "a\0b"]
)
def test_names_of_assets_that_are_refused(name):
    with pytest.raises(UsageError, match="asset"):
        Bundle({"main": adds(1)}, assets={name: b""})


def test_an_asset_that_was_changed(tmp_path):
    out = tmp_path / "out.narrow"
    Bundle({"main": adds(1)}, assets={"config.json": b"{}"}).save(out)
    (out / "config.json").write_bytes(b"[]")
    with pytest.raises(BundleError, match=r"config\.json was changed"):
        Bundle.load(out)
    assert any("config.json was changed" in problem for problem in verify(out))


def test_a_manifest_whose_asset_leads_out_of_the_folder(tmp_path):
    out = tmp_path / "out.narrow"
    Bundle({"main": adds(1)}, assets={"config.json": b"{}"}).save(out)
    manifest = out / "manifest.json"
    manifest.write_text(manifest.read_text().replace("config.json", "../config.json"))
    with pytest.raises(BundleError, match="unknown file"):
        Bundle.load(out)
