"""``narrowpass chat``."""

from __future__ import annotations

import sys
from typing import Any

import click

from narrowpass.cli.state import State, pass_state
from narrowpass.errors import UsageError
from narrowpass_generate.commands.options import model_options, open_model

_HELP = "/reset forgets the conversation, /exit ends it; Ctrl-C stops an answer"


@click.command()
@click.argument("bundle", metavar="BUNDLE")
@click.option("--system", metavar="TEXT", help="The system's message, before the conversation.")
@click.option(
    "--tokens",
    type=click.IntRange(min=1),
    metavar="N",
    help="End an answer after N tokens.  [default: 1024, or as many as the context has room for]",
)
@model_options
@pass_state
def chat(state: State, bundle: str, system: str | None, tokens: int | None, **options: Any) -> None:
    """Talk to a model that was trained for chat.

    The bundle is a decoder with KV caches; its folder has tokenizer.json and the chat template. A
    line of standard input is a message. /reset forgets the conversation, /exit or the end of the
    input ends it, and an interrupt stops an answer. KV caches stay: an answer runs only the tokens
    that are new.
    """
    from narrowpass_generate.commands.answering import show
    from narrowpass_generate.commands.conversation import Conversation

    model = open_model(state, bundle, **options)
    with model.program, Conversation(model, system, tokens) as talk:
        talk.check()
        person = sys.stdin is not None and sys.stdin.isatty()
        if person:
            state.note(_HELP)
        while (line := _line(person=person)) is not None:
            text = line.strip()
            if text == "/exit":
                return
            if text == "/reset":
                talk.reset()
                state.note("the conversation is forgotten")
            elif text.startswith("/") and text[1:].isalpha():
                state.note(f"{text} is no command: {_HELP}")
            elif text:
                try:
                    pieces = talk.ask(text)
                except UsageError as error:  # the context is full: the person may go on
                    state.note(f"{error}; /reset forgets the conversation")
                    continue
                show(pieces, live=True)
                click.echo()
                talk.answered(pieces.result.text)


def _line(*, person: bool) -> str | None:
    """Return a line of standard input; None at its end."""
    if sys.stdin is None:
        raise UsageError("standard input is closed; chat reads messages from it")
    if person:
        try:
            return input("> ")
        except EOFError:
            click.echo()
            return None
    try:
        return sys.stdin.readline() or None
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input is no text: {error}") from error
