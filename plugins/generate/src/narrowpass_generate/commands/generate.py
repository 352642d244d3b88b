"""``narrowpass generate``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from narrowpass.cli.options import json_option
from narrowpass.cli.output import print_json
from narrowpass.cli.state import State, pass_state
from narrowpass.errors import UsageError
from narrowpass_generate.commands.options import Model, model_options, open_model

if TYPE_CHECKING:
    from narrowpass_generate.results import Generation


@click.command()
@click.argument("bundle", metavar="BUNDLE")
@click.argument("text", metavar="TEXT")
@click.option(
    "--tokens",
    type=int,
    metavar="N",
    help="Generate at most N tokens.  [default: 256, or as many as the context has room for]",
)
@click.option(
    "--stop",
    metavar="STRING",
    multiple=True,
    help="End before this string; may be given several times.",
)
@click.option(
    "--chat", is_flag=True, help="Put the text into the model's chat template, as a user's message."
)
@click.option("--system", metavar="TEXT", help="With --chat: the system's message.")
@model_options
@click.option(
    "--stream/--no-stream",
    default=None,
    help="Print text as it comes, or at the end.  [default: as it comes, on a terminal]",
)
@json_option
@pass_state
def generate(
    state: State,
    bundle: str,
    text: str,
    tokens: int | None,
    stop: tuple[str, ...],
    chat: bool,
    system: str | None,
    stream: bool | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Generate the continuation of a text.

    The bundle is a decoder with KV caches, with tokenizer.json in its folder. TEXT is - for what
    standard input has. Only what follows the text is printed; an interrupt ends it, and the exit
    code is 130 then.

    The JSON document has the keys text, tokens (ids), prompt_tokens (their number), finish_reason
    (stop, length or interrupted), drafted and accepted (tokens of speculation), and times: load,
    first_token and total in seconds, and tokens_per_second after the first.
    """
    from narrowpass_generate.commands.answering import collect, show
    from narrowpass_generate.generation import stream as start

    if as_json and stream:
        raise UsageError("--json and --stream contradict each other; pass one")
    if system is not None and not chat:
        raise UsageError("--system is part of a chat template; pass --chat, too")
    given = _read() if text == "-" else text
    model = open_model(state, bundle, **options)
    with model.program:
        prompt = _chat(model, given, system) if chat else model.tokenizer.encode(given)
        pieces = start(
            model.program,
            prompt,
            model.sampling,
            tokens=tokens,
            tokenizer=model.tokenizer,
            stop=stop,
            **model.options,
        )
        if as_json:
            interrupted = collect(pieces)
            print_json(_document(pieces.result, model.seconds))
        else:
            interrupted = show(pieces, live=_on_terminal() if stream is None else stream)
            click.echo()
            state.note(_summary(pieces.result))
    if interrupted:
        click.get_current_context().exit(130)


def _read() -> str:
    if sys.stdin is None:
        raise UsageError("- reads standard input, which is closed; pass the text")
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input is no text: {error}") from error


def _on_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def _chat(model: Model, text: str, system: str | None) -> list[int]:
    messages = [] if system is None else [{"role": "system", "content": system}]
    return model.tokenizer.encode_chat([*messages, {"role": "user", "content": text}])


def _document(result: Generation, load: float) -> dict[str, Any]:
    return {
        "text": result.text,
        "tokens": list(result.tokens),
        "prompt_tokens": result.prompt_tokens,
        "finish_reason": result.finish_reason,
        "drafted": result.drafted,
        "accepted": result.accepted,
        "times": {
            "load": load,
            "first_token": result.first_token,
            "total": result.seconds,
            "tokens_per_second": result.tokens_per_second,
        },
    }


def _summary(result: Generation) -> str:
    drafts = f"; {result.accepted} of {result.drafted} drafts accepted" if result.drafted else ""
    return (
        f"prompt of {result.prompt_tokens} tokens in {result.first_token:.2f} s; "
        f"{len(result.tokens)} tokens, {result.tokens_per_second:.1f} per second{drafts}; "
        f"ended by {result.finish_reason}"
    )
