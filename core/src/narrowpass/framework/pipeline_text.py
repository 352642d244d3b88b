"""The grammar of pipeline text: from characters to items with options, and carets in errors.

Passes, instruments and backends are all named by it: ``name{option=value,...}``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TypeVar

from narrowpass.errors import PipelineError
from narrowpass.framework.options import HasOptions, OptionError, OptionText, construct

T = TypeVar("T", bound=HasOptions)

_BARE = re.compile(r'[^\s,\[\]{}="]+')
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')


def is_name(text: str) -> bool:
    """Report whether `text` is a name in pipeline text without quotes, and printable."""
    return _BARE.fullmatch(text) is not None and text.isprintable()


@dataclass(frozen=True)
class Value:
    """The text of an option's value and where its option starts."""

    text: OptionText
    start: int


@dataclass(frozen=True)
class Item:
    """A name with options, and where it starts."""

    name: str
    start: int
    options: dict[str, Value]

    @staticmethod
    def error(text: str, position: int, message: str) -> PipelineError:
        """Return an error that shows the text with a caret under `position`."""
        return PipelineError(with_caret(text, position, message))


def with_caret(text: str, position: int, message: str) -> str:
    """Return `message`, below it the text, and a caret under the character at `position`."""
    line = re.sub(r"\s", " ", text)
    return f"{message}\n  {line}\n  {' ' * position}^"


def parse_item(text: str, what: str) -> Item:
    """Parse the text of one thing, such as a backend with its options.

    Args:
        text: ``name`` or ``name{option=value,...}``.
        what: the kind of thing, for messages: ``backend``, ``instrument``.

    Raises:
        PipelineError: text that does not parse, or that names none or several.
    """
    items = Parser(text, what).items()
    if not items:
        raise Item.error(text, 0, f"the name of {_with_article(what)} is expected here")
    if len(items) > 1:
        raise Item.error(text, items[1].start, f"one {what} is expected, not {len(items)}")
    return items[0]


def construct_item(text: str, item: Item, cls: type[T]) -> T:
    """Construct the `cls` that an item of `text` names, with the item's options.

    Raises:
        PipelineError: an unknown option, or a value that does not fit its type; the caret stands
            under the option.
        PluginError: the class itself fails.
    """
    try:
        return construct(cls, {key: value.text for key, value in item.options.items()})
    except OptionError as error:
        place = item.options.get(error.option)
        raise item.error(text, place.start if place else item.start, str(error)) from error


def _with_article(what: str) -> str:
    return f"{'an' if what[0] in 'aeiou' else 'a'} {what}"


class Parser:
    """A recursive-descent parser; its state is the position in the text.

    Args:
        text: what to parse.
        what: the kind of thing that an item names, for messages.
    """

    def __init__(self, text: str, what: str = "pass") -> None:
        self._text = text
        self._what = what
        self._position = 0

    def items(self) -> list[Item]:
        """Return the items of a whole pipeline text."""
        items: list[Item] = []
        self._skip_space()
        while self._position < len(self._text):
            if items:
                self._expect(",", "between passes" if self._what == "pass" else "after the first")
            items.append(self._item())
            self._skip_space()
        return items

    def _item(self) -> Item:
        self._skip_space()
        start = self._position
        name = self._bare(f"the name of {_with_article(self._what)}")
        options: dict[str, Value] = {}
        if not self._accept("{"):
            return Item(name, start, options)
        while not self._accept("}"):
            if options:
                self._expect(",", "between options, or '}' after the last")
            self._option(name, options)
        return Item(name, start, options)

    def _option(self, name: str, options: dict[str, Value]) -> None:
        self._skip_space()
        start = self._position
        key = self._bare(f"an option of {name!r}")
        if key in options:
            raise Item.error(self._text, start, f"option {key!r} is given twice")
        self._expect("=", f"after option {key!r}")
        options[key] = Value(self._value(), start)

    def _value(self) -> OptionText:
        if not self._accept("["):
            return self._scalar()
        items: list[str] = []
        while not self._accept("]"):
            if items:
                self._expect(",", "between list items, or ']' after the last")
            items.append(self._scalar())
        return tuple(items)

    def _scalar(self) -> str:
        self._skip_space()
        if not self._text.startswith('"', self._position):
            return self._bare("a value")
        match = _QUOTED.match(self._text, self._position)
        if match is None:
            raise Item.error(self._text, self._position, "this double quote is never closed")
        try:
            value: str = json.loads(match.group())
        except json.JSONDecodeError as error:
            raise Item.error(
                self._text, self._position + error.pos, f"not a JSON string: {error.msg}"
            ) from None
        self._position = match.end()
        return value

    def _bare(self, what: str) -> str:
        self._skip_space()
        match = _BARE.match(self._text, self._position)
        if match is None:
            raise Item.error(self._text, self._position, f"{what} is expected here")
        self._position = match.end()
        return match.group()

    def _accept(self, character: str) -> bool:
        self._skip_space()
        if not self._text.startswith(character, self._position):
            return False
        self._position += 1
        return True

    def _expect(self, character: str, where: str) -> None:
        if not self._accept(character):
            raise Item.error(self._text, self._position, f"{character!r} is expected {where}")

    def _skip_space(self) -> None:
        rest = self._text[self._position :]
        self._position += len(rest) - len(rest.lstrip())
