"""A plugin that is broken is named and left out, whatever it raises or returns."""

from __future__ import annotations

import types
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
import pytest
from plugins_kit import REFERENCE

import narrowpass
from narrowpass import (
    Accept,
    Backend,
    Color,
    Context,
    Decision,
    Instrument,
    OpClassifier,
    OpDtypes,
    Pass,
    PassResult,
    Pipeline,
    build,
    choose_classifiers,
    hookimpl,
    load,
    load_plugins,
)
from narrowpass.errors import BackendError, PassError, PluginError, UsageError
from narrowpass.runtime.backend import CompileOptions, compile_bundle
from narrowpass_reference import ReferenceBackend
from narrowpass_testing import model_from_text


class OfItsOwn(BaseException):
    pass


class UnspeakableError(Exception):
    def __str__(self):
        raise SystemExit(5)


ERRORS = [
    RuntimeError("boom"),
    SystemExit(4),
    SystemExit(),
    OfItsOwn("mine"),
    GeneratorExit(),
    RecursionError("too deep"),
    MemoryError(),
    StopIteration(),
    AssertionError(),
    UnspeakableError(),
]


def _kind(value):
    return type(value).__name__


def _name(error):
    return type(error).__name__


def model():
    return model_from_text("g (float[N] x) => (float[N] y) { [act] y = Relu(x) }")


def raising(error):
    def method(*_args, **_kwargs):
        raise error

    return method


HOOKS = ["passes", "classifiers", "backends", "instruments", "pipelines", "commands"]


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("error", ERRORS, ids=_name)
def test_a_hook_may_raise_anything(entry_point, touch, error, hook):
    points = [
        entry_point("bad", **{f"narrowpass_{hook}": error}),
        entry_point("good", narrowpass_passes=[touch]),
        *REFERENCE,
    ]
    registry = load_plugins(entry_points=points).registry
    assert _name(error) in registry.failed["bad"].error
    assert registry.passes == {"touch": touch}
    assert set(registry.backends) == {"reference"}


@pytest.mark.parametrize("error", ERRORS, ids=_name)
def test_an_import_may_raise_anything(entry_point, touch, error):
    points = [entry_point("bad", error), entry_point("good", narrowpass_passes=[touch])]
    registry = load_plugins(entry_points=points).registry
    assert _name(error) in registry.failed["bad"].error
    assert registry.passes == {"touch": touch}


def test_an_interrupt_is_the_users_own(entry_point):
    with pytest.raises(KeyboardInterrupt):
        load_plugins(entry_points=[entry_point("p", KeyboardInterrupt())])
    point = entry_point("p", narrowpass_passes=KeyboardInterrupt())
    registry = load_plugins(entry_points=[point]).registry
    with pytest.raises(KeyboardInterrupt):
        list(registry.passes)


def test_a_hook_that_yields_may_raise_between(entry_point, touch):
    module = types.ModuleType("late")

    @hookimpl
    def narrowpass_passes():
        yield touch
        raise SystemExit(4)

    module.narrowpass_passes = narrowpass_passes
    registry = load_plugins(entry_points=[entry_point("bad", module)]).registry
    assert registry.failed["bad"].error == "SystemExit: 4"
    assert registry.passes == {}


def test_metadata_may_be_damaged(entry_point, touch):
    class Damaged:
        @property
        def name(self):
            raise KeyError("Name")

        version = None
        requires = None

    good, bad = entry_point("good", narrowpass_passes=[touch]), entry_point("bad")
    bad.dist = Damaged()
    plugins = load_plugins(entry_points=[good, bad])
    assert plugins.infos[0].distribution == "unknown distribution"
    assert plugins.registry.passes == {"touch": touch}


# Names


NAMES = [
    "evil{}\n,",
    "two words",
    "tab\t",
    "a,b",
    "a=b",
    'quo"te',
    "[x]",
    "esc\x1b[31m",
    "nul\0",
    "\ud800",
    "",
    3,
    None,
]


def _passes(name):
    return [type("P", (narrowpass.FixedPoint,), {"name": name, "parts": lambda self: ()})]


def _backends(name):
    return [type("B", (ReferenceBackend,), {"name": name})()]


def _classifiers(name):
    return [type("C", (OpClassifier,), {"name": name, "color": lambda self, node: None})()]


def _instruments(name):
    return [type("I", (Instrument,), {"name": name})]


def _pipelines(name):
    return {name: ""}


def _commands(name):
    click = pytest.importorskip("click")
    command = click.Command("placeholder")
    command.name = name
    return [command]


KINDS = {
    "passes": _passes,
    "backends": _backends,
    "classifiers": _classifiers,
    "instruments": _instruments,
    "pipelines": _pipelines,
    "commands": _commands,
}


@pytest.mark.parametrize("name", NAMES, ids=ascii)
@pytest.mark.parametrize("kind", KINDS)
def test_a_name_that_pipeline_text_cannot_have(entry_point, kind, name):
    point = entry_point("bad", **{f"narrowpass_{kind}": KINDS[kind](name)})
    registry = load_plugins(entry_points=[point]).registry
    assert "name" in registry.failed["bad"].error
    assert registry.failed["bad"].error.isprintable()
    assert name not in getattr(registry, kind)


@pytest.mark.parametrize("name", ["fold", "mixed-precision", "a.b/c", "größe", "v2_x"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_name_that_pipeline_text_can_have(entry_point, kind, name):
    point = entry_point("good", **{f"narrowpass_{kind}": KINDS[kind](name)})
    registry = load_plugins(entry_points=[point]).registry
    assert not registry.failed
    assert name in getattr(registry, kind)
    if kind == "passes":
        assert [item.name for item in Pipeline.parse(name, registry)] == [name]


@pytest.mark.parametrize(("kind", "name"), [("classifiers", "a+b"), ("commands", "--help")])
def test_names_that_one_kind_cannot_have(entry_point, kind, name):
    point = entry_point("bad", **{f"narrowpass_{kind}": KINDS[kind](name)})
    assert name in load_plugins(entry_points=[point]).registry.failed["bad"].error


def test_a_name_of_a_projects_pipeline(tmp_path, entry_point):
    from narrowpass.framework.config import registry_for

    (tmp_path / "pyproject.toml").write_text('[tool.narrowpass.pipelines]\n"a b" = "fold"\n')
    with pytest.raises(UsageError, match=r"pyproject\.toml: the name of pipeline 'a b'"):
        registry_for(load_plugins(entry_points=[]), tmp_path)


# What hooks return


def _with(**members):
    members = {"name": "odd", "run": lambda self, model, ctx: PassResult(model, False), **members}
    return type("Odd", (Pass,), members)


@dataclass(frozen=True)
class Abstract(Pass):
    name = "abstract"


class Undecorated(Pass):
    name = "undecorated"
    threshold: int = 3

    def run(self, model, ctx):
        return PassResult(model, modified=False)


@dataclass(frozen=True)
class Unresolved(Pass):
    name = "unresolved"
    threshold: NoSuchType = 3  # noqa: F821

    def run(self, model, ctx):
        return PassResult(model, modified=False)


@dataclass(frozen=True)
class BadDefault(Pass):
    name = "bad-default"
    items: tuple[str, ...] = field(default_factory=raising(OfItsOwn("factory")))

    def run(self, model, ctx):
        return PassResult(model, modified=False)


class NoName(type(Pass)):
    @property
    def name(cls):
        raise OfItsOwn("name")


class BadHelp:
    help = 3


@pytest.mark.parametrize(
    ("hook", "given", "said"),
    [
        ("passes", [Abstract], "does not implement run"),
        ("passes", [Undecorated], "@dataclass(frozen=True)"),
        ("passes", [Unresolved], "NoSuchType"),
        ("passes", [BadDefault], "OfItsOwn: factory"),
        ("passes", [_with(requires="fold")], "must be a tuple of names"),
        ("passes", [_with(forbids=(3,))], "must be a tuple of names"),
        ("passes", [_with(serves="int8")], "must be a mapping of requests"),
        ("passes", [_with(serves={"int8": None})], "must be a mapping of requests"),
        ("passes", [NoName("Bad", (Pass,), {})], "OfItsOwn: name"),
        ("passes", {"odd": _with()}, "must return a list"),
        ("passes", b"odd", "must return a list"),
        ("passes", object, "must return a list"),
        ("backends", [type("B", (ReferenceBackend,), {"name": "b", "priority": "1"})()], "no num"),
        ("backends", [ReferenceBackend], "not an instance"),
        ("pipelines", {"p": 3}, "must be text"),
        ("instruments", [Instrument()], "not a subclass"),
    ],
)
def test_hooks_that_return_a_wrong_type(entry_point, touch, hook, given, said):
    points = [
        entry_point("bad", **{f"narrowpass_{hook}": given}),
        entry_point("good", narrowpass_passes=[touch]),
    ]
    registry = load_plugins(entry_points=points).registry
    assert said in registry.failed["bad"].error
    assert registry.passes == {"touch": touch}


def test_commands_whose_help_is_no_text(entry_point):
    click = pytest.importorskip("click")
    command = click.Command("odd")
    command.help = 3
    registry = load_plugins(
        entry_points=[entry_point("bad", narrowpass_commands=[command])]
    ).registry
    assert registry.failed["bad"].error
    assert registry.commands == {}


# Backends


def _backend(**methods):
    return type("Bad", (ReferenceBackend,), {"name": "bad", "priority": 9, **methods})()


def _plugins(entry_point, **hooks):
    return load_plugins(entry_points=[entry_point("p", **hooks), *REFERENCE])


@pytest.mark.parametrize("error", ERRORS, ids=_name)
def test_a_backend_that_cannot_say_whether_it_can_run_cannot(entry_point, error):
    plugins = _plugins(entry_point, narrowpass_backends=[_backend(available=raising(error))])
    assert plugins.registry.backend().name == "reference"
    with pytest.raises(PluginError, match="'bad' is not available here: it cannot be asked"):
        plugins.registry.backend("bad")
    assert set(build(model(), "", plugins=plugins).methods) == {"main"}


def test_a_backend_whose_availability_is_no_text(entry_point):
    plugins = _plugins(entry_point, narrowpass_backends=[_backend(available=lambda self: 3)])
    with pytest.raises(PluginError, match="it gave 3, not a reason"):
        plugins.registry.backend("bad")


QUESTIONS = {
    "default_pipeline": lambda backend: backend.default_pipeline(()),
    "supports": lambda backend: backend.supports(ir.node("Relu", [])),
    "quantization_spec": lambda backend: backend.quantization_spec(),
    "gain": lambda backend: backend.gain(ir.node("Relu", []), OpDtypes("float32", "float16")),
    "compile": lambda backend: compile_bundle(
        backend, narrowpass.Bundle({"main": model()}), CompileOptions()
    ),
}


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("error", ERRORS, ids=_name)
def test_a_method_of_a_backend_may_raise_anything(question, error):
    backend = _backend(**{question: raising(error)})
    with pytest.raises(BackendError, match=f"^backend 'bad' failed in {question}: "):
        QUESTIONS[question](backend)


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("answer", [None, 3j, (), Accept, "nan"], ids=repr)
def test_a_method_of_a_backend_may_return_anything(question, answer):
    if question == "default_pipeline" and isinstance(answer, str):
        answer = 3
    given = float("nan") if answer == "nan" else answer
    backend = _backend(**{question: lambda self, *_: given})
    with pytest.raises(BackendError, match=rf"^backend 'bad' gave .* in {question}, where "):
        QUESTIONS[question](backend)


def test_errors_of_ours_stay_as_they_are():
    backend = _backend(compile=raising(UsageError("as it is")))
    with pytest.raises(UsageError, match=r"^as it is$"):
        QUESTIONS["compile"](backend)
    with pytest.raises(KeyboardInterrupt):
        QUESTIONS["gain"](_backend(gain=raising(KeyboardInterrupt())))


def test_a_backend_without_compile_is_still_abstract():
    class Half(Backend):
        name = "half"

        def supports(self, node):
            return Accept()

    with pytest.raises(TypeError, match="compile"):
        Half()


def test_build_and_load_name_the_backend(entry_point):
    plugins = _plugins(entry_point, narrowpass_backends=[_backend(compile=lambda *_: 3)])
    with pytest.raises(BackendError, match="'bad' gave 3 in compile"):
        load(model(), plugins=plugins)
    backend = _backend(default_pipeline=lambda *_: None)
    plugins = _plugins(entry_point, narrowpass_backends=[backend])
    with pytest.raises(BackendError, match="'bad' gave None in default_pipeline"):
        build(model(), plugins=plugins)


# Classifiers


@pytest.mark.parametrize("error", ERRORS, ids=_name)
@pytest.mark.parametrize("question", ["color", "dtypes"])
def test_a_classifier_may_raise_anything(error, question):
    [classifier] = _classifiers("bad")
    setattr(classifier, question, raising(error))
    chain = choose_classifiers("bad", {"bad": classifier})
    with pytest.raises(PassError, match=f"classifier 'bad' failed in {question} of node 'act'"):
        getattr(chain, question)(model().graph[0])


@pytest.mark.parametrize("bound", [None, 3, Color.RED, *ERRORS], ids=_kind)
def test_a_classifier_for_a_target_may_be_anything(bound):
    [classifier] = _classifiers("bad")
    function = raising(bound) if isinstance(bound, BaseException) else lambda *_: bound
    classifier.for_target = function
    with pytest.raises(PluginError, match="classifier 'bad' failed in for_target"):
        choose_classifiers("bad", {"bad": classifier})


@pytest.mark.parametrize("own", [3, "text", *ERRORS], ids=_kind)
def test_the_classifier_of_a_target_may_be_anything(own):
    function = raising(own) if isinstance(own, BaseException) else lambda _: own
    backend = _backend(classifier=property(function))
    with pytest.raises(PluginError, match="backend 'bad'"):
        choose_classifiers("target", {}, backend)


# Passes


@pytest.mark.parametrize("error", ERRORS, ids=_name)
def test_a_pass_may_raise_anything(registry_of, error):
    registry = registry_of(_with(run=raising(error)))
    with pytest.raises(PassError, match=f"pass 'odd' failed: {_name(error)}"):
        Pipeline.parse("odd", registry).run(model(), Context())


@pytest.mark.parametrize(
    "given", [None, 3, PassResult(None, True), PassResult("m", False)], ids=str
)
def test_a_pass_may_return_anything(registry_of, given):
    registry = registry_of(_with(run=lambda self, model, ctx: given))
    with pytest.raises(PassError, match="pass 'odd': it gave "):
        Pipeline.parse("odd", registry).run(model(), Context())


@pytest.mark.parametrize(
    "left", [("counters", "text"), ("counters", 0.5), ("decisions", "text"), ("decisions", None)]
)
def test_a_pass_may_leave_anything_in_the_context(registry_of, left):
    kind, value = left

    def run(self, model, ctx):
        if kind == "counters":
            ctx.counters["x"] = value
        else:
            ctx.decisions.append(value)
        return PassResult(model, modified=False)

    with pytest.raises(PassError, match=r"pass 'odd': it (counted|decided) "):
        Pipeline.parse("odd", registry_of(_with(run=run))).run(model(), Context())


def test_numbers_of_numpy_are_written_as_those_of_python(entry_point, tmp_path):
    np = pytest.importorskip("numpy")

    def run(self, model, ctx):
        ctx.counters["seen"] += np.int64(3)
        ctx.decisions.append(
            Decision("act", "Relu", "kept", "odd", measured=np.float32(0.5), limit=np.int32(2))
        )
        return PassResult(model, modified=False)

    plugins = _plugins(entry_point, narrowpass_passes=[_with(run=run)])
    build(model(), "odd", tmp_path / "m.narrow", plugins=plugins)
    [report] = narrowpass.Bundle.load(tmp_path / "m.narrow").reports
    assert report.methods["main"].counters == {"seen": 3}
    assert report.methods["main"].decisions[0]["measured"] == 0.5


@pytest.mark.parametrize(
    "error", [e for e in ERRORS if not isinstance(e, StopIteration)], ids=_name
)
def test_a_pass_that_cannot_be_constructed(registry_of, error):
    registry = registry_of(_with(__post_init__=raising(error)))
    with pytest.raises(PluginError, match="'odd' cannot be constructed"):
        Pipeline.parse("odd", registry)


# Instruments


@dataclass
class Bad(Instrument):
    name = "bad"


@pytest.mark.parametrize("event", ["before_pass", "after_pass", "finish"])
@pytest.mark.parametrize("error", ERRORS, ids=_name)
def test_an_instrument_may_raise_anything(registry_of, event, error):
    watching = type("Watching", (Bad,), {event: raising(error)})()
    pipeline = Pipeline.parse("odd", registry_of(_with()))
    with pytest.raises(PluginError, match=f"instrument 'bad' failed in {event}: "):
        pipeline.run(model(), Context(), instruments=[watching])


@pytest.mark.parametrize("error", ERRORS, ids=_name)
def test_an_instrument_does_not_hide_the_failure_of_a_pass(registry_of, caplog, error):
    seen: list[Any] = []
    watching = type("Watching", (Bad,), {"failed": raising(error)})()
    other = type("Other", (Bad,), {"failed": lambda self, pass_, error: seen.append(error)})()
    pipeline = Pipeline.parse("odd", registry_of(_with(run=raising(SystemExit(3)))))
    with pytest.raises(PassError, match="pass 'odd' failed: SystemExit: 3"):
        pipeline.run(model(), Context(), instruments=[watching, other])
    assert "instrument 'bad' failed in failed" in caplog.text
    assert [str(error) for error in seen] == ["SystemExit: 3"]


# Calibration


@pytest.mark.parametrize(
    "error", [e for e in ERRORS if not isinstance(e, StopIteration)], ids=_name
)
def test_calibration_may_raise_anything(error):
    from narrowpass import Samples
    from narrowpass.errors import DataError

    def later():
        yield {}
        raise error

    for function in (raising(error), later):
        with pytest.raises(DataError, match="failed"):
            list(Samples.of(function))


@pytest.mark.parametrize("body", ["1 / 0", "raise SystemExit(3)", "def", "import nothing_of_this"])
def test_a_module_of_calibration_may_fail(tmp_path, monkeypatch, body):
    from narrowpass import Samples

    name = f"samples_{abs(hash(body))}"
    (tmp_path / f"{name}.py").write_text(body)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=f"{name}:samples cannot be imported"):
        Samples.parse(f"{name}:samples")
