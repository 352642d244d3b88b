"""Calls of the command line that other tests leave out: refusals, and rare outputs."""

from __future__ import annotations

import errno
import io
import runpy
import sys
import time
from dataclasses import dataclass
from typing import ClassVar

import click
import pytest

from narrowpass import Instrument, Pass, PassResult
from narrowpass.cli import _errors, app, completion, main, options, output
from narrowpass.cli._app import COMMANDS
from narrowpass.cli.passes import _notes
from narrowpass.cli.watch import _Each
from narrowpass.errors import UsageError


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("a.onnx", "b.onnx", "-o", "x.narrow"), "several models need names"),
        (("one=", "two=b.onnx", "-o", "x.narrow"), "there is no file after '='"),
        (("one=a.onnx", "one=b.onnx", "-o", "x.narrow"), "'one' is given twice"),
        (("a.onnx", "-o", ""), "the name of the output is empty"),
        (("a.onnx", "-o", "none/x.narrow"), "the folder none does not exist"),
        (("a.onnx", "-o", "full"), "is a folder with other things in it"),
    ],
)
def test_wrong_calls_of_build(call, tmp_path, arguments, said):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    assert said in call("build", *arguments, code=2).err
    assert (tmp_path / "full" / "notes.txt").read_text() == "mine"


def test_a_note_names_max_error_where_it_can_be_had(call, install, tmp_path):
    from onnx import parser, save

    @dataclass(frozen=True)
    class Chooser(Pass):
        """Chooses nothing."""

        name = "chooser"
        serves: ClassVar[dict[str, str]] = {"--max-error": ""}

        def run(self, model, ctx):
            return PassResult(model, False)

    install(narrowpass_passes=[Chooser])
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[2] x) => (float[2] y) {y = Neg(x)}'
    save(parser.parse_model(text), tmp_path / "m.onnx")
    assert "--max-error rel:1e-2 chooses" in call("build", "m.onnx", "-o", "m.narrow").err


def test_an_argument_with_a_nul(call):
    assert "has a NUL character; leave it out" in call("plugins", "a\0b", code=2).err


def test_an_error_without_a_sentence_prints_nothing(capsys):
    assert _errors.report(click.ClickException(""), show_traceback=False) == 1
    assert capsys.readouterr() == ("", "")


def test_help_is_silent_on_broken_plugins_while_words_are_completed(install):
    context = click.Context(app, resilient_parsing=True)
    install(narrowpass_commands=[click.Command("build")])
    assert app.list_commands(context) == [*COMMANDS]


class Terminal(io.StringIO):
    """A terminal, as far as a program can see."""

    def isatty(self):
        return True


@pytest.mark.parametrize("title", ["", "Title"])
def test_a_table_on_a_terminal(monkeypatch, title):
    """It has rules where it fits, and is plain text where the terminal is too narrow."""
    monkeypatch.setenv("COLUMNS", "40")
    for columns, ruled in ((("a", "b"), True), (["a" * 9] * 9, False)):
        monkeypatch.setattr(sys, "stdout", Terminal())
        output.print_table(columns, [["1"] * len(columns)], title=title)
        first, *others = sys.stdout.getvalue().splitlines()
        assert (title or columns[0]) in first
        assert any("─" in line for line in others) == ruled


def test_names_are_printed_to_a_stream_without_an_encoding(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with output.printable():
        sys.stdout.write("\udc80")
    assert sys.stdout.getvalue() == "\udc80"


def test_standard_output_that_was_closed_before_the_start(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit) as ended:
        main(["plugins"])
    assert ended.value.code == 0


def test_an_interrupt_while_commands_are_imported(monkeypatch, capsys):
    def interrupted(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(app, "main", interrupted)
    with pytest.raises(SystemExit) as ended:
        main(["plugins"])
    assert ended.value.code == 130
    assert capsys.readouterr().err == "narrowpass: error: interrupted\n"


def test_parts_of_a_pass_that_runs_until_nothing_changes():
    row = {"name": "fold", "parts": ["cse", "dce"], "requires": ["a"]}
    assert _notes(row) == [
        "fold must stand after a",
        "fold runs until nothing changes: cse, dce",
    ]


def test_failures_are_handed_to_the_instrument_of_the_method():
    class Noted(Instrument):
        name = "noted"

        def __init__(self):
            self.seen = []

        def failed(self, pass_, error):
            self.seen.append(error)

    one, other = Noted(), Noted()
    each = _Each([one, other])
    each.finish()
    error = ValueError("x")
    each.failed(None, error)
    assert (one.seen, other.seen) == ([], [error])


def test_a_shell_that_click_does_not_know(call, monkeypatch):
    monkeypatch.setattr(completion, "get_completion_class", lambda shell: None)
    assert "no completion for zsh; upgrade click" in call("completion", "zsh", code=2).err


def test_the_list_of_backends_where_none_can_run(call, install, monkeypatch):
    from narrowpass_reference import ReferenceBackend

    monkeypatch.setattr(ReferenceBackend, "available", lambda self: "not today")
    found = call("backends", "--json").json["backends"]
    assert [(row["available"], row["default"]) for row in found] == [(False, False)]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (5 * 10**9, "5.0 GB"),
        (2 * 10**12, "2.0 TB"),
        (7 * 10**15, "7000.0 TB"),
    ],
)
def test_sizes(count, text):
    assert output.format_bytes(count) == text


def test_a_module_has_the_group_and_nothing_else():
    import narrowpass.cli

    assert isinstance(narrowpass.cli.app, click.Group)
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        _ = narrowpass.cli.other


@pytest.mark.parametrize(
    ("error", "said", "code"),
    [
        (OSError(errno.ENOSPC, "No space left", "f"), "f: No space left; free space", 1),
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n", 1),
        (OSError(), "OSError", 1),
        (RecursionError(), "nested too deeply", 1),
        (MemoryError("8 GB"), "out of memory: 8 GB;", 1),
        (EOFError(), "interrupted", 130),
        (click.UsageError("no"), "no", 2),
        (click.ClickException("bad"), "bad", 1),
        (click.exceptions.Exit(3), "internal error: Exit", 1),
        (UsageError("so"), "so", 2),
        (KeyError("k"), "internal error: KeyError: 'k'", 1),
    ],
)
def test_sentences_of_errors(error, said, code):
    text, found = _errors.describe(error)
    assert said in text
    assert found == code


def test_nothing_is_completed_where_plugins_are_broken(install):
    context = click.Context(app)
    context.params["disabled"] = ("nowhere",)
    for complete in (
        options.complete_backend,
        options.complete_pipeline,
        options.complete_instrument,
    ):
        assert complete(context, None, "") == []


def test_shapes_are_those_of_names():
    assert options.parse_shapes(["x=1x3", "y:0=2"]) == {"x": (1, 3), "y:0": (2,)}
    for texts, said in (
        (["x"], "pass NAME=1x3x224x224"),
        (["x=1xa"], "pass NAME=1x3x224x224"),
        (["x=1", "x=2"], "'x' twice"),
    ):
        with pytest.raises(UsageError, match=said):
            options.parse_shapes(texts)


def test_the_method_that_is_meant():
    assert options.choose_method(None, ["encode"]) == "encode"
    assert options.choose_method(None, ["encode", "main"]) == "main"
    assert options.choose_method("encode", ["encode", "main"]) == "encode"
    with pytest.raises(UsageError, match="there is no such method"):
        options.choose_method("decode", ["encode", "main"])
    with pytest.raises(UsageError, match="there are several methods"):
        options.choose_method(None, ["encode", "decode"])


def test_pairs_of_names_and_values():
    assert options.split_pair("--input", "x=a=b", "NAME=FILE") == ("x", "a=b")
    for text in ("x", "=a", "x="):
        with pytest.raises(UsageError, match="pass NAME=FILE"):
            options.split_pair("--input", text, "NAME=FILE")


@pytest.mark.parametrize("text", ["500MB", "500 mb", "0.5GB", "500000000"])
def test_sizes_are_read(text):
    assert options.parse_bytes("--max-size", text) == 500_000_000
    assert options.parse_bytes("--max-size", "1 KiB") == 1024
    for wrong in ("", "MB", "1TBx", "1,5GB", "-1", "0x10"):
        with pytest.raises(UsageError, match="is not a size; pass 500MB or 2GiB"):
            options.parse_bytes("--max-size", wrong)


def test_the_order_of_passes_is_noted(call, install):
    @dataclass(frozen=True)
    class Late(Pass):
        """Comes after another pass."""

        name = "late"
        requires = ("negate",)

        def run(self, model, ctx):
            return PassResult(model, False)

    install(narrowpass_passes=[Late])
    assert "late must stand after negate" in call("passes", "late").out


def test_no_line_is_printed_before_anything_is_done(monkeypatch, capsys):
    monkeypatch.setattr(output, "EVERY", 0.01)
    with output._lines() as show:
        time.sleep(0.2)
        assert capsys.readouterr().err == ""
        show("pass x", 1, 2)
        time.sleep(0.2)
    assert "pass x, 1 of 2" in capsys.readouterr().err


def test_work_goes_on_without_a_thread_for_its_lines(monkeypatch, capsys):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(output, "EVERY", 0.0)
    monkeypatch.setattr("threading.Thread.start", refuse)
    with output._lines() as show:
        show("pass x", 1, 2)
    assert capsys.readouterr().err == ""


def test_the_module_runs_the_command_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["narrowpass", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("narrowpass", run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("narrowpass ")
    assert callable(runpy.run_module("narrowpass.__main__", run_name="other")["main"])
