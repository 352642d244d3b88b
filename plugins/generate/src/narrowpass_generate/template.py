"""Chat templates: Jinja in a sandbox, as the files of models have them."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from narrowpass.errors import DataError
from narrowpass_generate.bounds import BoundedEnvironment


class _GenerationTag(Extension):
    """``{% generation %}``, which marks what a model is trained on: here its body alone."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the statements of the body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """Text of a conversation, as the model was trained to read it.

    A template comes with a model and is not trusted: it cannot reach what it is not given, nor
    change it, and its time and the length of its texts are bounded.

    Args:
        source: Jinja, with the names that transformers passes to templates.
        tokens: ``bos_token`` and the like, by name.
        where: the file, for messages.

    Raises:
        DataError: it does not parse.
    """

    def __init__(self, source: str, tokens: Mapping[str, str], where: str) -> None:
        environment = BoundedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )
        environment.filters["tojson"] = environment.counted(_to_json)
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _now
        self._where, self._tokens, self._environment = where, dict(tokens), environment
        try:
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise DataError(f"{where}: the chat template does not parse: {error}") from error

    def render(self, messages: Sequence[Mapping[str, Any]], *, answer: bool = True) -> str:
        """Return the text.

        Args:
            messages: each with ``role`` (``system``, ``user``, ``assistant``) and ``content``.
            answer: whether the beginning of the assistant's next message follows.

        Raises:
            DataError: the template refuses the messages, fails, or does not end.
        """
        try:
            values: dict[str, Any] = {
                "messages": [dict(message) for message in messages],
                "add_generation_prompt": answer,
                "tools": None,
                "documents": None,
            }
            return self._environment.render(self._template, values | self._tokens)
        # What a template does with values may raise what Python does with them.
        except (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError) as error:
            raise DataError(f"{self._where}: the chat template fails: {error}") from error
        except (TypeError, ValueError, MemoryError, RecursionError) as error:
            raise DataError(f"{self._where}: the chat template fails: {error}") from error


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    """Return JSON as it is; jinja2's own filter escapes it for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: object) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def _now(form: str) -> str:
    return datetime.datetime.now().astimezone().strftime(form)
