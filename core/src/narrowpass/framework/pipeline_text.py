"""The grammar of pipeline text: from characters to items with options, and carets in errors."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from narrowpass.errors import PipelineError
from narrowpass.framework.options import OptionText

_BARE = re.compile(r'[^\s,\[\]{}="]+')
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')


def is_name(text: str) -> bool:
    """Tell whether `text` can stand in pipeline text as a name, and be shown as it is."""
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
        """Give an error that shows the text with a caret under `position`."""
        line = re.sub(r"\s", " ", text)
        return PipelineError(f"{message}\n  {line}\n  {' ' * position}^")


class Parser:
    """A recursive-descent parser; its state is the position in the text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def items(self) -> list[Item]:
        """Give the items of a whole pipeline text."""
        items: list[Item] = []
        self._skip_space()
        while self._position < len(self._text):
            if items:
                self._expect(",", "between passes")
            items.append(self._item())
            self._skip_space()
        return items

    def _item(self) -> Item:
        self._skip_space()
        start = self._position
        name = self._bare("the name of a pass")
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
