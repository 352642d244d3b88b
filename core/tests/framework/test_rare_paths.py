"""What the other tests of the framework do not reach: defaults, refusals, and odd types."""

from __future__ import annotations

import dataclasses
import importlib
import os
from dataclasses import dataclass
from typing import Protocol

import click
import numpy as np
import onnx_ir as ir
import pytest
from plugins_kit import REFERENCE

import narrowpass
from narrowpass import (
    Backend,
    Candidate,
    Color,
    Context,
    OpClassifier,
    OpDtypes,
    Pass,
    PassResult,
    choose_classifiers,
    load_plugins,
)
from narrowpass.calibration.samples import Samples
from narrowpass.errors import DataError, PassError, PluginError, UsageError
from narrowpass.framework import config, options
from narrowpass.framework.instruments.reproducer import DESCRIPTION_FILE, Reproducer, Reproduction
from narrowpass.framework.instruments.standard import Timing
from narrowpass.framework.options import construct, format_options
from narrowpass.framework.passes import run_checked
from narrowpass.framework.pipeline import Pipeline
from narrowpass_reference import ReferenceBackend
from narrowpass_testing import model_from_text

TEXT = "g (float[N] x) => (float[N] y) { [act] y = Relu(x) }"


def node(op_type="Relu"):
    return ir.node(op_type, [], name="n")


class Reds(OpClassifier):
    name = "reds"

    def color(self, node):
        return Color.RED if node.op_type == "Exp" else None


class Explained(Reds):
    name = "explained"

    def reason(self, node):
        return "it overflows"


# Classifiers


def test_a_classifier_has_neither_types_nor_reasons_by_default():
    chain = choose_classifiers("reds", {"reds": Reds()})
    assert chain.dtypes(node("Exp")) is None
    assert chain.reason(node("Exp")) == ""
    assert chain.reason(node("Relu")) == ""
    assert choose_classifiers("e", {"e": Explained()}).reason(node("Exp")) == "it overflows"
    assert choose_classifiers("e", {"e": Explained()}).reason(node("Relu")) == ""


def test_types_of_a_node_are_floats():
    assert OpDtypes("float32", "float16").output == "float16"
    for names in (("float32", "int8"), ("double", "float16")):
        with pytest.raises(ValueError, match="is none of"):
            OpDtypes(*names)


class Owner(ReferenceBackend):
    name = "owner"
    classifier = Explained()


def test_the_targets_own_classifier_takes_part():
    chain = choose_classifiers("target", {}, Owner())
    assert chain.color(node("Exp")) == (Color.RED, "explained")
    assert choose_classifiers("target", {}, ReferenceBackend()).members == ()
    assert choose_classifiers("target", {}).members == ()


# Passes, pipelines and instruments


class Touch(Pass):
    """Changes nothing."""

    name = "touch"

    def run(self, model, ctx):
        return PassResult(model, False)


@dataclass(frozen=True)
class Muttering(Pass):
    """Has a summary that is no text."""

    name = "muttering"

    def run(self, model, ctx):
        return PassResult(model, False, 3)


@dataclass(frozen=True)
class Refusing(Pass):
    """Refuses every model."""

    name = "refusing"

    def run(self, model, ctx):
        raise PassError("no")


def test_a_summary_is_text():
    with pytest.raises(PassError, match="a summary of 3, which is no text"):
        run_checked(Muttering(), model_from_text(TEXT), Context())


def test_a_pipeline_is_one_already():
    registry = load_plugins(entry_points=[*REFERENCE]).registry
    pipeline = Pipeline.parse("", registry)
    assert Pipeline.of(pipeline, registry) is pipeline


def test_instruments_of_a_build_without_passes_write_nothing(tmp_path, capsys):
    Timing().finish()
    assert capsys.readouterr().err == ""
    reproducer = Reproducer(str(tmp_path / "r"))
    reproducer.failed(Refusing(), PassError("before any model"))
    assert not (tmp_path / "r").exists()


def test_a_reproduction_of_another_format_is_refused(tmp_path):
    (tmp_path / DESCRIPTION_FILE).write_text('{"format": 0}')
    with pytest.raises(UsageError, match="written by another version"):
        Reproduction.read(tmp_path)


class Lazy(Candidate):
    name = "lazy"

    def rewrite(self, model, nodes, ctx):
        return model


def test_a_candidate_gains_nothing_and_is_of_use_by_default():
    assert Lazy().gain(node(), ReferenceBackend()) == 0.0
    assert Lazy().reject_reason(None) == ""


# Options


class Shown(Protocol):
    def show(self): ...


@dataclass(frozen=True)
class Odd(Pass):
    """Has fields of rare kinds."""

    name = "odd"
    flag: bool = False
    names: tuple[str, ...] = dataclasses.field(default_factory=lambda: ("a",))
    shown: Shown | None = None
    tool: str | Shown = "t"
    done: int = dataclasses.field(default=0, init=False)

    def run(self, model, ctx):
        return PassResult(model, False)


def test_text_of_options_leaves_out_defaults_and_what_is_no_option():
    assert format_options(Odd()) == "odd"
    assert format_options(Odd(names=("b", "c"))) == "odd{names=[b,c]}"


def test_flags_of_numpy_and_lists_are_taken():
    odd = Odd(flag=np.True_, names=["x"])
    assert odd.flag is True
    assert odd.names == ("x",)
    with pytest.raises(ValueError, match="names"):
        Odd(names=[1])


def test_a_type_that_cannot_be_checked_takes_anything():
    tool = object()
    assert Odd(tool=tool).tool is tool


@dataclass(frozen=True)
class Picky(Pass):
    """Refuses a combination of its options."""

    name = "picky"
    low: int = 0
    high: int = 1

    def __post_init__(self):
        super().__post_init__()
        if self.low > self.high:
            raise ValueError("low is above high")

    def run(self, model, ctx):
        return PassResult(model, False)


def test_a_pass_that_refuses_its_options_names_them():
    with pytest.raises(ValueError, match="'picky': low is above high"):
        construct(Picky, {"low": "3"})
    with pytest.raises(ValueError, match="takes integer"):
        construct(Picky, {"low": "x"})


# Plugins


@dataclass
class Mutable:
    """Its parameters come first where a class derives from it and from Pass."""

    steps: int = 0


class Thawed(Mutable, Touch):
    """Can be changed once it is checked."""

    name = "thawed"


class OfTheTarget(Reds):
    name = "target"


class Unlike(click.Command):
    def __init__(self):
        super().__init__("--unlike")


@pytest.mark.parametrize(
    ("hook", "given", "said"),
    [
        ("passes", Thawed, "must be a frozen dataclass"),
        ("classifiers", OfTheTarget(), "that is the target's own"),
        ("commands", type("C", (), {"name": "c"})(), "is not a click.Command"),
        ("commands", Unlike(), "that would be an option"),
    ],
)
def test_things_that_plugins_cannot_register(entry_point, hook, given, said):
    point = entry_point("bad", **{f"narrowpass_{hook}": [given]})
    assert said in load_plugins(entry_points=[point]).registry.failed["bad"].error


def test_a_registry_without_an_available_backend(entry_point):
    class Missing(ReferenceBackend):
        name = "missing"

        def available(self):
            return "it is not here"

    registry = load_plugins(
        entry_points=[entry_point("m", narrowpass_backends=[Missing()])]
    ).registry
    with pytest.raises(PluginError, match="no backend is available"):
        registry.backend()


# The rest


def test_samples_without_elements_are_refused():
    with pytest.raises(DataError, match=r"has no elements: input 'x' has shape \[0, 3\]"):
        list(Samples.of([{"x": np.zeros((0, 3), np.float32)}]))


def test_the_project_of_a_folder_that_is_gone(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert str(config._here()) == os.sep


def test_a_bundle_is_built_already():
    plugins = load_plugins(entry_points=[*REFERENCE])
    bundle = narrowpass.build(model_from_text(TEXT), "", plugins=plugins)
    with pytest.raises(UsageError, match="`example_inputs` are for a torch"):
        narrowpass.load(bundle, "reference", example_inputs=[1], plugins=plugins)


def test_weights_of_a_model_in_memory_are_freed(monkeypatch):
    from narrowpass import driver

    collected = []
    monkeypatch.setattr(driver, "_WORTH_COLLECTING", -1)
    monkeypatch.setattr(driver.gc, "collect", lambda: collected.append(1))
    plugins = load_plugins(entry_points=[*REFERENCE])
    program = narrowpass.load(model_from_text(TEXT), "reference", plugins=plugins)
    assert collected == [1]
    assert program.run({"x": np.array([-1], np.float32)})["y"].tolist() == [0]


def test_public_modules_are_there():
    from narrowpass.public import PUBLIC_MODULES

    for name in PUBLIC_MODULES:
        assert importlib.import_module(name).__name__ == name


def test_an_option_of_a_type_without_text():
    with pytest.raises(TypeError, match="options cannot be of type"):
        options._parse_scalar("x", 3.5)


def test_an_error_of_an_option_stays_as_it_is():
    @dataclass(frozen=True)
    class Own(Touch):
        """Refuses its option by the error of options."""

        low: int = 0

        def __post_init__(self):
            raise options.OptionError("low", "too low")

    with pytest.raises(options.OptionError, match=r"^too low$") as error:
        construct(Own, {"low": "3"})
    assert error.value.option == "low"


def test_backends_are_abstract():
    with pytest.raises(TypeError, match="abstract"):
        Backend()


def test_a_field_of_a_generic_type_takes_anything():
    assert options._is_of([1], list[int])
    assert options._is_of("x", list[int])
