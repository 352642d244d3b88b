"""Chat templates: Jinja in a sandbox, as the files of models have them.

The sandbox bounds the time of a rendering, and the size of what it holds.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from narrowpass.errors import DataError


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


SECONDS = 10.0
"""The time of one rendering. Templates of models take milliseconds."""

CHARACTERS = 1 << 26
"""The length of all texts and lists together that operators, filters and calls of a rendering
return, and of its result."""

_BITS = 1 << 16
"""The size of the largest integer that ``**`` returns."""

_PERCENT = re.compile(r"%(?:\([^)]*\))?[-#0 +]*([0-9]+|\*)?(?:\.([0-9]+|\*))?")
"""A conversion of ``%``, with its width and its precision."""

_BRACES = re.compile(r"\{[^{}]*:([^{}]*)")
"""The format of a field of ``str.format``, up to a field within it."""

_EACH, _JOINED = "narrowpass each", "narrowpass joined"
"""Names of filters that no template can write."""


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox whose templates end with an error where they compute too much.

    Between two looks at the clock lies one iteration of a loop, one filter, one call or one
    operator. Several threads may render at once.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._own = threading.local()
        self.globals.pop("lipsum")  # takes as long as its argument says
        self.filters = {name: self.counted(found) for name, found in self.filters.items()}
        self.filters[_EACH] = self._each
        self.filters[_JOINED] = self._charged

    def render(self, template: jinja2.Template, values: dict[str, Any]) -> str:
        """Return what `jinja2.Template.render` does.

        Raises:
            SecurityError: it takes too long, or what it holds is too long.
            Exception: what the template raises.
        """
        self._own.deadline, self._own.left = time.monotonic() + SECONDS, CHARACTERS
        try:
            pieces, left = [], CHARACTERS
            for piece in template.generate(values):
                left -= len(piece)
                if left < 0:
                    raise _too_long()
                pieces.append(piece)
            return "".join(pieces)
        finally:
            del self._own.deadline

    def call(self, context: Context, called: Any, /, *args: Any, **named: Any) -> Any:
        """Call what a template calls; jinja2 asks for it."""
        self._look()
        text = getattr(called, "__self__", None)
        if isinstance(text, str):
            formats = called.__name__ in ("format", "format_map")
            found = _BRACES.findall(text) if formats else ()
            _check_widths(number for each in found for number in re.findall("[0-9]+", each))
            if not formats or re.search(r":[^{}]*\{", text):  # a width is an argument
                _check_numbers((*args, *named.values()))
        return self._charged(super().call(context, called, *args, **named))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute an operator of `intercepted_binops`; jinja2 asks for it."""
        self._look()
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * max(right, 0) > _BITS:
                raise SecurityError(f"{operator} of integers of that size")
        elif operator == "%" and isinstance(left, str):
            widths = [width for found in _PERCENT.findall(left) for width in found]
            _check_widths(width for width in widths if width not in ("", "*"))
            if "*" in widths:
                _check_numbers(right if isinstance(right, tuple) else (right,))
        elif operator == "*":
            for times, repeated in ((left, right), (right, left)):
                if isinstance(times, int) and isinstance(repeated, str | list | tuple):
                    self._charge(times * len(repeated))
        return self._charged(super().call_binop(context, operator, left, right))

    def _generate(self, source: nodes.Template, *args: Any, **named: Any) -> str:
        return super()._generate(_Rewriting(self).visit(source), *args, **named)

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a filter whose results are charged, and whose calls look at the clock."""
        # What jinja2 passes to some comes before the value, which is no width.
        before = 1 + hasattr(function, "jinja_pass_arg")

        # `wraps` keeps what jinja2 notes on a filter: which argument it passes to it.
        @functools.wraps(function)
        def counted(*args: Any, **named: Any) -> Any:
            self._look()
            _check_numbers((*args[before:], *named.values()))
            return self._charged(function(*args, **named))

        return counted

    def _each(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._look()
            self._charge(1)
            yield item

    def _look(self) -> None:
        deadline = getattr(self._own, "deadline", None)  # none while a template is compiled
        if deadline is not None and time.monotonic() > deadline:
            raise SecurityError(f"it does not end within {SECONDS:g} s")

    def _charged(self, value: Any) -> Any:
        if isinstance(value, str | list | tuple):
            self._charge(len(value))
        return value

    def _charge(self, length: int) -> None:
        left = getattr(self._own, "left", CHARACTERS) - max(length, 0)
        if left < 0:
            raise _too_long()
        self._own.left = left


class _Rewriting(NodeTransformer):
    """Passes what loops iterate over, and what ``~`` joins, through filters."""

    def __init__(self, environment: jinja2.Environment) -> None:
        self._environment = environment

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802  # jinja2's name
        self.generic_visit(node)
        node.iter = self._filtered(node.iter, _EACH)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802  # jinja2's name
        self.generic_visit(node)
        return self._filtered(node, _JOINED)

    def _filtered(self, node: nodes.Node, name: str) -> nodes.Filter:
        found = nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)
        found.set_environment(self._environment)
        return found


def _check_numbers(values: Iterable[Any]) -> None:
    """Refuse a width or count beyond all texts, which would be allocated before it is charged."""
    if any(isinstance(value, int) and value > CHARACTERS for value in values):
        raise _too_long()


def _check_widths(digits: Iterable[str]) -> None:
    """Refuse widths and precisions beyond all texts."""
    _check_numbers(int(each[:20]) for each in digits)


def _too_long() -> SecurityError:
    return SecurityError(f"its texts are longer than {CHARACTERS:,} characters together")
