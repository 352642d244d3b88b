"""The group: help, errors, plugins' commands, log messages, and what is imported when."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import warnings

import click
import pytest
from click.testing import CliRunner

from narrowpass.cli import app
from narrowpass.cli._app import COMMANDS
from narrowpass.errors import ModelError, UsageError


def _process(*arguments, **options):
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, **options
    )


def test_version(call):
    assert call("--version").out.startswith("narrowpass ")


def test_help_lists_the_commands(call):
    shown = call("--help").out
    for name in COMMANDS:
        assert f"\n  {name} " in shown
    assert "Exit codes" in shown


def test_no_arguments_print_the_help_as_a_mistake(call):
    result = call(code=2)
    assert result.out == ""
    assert result.err.startswith("Usage:")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command(call, name):
    shown = call(name, "--help").out
    assert shown.startswith("Usage: narrowpass")
    assert "..." not in app.get_command(click.Context(app), name).get_short_help_str(60)


def test_click_runner_works(install):
    result = CliRunner().invoke(app, ["backends"])
    assert result.exit_code == 0
    assert "reference" in result.output


def test_module_is_a_program():
    assert _process("-m", "narrowpass", "--version").stdout.startswith("narrowpass ")


def test_list_of_plugins_imports_nothing_heavy():
    program = (
        "import sys; from narrowpass.cli import main\n"
        "try: main(['plugins'])\n"
        "finally: print(sorted(sys.modules), file=sys.stderr)"
    )
    done = _process("-c", program)
    assert done.returncode == 0, done.stderr
    for name in ("onnx", "onnx_ir", "numpy", "rich", "safetensors", "ml_dtypes"):
        assert f"'{name}'" not in done.stderr


# Plugins


def test_command_of_a_plugin(call, commands):
    commands(greet=lambda: click.echo("hello"))
    assert call("greet").out == "hello\n"
    assert "greet" in call("--help").out
    assert "no command 'gret'" in call("gret", code=2).err
    assert "did you mean 'greet'?" in call("gret", code=2).err
    assert "no command 'greet'" in call("--disable-plugin", "fake", "greet", code=2).err


def test_command_with_the_name_of_a_built_in_one(call, commands):
    commands(completion=lambda: None, greet=lambda: None)
    error = call("greet", code=2).err
    assert "'completion' of dist-fake 1.0" in error
    assert "--disable-plugin" in error
    helped = call("--help")
    assert "\n  build " in helped.out
    assert "dist-fake" in helped.err
    assert call("completion", "--help").out.startswith("Usage: narrowpass completion")


def test_broken_plugin_stops_nothing(call, install):
    install("bad", plugin=ImportError("no module named 'gone'"))
    result = call("plugins")
    assert "failed" in result.out
    assert "gone" in result.out
    assert "narrowpass: warning: plugin 'bad' of dist-bad 1.0 is left out" in call("backends").err
    assert "gone" in call("no-such-command", code=2).err


def test_disabled_plugins(call, passes, monkeypatch):
    listed = call("--disable-plugin", "f*", "plugins", "--json").json["plugins"]
    [fake] = [plugin for plugin in listed if plugin["name"] == "fake"]
    assert fake == {
        "name": "fake",
        "distribution": "dist-fake 1.0",
        "module": "fake.module",
        "status": "disabled",
        "error": "",
        "hooks": [],
    }
    assert call("--disable-plugin", "fake", "passes", "--json").json["passes"] == []
    call("--disable-plugin", "nothing*", "plugins")
    assert "did you mean 'fake'?" in call("--disable-plugin", "fakes", "plugins", code=2).err
    monkeypatch.setenv("NARROWPASS_DISABLE_PLUGINS", "other")
    assert "warning: NARROWPASS_DISABLE_PLUGINS names 'other'" in call("plugins").err


# Errors


def _raiser(error):
    def callback():
        raise error

    return callback


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ModelError("m.onnx: bad"), 1, "error: m.onnx: bad\n"),
        (UsageError("--x: bad"), 2, "error: --x: bad\n"),
        (click.ClickException("shown"), 1, "error: shown"),
        (click.BadParameter("shown"), 2, "shown"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError(), 1, "out of memory;"),
        (MemoryError("Unable to allocate 9 TiB"), 1, "out of memory: Unable to allocate 9 TiB;"),
        (RecursionError(), 1, "nested too deeply"),
        (
            OSError(errno.ENOSPC, "No space left on device", "f"),
            1,
            "f: No space left on device; free",
        ),
        (PermissionError(errno.EACCES, "Permission denied", "f"), 1, "f: Permission denied"),
        (
            ZeroDivisionError("division\nby zero"),
            1,
            "internal error: ZeroDivisionError: division by",
        ),
        (AssertionError(), 1, "internal error: AssertionError; please report"),
    ],
)
def test_every_error_is_a_sentence(call, commands, error, code, said):
    commands(bad=_raiser(error))
    result = call("bad", code=code)
    assert "narrowpass: error: " in result.err
    assert said in result.err
    assert "Traceback" not in result.err
    assert result.out == ""


@pytest.mark.parametrize("value", ["1", "yes"])
def test_tracebacks_on_demand(call, commands, monkeypatch, value):
    commands(bad=_raiser(ModelError("shown")))
    result = call("--traceback", "bad", code=1)
    assert "Traceback" in result.err
    assert result.err.endswith("narrowpass: error: shown\n")
    monkeypatch.setenv("NARROWPASS_TRACEBACK", value)
    assert "Traceback" in call("bad", code=1).err
    monkeypatch.setenv("NARROWPASS_TRACEBACK", "0")
    assert "Traceback" not in call("bad", code=1).err


def test_exit_code_of_a_command(call, commands):
    commands(three=lambda: click.get_current_context().exit(3), seven=lambda: 7)
    call("three", code=3)
    call("seven", code=0)


def test_control_characters_are_escaped(call, commands):
    commands(bad=_raiser(ModelError("node \x1b[31m")))
    assert "node \\x1b[31m" in call("bad", code=1).err


@pytest.mark.skipif(sys.platform == "win32", reason="pipes differ")
def test_reader_that_goes_away():
    reading, writing = os.pipe()
    os.close(reading)
    program = "import narrowpass.cli; narrowpass.cli.main(['passes', '--json'])"
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=writing, stderr=subprocess.PIPE, check=False
    )
    os.close(writing)
    assert done.stderr == b""
    assert done.returncode == 1


# Messages


def test_log_messages(call, commands):
    log = logging.getLogger("narrowpass")

    def speak():
        log.debug("details")
        log.info("a note")
        log.warning("careful")
        warnings.warn("from a library", UserWarning, stacklevel=1)

    commands(speak=speak)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert call("speak").err == "narrowpass: warning: careful\n"
        assert call("-q", "speak").err == ""
        loud = call("-v", "speak").err
        assert "narrowpass: info: a note\n" in loud
        assert "from a library" in loud
        assert "details" not in loud
        assert "details" in call("-vv", "speak").err


def test_options_of_the_group_may_stand_after_the_command(call, commands):
    log = logging.getLogger("narrowpass")

    def speak():
        log.debug("details")
        log.info("a note")
        log.warning("careful")

    commands(speak=speak)
    assert call("speak", "-q").err == ""
    assert "a note" in call("speak", "-v").err
    assert "details" in call("speak", "-vv").err
    assert "details" in call("-v", "speak", "--verbose").err
    assert "careful" in call("speak").err  # nothing stays
    call("plugins", "--quiet", "--traceback")


def _say(query):
    click.echo(query)


def test_options_of_a_command_go_before_those_of_the_group(call, install):
    option = click.Option(["-q", "query"])
    command = click.Command("ask", params=[option], callback=_say)
    install(narrowpass_commands=[command])
    assert call("ask", "-q", "what").out == "what\n"
    assert call("ask", "-q", "what", "--quiet").out == "what\n"


def test_options_of_the_group_may_stand_after_commands_of_a_plugins_group(call, install):
    child = click.Command("ask", callback=lambda: logging.getLogger("narrowpass").info("a note"))
    install(narrowpass_commands=[click.Group("oracle", commands=[child])])
    assert "a note" in call("oracle", "ask", "-v").err
    assert "a note" in call("oracle", "-v", "ask").err


def test_logging_is_as_before(call):
    log = logging.getLogger("narrowpass")
    before = (list(log.handlers), log.level, log.propagate, warnings.showwarning)
    call("plugins")
    assert (list(log.handlers), log.level, log.propagate, warnings.showwarning) == before


# Completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(call, shell):
    script = call("completion", shell).out
    assert "_NARROWPASS_COMPLETE" in script
    assert "narrowpass" in script


def _completed(monkeypatch, capsys, *words):
    monkeypatch.setenv("_NARROWPASS_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", " ".join(["narrowpass", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    with pytest.raises(SystemExit):
        app.main([])
    return [line.partition(",")[2] for line in capsys.readouterr().out.split()]


def test_completion_of_names(passes, monkeypatch, capsys):
    assert _completed(monkeypatch, capsys, "bu") == ["build"]
    assert "--pipeline" in _completed(monkeypatch, capsys, "build", "--p")
    assert _completed(monkeypatch, capsys, "build", "-p", "ne") == ["negate"]
    assert _completed(monkeypatch, capsys, "build", "-p", "fail,t") == ["fail,twice"]
    assert _completed(monkeypatch, capsys, "run", "--backend", "r") == ["reference"]
    assert _completed(monkeypatch, capsys, "build", "--instrument", "ti") == ["timing"]


def test_completion_survives_broken_plugins(install, monkeypatch, capsys):
    install("one", narrowpass_pipelines={"a": ""})
    install("two", narrowpass_pipelines={"a": ""})
    assert _completed(monkeypatch, capsys, "build", "-p", "a") == []
    assert "build" in _completed(monkeypatch, capsys, "b")
