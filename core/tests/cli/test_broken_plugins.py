"""A broken plugin ends no command: it is named, and the others go on."""

from __future__ import annotations

import types

import click
import pytest

from narrowpass import hookimpl
from narrowpass_reference import ReferenceBackend


class OfItsOwn(BaseException):
    pass


def _raising(error):
    def method(*_args, **_kwargs):
        raise error

    return method


RAISED = [SystemExit(4), OfItsOwn("mine"), RuntimeError("boom"), RecursionError()]


@pytest.mark.parametrize("error", RAISED, ids=repr)
@pytest.mark.parametrize("command", ["passes", "backends", "build"])
def test_a_hook_that_raises(call, install, model, error, command):
    @hookimpl
    def narrowpass_passes():
        raise error

    module = types.ModuleType("bad_plugin")
    module.narrowpass_passes = narrowpass_passes
    install("bad", plugin=module)
    install("good", narrowpass_commands=[click.Command("greet")])
    arguments = ["build", model, "-o", "m.narrow", "-p", ""] if command == "build" else [command]
    result = call(*arguments)
    assert "plugin 'bad' of dist-bad 1.0 is left out: " + type(error).__name__ in result.err
    assert "Traceback" not in result.err
    assert "greet" in call("--help").out


@pytest.mark.parametrize("error", RAISED, ids=repr)
def test_a_hook_for_commands_that_raises(call, install, error):
    @hookimpl
    def narrowpass_commands():
        raise error

    module = types.ModuleType("bad_plugin")
    module.narrowpass_commands = narrowpass_commands
    install("bad", plugin=module)
    install("good", narrowpass_commands=[click.Command("greet")])
    result = call("--help")
    assert "greet" in result.out
    # Once, however often commands are looked for.
    assert result.err.count("plugin 'bad' of dist-bad 1.0 is left out") == 1


def test_a_plugin_that_cannot_be_imported_is_named_by_the_help(call, install):
    install("bad", plugin=ImportError("no module named 'gone'"))
    install("good", narrowpass_commands=[click.Command("greet")])
    result = call("--help")
    assert "greet" in result.out
    assert "plugin 'bad' of dist-bad 1.0 is left out: ImportError" in result.err


def test_the_help_calls_the_hooks_for_commands_alone(call, install):
    called = []
    module = types.ModuleType("heavy_plugin")

    @hookimpl
    def narrowpass_passes():
        called.append("passes")
        return []

    @hookimpl
    def narrowpass_commands():
        called.append("commands")
        return [click.Command("greet")]

    module.narrowpass_passes, module.narrowpass_commands = narrowpass_passes, narrowpass_commands
    install("heavy", plugin=module)
    assert "greet" in call("--help").out
    assert called == ["commands"]


@pytest.mark.parametrize("error", RAISED, ids=repr)
def test_a_backend_that_cannot_say_whether_it_can_run(call, install, model, error):
    members = {"name": "bad", "priority": 9, "available": _raising(error)}
    install(narrowpass_backends=[type("Bad", (ReferenceBackend,), members)()])
    assert "target: reference" in call("build", model, "-o", "m.narrow", "-p", "").err
    assert f"no: it cannot be asked: {type(error).__name__}" in call("backends").out
    refused = call("build", model, "-o", "m.narrow", "--target", "bad", code=2)
    assert "backend 'bad' is not available here: it cannot be asked" in refused.err


def test_a_default_pipeline_that_raises_does_not_end_the_list(call, install, model):
    members = {"name": "bad", "priority": 9, "default_pipeline": _raising(SystemExit(4))}
    install(narrowpass_backends=[type("Bad", (ReferenceBackend,), members)()])
    result = call("backends")
    assert "reference" in result.out
    assert "backend 'bad' failed in default_pipeline: SystemExit: 4" in result.err
    assert "backend 'bad' failed" in call("build", model, "-o", "m.narrow", code=1).err


@pytest.mark.parametrize("error", [OfItsOwn("mine"), GeneratorExit(), RecursionError()], ids=repr)
def test_a_command_may_raise_anything(call, commands, error):
    commands(bad=_raising(error))
    result = call("bad", code=1)
    assert result.err.startswith("narrowpass: error: ")
    assert "Traceback" not in result.err


def test_a_command_may_end_with_a_code_of_its_own(call, commands):
    commands(bad=_raising(SystemExit(7)))
    call("bad", code=7)


def test_parts_that_cannot_be_listed(call, install):
    from narrowpass import FixedPoint

    members = {"name": "odd", "parts": _raising(SystemExit(4))}
    install(narrowpass_passes=[type("Odd", (FixedPoint,), members)])
    result = call("passes")
    assert "odd" in result.out
    assert "the parts of pass 'odd' cannot be listed: SystemExit: 4" in result.err


def test_names_of_plugins_are_shown_as_text(call, install):
    install("evil\x1b[31m", plugin=RuntimeError("red \x1b[31m"))
    shown = call("plugins").out
    assert "\x1b" not in shown
    assert "evil\\x1b[31m" in shown


def test_a_failing_reproducer_does_not_hide_the_failure_of_the_pass(call, passes, model, tmp_path):
    (tmp_path / "taken").write_text("")
    result = call("build", model, "-o", "m.narrow", "-p", "fail", "--reproducer", "taken", code=1)
    assert "node 'relu' is not to its taste" in result.err
    assert "taken: the folder cannot be created" in result.err
    assert "narrowpass replay" not in result.err
