from __future__ import annotations

import subprocess
import sys
import types

import pytest
from plugins_kit import REFERENCE

from narrowpass import Pass, PassResult, hookimpl, load_plugins
from narrowpass.errors import PluginError


def status(plugins):
    return {info.name: info.status for info in plugins.infos}


def test_plugins_load_in_name_order(entry_point):
    plugins = load_plugins(entry_points=[entry_point(name) for name in ("b", "c", "a")])
    assert [info.name for info in plugins.infos] == ["a", "b", "c"]


def test_a_plugin_that_fails_to_import_is_listed_and_harms_nothing(entry_point, touch):
    points = [
        entry_point("broken", ImportError("no module named nothing")),
        entry_point("exits", SystemExit(3)),
        entry_point("good", narrowpass_passes=[touch]),
    ]
    plugins = load_plugins(entry_points=points)
    assert status(plugins) == {"broken": "failed", "exits": "failed", "good": "loaded"}
    assert plugins.infos[0].error == "ImportError: no module named nothing"
    assert plugins.registry.passes == {"touch": touch}
    assert set(plugins.registry.failed) == {"broken", "exits"}


@pytest.mark.parametrize(
    ("hooks", "error"),
    [
        ({"narrowpass_passes": RuntimeError("boom")}, "RuntimeError: boom"),
        ({"narrowpass_passes": None}, "must return a list"),
        ({"narrowpass_passes": "fold"}, "must return a list"),
        ({"narrowpass_passes": [3]}, "not a subclass of narrowpass.Pass"),
        ({"narrowpass_classifiers": [object()]}, "not an instance of narrowpass.OpClassifier"),
        ({"narrowpass_backends": [object()]}, "not an instance of narrowpass.Backend"),
        ({"narrowpass_pipelines": ["fold"]}, "must return a mapping"),
        ({"narrowpass_commands": [object()]}, "has no name"),
    ],
)
def test_a_plugin_whose_hook_misbehaves_contributes_nothing(entry_point, touch, hooks, error):
    points = [entry_point("bad", **hooks), entry_point("good", narrowpass_passes=[touch])]
    registry = load_plugins(entry_points=points).registry
    assert error in registry.failed["bad"].error
    assert registry.passes == {"touch": touch}


def test_a_pass_must_be_a_dataclass_with_a_name(entry_point):
    class Plain(Pass):
        def run(self, model, ctx):
            return PassResult(model, modified=False)

    point = entry_point("bad", narrowpass_passes=[Plain])
    registry = load_plugins(entry_points=[point]).registry
    assert "has no name" in registry.failed["bad"].error


def test_one_plugin_registers_a_name_once(entry_point, touch):
    point = entry_point("bad", narrowpass_passes=[touch, touch])
    registry = load_plugins(entry_points=[point]).registry
    assert "two things called 'touch'" in registry.failed["bad"].error


def test_a_misspelled_hook_is_an_error_with_a_suggestion(entry_point):
    plugins = load_plugins(entry_points=[entry_point("p", narrowpass_pases=[])])
    assert plugins.infos[0].status == "failed"
    assert "did you mean 'narrowpass_passes'?" in plugins.infos[0].error


def test_a_hook_without_the_marker_is_an_error(entry_point):
    module = types.ModuleType("unmarked")

    def narrowpass_passes():
        return []

    module.narrowpass_passes = narrowpass_passes
    plugins = load_plugins(entry_points=[entry_point("p", module)])
    assert "mark 'narrowpass_passes' with @narrowpass.hookimpl" in plugins.infos[0].error


def test_a_hook_with_an_argument_that_the_specification_lacks_is_an_error(entry_point):
    module = types.ModuleType("odd")

    @hookimpl
    def narrowpass_passes(registry):
        return []

    module.narrowpass_passes = narrowpass_passes
    plugins = load_plugins(entry_points=[entry_point("p", module)])
    assert plugins.infos[0].status == "failed"
    assert "registry" in plugins.infos[0].error


def test_the_same_pass_from_two_distributions_names_both(entry_point, touch):
    points = [
        entry_point("a", dist="one", narrowpass_passes=[touch]),
        entry_point("b", dist="two", version="2.1", narrowpass_passes=[touch]),
    ]
    registry = load_plugins(entry_points=points).registry
    for _ in range(2):  # the same when it is read again
        with pytest.raises(PluginError, match=r"'touch'.*both one 1\.0 and two 2\.1"):
            list(registry.passes)
    assert load_plugins(["b"], entry_points=points).registry.passes == {"touch": touch}


def test_a_pass_and_a_pipeline_share_their_names(entry_point, touch):
    points = [
        entry_point("a", dist="one", narrowpass_passes=[touch]),
        entry_point("b", dist="two", narrowpass_pipelines={"touch": ""}),
    ]
    registry = load_plugins(entry_points=points).registry
    with pytest.raises(PluginError, match=r"both one 1\.0 and two 1\.0"):
        list(registry.passes), list(registry.pipelines)


def test_two_plugins_of_one_name_name_both_distributions(entry_point):
    points = [entry_point("same", dist="one"), entry_point("same", dist="two")]
    with pytest.raises(PluginError, match=r"'same': one 1\.0 and two 1\.0"):
        _ = load_plugins(entry_points=points).registry


def test_a_backend_that_another_plugin_registers_cannot_be_replaced(entry_point):
    class Impostor(type(load_plugins(entry_points=REFERENCE).registry.backends["reference"])):
        pass

    point = entry_point("p", dist="impostor", narrowpass_backends=[Impostor()])
    with pytest.raises(PluginError, match=r"impostor 1\.0 and narrowpass-reference "):
        list(load_plugins(entry_points=[point, *REFERENCE]).registry.backends)


@pytest.mark.parametrize(
    ("requirement", "accepted"),
    [
        ("narrowpass", True),
        ("narrowpass>=0.1", True),
        ("narrowpass-testing>=0.1", True),
        ("narrowpass>=99", False),
        ("Narrowpass<0.0.1", False),
        ('narrowpass>=99; extra == "future"', True),
        ('narrowpass>=99; python_version >= "3"', False),
        ("narrowpass (>=99)", False),
        ("narrowpass>=one", True),
        ("narrowpass of tomorrow", True),
        ("numpy>=99", True),
        ("not a requirement !", True),
    ],
)
def test_the_declared_requirement_on_narrowpass_is_checked(entry_point, requirement, accepted):
    plugins = load_plugins(entry_points=[entry_point("p", requires=[requirement])])
    assert (plugins.infos[0].status == "loaded") is accepted
    assert accepted or "narrowpass" in plugins.infos[0].error


def test_a_disabled_plugin_is_not_imported(entry_point, monkeypatch):
    point = entry_point("p", AssertionError("imported"))
    assert status(load_plugins(["p"], [point])) == {"p": "disabled"}
    monkeypatch.setenv("NARROWPASS_DISABLE_PLUGINS", "other, p")
    plugins = load_plugins(entry_points=[point])
    assert status(plugins) == {"p": "disabled"}
    assert plugins.unmatched == ("other",)
    monkeypatch.setenv("NARROWPASS_DISABLE_PLUGINS", "*")
    assert status(load_plugins(entry_points=[point])) == {"p": "disabled"}


@pytest.mark.parametrize(("kind", "name"), [("pass", "fp16"), ("backend", "elsewhere")])
def test_a_name_like_no_other_may_be_that_of_a_missing_plugin(entry_point, touch, kind, name):
    registry = load_plugins(entry_points=[entry_point("fake", narrowpass_passes=[touch])]).registry
    text = registry.unknown(kind, name, {"touch": touch})
    missing = f"no {kind} {name!r} is installed; install the plugin that has it"
    assert text == f"{missing}; installed: touch"


def test_an_unknown_name_lists_what_is_installed_and_what_failed(entry_point, touch):
    points = [
        entry_point("broken", ImportError("gone")),
        entry_point("good", narrowpass_passes=[touch]),
    ]
    registry = load_plugins(entry_points=points).registry
    text = registry.unknown("pass", "tuoch", registry.passes)
    assert "did you mean 'touch'?" in text
    assert "broken: ImportError: gone" in text


def test_a_backend_that_is_not_available_reports_its_reason(entry_point):
    base = type(load_plugins(entry_points=REFERENCE).registry.backends["reference"])

    class Elsewhere(base):
        name = "elsewhere"
        priority = 99

        def available(self):
            return "it needs a CPU of another kind"

    point = entry_point("p", narrowpass_backends=[Elsewhere()])
    registry = load_plugins(entry_points=[point, *REFERENCE]).registry
    assert registry.backend().name == "reference"
    with pytest.raises(PluginError, match="'elsewhere' is not available here: it needs"):
        registry.backend("elsewhere")
    assert registry.backend("elsewhere", must_run=False).name == "elsewhere"
    with pytest.raises(PluginError, match="no backend 'else' is installed"):
        registry.backend("else")


def test_what_entry_modules_import_is_light():
    """A plugin's entry module imports these: none of them may pull in the heavy libraries."""
    code = (
        "import sys\n"
        "from narrowpass import (Pass, PassResult, hookimpl, OpClassifier, Backend, Instrument,\n"
        "    Color, OpDtypes, Accept, Reject, load_plugins, Context, Decision)\n"
        "heavy = {'onnx', 'onnx_ir', 'numpy', 'rich', 'click'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_public_names_are_all_there():
    import narrowpass

    for name in narrowpass.__all__:
        assert getattr(narrowpass, name) is not None
    assert set(narrowpass.__all__) < set(dir(narrowpass))
    assert sorted(narrowpass.__all__) == narrowpass.__all__
    assert narrowpass.__version__.count(".") >= 2
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = narrowpass.nothing
